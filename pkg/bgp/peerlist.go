package bgp

import (
	"log/slog"
	"slices"
	"sync/atomic"

	"github.com/heraldvip/herald/pkg/vip"
)

// A PeerList is the peers of the options, and of this node's Node object. It is made by hand.
type PeerList struct {
	Fixed []vip.BGPPeer
	// Read is the peers in the Node's annotations, or nil, without blocking.
	Read func() ([]vip.BGPPeer, error)
	// ReadPassword is a password in a file, of a peer of Fixed; its error has no password.
	ReadPassword func(path string) (vip.Secret, error)
	Log          *slog.Logger

	fixed      atomic.Pointer[[]vip.BGPPeer] // Fixed, with the passwords as read last; nil: Fixed
	unreadable map[string]string             // errors of ReadPassword, by path; ReadPasswords' own
	last       atomic.Pointer[lastRead]
}

// lastRead is the last readable peers, and Read's last error.
type lastRead struct {
	peers []vip.BGPPeer
	err   string
}

// ReadPasswords reads passwords in files again, as a mounted Secret may change. Unreadable ones stay; an error is
// logged once while the same. One goroutine calls it.
func (l *PeerList) ReadPasswords() {
	fixed, unreadable := slices.Clone(l.Fixed), make(map[string]string)
	if p := l.fixed.Load(); p != nil {
		fixed = slices.Clone(*p)
	}
	for i := range fixed {
		p := &fixed[i]
		if p.PasswordFile == "" {
			continue
		}
		switch password, err := l.ReadPassword(p.PasswordFile); {
		case err != nil:
			if unreadable[p.PasswordFile] = err.Error(); err.Error() != l.unreadable[p.PasswordFile] {
				l.Log.Warn("the password of a BGP peer can't be read; the one known before stays", "peer", p.Name(), "err", err)
			}
		case password != p.Password:
			p.Password = password
			l.Log.Info("the password of a BGP peer has changed, so its session begins again", "peer", p.Name(), "file",
				p.PasswordFile)
		}
	}
	l.unreadable = unreadable
	l.fixed.Store(&fixed)
}

// Peers is all peers now: Fixed, then those read under other names. If unreadable, the last ones stay; an error is
// logged once while the same. It does not block.
func (l *PeerList) Peers() []vip.BGPPeer {
	fixed := l.Fixed
	if p := l.fixed.Load(); p != nil {
		fixed = *p
	}
	if l.Read == nil {
		return fixed
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
	all := slices.Clone(fixed)
	for _, p := range last.peers {
		if !slices.ContainsFunc(all, func(o vip.BGPPeer) bool { return o.Name() == p.Name() }) {
			all = append(all, p)
		}
	}
	return all
}
