package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// Servers is the API servers that a control-plane node can talk to. The one that the
// kubeconfig names may be the very VIP that Herald is to bring up, or the API server
// of a node that has just died. So connections go to the first of these that answers:
//
//	this node's own API server, if it is ready
//	those that the Service default/kubernetes lists
//	this node's own, ready or not
//	what the kubeconfig names
//
// Whichever it is shows a certificate for the name "kubernetes", which every
// API server's has, unless the kubeconfig names another (tls-server-name).
type Servers struct {
	port  uint16
	hosts func() []netip.Addr // this node's addresses, VIPs left out
	first string              // host:port to be tried before all others, or ""
	cfg   *rest.Config        // of Connect

	mu     sync.Mutex
	ready  bool                 // this node's own is
	others []netip.Addr         // of all API servers
	conns  map[*serverConn]bool // open connections; whether to this node's own
}

// serverName is in the certificate of every API server.
const serverName = "kubernetes"

const (
	// patience is how long a connection is tried for while no API server answers.
	// To try on is how the first that comes up is noticed at once.
	patience = 15 * time.Second
	tryAgain = 100 * time.Millisecond // between two rounds through all API servers
	stagger  = 250 * time.Millisecond // before the next is tried beside one that has not answered yet
)

// NewServers is the API servers at port: of this node, which has the addresses that
// hosts says, and of those that become known.
func NewServers(port uint16, hosts func() []netip.Addr) *Servers {
	return &Servers{port: port, hosts: hosts, conns: make(map[*serverConn]bool)}
}

// Prefer says whether this node's own API server is ready. If it is not, connections
// to it end, so that requests go to another. If it is, those to others end: the death of
// another node is not to be what keeps this one from its work.
func (s *Servers) Prefer(own bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = own
	for c, mine := range s.conns {
		if mine != own {
			c.Conn.Close()
		}
	}
}

// know takes over the addresses of all API servers.
func (s *Servers) know(addrs []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(addrs) > 0 { // none is what the last one that dies leaves behind
		s.others = addrs
	}
}

// use makes cfg connect to these API servers.
func (s *Servers) use(cfg *rest.Config, first string) {
	s.first, s.cfg = first, cfg
	cfg.Dial = s.dial
	if cfg.TLSClientConfig.ServerName == "" && !cfg.TLSClientConfig.Insecure {
		cfg.TLSClientConfig.ServerName = serverName
	}
}

// at is an API server on a host.
func (s *Servers) at(a netip.Addr) string { return netip.AddrPortFrom(a, s.port).String() }

// mine is where this node's own API server may listen.
func (s *Servers) mine() []string {
	all := []string{s.at(netip.AddrFrom4([4]byte{127, 0, 0, 1}))}
	for _, a := range s.hosts() {
		all = append(all, s.at(a))
	}
	return all
}

// candidates is where to try to connect to, in this order.
func (s *Servers) candidates(address string) []string {
	mine := s.mine() // before the lock: another room answers
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	add := func(targets ...string) {
		for _, t := range targets {
			if t != "" && !slices.Contains(all, t) {
				all = append(all, t)
			}
		}
	}
	add(s.first)
	if s.ready {
		add(mine...)
	}
	for _, a := range s.others {
		if t := s.at(a); !slices.Contains(mine, t) {
			add(t)
		}
	}
	add(mine...)
	add(address)
	return all
}

// dial connects to the first API server that answers.
func (s *Servers) dial(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		c, target, err := race(ctx, network, s.candidates(address))
		if err == nil {
			return s.keep(c, target), nil
		}
		sleep(ctx, tryAgain)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("no API server answers: %w", err)
		}
	}
}

// race connects to the first of targets that answers; each gets a head start
// before the next. Its error is that of all of them.
func race(ctx context.Context, network string, targets []string) (net.Conn, string, error) {
	type outcome struct {
		conn   net.Conn
		target string
		err    error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	outcomes := make(chan outcome)
	var errs []error
	started := 0
	next := time.NewTimer(0)
	defer next.Stop()
	for len(errs) < len(targets) {
		select {
		case <-next.C:
			target := targets[started]
			started++
			go func() {
				c, err := dial(ctx, network, target)
				select {
				case outcomes <- outcome{c, target, err}:
				case <-ctx.Done():
					if c != nil {
						c.Close() // another was faster
					}
				}
			}()
			if started < len(targets) {
				next.Reset(stagger)
			}
		case o := <-outcomes:
			if o.err == nil {
				return o.conn, o.target, nil
			}
			errs = append(errs, o.err)
			if started < len(targets) {
				next.Reset(0)
			}
		case <-ctx.Done():
			return nil, "", errors.Join(append(errs, ctx.Err())...)
		}
	}
	return nil, "", errors.Join(errs...)
}

// keep remembers a connection, unless it is to the one that was named.
func (s *Servers) keep(c net.Conn, target string) net.Conn {
	if target == s.first {
		return c
	}
	mine := slices.Contains(s.mine(), target) // before the lock: another room answers
	k := &serverConn{Conn: c, of: s}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[k] = mine
	return k
}

// A serverConn is a connection to an API server.
type serverConn struct {
	net.Conn
	of *Servers
}

// Close implements net.Conn.
func (c *serverConn) Close() error {
	c.of.mu.Lock()
	delete(c.of.conns, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// Question makes the question whether this node's own API server is ready, once
// Connect has been given s. It is put to address, a URL, or, if that is "", to /readyz
// with the credentials that Connect has found. Every question is put on a connection of its own: an old one may outlive
// what is asked about. The answer is nil, or what is wrong.
func (s *Servers) Question(address string) (func(context.Context) error, error) {
	cfg := s.cfg
	secure, err := rest.TLSConfigFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("the credentials for the API server can't be used: %w", err)
	}
	transport := &http.Transport{TLSClientConfig: secure, DisableKeepAlives: true, DialContext: dial}
	var ask http.RoundTripper = transport
	if address == "" {
		address = "https://" + net.JoinHostPort(serverName, strconv.Itoa(int(s.port))) + "/readyz"
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			c, _, err := race(ctx, network, s.mine())
			return c, err
		}
		if ask, err = rest.HTTPWrappersForConfig(cfg, transport); err != nil {
			return nil, fmt.Errorf("the credentials for the API server can't be used: %w", err)
		}
	} else if transport.TLSClientConfig, err = named(secure, address); err != nil {
		return nil, err
	}
	client := &http.Client{Transport: ask, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
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
		if answer.StatusCode != http.StatusOK {
			text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
			return fmt.Errorf("GET %s: %s: %s", address, answer.Status, text)
		}
		return nil
	}, nil
}

// named is how to verify whoever answers at address, a URL: an API server on this
// host by the name that all have, everybody else by that of the URL. The
// credentials of the kubeconfig are not for them.
func named(secure *tls.Config, address string) (*tls.Config, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.Hostname()}
	if secure == nil {
		return c, nil
	}
	c.RootCAs, c.InsecureSkipVerify = secure.RootCAs, secure.InsecureSkipVerify
	if a, err := netip.ParseAddr(u.Hostname()); u.Hostname() == "localhost" || err == nil && a.IsLoopback() {
		c.ServerName = secure.ServerName
	}
	return c, nil
}
