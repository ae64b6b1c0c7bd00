package l2

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"golang.org/x/sys/unix"
)

// fakeLAN is a network: links, and hosts that may announce. It reads frames by itself, byte by byte, not with the package's own code.
type fakeLAN struct {
	mu           sync.Mutex
	began        time.Time
	ifis         map[string]net.Interface
	linksChanged func()
	faults       map[string]error // by "openSender eth0", "send eth0", "openReceiver eth0"
	frames       []string         // every frame: "1.1s eth0 arp request 10.0.0.9 02:00:00:00:00:0a"
	senders      int              // open
	receivers    map[*fakeReceiver]bool
	sendTime     time.Duration                    // that sending a frame takes
	slow         map[string]time.Duration         // by link: how long a frame is in its queue, which has room for one
	sentAt       map[string]time.Time             // by link of slow: when the last one was sent
	hosts        map[string]func(neighborMessage) // by "eth0 10.0.0.9": who else has the address, and is asked for it
}

func newLAN(names ...string) *fakeLAN {
	l := &fakeLAN{
		began: time.Now(), ifis: map[string]net.Interface{}, linksChanged: func() {}, faults: map[string]error{},
		receivers: map[*fakeReceiver]bool{}, hosts: map[string]func(neighborMessage){},
		slow: map[string]time.Duration{}, sentAt: map[string]time.Time{},
	}
	for i, n := range names {
		l.setLink(net.Interface{Index: i + 2, Name: n, Flags: net.FlagUp | net.FlagRunning | net.FlagBroadcast, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(0x0a + i)}})
	}
	return l
}

func (l *fakeLAN) setLink(ifi net.Interface) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ifis[ifi.Name] = ifi
	l.linksChanged()
}

func (l *fakeLAN) changeLink(name string, changeLink func(*net.Interface)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ifi := l.ifis[name]
	changeLink(&ifi)
	l.ifis[name] = ifi
	l.linksChanged()
}

// removeLink takes a link away: its sockets fail.
func (l *fakeLAN) removeLink(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ifis, name)
	l.linksChanged()
	for e := range l.receivers {
		if e.link.Name == name && e.family == vip.IPv4 { // raw ICMPv6 sockets get no error
			e.fail(unix.ENETDOWN)
		}
	}
}

func (l *fakeLAN) setFault(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.faults[what] = err
}

// links is the links as package netif publishes them. eth0 has addresses of its own.
func (l *fakeLAN) links() []vip.Link {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []vip.Link
	for _, ifi := range l.ifis {
		x := vip.Link{Index: ifi.Index, Name: ifi.Name, Up: ifi.Flags&net.FlagUp != 0 && ifi.Flags&net.FlagRunning != 0}
		if len(ifi.HardwareAddr) == 6 && ifi.Flags&net.FlagLoopback == 0 {
			x.MAC = ifi.HardwareAddr.String()
		}
		if x.Name == "eth0" {
			x.Prefixes = []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("2001:db8::2/64")}
		}
		list = append(list, x)
	}
	return list
}

type fakeSender struct {
	lan  *fakeLAN
	link vip.Link
}

func (l *fakeLAN) openSender(link vip.Link) (frameSender, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.faults["openSender "+link.Name]; err != nil {
		return nil, err
	}
	l.senders++
	return &fakeSender{l, link}, nil
}

func (m *fakeSender) Close() error {
	m.lan.mu.Lock()
	defer m.lan.mu.Unlock()
	m.lan.senders--
	return nil
}

// makeRoom puts a frame into the queue of a slow link. If wait is set it waits for room, for sendTimeout at most.
func (m *fakeSender) makeRoom(wait bool) error {
	m.lan.mu.Lock()
	full := m.lan.slow[m.link.Name] - time.Since(m.lan.sentAt[m.link.Name])
	m.lan.mu.Unlock()
	if full > 0 && wait {
		time.Sleep(min(full, sendTimeout))
		full -= sendTimeout
	}
	if full > 0 {
		return unix.EAGAIN
	}
	m.lan.mu.Lock()
	defer m.lan.mu.Unlock()
	m.lan.sentAt[m.link.Name] = time.Now()
	return nil
}

func (m *fakeSender) send(frame []byte, wait bool) error {
	time.Sleep(m.lan.sendTime)
	if err := m.makeRoom(wait); err != nil {
		return err
	}
	m.lan.mu.Lock()
	defer m.lan.mu.Unlock()
	now, ok := m.lan.ifis[m.link.Name]
	switch {
	case m.lan.faults["send "+m.link.Name] != nil:
		return m.lan.faults["send "+m.link.Name]
	case !ok || now.Index != m.link.Index:
		return unix.ENXIO
	case now.Flags&net.FlagUp == 0:
		return unix.ENETDOWN
	}
	m.lan.receive(m.link.Name, frame)
	return nil
}

// receive is the neighbour.
func (l *fakeLAN) receive(link string, f []byte) {
	text := ""
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0806: // RFC 826
		addr := netip.AddrFrom4([4]byte(f[28:32]))
		mac := net.HardwareAddr(f[22:28]).String()
		text = fmt.Sprintf("arp %s %s %s", map[byte]string{1: "request", 2: "reply"}[f[21]], addr, mac)
		if target := netip.AddrFrom4([4]byte(f[38:42])); target != addr && f[21] == 2 {
			text = fmt.Sprintf("arp reply %s %s to %s", addr, mac, target)
		} else if target != addr {
			text = fmt.Sprintf("arp who has %s tell %s", target, addr)
			l.answerRequest(link, target, f)
		}
	case 0x86dd: // RFC 4861 section 7.2.5; RFC 9131 for what is sent to the routers
		group := netip.AddrFrom16([16]byte(f[38:54]))
		if f[54] == 135 {
			target := netip.AddrFrom16([16]byte(f[62:78]))
			text = fmt.Sprintf("ns who has %s tell %s", target, netip.AddrFrom16([16]byte(f[22:38])))
			l.answerRequest(link, target, f)
			break
		}
		addr := netip.AddrFrom16([16]byte(f[62:78]))
		mac := net.HardwareAddr(f[80:86]).String()
		text = fmt.Sprintf("na %s %s %s", group, addr, mac)
	}
	l.frames = append(l.frames, fmt.Sprintf("%.1fs %s %s", time.Since(l.began).Seconds(), link, text))
}

// answerRequest asks the hosts who has an address.
func (l *fakeLAN) answerRequest(link string, target netip.Addr, frame []byte) {
	if answer := l.hosts[link+" "+target.String()]; answer != nil {
		answer(neighborMessage{addr: target, mac: [6]byte(frame[6:12])})
	}
}

// setAnswer has answer called when "eth0 10.0.0.9", say, is asked for.
func (l *fakeLAN) setAnswer(host string, answer func(neighborMessage)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts[host] = answer
}

// setHosts has other hosts on a link answer for an address, until it is called again.
func (l *fakeLAN) setHosts(link, addr string, macs ...byte) {
	l.setAnswer(link+" "+addr, func(neighborMessage) {
		for _, m := range macs {
			l.deliver(link, messageReply.by(addr, m))
		}
	})
}

// deliver delivers a message to a link's receivers. l.mu is held.
func (l *fakeLAN) deliver(link string, m neighborMessage) {
	for e := range l.receivers {
		if e.link.Name == link && e.link.Index == l.ifis[link].Index && e.family == vip.FamilyOf(m.addr) {
			e.messages <- m
		}
	}
}

// takeFrames is the frames heard since the last call.
func (l *fakeLAN) takeFrames() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.frames = nil }()
	return strings.Join(l.frames, "\n")
}

// openSockets is the number of sockets.
func (l *fakeLAN) openSockets() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.senders + len(l.receivers)
}

type fakeReceiver struct {
	lan      *fakeLAN
	link     vip.Link
	family   vip.Family
	messages chan neighborMessage
	err      chan error
	once     sync.Once
}

func (l *fakeLAN) openReceiver(link vip.Link, family vip.Family) (messageReceiver, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.faults["openReceiver "+link.Name]; err != nil {
		return nil, err
	}
	if now, ok := l.ifis[link.Name]; !ok || now.Index != link.Index {
		return nil, unix.ENODEV
	}
	e := &fakeReceiver{lan: l, link: link, family: family, messages: make(chan neighborMessage, 100), err: make(chan error, 1)}
	l.receivers[e] = true
	return e, nil
}

func (e *fakeReceiver) fail(err error) {
	select {
	case e.err <- err:
	default:
	}
}

func (e *fakeReceiver) receive() (neighborMessage, bool, error) {
	select {
	case m := <-e.messages:
		return m, true, nil
	case err := <-e.err:
		return neighborMessage{}, false, err
	}
}

func (e *fakeReceiver) Close() error {
	e.once.Do(func() {
		e.lan.mu.Lock()
		defer e.lan.mu.Unlock()
		delete(e.lan.receivers, e)
		e.fail(errors.New("closed"))
	})
	return nil
}

// announce has another host on a link announce an address.
func (l *fakeLAN) announce(link, addr string, mac byte) {
	l.mu.Lock()
	l.deliver(link, messageAnnouncement.by(addr, mac))
	l.mu.Unlock()
	synctest.Wait()
}

// A fixture is an Announcer on a fake LAN.
type fixture struct {
	*Announcer
	lan *fakeLAN
	log *check.Buffer

	lock   sync.Mutex
	tenure vip.Tenure
	pokes  int

	sysctls map[string]int // by "eth0 arp_ignore"
}

func newFixture(t *testing.T, l *fakeLAN) *fixture {
	t.Helper()
	r := &fixture{lan: l, log: &check.Buffer{}, sysctls: map[string]int{}, tenure: vip.Tenure{Epoch: 1, Confirmed: true, Until: time.Now().Add(time.Hour)}}
	logger := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	poke := func() {
		r.lock.Lock()
		defer r.lock.Unlock()
		r.pokes++
	}
	r.Announcer = newAnnouncer(Options{
		Log:   logger,
		Rate:  3 * time.Second,
		Links: l.links, Sysctl4: func(link, name string) int { return r.sysctls[link+" "+name] },
		Poke: poke, PokeNow: poke,
		Tenure: func() vip.Tenure {
			r.lock.Lock()
			defer r.lock.Unlock()
			return r.tenure
		},
	}, l)
	l.linksChanged = r.LinksChanged
	return r
}

// run runs the task until the returned function is called.
func (r *fixture) run(t *testing.T) func() {
	t.Helper()
	stop := check.Run(t, r.Announcer)
	synctest.Wait()
	return stop
}

// poked is the number of pokes since the last call.
func (r *fixture) poked() int {
	synctest.Wait()
	r.lock.Lock()
	defer r.lock.Unlock()
	n := r.pokes
	r.pokes = 0
	return n
}

func (r *fixture) changeTenure(change func(*vip.Tenure)) {
	r.lock.Lock()
	defer r.lock.Unlock()
	change(&r.tenure)
}

// checkFrames is the frames so far, compared with want.
func (r *fixture) checkFrames(t *testing.T, what, want string) {
	t.Helper()
	check.Same(t, check.Lines(want), r.lan.takeFrames(), "%s: frames", what)
}

// set is Set, of which have and error are compared with text.
func (r *fixture) set(t *testing.T, wantHave, wantErr string, want ...vip.Announcement) {
	t.Helper()
	have, err := r.Set(t.Context(), want)
	var got []string
	for _, h := range have {
		got = append(got, describe(h))
	}
	slices.Sort(got)
	check.Same(t, check.Lines(wantHave), strings.Join(got, "\n"), "have")
	text := ""
	if err != nil {
		text = err.Error()
	}
	check.Same(t, check.Lines(wantErr), text, "error")
}

func describe(a vip.Announcement) string {
	if a.ListenOnly {
		return a.Link + " " + a.Addr.String() + " listen"
	}
	return a.Link + " " + a.Addr.String()
}

// announce and listen are announcements in short: "eth0", "10.0.0.9".
func announce(link, addr string) vip.Announcement {
	return vip.Announcement{Link: link, Addr: netip.MustParseAddr(addr)}
}

func listenOnly(link, addr string) vip.Announcement {
	return vip.Announcement{Link: link, Addr: netip.MustParseAddr(addr), ListenOnly: true}
}

// heardText is World.Heard as text, with ages.
func (r *fixture) heardText() string {
	var w vip.World
	r.Observe(&w)
	var out []string
	for a, s := range w.Heard {
		out = append(out, fmt.Sprintf("%s %s %s %.1fs ago", a, s.Link, s.MAC, time.Since(s.At).Seconds()))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// onLAN runs a test in a bubble, with an Announcer that runs on a fake LAN of these links.
func onLAN(t *testing.T, links string, test func(t *testing.T, r *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newFixture(t, newLAN(strings.Fields(links)...))
		defer r.run(t)()
		test(t, r)
	})
}
