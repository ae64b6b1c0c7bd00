package serve

import (
	"net"
	"net/netip"
)

// maxConnections is how many connections an endpoint has open at once. More wait in the kernel's queue until one ends:
// one that asks for nothing does within idleTimeout.
const maxConnections = 128

// A guard accepts connections for one endpoint. It closes those to a VIP, and for an endpoint of this node those of
// other hosts, without an answer.
type guard struct {
	net.Listener
	localOnly bool
	isLocal   func(netip.Addr) bool
	isVIP     func(netip.Addr) bool
	refused   func(reason string) // counts
}

// Accept returns the next connection that is not refused.
func (g *guard) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		local, remote := address(c.LocalAddr()), address(c.RemoteAddr())
		switch {
		case g.isVIP(local):
			g.refused("vip")
		case g.localOnly && !remote.IsLoopback() && remote != local && !g.isLocal(remote):
			g.refused("not_local")
		default:
			return c, nil
		}
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // a reset, so that the kernel does not keep it in TIME_WAIT
		}
		_ = c.Close()
	}
}

// address is the address of one end of a connection; the zero Addr if that is not one of TCP.
func address(a net.Addr) netip.Addr {
	if t, ok := a.(*net.TCPAddr); ok {
		return t.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}
