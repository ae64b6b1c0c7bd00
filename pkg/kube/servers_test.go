package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/testing/check"
)

// A fakeServer is an HTTPS server that shows the certificate of an API server.
type fakeServer struct {
	name   string
	server *http.Server
	status atomic.Int32
	auth   atomic.Value           // the last Authorization header
	hangs  atomic.Pointer[string] // it does not answer requests whose paths have this suffix; nil: it answers all
}

// identity is a certificate for the name kubernetes only, and itself as its CA.
func identity(t *testing.T) (tls.Certificate, []byte) {
	t.Helper()
	key := check.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, DNSNames: []string{serverName},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der := check.Value(x509.CreateCertificate(rand.Reader, c, c, key.Public(), key))(t)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key},
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// listen starts a fakeServer at host:port.
func listen(t *testing.T, name, at string, id tls.Certificate) *fakeServer {
	t.Helper()
	l := check.Value(net.Listen("tcp", at))(t)
	f := &fakeServer{name: name}
	f.status.Store(http.StatusOK)
	f.auth.Store("")
	f.server = &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{id}}, ErrorLog: log.New(os.Stderr, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f.auth.Store(r.Header.Get("Authorization"))
			if suffix := f.hangs.Load(); suffix != nil && strings.HasSuffix(r.URL.Path, *suffix) {
				<-r.Context().Done()
				return
			}
			if r.Method == http.MethodPut {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","spec":{"holderIdentity":%q}}`, name)
				return
			}
			w.WriteHeader(int(f.status.Load()))
			fmt.Fprint(w, name)
		}),
	}
	go f.server.ServeTLS(l, "", "")
	t.Cleanup(func() { f.server.Close() })
	return f
}

// freePort is a port that nobody listens on, on any of the loopback's addresses.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l := check.Value(net.Listen("tcp", "0.0.0.0:0"))(t)
	defer l.Close()
	return uint16(l.Addr().(*net.TCPAddr).Port)
}

// connectTo connects as Herald does: the kubeconfig names nobody who listens.
func connectTo(t *testing.T, ca []byte, s *Servers) *rest.Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "admin.conf")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}],
		"clusters":[{"name":"x","cluster":{"server":"https://127.0.0.99:%d","certificate-authority-data":%q}}],"users":[{"name":"x","user":{"token":"secret"}}]}`,
		s.port, base64Of(ca))
	check.OK(t, os.WriteFile(file, []byte(text), 0o600))
	cfg, where, err := Connect(Access{File: file, Version: "test", Servers: s})
	check.OK(t, err)
	if !strings.HasSuffix(where.Text, "this node's own API server first") {
		t.Errorf("where %v", where)
	}
	return cfg
}

// asks fails the test unless a request by way of cfg is answered by want, over new connections and those of the clients.
func asks(t *testing.T, cfg *rest.Config, want string, clients ...*http.Client) {
	t.Helper()
	client := check.Value(rest.HTTPClientFor(cfg))(t)
	for i, client := range append(clients, client) {
		check.Equal(t, answerer(t, client, cfg.Host), want, "client %d of %d, the last one new: asked", i+1, len(clients)+1)
	}
}

// answerer is who answers a request of the client.
func answerer(t *testing.T, client *http.Client, host string) string {
	t.Helper()
	answer, err := client.Get(host + "/version")
	for errors.Is(err, net.ErrClosed) { // it was given a connection that was just closed: nobody retries that over HTTP/2
		answer, err = client.Get(host + "/version")
	}
	check.OK(t, err)
	defer answer.Body.Close()
	text := make([]byte, 20)
	n, _ := answer.Body.Read(text)
	return string(text[:n])
}

// TestServers: who is asked, as API servers come and go. 127.0.0.1 is this node, 127.0.0.2 another one.
func TestServers(t *testing.T) {
	id, ca := identity(t)
	port := freePort(t)
	s := NewServers(port, func() []netip.Addr { return nil })
	cfg := connectTo(t, ca, s)
	client := check.Value(rest.HTTPClientFor(cfg))(t)

	// Nobody is there. As soon as somebody is, the request goes through.
	came := time.AfterFunc(300*time.Millisecond, func() { listen(t, "own", at("127.0.0.1", port), id) })
	defer came.Stop()
	began := time.Now()
	check.Equal(t, answerer(t, client, cfg.Host), "own", "asked")
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("it took %v", took)
	}
	listen(t, "other", at("127.0.0.2", port), id)
	s.setOthers(addrs("127.0.0.1", "127.0.0.2"))

	// Ready: this node's own. Not ready: the other, on the old client too, whose connection would otherwise live on.
	s.SetOwnReady(true)
	asks(t, cfg, "own")
	s.SetOwnReady(false)
	asks(t, cfg, "other", client)
	// Ready again: what is left with the other would hang when that one's node dies.
	s.SetOwnReady(true)
	asks(t, cfg, "own", client)
	s.SetOwnReady(false)
	// An empty list is ignored.
	s.setOthers(nil)
	asks(t, cfg, "other")
}

// TestServersOfADeadNode: an address that swallows packets costs a moment only.
func TestServersOfADeadNode(t *testing.T) {
	id, ca := identity(t)
	port := freePort(t)
	full := check.Value(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 3), Port: int(port)}))(t)
	defer full.Close()
	fillBacklog(t, full)
	s := NewServers(port, func() []netip.Addr { return nil })
	s.setOthers(addrs("127.0.0.3", "127.0.0.4"))
	listen(t, "other", at("127.0.0.4", port), id)
	began := time.Now()
	asks(t, connectTo(t, ca, s), "other")
	if took := time.Since(began); took < attemptDelay || took > 2*time.Second {
		t.Errorf("it took %v, want a little more than %v", took, attemptDelay)
	}
}

// TestServersWithKubernetesAddr: who sets kubernetes_addr gets it, while it answers.
func TestServersWithKubernetesAddr(t *testing.T) {
	id, ca := identity(t)
	port := freePort(t)
	listen(t, "own", at("127.0.0.1", port), id)
	named := listen(t, "named", at("127.0.0.5", port), id)
	s := NewServers(port, func() []netip.Addr { return nil })
	cfg := connectTo(t, ca, s)
	s.configure(cfg, at("127.0.0.5", port))
	s.SetOwnReady(true)
	asks(t, cfg, "named")
	named.server.Close()
	asks(t, cfg, "own")
}

// TestReadinessCheck: what is asked of this node's own API server, where, and as whom.
func TestReadinessCheck(t *testing.T) {
	id, ca := identity(t)
	port := freePort(t)
	s := NewServers(port, func() []netip.Addr { return addrs("127.0.0.6") })
	connectTo(t, ca, s)
	cas := "" // control_plane_health_check_ca_path
	var logged bytes.Buffer
	log := slog.New(slog.NewTextHandler(&logged, nil))
	question := func(address string) error {
		t.Helper()
		ask := check.Value(s.ReadinessCheck(address, cas, log))(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		return ask(ctx)
	}
	if err := question(""); err == nil {
		t.Error("yes, and nobody is there")
	}
	own := listen(t, "own", at("127.0.0.6", port), id) // it does not listen on 127.0.0.1
	check.OK(t, question(""))
	check.Equal(t, own.auth.Load(), "Bearer secret", "Authorization")
	// What listens on loopback alone may be a proxy to the API servers of other nodes.
	elsewhere := NewServers(port, func() []netip.Addr { return addrs("127.0.0.8") })
	connectTo(t, ca, elsewhere)
	ask := check.Value(elsewhere.ReadinessCheck("", "", log))(t)
	proxy := listen(t, "proxy", at("127.0.0.1", port), id)
	if err := ask(t.Context()); err == nil {
		t.Error("yes, of a proxy that listens on loopback alone")
	}
	check.OK(t, proxy.server.Close())
	own.status.Store(http.StatusInternalServerError)
	check.Contains(t, fmt.Sprint(question("")), "500") // the answer of the API server
	own.status.Store(http.StatusOK)
	// An address that was set, on this host: the certificate is that of an API server, and the credentials stay here.
	local := listen(t, "local", at("127.0.0.1", port), id)
	check.OK(t, question("https://"+at("127.0.0.1", port)+"/livez"))
	check.Equal(t, local.auth.Load(), "", "Authorization")
	// Where anonymous requests are refused it is alive, which is told once; with credentials it has to be ready.
	for _, status := range []int32{http.StatusUnauthorized, http.StatusForbidden, http.StatusUnauthorized} {
		local.status.Store(status)
		own.status.Store(status)
		check.OK(t, question("https://"+at("127.0.0.1", port)+"/livez"))
		if err := question(""); err == nil {
			t.Errorf("%d to the node's credentials counts as ready", status)
		}
	}
	if n := strings.Count(logged.String(), "refuses anonymous requests"); n != 3 { // one a check
		t.Errorf("logged %d times:\n%s", n, &logged)
	}
	local.status.Store(http.StatusOK)
	own.status.Store(http.StatusOK)
	if err := question("https://" + at("127.0.0.6", 1) + "/livez"); err == nil {
		t.Error("yes, and nobody is there")
	}
	otherID, otherCA := identity(t)
	listen(t, "other", at("127.0.0.7", port), otherID)
	if err := question("https://" + at("127.0.0.7", port) + "/livez"); err == nil {
		t.Error("a certificate of another CA was accepted")
	}
	// A file of CAs that was set is that of the other.
	cas = filepath.Join(t.TempDir(), "ca.crt")
	check.OK(t, os.WriteFile(cas, otherCA, 0o600))
	check.OK(t, question("https://"+at("127.0.0.7", port)+"/livez"))
	if err := question("https://" + at("127.0.0.1", port) + "/livez"); err == nil {
		t.Error("with another CA set the cluster's was accepted")
	}
	check.OK(t, question("")) // of this node's own API server, whose CA the credentials have
	check.OK(t, os.WriteFile(cas, []byte("none"), 0o600))
	for _, file := range []string{cas, cas + ".none"} {
		_, err := s.ReadinessCheck("https://localhost/livez", file, log)
		check.Contains(t, fmt.Sprint(err), file)
	}
}

// fillBacklog fills the queue of a listener that nobody accepts from, so that further packets to it are dropped, as
// by a node that has died.
func fillBacklog(t *testing.T, l *net.TCPListener) {
	t.Helper()
	raw := check.Value(l.SyscallConn())(t)
	raw.Control(func(fd uintptr) { unix.Listen(int(fd), 0) })
	for range 3 {
		d := net.Dialer{Timeout: 100 * time.Millisecond}
		c, err := d.Dial("tcp", l.Addr().String())
		if err != nil {
			return // it is full
		}
		t.Cleanup(func() { c.Close() })
	}
	t.Fatal("the queue takes any number of connections")
}

func at(host string, port uint16) string { return net.JoinHostPort(host, fmt.Sprint(port)) }

// leasesOf makes Leases as a manager has them, of which writeLease is used.
func leasesOf(t *testing.T, cfg *rest.Config, s *Servers) *Leases {
	t.Helper()
	poke := func() {}
	c := check.Value(New(cfg, Options{Log: slog.New(slog.DiscardHandler), Servers: s, Poke: poke, PokeLeases: poke}))(t)
	return c.Leases
}

// leaseTry is how long package lease first waits for a renewal.
const leaseTry = 600 * time.Millisecond

// writeLease writes a Lease and returns which server answered, or "" and an error after leaseTry.
func writeLease(t *testing.T, l *Leases, name string) (string, error) {
	ctx, cancel := context.WithTimeout(t.Context(), leaseTry)
	defer cancel()
	x, err := l.Write(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "herald", Name: name, ResourceVersion: "1"}})
	if err != nil {
		return "", err
	}
	return *x.Spec.HolderIdentity, nil
}

// TestSilentServer: when an API server accepts a write of a Lease and does not answer, the next write goes to another
// one, until it is that one's turn not to answer.
func TestSilentServer(t *testing.T) {
	id, ca := identity(t)
	port := freePort(t)
	own, other := listen(t, "own", at("127.0.0.1", port), id), listen(t, "other", at("127.0.0.2", port), id)
	s := NewServers(port, func() []netip.Addr { return addrs("127.0.0.9") })
	s.setOthers(addrs("127.0.0.2"))
	s.SetOwnReady(true)
	proxy(t, at("127.0.0.9", port), at("127.0.0.1", port)) // it has two addresses
	l := leasesOf(t, connectTo(t, ca, s), s)
	answers := func(want string) {
		t.Helper()
		if got, err := writeLease(t, l, "a"); got != want {
			t.Errorf("%q answers (%v), want %q", got, err, want)
		}
	}
	answers("own")
	own.hangs.Store(new(""))
	answers("")
	answers("other")
	answers("other")
	own.hangs.Store(nil)
	other.hangs.Store(new(""))
	answers("")
	answers("own")
}

// A roundTrips answers the next request.
type roundTrips []func(r *http.Request) (*http.Response, error)

func (all *roundTrips) RoundTrip(r *http.Request) (*http.Response, error) {
	f := (*all)[0]
	*all = (*all)[1:]
	return f(r)
}

// TestLeftConnection: the pool of connections may learn late that one was closed; a write that would go by it goes by
// another one.
func TestLeftConnection(t *testing.T) {
	sent := ""
	closed := func(r *http.Request) (*http.Response, error) {
		check.Value(io.ReadAll(r.Body))(t)
		return nil, &net.OpError{Op: "write", Err: net.ErrClosed}
	}
	works := func(r *http.Request) (*http.Response, error) {
		sent += string(check.Value(io.ReadAll(r.Body))(t))
		return &http.Response{}, nil
	}
	wrote := func(r *http.Request) (*http.Response, error) { // the server may have carried it out
		httptrace.ContextClientTrace(r.Context()).WroteRequest(httptrace.WroteRequestInfo{})
		return closed(r)
	}
	r := check.Value(http.NewRequest(http.MethodPut, "https://192.0.2.1/", strings.NewReader("a lease")))(t)
	check.Value((&leavingTransport{next: &roundTrips{closed, closed, works}}).RoundTrip(r))(t)
	check.Equal(t, sent, "a lease", "sent")
	r.Body = check.Value(r.GetBody())(t)
	_, err := (&leavingTransport{next: &roundTrips{wrote, works}}).RoundTrip(r)
	check.Is(t, err, net.ErrClosed, "a write that was sent")
}

// proxy hands the connections to an address to others in turn, as kube-proxy does.
func proxy(t *testing.T, from string, to ...string) {
	t.Helper()
	l := check.Value(net.Listen("tcp", from))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for i := 0; ; i++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", to[i%len(to)])
			if err != nil {
				c.Close()
				continue
			}
			go func() { io.Copy(up, c); up.Close() }()
			go func() { io.Copy(c, up); c.Close() }()
		}
	}()
}

// TestSilentBackend: the same behind one address, the Service kubernetes.
func TestSilentBackend(t *testing.T) {
	id, ca := identity(t)
	port := freePort(t)
	a, b := listen(t, "a", at("127.0.0.1", port), id), listen(t, "b", at("127.0.0.2", port), id)
	proxy(t, at("127.0.0.3", port), at("127.0.0.1", port), at("127.0.0.2", port))
	l := leasesOf(t, &rest.Config{Host: "https://" + at("127.0.0.3", port), QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: ca, ServerName: serverName}}, nil)
	if got, err := writeLease(t, l, "a"); got != "a" {
		t.Fatalf("%q answers (%v)", got, err)
	}
	a.hangs.Store(new(""))
	if got, err := writeLease(t, l, "a"); err == nil {
		t.Fatalf("%q answers", got)
	}
	if got, err := writeLease(t, l, "a"); got != "b" {
		t.Errorf("%q answers (%v), want b", got, err)
	}
	// One Lease is not answered for, by a webhook: the connection is as good as any.
	b.hangs.Store(new("/slow"))
	slow := make(chan error)
	go func() { _, err := writeLease(t, l, "slow"); slow <- err }()
	for waits := true; waits; {
		if got, err := writeLease(t, l, "a"); got != "b" {
			t.Errorf("beside a slow write: %q answers (%v), want b", got, err)
		}
		select {
		case err := <-slow:
			if err == nil {
				t.Error("the slow write was answered")
			}
			waits = false
		case <-time.After(20 * time.Millisecond):
		}
	}
	if got, err := writeLease(t, l, "a"); got != "b" {
		t.Errorf("after a slow write: %q answers (%v), want b", got, err)
	}
}
