package l2

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"golang.org/x/sys/unix"
)

// lan is what the room needs of the node's links. The one implementation outside
// of tests is sockets.
type lan interface {
	// links tells all links.
	links() ([]net.Interface, error)
	// speak opens a link for sending.
	speak(net.Interface) (mouth, error)
	// listen opens a link for hearing the announcements of one family.
	listen(net.Interface, vip.Family) (ear, error)
}

// mouth sends Ethernet frames on a link.
type mouth interface {
	send(frame []byte) error
	close() error
}

// ear hears announcements on a link.
type ear interface {
	// next waits for the next one.
	next() (word, error)
	// sift has next tell, if narrow, no more than answers, probes, and the words about
	// the addresses in only; and else everything.
	sift(narrow bool, only []netip.Addr) error
	// close ends next.
	close() error
}

// relook is how long a look at the links is good for. Within this time after a
// link came back, or changed its hardware address, its VIPs are announced anew.
const relook = time.Second

// links is the links in use.
type links struct {
	lan     lan
	looked  time.Time
	all     map[string]net.Interface
	err     error // why all is not known
	open    map[string]*station
	seen    map[string]net.Interface // what the links in use were at the last look
	changed map[string]bool          // those in use that were something else before
}

// A station is one link that is open.
type station struct {
	ifi   net.Interface
	mouth mouth
}

// keep closes and forgets the links that are no longer used.
func (l *links) keep(used map[string]bool) {
	for name := range l.open {
		if !used[name] {
			l.shut(name)
		}
	}
	maps.DeleteFunc(l.seen, func(name string, _ net.Interface) bool { return !used[name] })
	maps.DeleteFunc(l.changed, func(name string, _ bool) bool { return !used[name] })
}

// look looks at the links again if the last look is too old, and closes those
// that have changed.
func (l *links) look(now time.Time) {
	if now.Sub(l.looked) < relook {
		return
	}
	l.looked = now
	all, err := l.lan.links()
	if l.err = err; err != nil {
		return
	}
	l.all = make(map[string]net.Interface, len(all))
	for _, ifi := range all {
		l.all[ifi.Name] = ifi
	}
	for name, before := range l.seen {
		if !same(before, l.all[name]) {
			l.seen[name] = l.all[name]
			l.changed[name] = true
			l.shut(name)
		}
	}
}

// same reports whether what was sent on a is as good as sent on b. A carrier
// that comes back may be another switch's.
func same(a, b net.Interface) bool {
	const state = net.FlagUp | net.FlagRunning
	return a.Index == b.Index && a.HardwareAddr.String() == b.HardwareAddr.String() && a.Flags&state == b.Flags&state
}

// shut closes a link, so that it is opened again for the next frame.
func (l *links) shut(name string) {
	if s := l.open[name]; s != nil {
		_ = s.mouth.close()
		delete(l.open, name)
	}
}

// failed notes that a frame could not be sent. Unless the queue was full, the
// link has gone or is down, even if it is back at the next look.
func (l *links) failed(name string, err error) {
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN) {
		return
	}
	l.shut(name)
	l.seen[name] = net.Interface{}
}

var errNoNeighbours = errors.New("the link has no Ethernet neighbours to tell (it is a loopback, a tunnel or point-to-point)")

// station opens a link if it isn't open.
func (l *links) station(name string) (*station, error) {
	if s := l.open[name]; s != nil {
		return s, nil
	}
	if l.err != nil {
		return nil, fmt.Errorf("can't look at the links: %w", l.err)
	}
	ifi, ok := l.all[name]
	switch {
	case !ok:
		return nil, errors.New("this node has no such link")
	case ifi.Flags&net.FlagUp == 0:
		return nil, errors.New("the link is down")
	case ifi.Flags&(net.FlagLoopback|net.FlagPointToPoint) != 0 || len(ifi.HardwareAddr) != 6:
		return nil, errNoNeighbours
	}
	m, err := l.lan.speak(ifi)
	if err != nil {
		return nil, err
	}
	s := &station{ifi: ifi, mouth: m}
	l.open[name] = s
	if _, ok := l.seen[name]; !ok {
		l.seen[name] = ifi
	}
	return s, nil
}

// own is the hardware addresses of this node.
func (l *links) own() map[[6]byte]bool {
	own := map[[6]byte]bool{}
	for _, ifi := range l.all {
		if len(ifi.HardwareAddr) == 6 {
			own[[6]byte(ifi.HardwareAddr)] = true
		}
	}
	return own
}
