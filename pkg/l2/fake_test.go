package l2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/heraldvip/herald/pkg/vip"
	"golang.org/x/sys/unix"
)

// fakeLAN is a small honest world: links, each with one neighbour that keeps a
// cache as the RFCs say, and hosts that may announce. It reads frames by itself,
// byte by byte, not with the package's own code.
type fakeLAN struct {
	mu     sync.Mutex
	began  time.Time
	ifis   map[string]net.Interface
	fault  map[string]error // by "links", "speak eth0", "send eth0", "listen eth0"
	caches map[string]map[netip.Addr]string
	heard  []string // every frame: "1.1s eth0 arp request 10.0.0.9 02:00:00:00:00:0a"
	mouths int      // open
	ears   map[*fakeEar]bool
	hosts  map[string]func(word) // by "eth0 10.0.0.9": who else has the address, and is asked for it
}

func newLAN(names ...string) *fakeLAN {
	l := &fakeLAN{
		began: time.Now(), ifis: map[string]net.Interface{}, fault: map[string]error{},
		caches: map[string]map[netip.Addr]string{}, ears: map[*fakeEar]bool{}, hosts: map[string]func(word){},
	}
	for i, n := range names {
		l.set(net.Interface{Index: i + 2, Name: n, Flags: net.FlagUp | net.FlagRunning | net.FlagBroadcast, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(0x0a + i)}})
		l.caches[n] = map[netip.Addr]string{}
	}
	return l
}

func (l *fakeLAN) set(ifi net.Interface) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ifis[ifi.Name] = ifi
}

func (l *fakeLAN) change(name string, change func(*net.Interface)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	ifi := l.ifis[name]
	change(&ifi)
	l.ifis[name] = ifi
}

// remove takes a link away: its sockets fail.
func (l *fakeLAN) remove(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ifis, name)
	for e := range l.ears {
		if e.ifi.Name == name && e.family == vip.IPv4 { // raw ICMPv6 sockets are not told
			e.fail(unix.ENETDOWN)
		}
	}
}

func (l *fakeLAN) fail(what string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fault[what] = err
}

func (l *fakeLAN) links() ([]net.Interface, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Collect(maps.Values(l.ifis)), l.fault["links"]
}

type fakeMouth struct {
	lan *fakeLAN
	ifi net.Interface
}

func (l *fakeLAN) speak(ifi net.Interface) (mouth, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fault["speak "+ifi.Name]; err != nil {
		return nil, err
	}
	l.mouths++
	return &fakeMouth{l, ifi}, nil
}

func (m *fakeMouth) close() error {
	m.lan.mu.Lock()
	defer m.lan.mu.Unlock()
	m.lan.mouths--
	return nil
}

func (m *fakeMouth) send(frame []byte) error {
	m.lan.mu.Lock()
	defer m.lan.mu.Unlock()
	now, ok := m.lan.ifis[m.ifi.Name]
	switch {
	case m.lan.fault["send "+m.ifi.Name] != nil:
		return m.lan.fault["send "+m.ifi.Name]
	case !ok || now.Index != m.ifi.Index:
		return unix.ENXIO
	case now.Flags&net.FlagUp == 0:
		return unix.ENETDOWN
	}
	m.lan.receive(m.ifi.Name, frame)
	return nil
}

// receive is the neighbour.
func (l *fakeLAN) receive(link string, f []byte) {
	cache := l.caches[link]
	text := ""
	switch binary.BigEndian.Uint16(f[12:]) {
	case 0x0806: // RFC 826: who is known is updated, whatever the operation
		addr := netip.AddrFrom4([4]byte(f[28:32]))
		mac := net.HardwareAddr(f[22:28]).String()
		text = fmt.Sprintf("arp %s %s %s", map[byte]string{1: "request", 2: "reply"}[f[21]], addr, mac)
		if target := netip.AddrFrom4([4]byte(f[38:42])); target != addr {
			text = fmt.Sprintf("arp who has %s tell %s", target, addr)
			l.asks(link, target, f)
		}
		if cache[addr] != "" {
			cache[addr] = mac
		}
	case 0x86dd: // RFC 4861 section 7.2.5; RFC 9131 for what is sent to the routers
		group := netip.AddrFrom16([16]byte(f[38:54]))
		if f[54] == 135 {
			target := netip.AddrFrom16([16]byte(f[62:78]))
			text = fmt.Sprintf("ns who has %s tell %s", target, netip.AddrFrom16([16]byte(f[22:38])))
			l.asks(link, target, f)
			break
		}
		addr := netip.AddrFrom16([16]byte(f[62:78]))
		mac := net.HardwareAddr(f[80:86]).String()
		text = fmt.Sprintf("na %s %s %s", group, addr, mac)
		if override := f[58]&0x20 != 0; override && (cache[addr] != "" || group == netip.MustParseAddr("ff02::2")) {
			cache[addr] = mac
		}
	}
	l.heard = append(l.heard, fmt.Sprintf("%.1fs %s %s", time.Since(l.began).Seconds(), link, text))
}

// asks asks the hosts who has an address.
func (l *fakeLAN) asks(link string, target netip.Addr, frame []byte) {
	if answer := l.hosts[link+" "+target.String()]; answer != nil {
		answer(word{addr: target, mac: [6]byte(frame[6:12])})
	}
}

// host has other hosts on a link answer for an address, until it is called again.
func (l *fakeLAN) host(link, addr string, macs ...byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hosts[link+" "+addr] = func(word) {
		for _, m := range macs {
			l.tell(link, told(addr, m))
		}
	}
}

// tell has a link's ears hear a word. l.mu is held.
func (l *fakeLAN) tell(link string, w word) {
	for e := range l.ears {
		sifted := e.narrow && !w.answer && !w.probe && !slices.Contains(e.only, w.addr)
		if e.ifi.Name == link && e.ifi.Index == l.ifis[link].Index && e.family == vip.FamilyOf(w.addr) && !sifted {
			e.words <- w
		}
	}
}

// String is what the neighbours believe: "eth0 10.0.0.9 02:00:00:00:00:0a".
func (l *fakeLAN) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []string
	for link, cache := range l.caches {
		for a, m := range cache {
			out = append(out, fmt.Sprintf("%s %s %s", link, a, m))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// knows has the neighbour on a link know an address.
func (l *fakeLAN) knows(link, addr, mac string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.caches[link][netip.MustParseAddr(addr)] = mac
}

// take is the frames heard since the last call.
func (l *fakeLAN) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.heard = nil }()
	return strings.Join(l.heard, "\n")
}

// open is the number of sockets.
func (l *fakeLAN) open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.mouths + len(l.ears)
}

type fakeEar struct {
	lan    *fakeLAN
	ifi    net.Interface
	family vip.Family
	words  chan word
	err    chan error
	once   sync.Once
	waits  atomic.Int64 // how often nothing was there to be read
	narrow bool         // it is told answers, probes and the words about only
	only   []netip.Addr
}

func (l *fakeLAN) listen(ifi net.Interface, family vip.Family) (ear, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.fault["listen "+ifi.Name]; err != nil {
		return nil, err
	}
	if now, ok := l.ifis[ifi.Name]; !ok || now.Index != ifi.Index {
		return nil, unix.ENODEV
	}
	e := &fakeEar{lan: l, ifi: ifi, family: family, words: make(chan word, 100), err: make(chan error, 1)}
	l.ears[e] = true
	return e, nil
}

func (e *fakeEar) fail(err error) {
	select {
	case e.err <- err:
	default:
	}
}

func (e *fakeEar) next() (word, error) {
	if len(e.words) == 0 {
		e.waits.Add(1)
	}
	select {
	case w := <-e.words:
		return w, nil
	case err := <-e.err:
		return word{}, err
	}
}

func (e *fakeEar) sift(narrow bool, only []netip.Addr) error {
	e.lan.mu.Lock()
	defer e.lan.mu.Unlock()
	if err := e.lan.fault["sift "+e.ifi.Name]; err != nil {
		return err
	}
	e.narrow, e.only = narrow, only
	return nil
}

func (e *fakeEar) close() error {
	e.once.Do(func() {
		e.lan.mu.Lock()
		defer e.lan.mu.Unlock()
		delete(e.lan.ears, e)
		e.fail(errors.New("closed"))
	})
	return nil
}

// say has another host on a link announce an address.
func (l *fakeLAN) say(link, addr string, mac byte) {
	l.mu.Lock()
	l.tell(link, said(addr, mac))
	l.mu.Unlock()
	synctest.Wait()
}

// A rig is an Announcer on a fake LAN.
type rig struct {
	*Announcer
	lan *fakeLAN
	log *buffer

	lock   sync.Mutex
	tenure vip.Tenure
	pokes  int
}

func newRig(t *testing.T, l *fakeLAN) *rig {
	t.Helper()
	r := &rig{lan: l, log: &buffer{}, tenure: vip.Tenure{Epoch: 1, Confirmed: true, Until: time.Now().Add(time.Hour)}}
	logger := slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
	r.Announcer = newAnnouncer(Options{
		Log:  logger,
		Rate: 3 * time.Second,
		Links: func() []vip.Link {
			return []vip.Link{{Name: "eth0", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24"), netip.MustParsePrefix("2001:db8::2/64")}}}
		},
		Poke: func() {
			r.lock.Lock()
			defer r.lock.Unlock()
			r.pokes++
		},
		Tenure: func() vip.Tenure {
			r.lock.Lock()
			defer r.lock.Unlock()
			return r.tenure
		},
	}, l)
	return r
}

// run runs the task until the returned function is called.
func (r *rig) run(t *testing.T) func() {
	t.Helper()
	stop := start(t, r.Announcer)
	synctest.Wait()
	return stop
}

// poked is the number of pokes since the last call.
func (r *rig) poked() int {
	synctest.Wait()
	r.lock.Lock()
	defer r.lock.Unlock()
	n := r.pokes
	r.pokes = 0
	return n
}

func (r *rig) with(change func(*vip.Tenure)) {
	r.lock.Lock()
	defer r.lock.Unlock()
	change(&r.tenure)
}

// said is the frames so far, compared with want.
func (r *rig) said(t *testing.T, what, want string) {
	t.Helper()
	if d := diff(lines(want), r.lan.take()); d != "" {
		t.Errorf("%s: frames (-want +got):\n%s", what, d)
	}
}

// set is Set, of which have and error are compared with text.
func (r *rig) set(t *testing.T, wantHave, wantErr string, want ...vip.Announcement) {
	t.Helper()
	have, err := r.Set(t.Context(), want)
	var got []string
	for _, h := range have {
		got = append(got, tell(h))
	}
	slices.Sort(got)
	if d := diff(lines(wantHave), strings.Join(got, "\n")); d != "" {
		t.Errorf("have (-want +got):\n%s", d)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	if d := diff(lines(wantErr), text); d != "" {
		t.Errorf("error (-want +got):\n%s", d)
	}
}

func tell(a vip.Announcement) string {
	if a.ListenOnly {
		return a.Link + " " + a.Addr.String() + " listen"
	}
	return a.Link + " " + a.Addr.String()
}

// say and listen are announcements in short: "eth0", "10.0.0.9".
func say(link, addr string) vip.Announcement {
	return vip.Announcement{Link: link, Addr: netip.MustParseAddr(addr)}
}

func listen(link, addr string) vip.Announcement {
	return vip.Announcement{Link: link, Addr: netip.MustParseAddr(addr), ListenOnly: true}
}

// sounds is World.Heard as text, with ages.
func (r *rig) sounds() string {
	var w vip.World
	r.Observe(&w)
	var out []string
	for a, s := range w.Heard {
		out = append(out, fmt.Sprintf("%s %s %s %.1fs ago", a, s.Link, s.MAC, time.Since(s.At).Seconds()))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

func diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}))
}

func lines(s string) string {
	var out []string
	for l := range strings.Lines(s) {
		if l = strings.TrimSpace(l); l != "" {
			out = append(out, l)
		}
	}
	return strings.Join(out, "\n")
}

// buffer is a bytes.Buffer for several writers.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is what was written since the last call.
func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.b.Reset()
	return b.b.String()
}

func (b *buffer) reset() { _ = b.String() }
