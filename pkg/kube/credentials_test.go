package kube

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// renewedKubeconfig is kubeconfig with another token.
var renewedKubeconfig = strings.Replace(kubeconfig, "token: t", "token: renewed", 1)

// newCredentialsWatch makes one of a kubeconfig that it writes, for a node that renews its node lease and an API
// server that takes the renewed credentials only.
func newCredentialsWatch(t *testing.T) *CredentialsWatch {
	t.Setenv("HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "admin.conf")
	check.OK(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	cfg, origin, err := Connect(Access{File: file, Server: "https://192.0.2.9:6443"})
	check.OK(t, err)
	w := NewCredentialsWatch(cfg, origin, vip.Key{Namespace: "kube-system", Name: "herald-node-n1"}, func() vip.Tenure {
		return vip.Tenure{Epoch: 1, Until: time.Now().Add(10 * time.Second), Confirmed: true}
	}, check.Log(t))
	w.ask = func(_ context.Context, cfg *rest.Config) error {
		if cfg.BearerToken == "renewed" {
			return nil
		}
		return apierrors.NewUnauthorized("expired")
	}
	return w
}

// A kubeconfig with a renewed certificate, or token, ends the process, which hands over and is started again;
// whatever else happens to the file does not.
func TestCredentialsWatch(t *testing.T) {
	for _, tt := range []struct {
		name  string
		texts []string // what it contains in the first minute, the second, and from then on
		ends  bool
	}{
		{"nothing changes", []string{kubeconfig}, false},
		{"something else changes", []string{kubeconfig + "# a comment\n"}, false},
		{"renewed", []string{kubeconfig, renewedKubeconfig}, true},
		{"half written for a moment", []string{kubeconfig, renewedKubeconfig[:len(renewedKubeconfig)/2], kubeconfig}, false},
		{"other for a moment", []string{kubeconfig, renewedKubeconfig, kubeconfig}, false},
		{"other for a minute and a moment", []string{kubeconfig, renewedKubeconfig, renewedKubeconfig, kubeconfig}, false},
		{"emptied", []string{kubeconfig, ""}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCredentialsWatch(t)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				var writes sync.WaitGroup
				defer writes.Wait()
				writes.Go(func() {
					time.Sleep(time.Microsecond) // after the look of this minute
					for _, text := range tt.texts {
						check.OK(t, os.WriteFile(w.file, []byte(text), 0o600))
						time.Sleep(credentialsPeriod)
					}
				})
				if err := w.Run(ctx); (err != nil) != tt.ends || err != nil && !strings.Contains(err.Error(), w.file) {
					t.Errorf("it ends with %v, want an error: %v", err, tt.ends)
				}
			})
		})
	}
}

// Nodes whose credentials are renewed at once do not end at once.
func TestCredentialsWatchesEndOneByOne(t *testing.T) {
	w := newCredentialsWatch(t)
	check.OK(t, os.WriteFile(w.file, []byte(renewedKubeconfig), 0o600))
	synctest.Test(t, func(t *testing.T) {
		began, ended := time.Now(), make(chan time.Time)
		for range 20 {
			go func() {
				if w.Run(t.Context()) != nil {
					ended <- time.Now()
				}
			}()
		}
		seconds := make(map[int]bool)
		for range 20 {
			took := (<-ended).Sub(began)
			if took < 2*credentialsPeriod || took > 3*credentialsPeriod {
				t.Errorf("one ended after %v", took)
			}
			seconds[int(took.Seconds())] = true
		}
		if len(seconds) < 5 {
			t.Errorf("20 nodes ended in %d seconds", len(seconds))
		}
	})
}

// While this process can renew it ends only for credentials that the API server takes: those of another cluster, or of a user that it does
// not know yet, would end it on all nodes. What they are refused for is logged once, and again when it or they change.
func TestCredentialsWatchWhileTheNewOnesAreRefused(t *testing.T) {
	refused, forbidden, away := apierrors.NewUnauthorized("unknown"), apierrors.NewForbidden(schema.GroupResource{}, "",
		nil), errors.New("connection refused")
	other := strings.Replace(kubeconfig, "token: t", "token: other", 1)
	for _, tt := range []struct {
		name     string
		answers  []error // to the credentials in the file: in the first half hour, and from then on
		other    bool    // after half an hour the file has others
		ends     bool
		warnings int
	}{
		{"taken", []error{nil, nil}, false, true, 0},
		{"refused", []error{refused, refused}, false, false, 1},
		{"of another authority", []error{&url.Error{Err: &tls.CertificateVerificationError{Err: errors.New("unknown authority")}}, refused}, false, false, 1},
		{"no right", []error{forbidden, forbidden}, false, false, 1},
		{"the API server is away", []error{away, away}, false, false, 1},
		{"away, then refused", []error{away, refused}, false, false, 2},
		{"refused, and others, too", []error{refused, refused}, true, false, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCredentialsWatch(t)
			var logged strings.Builder
			w.log = slog.New(slog.NewTextHandler(&logged, nil))
			check.OK(t, os.WriteFile(w.file, []byte(renewedKubeconfig), 0o600))
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				w.ask = func(_ context.Context, cfg *rest.Config) error {
					if cfg.Host != "https://192.0.2.9:6443" || cfg.Dial == nil || cfg.BearerToken == "t" {
						t.Errorf("it asks %s with the token %s", cfg.Host, cfg.BearerToken)
					}
					if time.Since(began) < 30*time.Minute {
						return tt.answers[0]
					}
					return tt.answers[1]
				}
				if tt.other {
					defer time.AfterFunc(30*time.Minute, func() { check.OK(t, os.WriteFile(w.file, []byte(other), 0o600)) }).Stop()
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if err := w.Run(ctx); (err != nil) != tt.ends || tt.ends && time.Since(began) > 3*credentialsPeriod {
					t.Errorf("it ends after %v with %v", time.Since(began), err)
				}
				if n := strings.Count(logged.String(), "level=WARN"); n != tt.warnings || n > 0 &&
					!strings.Contains(logged.String(), w.file) {
					t.Errorf("%d warnings, want %d:\n%s", n, tt.warnings, &logged)
				}
			})
		})
	}
}

// A process that would be able to hold nothing once it is started again does not end: while the API server takes no
// renewals, and the nodes hold on without it.
func TestCredentialsWatchWhileTheRenewalIsLate(t *testing.T) {
	refused, away := apierrors.NewUnauthorized("expired"), errors.New("connection refused")
	for _, tt := range []struct {
		name     string
		old, new error // what the API server answers to the credentials while the renewal is late
		replaced bool  // the file, where it is mounted: what it contains now can't be read
		given    bool  // the node has given up its claims
		ends     bool
	}{
		{name: "the API server is away", old: away, new: away},
		{name: "it comes back meanwhile", old: away},
		{name: "it reads, but does not write"},
		{name: "it refuses both", old: refused, new: refused},
		{name: "it refuses those that have expired", old: refused, ends: true},
		{name: "it has a certificate of another authority",
			old: &url.Error{Err: &tls.CertificateVerificationError{Err: errors.New("unknown authority")}}, ends: true},
		{name: "it refuses, and the file was replaced", old: refused, new: refused, replaced: true, ends: true},
		{name: "it is away, and the file was replaced", old: away, new: away, replaced: true},
		{name: "this node carries nothing", old: away, new: away, given: true, ends: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newCredentialsWatch(t)
			if tt.replaced {
				f := check.Value(os.Open(w.file))(t)
				defer f.Close()
				check.OK(t, os.Remove(w.file))
				w.file = fmt.Sprintf("/proc/self/fd/%d", f.Fd())
			} else {
				check.OK(t, os.WriteFile(w.file, []byte(renewedKubeconfig), 0o600))
			}
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				w.tenure = func() vip.Tenure {
					x := vip.Tenure{Epoch: 1, Confirmed: true}
					if time.Since(began) < 30*time.Minute {
						x.RenewalLateSince = began
					}
					if !tt.given {
						x.Until = time.Now().Add(10 * time.Second)
					}
					return x
				}
				w.ask = func(_ context.Context, cfg *rest.Config) error {
					if cfg.Host != "https://192.0.2.9:6443" || cfg.Dial == nil {
						t.Errorf("it asks %s", cfg.Host)
					}
					switch {
					case cfg.BearerToken != "renewed":
						return tt.old
					case time.Since(began) < 30*time.Minute:
						return tt.new
					}
					return nil
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				err := w.Run(ctx)
				if took := time.Since(began); err == nil || tt.ends != (took <= 3*credentialsPeriod) ||
					took > 30*time.Minute+3*credentialsPeriod {
					t.Errorf("it ends after %v with %v", took, err)
				}
			})
		})
	}
}

// The API server is asked for the node lease: whether it answers the credentials, and can read what is stored.
func TestCredentialsAreAnswered(t *testing.T) {
	for _, tt := range []struct {
		name     string
		token    string
		status   int
		answered bool
		refused  bool
	}{
		{"the lease", "renewed", http.StatusOK, true, false},
		{"no lease yet", "renewed", http.StatusNotFound, true, false},
		{"etcd is away", "renewed", http.StatusInternalServerError, false, false},
		{"no right", "renewed", http.StatusForbidden, false, false},
		{"expired", "t", http.StatusOK, false, true},
		{"another authority", "", http.StatusOK, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				status := tt.status
				if r.Header.Get("Authorization") != "Bearer renewed" {
					status = http.StatusUnauthorized
				}
				check.Equal(t, r.URL.Path, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/herald-node-n1", "it asks for")
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				if status == http.StatusOK {
					_, _ = w.Write([]byte(`{"apiVersion":"coordination.k8s.io/v1","kind":"Lease"}`))
				}
			}))
			defer s.Close()
			s.Config.ErrorLog = log.New(io.Discard, "", 0)
			w := NewCredentialsWatch(&rest.Config{}, Origin{File: "/admin.conf"}, vip.Key{Namespace: "kube-system",
				Name: "herald-node-n1"}, nil, nil)
			cfg := &rest.Config{Host: s.URL, BearerToken: tt.token}
			if tt.token != "" {
				cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
			}
			if err := w.ask(t.Context(), cfg); (err == nil) != tt.answered || refusesCredentials(err) != tt.refused {
				t.Errorf("it answers %v, refuses: %v", err, refusesCredentials(err))
			}
		})
	}
}

// A token in a file of its own, which client-go reads again, is no reason to end.
func TestTokenFileIsReadAgain(t *testing.T) {
	before, after := rest.Config{BearerToken: "a", BearerTokenFile: "/token"},
		rest.Config{BearerToken: "b", BearerTokenFile: "/token"}
	check.Equal(t, credentialsOf(&before), credentialsOf(&after), "credentials with another token in the file")
}
