package netif

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
)

// fakeKernel is a small honest kernel: it keeps links and addresses, lets
// addresses end, and sends changes to its subscribers. It must be used in a synctest bubble.
type fakeKernel struct {
	// fault, if set, is asked before each operation ("bind", "unbind", "read", "routes", "subscribe") and may fail it.
	fault func(op string, p addressKey) error
	// lag is how long it takes until a change is received.
	lag time.Duration
	// old is a kernel before 5.18, which keeps no mark.
	old bool

	mu            sync.Mutex
	links         map[int]link
	addrs         map[addressKey]*fakeAddr
	defaults      []route // and those of networks on a link
	subscriptions map[*fakeSubscription]bool
	checks        map[bool]*time.Timer // for IPv4 (true) and IPv6: the next look for addresses that have ended
	bindings      []bindRequest        // every bind that worked
	resets        []connectionKinds    // of connections to addresses that were bound, oldest first
	reads         int
}

type fakeAddr struct {
	kernelAddress
	lasts   string        // as given
	valid   time.Duration // 0 is for ever
	renewed time.Time
}

// newFake makes a kernel from lines like "link 2 eth0 up" (also: down, bridge,
// veth, vlan, vrf, loopback, herald for a macvlan of Herald, master=3, mac=02:00:00:00:00:0a), "eth0 10.0.0.5/24 marked" (also: tentative, temporary, secondary, permanent, linkscope) and
// "default 4 eth0 100 10.0.0.1" (family, link, metric, gateway), "onlink eth0 2001:db8::/64".
func newFake(lines string) *fakeKernel {
	k := &fakeKernel{links: map[int]link{}, addrs: map[addressKey]*fakeAddr{}, checks: map[bool]*time.Timer{}, subscriptions: map[*fakeSubscription]bool{}}
	for line := range strings.Lines(lines) {
		if words := strings.Fields(line); len(words) > 0 {
			k.parse(words)
		}
	}
	return k
}

func (k *fakeKernel) parse(words []string) {
	switch words[0] {
	case "link":
		l := link{name: words[2], up: true}
		fmt.Sscan(words[1], &l.index)
		for _, w := range words[3:] {
			switch {
			case w == "up":
			case w == "down":
				l.up = false
			case w == "loopback":
				l.loopback = true
			case strings.HasPrefix(w, "mac="):
				l.mac = w[len("mac="):]
			case w == "herald":
				l.kind, l.alias = "macvlan", aliasMark
			case strings.HasPrefix(w, "master="):
				fmt.Sscanf(w, "master=%d", &l.master)
			default:
				l.kind = w
			}
		}
		k.setLink(l)
	case "default":
		r := route{link: k.index(words[2])}
		fmt.Sscan(words[1], &r.family)
		if len(words) > 3 {
			fmt.Sscan(words[3], &r.metric)
		}
		if len(words) > 4 {
			r.via = netip.MustParseAddr(words[4])
		}
		k.setDefaults(append(k.defaults, r)...)
	case "onlink":
		k.setDefaults(append(k.defaults, route{family: vip.IPv6, link: k.index(words[1]), network: netip.MustParsePrefix(words[2])})...)
	default:
		e := kernelAddress{addressKey: k.at(words[0], words[1]), global: true}
		for _, w := range words[2:] {
			switch w {
			case "marked":
				e.marked = true
			case "tentative":
				e.tentative = true
			case "temporary":
				e.temporary = true
			case "secondary":
				e.secondary = true
			case "permanent":
				e.permanent = true
			case "linkscope":
				e.global = false
			default:
				panic("unknown word " + w)
			}
		}
		k.addrs[e.addressKey] = &fakeAddr{kernelAddress: e, lasts: "forever"}
	}
}

func (k *fakeKernel) at(link, prefix string) addressKey {
	return addressKey{k.index(link), netip.MustParsePrefix(prefix)}
}

func (k *fakeKernel) index(name string) int {
	for i, l := range k.links {
		if l.name == name {
			return i
		}
	}
	panic("no link " + name)
}

// String is all addresses as lines: "eth0 10.0.0.1/32 marked 5s".
func (k *fakeKernel) String() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var lines []string
	for p, a := range k.addrs {
		line := k.links[p.link].name + " " + p.prefix.String()
		if a.marked {
			line += " marked"
		}
		if a.tentative {
			line += " tentative"
		}
		lines = append(lines, line+" "+a.lasts)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func (k *fakeKernel) keepsMark() bool { return !k.old }

func (k *fakeKernel) check(op string, p addressKey) error {
	if k.fault != nil {
		return k.fault(op, p)
	}
	return nil
}

func (k *fakeKernel) renew(list []bindRequest) []error { return k.bind(list) }

func (k *fakeKernel) bind(list []bindRequest) []error {
	k.mu.Lock()
	defer k.mu.Unlock()
	errs := make([]error, len(list))
	for i, b := range list {
		errs[i] = k.bindOne(b)
	}
	return errs
}

func (k *fakeKernel) bindOne(b bindRequest) error {
	if err := k.check("bind", b.addressKey); err != nil {
		return err
	}
	if _, ok := k.links[b.addressKey.link]; !ok {
		return unix.ENODEV
	}
	if b.seconds == 0 {
		return unix.EINVAL
	}
	for p := range k.addrs { // inet6_rtm_newaddr
		if p.link == b.addressKey.link && p != b.addressKey && p.prefix.Addr() == b.prefix.Addr() && p.prefix.Addr().Is6() {
			return unix.EEXIST
		}
	}
	k.bindings = append(k.bindings, b)
	a := k.addrs[b.addressKey]
	if a == nil {
		a = &fakeAddr{kernelAddress: kernelAddress{addressKey: b.addressKey, global: true}}
		k.addrs[b.addressKey] = a
	}
	a.marked = !k.old
	a.lasts = fmt.Sprint(b.seconds, "s")
	a.valid, a.renewed = time.Duration(b.seconds)*time.Second, time.Now()
	k.sendAddress(*a, false)
	k.expireAddresses(b.prefix.Addr().Is4())
	return nil
}

// expireAddresses removes the addresses of a family that have ended, and decides when to
// look again, as Linux does in check_lifetime and addrconf_verify_rtnl.
func (k *fakeKernel) expireAddresses(is4 bool) {
	const fuzzMinus, fuzz, fuzzMax, timer = 20 * time.Millisecond, time.Second / 4, time.Second, 80 * time.Millisecond
	now := time.Now()
	next := now.Add(time.Hour)
	for p, a := range k.addrs {
		if a.valid == 0 || p.prefix.Addr().Is4() != is4 {
			continue
		}
		if (now.Sub(a.renewed) + fuzzMinus).Truncate(time.Second) >= a.valid {
			k.remove(p)
		} else if end := a.renewed.Add(a.valid); end.Before(next) {
			next = end
		}
	}
	if whole := next.Add(time.Second - 1).Truncate(time.Second); whole.Before(next.Add(fuzz)) {
		next = whole
	}
	if next.Before(now.Add(fuzzMax)) {
		next = now.Add(fuzzMax)
	}
	if t := k.checks[is4]; t != nil {
		t.Stop()
	}
	k.checks[is4] = time.AfterFunc(next.Sub(now)+timer, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.expireAddresses(is4)
	})
}

func (k *fakeKernel) promoteSecondaries(int, string) (bool, error) { return false, nil }

func (k *fakeKernel) resetConnections(a netip.Addr, kinds connectionKinds) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for p := range k.addrs {
		if p.prefix.Addr() == a {
			k.resets = append(k.resets, kinds)
			return 1, nil
		}
	}
	return 0, nil
}

func (k *fakeKernel) forgetStale([]netip.Addr, map[netip.Addr]sender) error { return nil }

func (k *fakeKernel) unbind(p addressKey) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.check("unbind", p); err != nil {
		return err
	}
	k.remove(p)
	return nil
}

// drop removes an address as another program would, or the end of its lifetime.
func (k *fakeKernel) drop(p addressKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.remove(p)
}

func (k *fakeKernel) remove(p addressKey) {
	if a := k.addrs[p]; a != nil {
		delete(k.addrs, p)
		k.sendAddress(*a, true)
	}
}

// add adds an address as another program would, without duplicate address detection, or ends that.
func (k *fakeKernel) add(link, prefix string) {
	k.setOther(kernelAddress{addressKey: k.at(link, prefix), global: true})
}

// addTentative adds an address as another program would; duplicate address detection begins.
func (k *fakeKernel) addTentative(link, prefix string) {
	k.setOther(kernelAddress{addressKey: k.at(link, prefix), global: true, tentative: true})
}

// setOther adds an address of another program, or replaces it.
func (k *fakeKernel) setOther(e kernelAddress) {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := &fakeAddr{kernelAddress: e, lasts: "forever"}
	if old := k.addrs[a.addressKey]; old == nil || !old.tentative {
		k.remove(a.addressKey)
	}
	k.addrs[a.addressKey] = a
	k.sendAddress(*a, false)
}

// set changes what fails.
func (k *fakeKernel) set(fault func(op string, p addressKey) error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fault = fault
}

func (k *fakeKernel) setLink(l link) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.links[l.index] = l
	k.send(change{link: &l})
}

func (k *fakeKernel) removeLink(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.links[k.index(name)]
	for p := range k.addrs {
		if p.link == l.index {
			k.remove(p)
		}
	}
	delete(k.links, l.index)
	k.send(change{link: &l, gone: true})
}

func (k *fakeKernel) setDefaults(routes ...route) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.defaults = routes
	k.send(change{routes: true})
}

func (k *fakeKernel) read() (*snapshot, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.reads++
	if err := k.check("read", addressKey{}); err != nil {
		return nil, err
	}
	p := newSnapshot()
	for _, l := range k.links {
		p.setLink(l)
	}
	for at, a := range k.addrs {
		p.addresses[at] = a.kernelAddress
	}
	p.routes = slices.Clone(k.defaults)
	return p, nil
}

func (k *fakeKernel) routes() ([]route, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.defaults), k.check("routes", addressKey{})
}

func (k *fakeKernel) sendAddress(a fakeAddr, gone bool) {
	e := a.kernelAddress
	k.send(change{address: &e, gone: gone})
}

func (k *fakeKernel) send(c change) {
	for f := range k.subscriptions {
		f.changes <- c // or the test has deadlocked
	}
}

// overrun makes all subscribers miss what follows, as if they had been too slow.
func (k *fakeKernel) overrun() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for f := range k.subscriptions {
		delete(k.subscriptions, f)
		close(f.changes)
	}
}

type fakeSubscription struct {
	kernel  *fakeKernel
	changes chan change
	ended   chan struct{}
	once    sync.Once
}

func (k *fakeKernel) subscribe() (subscription, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := k.check("subscribe", addressKey{}); err != nil {
		return nil, err
	}
	f := &fakeSubscription{kernel: k, changes: make(chan change, 100000), ended: make(chan struct{})}
	k.subscriptions[f] = true
	return f, nil
}

func (f *fakeSubscription) close() {
	f.once.Do(func() {
		f.kernel.mu.Lock()
		defer f.kernel.mu.Unlock()
		delete(f.kernel.subscriptions, f)
		close(f.ended)
	})
}

func (f *fakeSubscription) receive() ([]change, error) {
	select {
	case <-f.ended:
		return nil, errors.New("closed")
	case c, ok := <-f.changes:
		if !ok {
			return nil, errOverrun
		}
		time.Sleep(f.kernel.lag)
		return []change{c}, nil
	}
}

// trace is every binding so far, as lines "10.0.0.1/32 on eth0 for 3s".
func (k *fakeKernel) trace() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	lines := make([]string, len(k.bindings))
	for i, b := range k.bindings {
		lines[i] = fmt.Sprintf("%s on %s for %ds", b.prefix, cmp.Or(b.linkName, "?"), b.seconds)
	}
	return strings.Join(lines, "\n")
}
