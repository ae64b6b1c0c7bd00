package bgp

import (
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/heraldvip/herald/pkg/vip"
)

// A PeerList is the peers of the options, and those that this node's Node object names. It
// is made by hand.
type PeerList struct {
	Fixed []vip.BGPPeer
	// Read is the peers that the Node's annotations name now; nil: they name none. It does not block.
	Read func() ([]vip.BGPPeer, error)
	Log  *slog.Logger

	last atomic.Pointer[lastRead]
}

// lastRead is the last peers that could be read, and what Read returned since; "" for no error.
type lastRead struct {
	peers []vip.BGPPeer
	err   string
}

// Peers is all peers at the moment of the call: Fixed, then those that are read and whose
// names are not among them. If they can't be read, those that were read last stay; the error
// is logged once for as long as it is the same. It does not block.
func (l *PeerList) Peers() []vip.BGPPeer {
	if l.Read == nil {
		return l.Fixed
	}
	last := lastRead{}
	if p := l.last.Load(); p != nil {
		last = *p
	}
	read, err := l.Read()
	switch {
	case err == nil:
		last = lastRead{peers: read}
	case err.Error() != last.err:
		l.Log.Warn("the BGP peers in the Node's annotations can't be read; those known before stay", "err", err)
		last.err = err.Error()
	}
	l.last.Store(&last)
	all := slices.Clone(l.Fixed)
	for _, p := range last.peers {
		if !slices.ContainsFunc(all, func(o vip.BGPPeer) bool { return o.Name() == p.Name() }) {
			all = append(all, p)
		}
	}
	return all
}
