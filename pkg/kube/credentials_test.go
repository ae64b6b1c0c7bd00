package kube

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/testing/check"
)

// A kubeconfig with a renewed certificate, or token, ends the process, which hands over and is started again; whatever else happens to the file does not.
func TestCredentialsWatch(t *testing.T) {
	renewed := strings.Replace(kubeconfig, "token: t", "token: renewed", 1)
	if renewed == kubeconfig {
		t.Fatal("the kubeconfig has no token")
	}
	for _, tt := range []struct {
		name  string
		texts []string // what it contains in the first minute, the second, and from then on
		ends  bool
	}{
		{"nothing changes", []string{kubeconfig}, false},
		{"something else changes", []string{kubeconfig + "# a comment\n"}, false},
		{"renewed", []string{kubeconfig, renewed}, true},
		{"half written for a moment", []string{kubeconfig, renewed[:len(renewed)/2], kubeconfig}, false},
		{"other for a moment", []string{kubeconfig, renewed, kubeconfig}, false},
		{"emptied", []string{kubeconfig, ""}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			file := filepath.Join(t.TempDir(), "admin.conf")
			write := func(text string) { check.OK(t, os.WriteFile(file, []byte(text), 0o600)) }
			write(kubeconfig)
			cfg, origin, err := Connect(Access{File: file, Server: "https://192.0.2.9:6443"})
			check.OK(t, err)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
				defer cancel()
				go func() {
					for _, text := range tt.texts {
						write(text)
						time.Sleep(credentialsPeriod)
					}
				}()
				if err := NewCredentialsWatch(cfg, origin).Run(ctx); (err != nil) != tt.ends || err != nil && !strings.Contains(err.Error(), file) {
					t.Errorf("it ends with %v, want an error: %v", err, tt.ends)
				}
			})
		})
	}
}

// A token in a file of its own, which client-go reads again, is no reason to end.
func TestTokenFileIsReadAgain(t *testing.T) {
	before, after := rest.Config{BearerToken: "a", BearerTokenFile: "/token"}, rest.Config{BearerToken: "b", BearerTokenFile: "/token"}
	if credentialsOf(&before) != credentialsOf(&after) {
		t.Error("another token in the file counts as other credentials")
	}
}
