package l2

import (
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// network opens links: sockets, but for tests.
type network interface {
	openSender(vip.Link) (frameSender, error)
	openReceiver(vip.Link, vip.Family) (messageReceiver, error)
}

type frameSender interface {
	// send sends a frame. Without room in the link's queue it returns EAGAIN: at once, or, if wait is set, after
	// sendTimeout.
	send(frame []byte, wait bool) error
	io.Closer
}

type sender struct {
	frameSender
	waited      time.Duration // for room in the link's queue, since countedFrom
	countedFrom time.Time
}

// send sends a frame, and waits for room once a second at most, for sendTimeout.
func (s *sender) send(frame []byte) error {
	now := time.Now()
	err := s.frameSender.send(frame, false)
	switch {
	case err == nil && now.Sub(s.countedFrom) >= time.Second:
		s.waited, s.countedFrom = 0, now
	// Announcer.mu is held meanwhile, for which other links wait
	case errors.Is(err, unix.EAGAIN) && s.waited < sendTimeout:
		err = s.frameSender.send(frame, true)
		s.waited += time.Since(now)
	}
	return err
}

// messageReceiver receives a link's ARP packets or neighbor advertisements.
type messageReceiver interface {
	// receive blocks until something arrives. ok is false if it is no message, or not for this receiver: these count as
	// read, for others can send many. An error is a failed or closed receiver's.
	receive() (m neighborMessage, ok bool, err error)
	io.Closer // ends receive
}

var (
	errNoEthernet = errors.New("the link has no Ethernet neighbours (it is a loopback, a tunnel or point-to-point)")
	errLinkDown   = errors.New("the link is down")
)

// LinksChanged has Run read the links, and announce on changed ones, without blocking.
func (a *Announcer) LinksChanged() { a.linksChanged.Send() }

// readLinks stores the links, and begins anew on changed ones. a.mu is held.
func (a *Announcer) readLinks(now time.Time) {
	before := a.links
	a.links = map[string]vip.Link{}
	own := map[[6]byte]bool{}
	for _, l := range a.opts.Links() {
		a.links[l.Name] = l
		if mac, err := ethernetAddress(l); err == nil {
			own[[6]byte(mac)] = true
		}
	}
	a.heard.setOwnMACs(own)
	for name := range a.senders {
		if !sameLink(before[name], a.links[name]) {
			a.closeSender(name)
		}
	}
	for t, x := range a.announcements {
		if !sameLink(before[t.link], a.links[t.link]) {
			x.restart(now)
			x.next = now
		}
	}
}

// sameLink reports whether neighbours that heard a know it on b: no carrier was lost.
func sameLink(a, b vip.Link) bool { return a.Index == b.Index && a.MAC == b.MAC && a.Up == b.Up }

// link returns a link, up or not, and its MAC, or errNoEthernet. a.mu is held.
func (a *Announcer) link(name string, now time.Time) (vip.Link, net.HardwareAddr, error) {
	if _, ok := a.links[name]; !ok { // it may have been made a moment ago
		a.readLinks(now)
	}
	l, ok := a.links[name]
	if !ok {
		return l, nil, errors.New("this node has no such link")
	}
	mac, err := ethernetAddress(l)
	return l, mac, err
}

func (a *Announcer) mac(link string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.links[link].MAC
}

// ethernetAddress returns the MAC address of a link, or errNoEthernet.
func ethernetAddress(l vip.Link) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(l.MAC)
	if err != nil || len(mac) != 6 {
		return nil, errNoEthernet
	}
	return mac, nil
}

// transmit sends and counts the frames for the MAC of t's link until one fails. a.mu is held.
func (a *Announcer) transmit(t target, now time.Time, count *prometheus.CounterVec,
	frames func(mac net.HardwareAddr) ([][]byte, error)) error {
	link, mac, err := a.link(t.link, now)
	if err != nil {
		return err
	}
	list, err := frames(mac)
	if err != nil {
		return err
	}
	if a.senders[t.link] == nil {
		s, err := a.network.openSender(link)
		if err != nil {
			return err
		}
		a.senders[t.link] = &sender{frameSender: s}
	}
	for _, f := range list {
		if err := a.senders[t.link].send(f); err != nil {
			return a.sendFailed(t.link, now, err)
		}
		count.WithLabelValues(familyLabel(t.addr)).Inc()
	}
	return nil
}

// sendFailed returns why a frame was not sent, and has all sent as new unless a queue was full. a.mu is held.
func (a *Announcer) sendFailed(link string, now time.Time, err error) error {
	if errors.Is(err, unix.ENOBUFS) || errors.Is(err, unix.EAGAIN) {
		return err
	}
	a.closeSender(link)
	for t, x := range a.announcements {
		if t.link == link {
			x.restart(now)
			x.next = vip.Earlier(x.next, now.Add(repeatGap))
		}
	}
	if errors.Is(err, unix.ENETDOWN) {
		return errLinkDown
	}
	return fmt.Errorf("can't send on the link: %w", err)
}

// closeSender closes the sender on a link, if any. a.mu is held.
func (a *Announcer) closeSender(link string) {
	if s := a.senders[link]; s != nil {
		_ = s.Close()
		delete(a.senders, link)
	}
}

// closeUnused closes the senders on unused links. a.mu is held.
func (a *Announcer) closeUnused() {
	used := a.linksInUse()
	for link := range a.senders {
		if !used[linkFamily{link, vip.IPv4}] && !used[linkFamily{link, vip.IPv6}] {
			a.closeSender(link)
		}
	}
}
