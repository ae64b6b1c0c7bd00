package health

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
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

// askKubeProxy asks kube-proxy's health check, on loopback and on this node's addresses. If it
// has never been well there, it asks the healthCheckNodePorts of Services that were answered
// before; then any answer is proxyWell, and proxyUnknown means that there is no such Service.
func (d *DataPlane) askKubeProxy(ctx context.Context) proxyAnswer {
	hosts := append([]netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, d.o.Hosts()...)
	if answer := askHealthz(ctx, d.o.Checker.client, hosts, d.proxyPort); answer != proxySilent || d.healthz {
		d.healthz = d.healthz || answer == proxyWell
		return answer
	}
	answer := proxyUnknown
	for _, c := range d.o.Checker.answered(maxAskedAtOnce) {
		if d.o.Checker.answers(ctx, c) {
			return proxyWell
		}
		answer = proxySilent
	}
	return answer
}

// askHealthz returns what the first of hosts answers on port; proxySilent if none does, or
// it is no kube-proxy.
func askHealthz(ctx context.Context, client *http.Client, hosts []netip.Addr, port uint16) proxyAnswer {
	for _, h := range hosts {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(h.String(), strconv.Itoa(int(port)))+"/healthz", nil)
		if err != nil {
			continue
		}
		answer, err := client.Do(req)
		if err != nil {
			continue // it may listen on another
		}
		defer answer.Body.Close()
		switch answer.StatusCode {
		case http.StatusOK:
			return proxyWell
		case http.StatusServiceUnavailable:
			// So it is, too, if only the Node is about to be deleted: that is decided by the Node.
			var said struct{ NodeEligible *bool }
			_ = json.NewDecoder(io.LimitReader(answer.Body, maxProxyAnswer)).Decode(&said) // without: as before 1.28
			if said.NodeEligible != nil && !*said.NodeEligible {
				return proxyWell
			}
			return proxyOutOfDate
		}
		return proxySilent
	}
	return proxySilent
}

// forwardsToAPIServers reports whether a connection to the cluster IP of the API servers' Service
// is forwarded to one of them. known is false if that is not to be found out: the addresses are
// not known, this node has no route to the cluster IP, or an API server does not answer at its
// own address either.
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

// hasRoute reports whether the kernel has a route to an address. Nothing is sent: connect(2) of a
// UDP socket only looks it up.
func hasRoute(to netip.AddrPort) bool {
	conn, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to))
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// connects makes a connection within forwardTimeout. After that it makes a TLS handshake, whose
// outcome does not matter, without sending anything: an API server counts connections that end before.
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
