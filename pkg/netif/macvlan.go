package netif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Macvlans makes links for VIPs with their own MAC. It shares lock, snapshot and view with Interfaces.
//
// Such a link answers ARP for its own address alone. Its parent must not, but Linux answers on every link for any
// address unless arp_ignore says otherwise. So the parent's is set while it has one of Herald's macvlans. The old
// settings are on the macvlan (IFLA_IFALIAS), our mark, for later processes (docs/why.md, "DHCP identity"), and
// remembered, in case another program removes the macvlan.
type Macvlans struct {
	n      *Interfaces
	kernel *rtnetlink // nil in tests without a real kernel

	wanted, ready map[string]vip.Macvlan // by name; the last Set's, at first leftMacvlans; replaced as a whole
	errors        map[string]string      // why one isn't ready; the same
	gateways      map[string]netip.Addr  // by MAC address, as the kernel has resolved them
	before        map[int]ipv4Conf       // what parents had before Herald, by index; until it is put back
}

// Macvlans makes the links for VIPs leased by DHCP.
func (n *Interfaces) Macvlans() *Macvlans { return n.macvlans }

const aliasMark = "herald: "

// repairInterval is how often links are compared: the kernel sends no message when a sysctl changes.
const repairInterval = 10 * time.Second

// maxRemoved is how many links one Set removes: each takes the kernel tens of ms, without renewals.
const maxRemoved = 4

// Set makes, corrects and removes Herald's links, maxRemoved at a time, and returns them.
func (m *Macvlans) Set(_ context.Context, want []vip.Macvlan) ([]vip.Macvlan, error) {
	n := m.n
	n.mu.Lock()
	defer n.mu.Unlock()
	wanted, failed, ready := map[string]vip.Macvlan{}, map[string]string{}, map[string]vip.Macvlan{}
	var errs []error
	want = slices.DeleteFunc(slices.Clone(want), func(w vip.Macvlan) bool {
		_, twice := wanted[w.Name]
		if !twice {
			wanted[w.Name] = w
		}
		return twice
	})
	for _, l := range n.snapshot.macvlans() {
		if was, ok := parseAlias(l.alias); ok {
			m.before[l.parent] = was
		}
	}
	m.wanted = wanted // repair reads it as soon as mu is released
	m.resolveGateways()
	began := time.Now()
	for _, w := range want {
		began = n.release(began)
		if err := m.ensure(w); err != nil {
			failed[w.Name] = err.Error()
			errs = append(errs, fmt.Errorf("link %s: %w", w.Name, err))
			continue
		}
		ready[w.Name] = w
	}
	unwanted := slices.DeleteFunc(n.snapshot.macvlans(), func(l link) bool { _, ok := wanted[l.name]; return ok })
	for _, l := range unwanted[:min(len(unwanted), maxRemoved)] {
		if err := m.remove(l); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, m.restoreParents()...)
	n.metrics.errors.Add(float64(len(errs)))
	if len(unwanted) > maxRemoved || !maps.Equal(m.ready, ready) || !maps.Equal(m.errors, failed) {
		n.opts.Poke()
	}
	m.ready, m.errors, n.changed = ready, failed, true
	n.publish()
	have := slices.Collect(maps.Values(ready))
	for _, l := range n.snapshot.macvlans() {
		if _, ok := ready[l.name]; !ok {
			have = append(have, vip.Macvlan{Name: l.name, MAC: l.mac})
		}
	}
	return have, errors.Join(errs...)
}

// repair corrects the wanted links every repairInterval, while Tenure is confirmed.
func (m *Macvlans) repair(ctx context.Context) {
	tick := time.NewTicker(repairInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		m.n.mu.Lock()
		if m.n.opts.Tenure().Confirmed {
			m.resolveGateways()
			for _, w := range m.wanted {
				if err := m.ensure(w); err != nil {
					m.n.log.Debug("a macvlan can't be corrected", "link", w.Name, "err", err)
					m.n.opts.Poke()
				}
			}
			m.n.publish()
		}
		m.n.mu.Unlock()
	}
}

// resolveGateways sets gateways, none without macvlans. n.mu is held.
func (m *Macvlans) resolveGateways() {
	m.gateways = nil
	if len(m.wanted) > 0 && m.kernel != nil {
		m.gateways = m.kernel.gatewayMACs(m.n.snapshot, m.n.view.Load().gateways)
	}
}

// ensure makes or corrects w, unless its name or MAC is another's. n.mu is held.
func (m *Macvlans) ensure(w vip.Macvlan) error {
	n := m.n
	if m.kernel == nil {
		return errors.New("there is no kernel to make links with")
	}
	mac, err := net.ParseMAC(w.MAC)
	if err != nil || len(mac) != 6 {
		return fmt.Errorf("%q is no Ethernet address", w.MAC)
	}
	l, there := n.snapshot.linkNamed(w.Name)
	parent, found := n.snapshot.linkNamed(w.Parent)
	below := parent.index
	if parent.kind == "macvlan" { // the kernel puts a macvlan on a macvlan beside it
		below = parent.parent
	}
	switch gateway, taken := m.gateways[mac.String()]; {
	case taken:
		err := fmt.Errorf("the hardware address %s is that of the gateway %s; write another (kube-vip.io/hwaddr)", mac,
			gateway)
		if there && l.byHerald() {
			err = errors.Join(err, m.remove(l))
		}
		return err
	case !found:
		return fmt.Errorf("this node has no interface %q for it to sit on", w.Parent)
	case there && !l.byHerald() &&
		!(l.kind == "macvlan" && l.alias == "" && !l.adminUp && l.mac == w.MAC && l.parent == below):
		// a process made the exception, and ended before it marked the link
		return fmt.Errorf("an interface of that name is there already, and is not Herald's (a %s); Herald leaves it alone",
			cmp.Or(l.kind, "device"))
	case there && (l.parent != below || l.mac != w.MAC):
		if err := m.remove(l); err != nil {
			return err
		}
		there = false
	}
	if !there {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = w.Name, parent.index, mac
		if err := m.kernel.handle.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}); err != nil {
			return fmt.Errorf("can't make a macvlan on %s: %w%s", w.Parent, err, macvlanHint(err))
		}
	}
	made, err := m.kernel.handle.LinkByName(w.Name)
	if err != nil {
		return fmt.Errorf("can't read the link: %w", err)
	}
	if err := m.markAndSilenceParent(n.snapshot.links[below], newLink(made)); err != nil {
		return err
	}
	if err := m.configure(w, mac, newLink(made)); err != nil {
		return err
	}
	if !there {
		n.log.Info("made a macvlan for a VIP", "link", w.Name, "on", w.Parent, "mac", w.MAC)
	}
	return nil
}

// configure corrects the settings of a macvlan, and sets it up.
func (m *Macvlans) configure(w vip.Macvlan, mac net.HardwareAddr, l link) error {
	n := m.n
	want := ipv4Conf{arpIgnore: 1, arpAnnounce: 2, rpFilter: w.RPFilter}
	if readIPv4Conf(w.Name) != want || !l.adminUp {
		conf := map[int]int{confARPIgnore: want.arpIgnore, confARPAnnounce: want.arpAnnounce, confRPFilter: want.rpFilter}
		if err := m.kernel.configureLink(l.index, conf, true); err != nil {
			return fmt.Errorf("can't configure it: %w", err)
		}
		if l.adminUp {
			n.log.Warn("another program had changed a macvlan of Herald; corrected", "link", w.Name)
		}
	}
	// Router advertisements are nothing for a VIP's link. A container may only read /proc/sys, but nodes that forward
	// ignore them anyway, unless accept_ra is 2.
	for _, name := range []string{"autoconf", "accept_ra"} {
		path := "/proc/sys/net/ipv6/conf/" + w.Name + "/" + name
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) != "0" {
			if err := os.WriteFile(path, []byte("0"), 0o644); err != nil {
				n.log.Debug("can't turn router advertisements off", "link", w.Name, "err", err)
			}
		}
	}
	if !l.adminUp {
		for _, left := range n.snapshot.links { // two with one hardware address can't be up
			if left.byKubeVIP() && left.parent == l.parent && left.mac == l.mac {
				if err := m.remove(left); err != nil {
					return err
				}
			}
		}
		if err := m.kernel.handle.LinkSetUp(byIndex(l.index)); err != nil {
			return fmt.Errorf("can't set it up: %w%s", err, macvlanHint(err))
		}
	}
	if w.IPv6 { // a link that is down has none
		if err := m.ensureLinkLocal(l, mac); err != nil {
			return err
		}
	}
	made, err := m.kernel.handle.LinkByIndex(l.index)
	if err != nil {
		return fmt.Errorf("can't read the link: %w", err)
	}
	now := newLink(made)
	n.apply(change{link: &now})
	return nil
}

// ensureLinkLocal gives a link the link-local address of its MAC (RFC 4291 appendix A).
func (m *Macvlans) ensureLinkLocal(l link, mac net.HardwareAddr) error {
	a := netip.AddrFrom16([16]byte{0xfe, 0x80, 8: mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})
	prefix := netip.PrefixFrom(a, 64)
	if have, there := m.n.snapshot.addresses[addressKey{l.index, prefix}]; there && !have.tentative {
		return nil
	} else if there { // the kernel would keep it tentative (inet6_addr_modify)
		if err := m.kernel.unbind(have.addressKey); err != nil {
			return fmt.Errorf("can't replace its link-local address: %w%s", err, addressHint(err, prefix, l.name))
		}
	}
	err := m.kernel.handle.AddrReplace(byIndex(l.index), &netlink.Addr{ // without a lifetime, or a probe for duplicates
		IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(64, 128)}, Scope: unix.RT_SCOPE_LINK, Flags: unix.IFA_F_NODAD,
	})
	if err != nil {
		return fmt.Errorf("can't give it a link-local address: %w%s", err, addressHint(err, prefix, l.name))
	}
	return nil
}

// markAndSilenceParent marks a macvlan with its parent's settings, and silences that.
func (m *Macvlans) markAndSilenceParent(parent, l link) error {
	have := readIPv4Conf(parent.name)
	if !l.byHerald() {
		before, known := m.before[parent.index] // Herald has changed it already, for another, or for one that is gone
		if !known {
			before = have
		}
		alias := fmt.Sprintf("%smacvlan for DHCP; parent had arp_ignore=%d arp_announce=%d", aliasMark, before.arpIgnore,
			before.arpAnnounce)
		if err := m.kernel.handle.LinkSetAlias(byIndex(l.index), alias); err != nil {
			return fmt.Errorf("can't mark it: %w", err)
		}
		m.before[parent.index] = before
	}
	change := map[int]int{}
	if max(have.arpIgnore, Sysctl4("all", "arp_ignore")) == 0 {
		change[confARPIgnore] = 1
	}
	if max(have.arpAnnounce, Sysctl4("all", "arp_announce")) < 2 {
		change[confARPAnnounce] = 2
	}
	if len(change) == 0 {
		return nil
	}
	if err := m.kernel.configureLink(parent.index, change, false); err != nil {
		return fmt.Errorf("can't keep %s from answering for it (sysctl net.ipv4.conf.%s.arp_ignore=1): %w", parent.name,
			parent.name, err)
	}
	m.n.log.Info("a link answers for its own addresses only from now on, as long as it carries a macvlan for a VIP",
		"link", parent.name, "arp_ignore", 1, "arp_announce", 2)
	return nil
}

// parseAlias returns its parent's settings by a macvlan's alias.
func parseAlias(alias string) (c ipv4Conf, ok bool) {
	_, text, found := strings.Cut(alias, "parent had ")
	if !found {
		return c, false
	}
	n, _ := fmt.Sscanf(text, "arp_ignore=%d arp_announce=%d", &c.arpIgnore, &c.arpAnnounce)
	return c, n == 2
}

// remove removes a macvlan of Herald or kube-vip; restoreParents is still to be called. n.mu is held.
func (m *Macvlans) remove(l link) error {
	n := m.n
	if err := m.kernel.handle.LinkDel(byIndex(l.index)); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("link %s: can't remove it: %w", l.name, err)
	}
	for key := range n.snapshot.addresses {
		if key.link == l.index {
			delete(n.renewed, key)
			n.apply(change{address: &kernelAddress{addressKey: key}, gone: true})
		}
	}
	n.apply(change{link: &l, gone: true})
	n.log.Info("removed a macvlan", "link", l.name)
	return nil
}

// restoreParents gives parents without macvlans their settings back, unless others changed them. n.mu is held.
func (m *Macvlans) restoreParents() (errs []error) {
	for index, was := range m.before {
		if slices.ContainsFunc(m.n.snapshot.macvlans(), func(l link) bool { return l.parent == index }) {
			continue
		}
		if parent, there := m.n.snapshot.links[index]; there {
			have, back := readIPv4Conf(parent.name), map[int]int{}
			if have.arpIgnore == 1 && was.arpIgnore == 0 {
				back[confARPIgnore] = was.arpIgnore
			}
			if have.arpAnnounce == 2 && was.arpAnnounce < 2 {
				back[confARPAnnounce] = was.arpAnnounce
			}
			if len(back) > 0 {
				if err := m.kernel.configureLink(index, back, false); err != nil {
					errs = append(errs, fmt.Errorf("link %s: can't be given its arp_ignore and arp_announce back: %w", parent.name,
						err))
					continue
				}
			}
		}
		delete(m.before, index)
	}
	return errs
}

// macvlanHint is what to do about an errno, in brackets, or "".
func macvlanHint(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return capabilityHint
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EBUSY):
		return " (another macvlan there has the same hardware address)"
	case errors.Is(err, unix.EOPNOTSUPP):
		return " (the kernel lacks the module macvlan)"
	case errors.Is(err, unix.EINVAL):
		return " (that kind of interface can't carry a macvlan)"
	}
	return ""
}

func byIndex(index int) netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
}
