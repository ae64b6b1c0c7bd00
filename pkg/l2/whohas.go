package l2

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	// So many requests, so far apart, check an address, with as long for a last reply: 120 ms. RFC 5227 section
	// 2.1.1 takes seconds, but section 2.2 allows less: where VIPs move within a second no port takes seconds to come up.
	requests   = 3
	requestGap = 40 * time.Millisecond
	// Resolve asks more often within less time: a node answers within some ms, or is dead. With a fifth of all frames lost
	// one of a thousand answers nothing.
	resolveRequests = 7
	resolveGap      = 10 * time.Millisecond
	// requestsRemembered is how long receivers and senders stay open after a request.
	requestsRemembered = time.Minute
)

// errNotReceiving: the receiver for the replies isn't open yet.
var errNotReceiving = errors.New("replies can't be received on the link")

// whoHas asks for t once from an address of this node, or, if that is unspecified, by a probe. It has Run keep a
// receiver open for requestsRemembered; without one it sends nothing, and returns errNotReceiving, or what is wrong
// with the link.
func (a *Announcer) whoHas(t target, from netip.Addr) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.asked[t.linkFamily()] = now
	if !a.receiving(t.linkFamily()) {
		a.wake.Send()
		link, _, err := a.link(t.link, now)
		switch {
		case err != nil:
			return err
		case !link.Up:
			return errLinkDown
		}
		return errNotReceiving
	}
	return a.transmit(t, now, a.metrics.requests, func(mac net.HardwareAddr) ([][]byte, error) {
		frame, err := requestFrame(t.addr, from, mac)
		return [][]byte{frame}, err
	})
}

// source returns this node's first address on t's link in its network, without t; else, if others will do, any address
// there, or unspecified: a kernel may answer only probes, or only its networks (arp_ignore). It is never a VIP, since
// neighbours learn where senders are (RFC 826).
func (a *Announcer) source(t target, others bool) netip.Addr {
	from := vip.FamilyOf(t.addr).Unspecified()
	for _, l := range a.opts.Links() {
		for _, p := range l.Prefixes {
			switch {
			case l.Name != t.link || p.Addr().Is4() != t.addr.Is4():
			case p.Contains(t.addr) && p.Addr() != t.addr:
				return p.Addr()
			case others && from.IsUnspecified():
				from = p.Addr()
			}
		}
	}
	return from
}

// Resolve asks a link's neighbours up to seven times who has addr, and returns the first MAC, as 02:00:00:00:00:0a;
// false without one within 70 ms, when ctx ends, or if the link can't be used. It needs Run. This node does not reply.
func (a *Announcer) Resolve(ctx context.Context, link string, addr netip.Addr) (mac string, ok bool) {
	t := newTarget(addr, link)
	ctx, cancel := context.WithTimeout(ctx, resolveRequests*resolveGap)
	defer cancel()
	replies := make(chan [6]byte, 1)
	defer a.heard.forwardReplies(t, replies)()
	for sent := 0; ; {
		a.mu.Lock()
		reopened := a.reopened
		a.mu.Unlock()
		err := a.whoHas(t, a.source(t, false))
		var again <-chan time.Time
		if !errors.Is(err, errNotReceiving) {
			reopened = nil
			if sent++; sent < resolveRequests {
				again = time.After(resolveGap)
			}
			if err != nil {
				a.opts.Log.Debug("can't ask who has an address", "address", t.addr, "link", link, "err", err)
			}
		}
		select {
		case m := <-replies:
			return net.HardwareAddr(m[:]).String(), true
		case <-ctx.Done():
			return "", false
		case <-reopened:
		case <-again:
		}
	}
}
