package lab

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// DialFrom returns a dialer for http.Transport, of IP addresses only, from the namespace ns.
func (l *Lab) DialFrom(ns string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (conn net.Conn, err error) {
		err = inNamespace(ns, func() error {
			var d net.Dialer // with an IP address: one goroutine, one socket
			conn, err = d.DialContext(ctx, network, addr)
			return err
		})
		return conn, err
	}
}

// Get returns the body of a URL from the namespace ns; an error unless the status is 200 within 5 s.
func (l *Lab) Get(ctx context.Context, ns, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DialContext: l.DialFrom(ns), DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", fmt.Errorf("from %s: %w", ns, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("from %s: %s: %s", ns, url, resp.Status)
	}
	return string(body), err
}
