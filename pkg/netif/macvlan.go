package netif

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"golang.org/x/sys/unix"
)

// Macvlans is the part of the node that makes links for VIPs with a hardware
// address of their own. It shares all it knows with Interfaces.
//
// Such a link answers ARP for its own address alone, with its own hardware address.
// Its parent must not answer for it: Linux answers on every link for an address of
// any, unless arp_ignore says otherwise. So that is set on the parent as long as a
// macvlan of ours is on it. What was there before is written on the macvlan
// (IFLA_IFALIAS), which is our mark, too: a later process knows both from it.
type Macvlans struct{ n *Interfaces }

// Macvlans is the part for links of ours.
func (n *Interfaces) Macvlans() Macvlans { return Macvlans{n} }

// Set makes what is wanted and isn't there, puts right what is, and removes links of
// ours that aren't wanted, a few at a time. It touches no other link. It returns
// those that are as they should be, and those that are still there (by their names).
func (m Macvlans) Set(_ context.Context, want []vip.Macvlan) ([]vip.Macvlan, error) {
	m.n.op.Lock()
	defer m.n.op.Unlock()
	return m.n.macvlans.set(m.n, want)
}

// aliasMark begins the alias of a link of ours.
const aliasMark = "herald: "

// lookEvery is how often links of ours are compared with what they should be. The
// kernel tells nothing of a sysctl that changes.
const lookEvery = 10 * time.Second

// removeMost is how many links go in one pass. The kernel takes tens of milliseconds
// over each, and meanwhile no address is renewed.
const removeMost = 4

// macvlans is what Interfaces knows of the links of ours.
type macvlans struct {
	kernel linkMaker // nil: there is none to make links with

	// Guarded by Interfaces.mu.
	want   map[string]vip.Macvlan
	faults map[string]string
	fine   map[string]vip.Macvlan
}

// linkMaker is what this file needs of the kernel.
type linkMaker interface {
	// make makes a macvlan in bridge mode. It is down, and has no mark.
	make(name string, parent int, mac net.HardwareAddr) error
	// configure changes a link.
	configure(index int, c linkConfig) error
	// unlink removes a link. One that isn't there is no error.
	unlink(index int) error
	// look reads a link anew.
	look(index int, name string) (link, devconf, error)
	// local gives a link a link-local address, for good, without a look for duplicates.
	local(index int, a netip.Addr) error
}

// devconf is the settings of a link (net.ipv4.conf.<link>).
type devconf struct{ ignore, announce, filter int }

// linkConfig is what is to be changed of a link; what is nil stays.
type linkConfig struct {
	alias *string
	conf  map[uint16]int // by IPV4_DEVCONF_
	quiet bool           // no link-local address of the kernel's own (addrgenmode none)
	up    bool
}

func (x *macvlans) set(n *Interfaces, want []vip.Macvlan) ([]vip.Macvlan, error) {
	wanted, faults, fine := map[string]vip.Macvlan{}, map[string]string{}, map[string]vip.Macvlan{}
	var errs []error
	for _, w := range want {
		if _, twice := wanted[w.Name]; twice {
			continue
		}
		wanted[w.Name] = w
		if err := x.keep(n, w); err != nil {
			faults[w.Name] = err.Error()
			errs = append(errs, fmt.Errorf("link %s: %w", w.Name, err))
			n.meters.errors.Inc()
			continue
		}
		fine[w.Name] = w
	}
	removed := 0
	for _, l := range n.ours() {
		if _, ok := wanted[l.name]; ok {
			continue
		}
		if removed++; removed > removeMost {
			n.opts.Poke()
			break
		}
		if err := x.remove(n, l); err != nil {
			errs = append(errs, err)
			n.meters.errors.Inc()
		}
	}
	n.mu.Lock()
	before, was := x.fine, x.faults
	x.want, x.faults, x.fine = wanted, faults, fine
	n.mu.Unlock()
	if !maps.Equal(before, fine) || !maps.Equal(was, faults) {
		n.opts.Poke()
	}
	have := slices.Collect(maps.Values(fine))
	for _, l := range n.ours() {
		if _, ok := fine[l.name]; !ok {
			have = append(have, vip.Macvlan{Name: l.name, MAC: l.mac})
		}
	}
	return have, errors.Join(errs...)
}

// observe fills in what links are there.
func (x *macvlans) observe(n *Interfaces, w *vip.World) {
	w.MacvlanErrors = maps.Clone(x.faults)
	for _, l := range n.known().ours {
		if m, ok := x.fine[l.name]; ok && l.admin && l.mac == m.MAC {
			w.Macvlans = append(w.Macvlans, m)
		}
	}
	w.StrictRPFilter = len(x.want) > 0 && sysctl4("all", "rp_filter") == 1
}

// ours is the links of ours.
func (n *Interfaces) ours() []link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.known().ours)
}

// watch looks whether the links are still as they should be, until ctx ends.
func (x *macvlans) watch(ctx context.Context, n *Interfaces) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		n.mu.Lock()
		want := slices.Collect(maps.Values(x.want))
		n.mu.Unlock()
		if len(want) == 0 || !n.opts.Tenure().Confirmed {
			continue
		}
		n.op.Lock()
		for _, w := range want {
			if err := x.keep(n, w); err != nil {
				n.log.Debug("a link of ours", "link", w.Name, "err", err)
				n.opts.Poke()
			}
		}
		n.op.Unlock()
	}
}

// keep sees to it that w is there and as it should be.
func (x *macvlans) keep(n *Interfaces, w vip.Macvlan) error {
	if x.kernel == nil {
		return errors.New("there is no kernel to make links with")
	}
	mac, err := net.ParseMAC(w.MAC)
	if err != nil || len(mac) != 6 {
		return fmt.Errorf("%q is no Ethernet address", w.MAC)
	}
	n.mu.Lock()
	l, there := n.picture.named(w.Name)
	parent, found := n.picture.named(w.Parent)
	n.mu.Unlock()
	below := parent.index
	if parent.kind == "macvlan" { // the kernel puts a macvlan on a macvlan beside it
		below = parent.parent
	}
	switch {
	case !found:
		return fmt.Errorf("this node has no interface %q for it to sit on", w.Parent)
	case there && !l.ours() && !(l.kind == "macvlan" && l.alias == "" && !l.admin && l.mac == w.MAC && l.parent == below):
		return fmt.Errorf("an interface of that name is there already, and is not Herald's (a %s); Herald leaves it alone", kindOf(l))
	case there && (l.parent != below || l.mac != w.MAC):
		if err := x.remove(n, l); err != nil {
			return err
		}
		there = false
	}
	if !there {
		if err := x.kernel.make(w.Name, parent.index, mac); err != nil {
			return fmt.Errorf("can't make a macvlan on %s: %w%s", w.Parent, err, whyNot(err))
		}
	}
	made, conf, err := x.kernel.look(0, w.Name)
	if err != nil {
		return err
	}
	n.mu.Lock()
	parent = n.picture.links[below]
	n.mu.Unlock()
	if err := x.manners(n, parent, made); err != nil {
		return err
	}
	if err := x.tune(n, w, made, conf); err != nil {
		return err
	}
	if !there {
		n.log.Info("made a macvlan for a VIP", "link", w.Name, "on", w.Parent, "mac", w.MAC)
	}
	return nil
}

// Numbers of settings (IPV4_DEVCONF_ of linux/ip.h).
const (
	confFilter   = 8
	confAnnounce = 18
	confIgnore   = 19
)

// tune sets what is not as it should be on a macvlan, and sets it up.
func (x *macvlans) tune(n *Interfaces, w vip.Macvlan, l link, have devconf) error {
	want := devconf{ignore: 1, announce: 2, filter: w.RPFilter}
	if have != want || !l.admin {
		c := linkConfig{conf: map[uint16]int{confIgnore: want.ignore, confAnnounce: want.announce, confFilter: want.filter}, quiet: true}
		if err := x.kernel.configure(l.index, c); err != nil {
			return fmt.Errorf("can't configure it: %w", err)
		}
		if l.admin {
			n.log.Warn("somebody had changed a macvlan of ours; put right", "link", w.Name)
		}
	}
	// An address or a route by router advertisement is nothing for a VIP's link. It
	// takes /proc/sys, which a container may only read; nodes that forward ignore
	// advertisements anyway, unless accept_ra is 2.
	for _, name := range []string{"autoconf", "accept_ra"} {
		path := "/proc/sys/net/ipv6/conf/" + w.Name + "/" + name
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) != "0" {
			if err := os.WriteFile(path, []byte("0"), 0o644); err != nil {
				n.log.Debug("can't turn router advertisements off", "link", w.Name, "err", err)
			}
		}
	}
	if w.IPv6 {
		if err := x.local(n, l, w.MAC); err != nil {
			return err
		}
	}
	if !l.admin {
		if err := x.kernel.configure(l.index, linkConfig{up: true}); err != nil {
			return fmt.Errorf("can't set it up: %w%s", err, whyNot(err))
		}
		if w.IPv6 { // what it had, it loses with being down
			if err := x.local(n, l, w.MAC); err != nil {
				return err
			}
		}
	}
	now, _, err := x.kernel.look(l.index, "")
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.draw(change{link: &now})
	n.mu.Unlock()
	return nil
}

// local gives a link the link-local address of its hardware address (RFC 4291 appendix A).
func (x *macvlans) local(n *Interfaces, l link, text string) error {
	mac, err := net.ParseMAC(text)
	if err != nil {
		return err
	}
	a := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	n.mu.Lock()
	e, there := n.picture.entries[place{l.index, netip.PrefixFrom(a, 64)}]
	n.mu.Unlock()
	if there && !e.tentative {
		return nil
	}
	if err := x.kernel.local(l.index, a); err != nil {
		return fmt.Errorf("can't give it a link-local address: %w%s", err, hint(err, place{prefix: netip.PrefixFrom(a, 64)}, l.name))
	}
	return nil
}

// manners keeps a parent from answering for the addresses of macvlans on it, and
// writes on the macvlan what the parent did before.
func (x *macvlans) manners(n *Interfaces, parent, l link) error {
	_, have, err := x.kernel.look(parent.index, "")
	if err != nil {
		return err
	}
	before := have
	for _, o := range n.ours() { // another has changed it already
		if was, ok := remembered(o.alias); ok && o.parent == parent.index {
			before = was
			break
		}
	}
	if !l.ours() {
		alias := fmt.Sprintf("%smacvlan for DHCP; parent had arp_ignore=%d arp_announce=%d", aliasMark, before.ignore, before.announce)
		if err := x.kernel.configure(l.index, linkConfig{alias: &alias}); err != nil {
			return fmt.Errorf("can't mark it: %w", err)
		}
	}
	change := map[uint16]int{}
	if max(have.ignore, sysctl4("all", "arp_ignore")) == 0 {
		change[confIgnore] = 1
	}
	if max(have.announce, sysctl4("all", "arp_announce")) < 2 {
		change[confAnnounce] = 2
	}
	if len(change) == 0 {
		return nil
	}
	if err := x.kernel.configure(parent.index, linkConfig{conf: change}); err != nil {
		return fmt.Errorf("can't keep %s from answering for it (sysctl net.ipv4.conf.%s.arp_ignore=1): %w", parent.name, parent.name, err)
	}
	n.log.Info("a link answers for its own addresses only from now on, as long as it carries a macvlan for a VIP", "link", parent.name, "arp_ignore", 1, "arp_announce", 2)
	return nil
}

// remembered is what a parent had, as its macvlan's alias says.
func remembered(alias string) (c devconf, ok bool) {
	_, text, found := strings.Cut(alias, "parent had ")
	if !found {
		return c, false
	}
	n, _ := fmt.Sscanf(text, "arp_ignore=%d arp_announce=%d", &c.ignore, &c.announce)
	return c, n == 2
}

// remove removes a macvlan of ours. With the last one its parent gets back what it had.
func (x *macvlans) remove(n *Interfaces, l link) error {
	if err := x.kernel.unlink(l.index); err != nil {
		return fmt.Errorf("link %s: can't remove it: %w", l.name, err)
	}
	n.mu.Lock()
	for p := range n.picture.entries {
		if p.link == l.index {
			delete(n.held, p)
			n.draw(change{entry: &entry{place: p}, gone: true})
		}
	}
	n.draw(change{link: &l, gone: true})
	parent, there := n.picture.links[l.parent]
	n.mu.Unlock()
	n.log.Info("removed a macvlan of ours", "link", l.name)
	was, ok := remembered(l.alias)
	if !there || !ok || slices.ContainsFunc(n.ours(), func(o link) bool { return o.parent == l.parent }) {
		return nil
	}
	_, have, err := x.kernel.look(parent.index, "")
	if err != nil {
		return err
	}
	back := map[uint16]int{}
	if have.ignore == 1 && was.ignore == 0 { // else somebody else has changed it meanwhile
		back[confIgnore] = was.ignore
	}
	if have.announce == 2 && was.announce < 2 {
		back[confAnnounce] = was.announce
	}
	if len(back) == 0 {
		return nil
	}
	return x.kernel.configure(parent.index, linkConfig{conf: back})
}

// kindOf is what a link is, for messages.
func kindOf(l link) string {
	if l.kind == "" {
		return "device"
	}
	return l.kind
}

func whyNot(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return " (the process needs the capability NET_ADMIN in the node's network namespace)"
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EBUSY):
		return " (another macvlan there has the same hardware address)"
	case errors.Is(err, unix.EOPNOTSUPP):
		return " (the kernel lacks the module macvlan)"
	case errors.Is(err, unix.EINVAL):
		return " (that kind of interface can't carry a macvlan)"
	}
	return ""
}

// sysctl4 reads net.ipv4.conf.<link>.<name>; 0 if it can't.
func sysctl4(link, name string) int {
	b, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + link + "/" + name)
	if err != nil {
		return 0
	}
	v, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	return v
}
