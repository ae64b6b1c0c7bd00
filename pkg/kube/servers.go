package kube

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// Servers are the API servers that a control-plane node can connect to. The one that
// the kubeconfig names may be the very VIP that Herald is to bring up, or the API server
// of a node that has just died. So connections go to the first of these that answers (docs/why.md, "The control
// plane's VIP"):
//
//	the one that kubernetes_addr names, if it is set
//	this node's own API server, if it is ready
//	those that the Service default/kubernetes lists
//	this node's own, ready or not
//	what the kubeconfig names
//
// One that has not answered lately comes last.
//
// Whichever it is shows a certificate for the name "kubernetes", which every API
// server's has, unless the kubeconfig names another (tls-server-name).
type Servers struct {
	port  uint16
	hosts func() []netip.Addr // this node's addresses, VIPs left out
	first string              // host:port to be tried before all others, or ""
	cfg   *rest.Config        // of Connect

	ownReady atomic.Bool
	others   atomic.Pointer[[]netip.Addr] // of all API servers
	conns    sync.Map                     // of *serverConn: those that are open, but for those to first
	silent   sync.Map                     // by host:port, the time.Time when it did not answer
}

// serverName is in the certificate of every API server.
const serverName = "kubernetes"

const (
	// dialTime is how long a connection is tried; dialRetry notices the first that comes up.
	dialTime  = 15 * time.Second
	dialRetry = 100 * time.Millisecond // between two rounds through all API servers
	// attemptDelay is how long one is tried alone (Connection Attempt Delay, RFC 8305 section 5).
	attemptDelay = 250 * time.Millisecond
	// silentTime is how long one that did not answer comes last; by then its readiness is known, or it is not listed.
	silentTime = 30 * time.Second
)

// NewServers makes Servers of hosts, 127.0.0.1, and what becomes known.
func NewServers(port uint16, hosts func() []netip.Addr) *Servers {
	return &Servers{port: port, hosts: hosts}
}

// SetOwnReady stores own readiness, and closes connections made wrong by it.
func (s *Servers) SetOwnReady(ready bool) {
	s.ownReady.Store(ready)
	s.conns.Range(func(key, _ any) bool {
		if c := key.(*serverConn); c.own != ready {
			c.Close()
		}
		return true
	})
}

// setOthers sets API servers' addresses; the last to stop leaves none.
func (s *Servers) setOthers(addrs []netip.Addr) {
	if len(addrs) > 0 {
		s.others.Store(&addrs)
	}
}

// configure has cfg connect to these, to first (host:port) before all others.
func (s *Servers) configure(cfg *rest.Config, first string) {
	s.first, s.cfg = first, cfg
	cfg.Dial = s.dial
	if cfg.TLSClientConfig.ServerName == "" && !cfg.TLSClientConfig.Insecure {
		cfg.TLSClientConfig.ServerName = serverName
	}
}

func (s *Servers) hostPort(a netip.Addr) string { return netip.AddrPortFrom(a, s.port).String() }

// ownTargets is where this node's own API server may listen.
func (s *Servers) ownTargets() []string {
	all := []string{s.hostPort(netip.AddrFrom4([4]byte{127, 0, 0, 1}))}
	for _, a := range s.hosts() {
		all = append(all, s.hostPort(a))
	}
	return all
}

// servingTargets returns ownTargets without loopback, where a proxy may listen (RKE2, Kubespray).
func (s *Servers) servingTargets() []string {
	all := s.ownTargets()
	if len(all) > 1 {
		return all[1:]
	}
	return all
}

// setSilent has the API server at address be the last one to be tried, for silentTime.
func (s *Servers) setSilent(address string) {
	all, now := s.ownTargets(), time.Now()
	if !slices.Contains(all, address) {
		if all = []string{address}; !slices.Contains(s.targets(""), address) {
			all = append(all, s.first) // its name, maybe
		}
	}
	for _, t := range all {
		s.silent.Store(t, now)
	}
}

// silentSince returns when a target did not answer within silentTime, or zero.
func (s *Servers) silentSince(target string) time.Time {
	if at, _ := s.silent.Load(target); at != nil && time.Since(at.(time.Time)) < silentTime {
		return at.(time.Time)
	}
	return time.Time{}
}

// targets returns where to connect, in order; address is the kubeconfig's.
func (s *Servers) targets(address string) []string {
	own, all := s.ownTargets(), []string{s.first}
	if s.ownReady.Load() {
		all = vip.AppendUnique(all, own...)
	}
	if others := s.others.Load(); others != nil {
		for _, a := range *others {
			if t := s.hostPort(a); !slices.Contains(own, t) {
				all = vip.AppendUnique(all, t)
			}
		}
	}
	all = vip.AppendUnique(all, append(own, address)...)
	slices.SortStableFunc(all, func(a, b string) int { return s.silentSince(a).Compare(s.silentSince(b)) })
	return slices.DeleteFunc(all, func(t string) bool { return t == "" })
}

// dial connects to the first API server that answers, within dialTime.
func (s *Servers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	for {
		c, target, err := dialFirst(ctx, network, s.targets(address))
		if err == nil {
			return s.track(c, target), nil
		}
		if !mailbox.Sleep(ctx, dialRetry) {
			return nil, fmt.Errorf("no API server answers: %w", err)
		}
	}
}

// dialFirst connects to the first to answer, each attemptDelay apart.
func dialFirst(ctx context.Context, network string, targets []string) (net.Conn, string, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		conn   net.Conn
		target string
		err    error
	}
	outcomes := make(chan outcome)
	attempt := func(target string) {
		c, err := dial(ctx, network, target)
		select {
		case outcomes <- outcome{c, target, err}:
		case <-ctx.Done():
			if c != nil {
				c.Close() // another was faster
			}
		}
	}
	var errs []error
	for started := 0; len(errs) < len(targets); {
		var next <-chan time.Time
		if started < len(targets) {
			go attempt(targets[started])
			started++
			next = time.After(attemptDelay)
		}
		select {
		case <-next:
		case o := <-outcomes:
			if o.err == nil {
				return o.conn, o.target, nil
			}
			errs = append(errs, o.err)
		case <-ctx.Done():
			return nil, "", errors.Join(append(errs, ctx.Err())...)
		}
	}
	return nil, "", errors.Join(errs...)
}

// track remembers a connection for SetOwnReady, unless it is to s.first.
func (s *Servers) track(c net.Conn, target string) net.Conn {
	if target == s.first {
		return c
	}
	tracked := &serverConn{Conn: c, own: slices.Contains(s.ownTargets(), target), servers: s}
	s.conns.Store(tracked, nil)
	return tracked
}

type serverConn struct {
	net.Conn
	own     bool // to this node's own
	servers *Servers
}

func (c *serverConn) Close() error {
	c.servers.conns.Delete(c)
	return c.Conn.Close()
}

// ReadinessCheck makes a check of the own API server: GET of address, or of /readyz with credentials.
func (s *Servers) ReadinessCheck(address, ca string, log *slog.Logger) (func(context.Context) error, error) {
	secure, err := rest.TLSConfigFor(s.cfg)
	if err != nil {
		return nil, fmt.Errorf("the credentials for the API server can't be used: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true, DialContext: dial}
	var roundTripper http.RoundTripper = transport
	anonymous, refused := address != "", sync.Once{}
	if !anonymous {
		address = "https://" + net.JoinHostPort(serverName, strconv.Itoa(int(s.port))) + "/readyz"
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			c, _, err := dialFirst(ctx, network, s.servingTargets())
			return c, err
		}
		if roundTripper, err = rest.HTTPWrappersForConfig(s.cfg, transport); err != nil {
			return nil, fmt.Errorf("the credentials for the API server can't be used: %w", err)
		}
	} else if transport.TLSClientConfig, err = tlsConfigFor(secure, address, ca); err != nil {
		return nil, err
	}
	client := &http.Client{Transport: roundTripper,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return func(ctx context.Context) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if anonymous && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden) {
			refused.Do(func() {
				log.Warn("the API server refuses anonymous requests of its health check, so any such answer counts as ready; "+
					"without control_plane_health_check_address /readyz is asked with credentials",
					"address", address, "err", answer.Status)
			})
			return nil
		}
		if answer.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
			return fmt.Errorf("GET %s: %s: %s", address, answer.Status, text)
		}
		return nil
	}, nil
}

// tlsConfigFor verifies address by the file ca, or secure's CAs.
func tlsConfigFor(secure *tls.Config, address, ca string) (*tls.Config, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			return nil, err
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s holds no certificate in PEM form", ca)
		}
	}
	if secure == nil {
		return c, nil
	}
	if ca == "" {
		c.RootCAs, c.InsecureSkipVerify = secure.RootCAs, secure.InsecureSkipVerify
	}
	if a, err := netip.ParseAddr(u.Hostname()); u.Hostname() == "localhost" || err == nil && a.IsLoopback() {
		c.ServerName = secure.ServerName
	}
	return c, nil
}
