package health

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

const (
	proxyPort      = 10256 // kube-proxy's healthzBindAddress, if it is not configured
	forwardTimeout = time.Second
	maxProxyAnswer = 4 << 10 // bytes that are read
	maxServers     = 8       // API servers that are connected to
	maxAskedAtOnce = 4       // healthCheckNodePorts
)

// A proxyAnswer is what kube-proxy's health check says.
type proxyAnswer int

const (
	proxyUnknown   proxyAnswer = iota // there is nobody to ask
	proxySilent                       // nobody answers
	proxyOutOfDate                    // it has not been able to write its rules for a while
	proxyWell
)

// askKubeProxy asks kube-proxy's health check. If that was never well, any answer of a healthCheckNodePort that
// answered before is proxyWell; proxyUnknown is that there is no such Service.
func (d *DataPlane) askKubeProxy(ctx context.Context) proxyAnswer {
	if answer := d.askHealthz(ctx); answer != proxySilent || d.healthz {
		d.healthz = d.healthz || answer == proxyWell
		return answer
	}
	answer := proxyUnknown
	for _, c := range d.o.Checker.answered(maxAskedAtOnce) {
		if d.o.Checker.status(ctx, c) != 0 {
			return proxyWell
		}
		answer = proxySilent
	}
	return answer
}

// askHealthz returns the health check's answer; proxySilent if there is none, or it is no kube-proxy's.
func (d *DataPlane) askHealthz(ctx context.Context) proxyAnswer {
	answer := d.o.Checker.firstAnswer(ctx, d.o.Hosts(), d.proxyPort)
	if answer == nil {
		return proxySilent
	}
	defer answer.Body.Close()
	switch answer.StatusCode {
	case http.StatusOK:
		return proxyWell
	case http.StatusServiceUnavailable:
		// Well, too, if only the Node is about to be deleted: the Node decides that.
		var said struct{ NodeEligible *bool }
		_ = json.NewDecoder(io.LimitReader(answer.Body, maxProxyAnswer)).Decode(&said) // without: as before 1.28
		if said.NodeEligible != nil && !*said.NodeEligible {
			return proxyWell
		}
		return proxyOutOfDate
	}
	return proxySilent
}

// forwardsToAPIServers reports whether the API servers' cluster IP leads to one of them, if known.
func (d *DataPlane) forwardsToAPIServers(ctx context.Context) (ok, known bool) {
	service, servers := d.o.APIService()
	if !service.IsValid() || len(servers) == 0 || len(servers) > maxServers {
		return false, false
	}
	if !hasRoute(service) {
		return false, false // the packets end before any rule of kube-proxy
	}
	if connects(ctx, service) == nil {
		return true, true
	}
	for _, s := range servers {
		if connects(ctx, s) != nil {
			return false, false
		}
	}
	return false, true
}

// hasRoute reports whether the kernel has a route, without sending: connect(2) of a UDP socket.
func hasRoute(to netip.AddrPort) bool {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// connects makes a connection and a TLS handshake of any outcome: API servers count connections that end before.
func connects(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).HandshakeContext(ctx)
	return nil
}
