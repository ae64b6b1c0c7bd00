package l2

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
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
	// close ends next.
	close() error
}

// relook is how long a look at the links is good for. Within this time after a
// link came back, or changed its hardware address, its VIPs are announced anew.
const relook = time.Second

// links is the links in use.
type links struct {
	lan    lan
	looked time.Time
	all    map[string]net.Interface
	err    error // why all is not known
	open   map[string]*station
}

// A station is one link in use.
type station struct {
	ifi   net.Interface
	mouth mouth
}

// keep closes the links that are no longer used.
func (l *links) keep(used map[string]bool) {
	for name, s := range l.open {
		if !used[name] {
			_ = s.mouth.close()
			delete(l.open, name)
		}
	}
}

// look looks at the links again if the last look is too old, and closes those
// that have changed. It returns the names of those.
func (l *links) look(now time.Time) map[string]bool {
	if now.Sub(l.looked) < relook {
		return nil
	}
	l.looked = now
	all, err := l.lan.links()
	if l.err = err; err != nil {
		return nil
	}
	l.all = make(map[string]net.Interface, len(all))
	for _, ifi := range all {
		l.all[ifi.Name] = ifi
	}
	changed := map[string]bool{}
	for name, s := range l.open {
		if !same(s.ifi, l.all[name]) {
			changed[name] = true
			l.shut(name)
		}
	}
	return changed
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
		return nil, errors.New("the link has no Ethernet neighbours to tell (it is a loopback, a tunnel or point-to-point)")
	}
	m, err := l.lan.speak(ifi)
	if err != nil {
		return nil, err
	}
	s := &station{ifi: ifi, mouth: m}
	l.open[name] = s
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
