package bgp

import (
	"net/netip"
	"sync/atomic"

	"github.com/heraldvip/herald/pkg/bfd"
	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// A pathMonitor is a peer's BFD session (RFC 5882); the peer's goroutine owns all but status and failure.
type pathMonitor struct {
	sessions *bfd.Sessions
	changed  mailbox.Signal // the session's Status changed
	session  *bfd.Session   // nil: there is none
	config   bfd.Config     // of session

	status  atomic.Pointer[bfd.Status] // as the peer knows it; nil without a session
	failure atomic.Pointer[string]     // why BFD ended the last BGP session; nil if it did not
}

// updateBFD has a BFD session while the BGP session is established: FRR makes a new one each time (docs/why.md, "BFD").
func (p *peer) updateBFD(at endpoints) {
	c := p.config.BFD
	if c == (vip.BFD{}) || !p.up() {
		p.stopBFD()
		return
	}
	neighbor, err := netip.ParseAddr(at.remote)
	config := bfd.Config{
		Neighbor: neighbor, Source: at.source, Link: at.bind,
		MinTransmit: c.MinTransmit, MinReceive: c.MinReceive, Multiplier: c.Multiplier,
	}
	if err != nil || p.path.session != nil && p.path.config == config {
		return
	}
	p.stopBFD()
	p.path.config = config
	p.path.failure.Store(nil)
	p.path.session = p.path.sessions.Start(config, p.path.changed.Send)
	p.followBFD()
}

// stopBFD ends the BFD session, which the router hears is no failure.
func (p *peer) stopBFD() {
	if p.path.session != nil {
		p.path.sessions.Stop(p.path.session)
		p.path.session = nil
		p.path.status.Store(nil)
	}
}

// followBFD ends the BGP session if BFD says that the path has failed; gobgp then tries again. A BFD session that never
// came up, or was ended by the router's administrator, changes nothing (RFC 5882 sections 3.2 and 4.2).
func (p *peer) followBFD() {
	if p.path.session == nil {
		return
	}
	x := p.path.session.Status()
	before := p.path.status.Swap(&x)
	switch {
	case before != nil && *before == x:
		return
	case x.Error != "" && (before == nil || before.Error != x.Error):
		p.log.Warn("there is no BFD with this router, so that only the hold time tells that it is gone", "err", x.Error)
	case before != nil && before.State != x.State:
		p.log.Info("BFD", "state", x.State.String())
	}
	if x.Failures > 0 {
		p.metrics.bfdFailures.WithLabelValues(labelsOf(p.config)...).Inc()
		p.log.Warn("the BGP session is ended, since BFD says that the path to the router failed", "reason", x.Failure)
		p.path.failure.Store(&x.Failure)
		p.endSession("BFD: " + x.Failure)
		p.at = endpoints{}
		p.stopBFD()
	}
	p.o.Poke()
}
