package netif

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"golang.org/x/sys/unix"
)

// A holding is an address that is renewed.
type holding struct {
	ends   time.Time // when the kernel drops it if it isn't renewed
	failed bool      // the last renewal did
}

// Set binds what is wanted and isn't bound, then removes what bears our mark and
// isn't wanted. It returns what the kernel then has and answers for, also what it
// would not let go of. Every address that is missing, or
// could not be removed, has an error that names it.
func (n *Interfaces) Set(ctx context.Context, want []vip.Address) ([]vip.Address, error) {
	n.op.Lock()
	defer n.op.Unlock()
	epoch := n.opts.Tenure().Epoch
	n.mu.Lock()
	n.epoch = epoch
	n.mu.Unlock()

	var errs []error
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
			n.meters.errors.Inc()
		}
	}
	wanted := map[place]vip.Address{}
	bits := map[place]int{} // by address
	var order []place
	for _, w := range want {
		p, err := n.place(w)
		whole := place{p.link, netip.PrefixFrom(p.prefix.Addr(), p.prefix.Addr().BitLen())}
		_, twice := wanted[p]
		switch {
		case err != nil:
			note(err)
		case !twice && bits[whole] != 0: // IPv6 can't do that (inet6_rtm_newaddr)
			note(fmt.Errorf("address %s on %s: it is wanted with the prefix length %d, too, which goes first", p.prefix, w.Link, bits[whole]))
		case !twice:
			wanted[p], bits[whole] = w, p.prefix.Bits()
			order = append(order, p)
		}
	}
	for _, p := range order {
		if ctx.Err() != nil {
			note(fmt.Errorf("not all addresses were looked at: %w", context.Cause(ctx)))
			break
		}
		note(n.hold(p, wanted[p]))
	}
	for _, p := range n.unwanted(wanted) {
		note(n.release(p, "no longer wanted"))
	}
	return n.have(), errors.Join(errs...)
}

// place finds the link of w.
func (n *Interfaces) place(w vip.Address) (place, error) {
	prefix, err := address(w)
	if err != nil {
		return place{}, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	l, ok := n.picture.named(w.Link)
	if !ok {
		return place{}, fmt.Errorf("address %s: this node has no interface %q; it has %s", prefix, w.Link, n.picture.names())
	}
	return place{l.index, prefix}, nil
}

// hold sees to it that w is bound at p, and renewed from now on.
func (n *Interfaces) hold(p place, w vip.Address) error {
	now := time.Now()
	r := n.right(w, now)
	n.mu.Lock()
	h := n.held[p]
	e, there := n.picture.entries[p]
	_, known := n.wants[p]
	n.wants[p] = w
	n.mu.Unlock()

	switch {
	case r.seconds == 0 && there && e.ours && r.over:
		return n.release(p, "the right to hold it has ended")
	case r.seconds == 0 && there && e.ours:
		return nil // it stays until this node is sure of its right, or the kernel drops it
	case r.seconds == 0:
		return fmt.Errorf("address %s on %s: not bound, since this node's right to hold it is not certain", p.prefix, w.Link)
	case h != nil && there && e.ours && !h.ends.After(r.end):
		return nil
	}
	return n.take(p, w, r, known)
}

// take binds w at p, where there may be an entry already, ours or not. If it is
// known, this process has wanted it before.
func (n *Interfaces) take(p place, w vip.Address, r right, known bool) error {
	n.mu.Lock()
	e, there := n.picture.entries[p]
	others := n.picture.others(p)
	n.mu.Unlock()

	for _, o := range append(others, e) {
		if o.prefix.IsValid() && !o.ours && !o.leftover() {
			return fmt.Errorf("address %s on %s: the interface has %s already, which looks like the node's own address: remove it (ip address delete %s dev %s) or give the Service another address",
				p.prefix, w.Link, o.prefix, o.prefix, w.Link)
		}
	}
	if p.prefix.Addr().Is6() { // one prefix length at a time (inet6_rtm_newaddr)
		if err := n.clear(others, w.Link); err != nil {
			return err
		}
	}
	if err := n.bind(p, w, r); err != nil {
		return err
	}
	switch {
	case !there:
		n.log.Info("bound an address", "address", p.prefix, "link", w.Link)
	case !e.ours:
		n.log.Info("took over an address that another program had bound", "address", p.prefix, "link", w.Link)
	case !known:
		n.log.Info("kept an address that an earlier process had bound", "address", p.prefix, "link", w.Link)
	}
	if !there {
		n.meters.bound.Inc()
	}
	if p.prefix.Addr().Is4() {
		return n.clear(others, w.Link)
	}
	return nil
}

// clear takes away what another program left of an address under another prefix
// length. (Our own goes because it isn't wanted.)
func (n *Interfaces) clear(others []entry, link string) error {
	var errs []error
	for _, o := range others {
		if o.ours && o.prefix.Addr().Is4() {
			continue
		}
		if err := n.unbind(o.place, link); err != nil {
			errs = append(errs, err)
			continue
		}
		n.log.Info("removed an address that is to have another prefix length", "address", o.prefix, "link", link)
	}
	return errors.Join(errs...)
}

// release removes what is bound at p. If that fails, it is still no longer
// renewed, so that it lasts for a few seconds only.
func (n *Interfaces) release(p place, why string) error {
	n.mu.Lock()
	name := n.picture.links[p.link].name
	served := n.wants[p].LocalDelivery
	n.mu.Unlock()
	if served {
		ended, err := n.kernel.reset(p.prefix.Addr())
		n.log.Info("reset the connections to an address that goes", "address", p.prefix, "connections", ended)
		if err != nil { // they end by themselves, later
			n.log.Warn("not all connections to an address that goes could be reset", "address", p.prefix, "err", err)
		}
	}
	if err := n.unbind(p, name); err != nil {
		return err
	}
	n.meters.removed.Inc()
	n.log.Info("removed an address", "address", p.prefix, "link", name, "why", why)
	return nil
}

// bind has the kernel bind or renew w, and takes note of it.
func (n *Interfaces) bind(p place, w vip.Address, r right) error {
	return n.bindAll(n.kernel.bind, []binding{{place: p, link: w.Link, seconds: r.seconds}})[0]
}

// bindAll is bind for many, by one of the kernel's methods. Its i-th error is about
// the i-th of them.
func (n *Interfaces) bindAll(how func([]binding) []error, list []binding) []error {
	began := time.Now() // their time runs from then on, if not later
	errs := how(list)
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, b := range list {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("address %s on %s: can't bind it: %w%s", b.prefix, b.link, errs[i], hint(errs[i], b.place, b.link))
			continue
		}
		e, there := n.picture.entries[b.place]
		if !there {
			e = entry{place: b.place, global: true}
		}
		e.ours = true
		h := n.held[b.place]
		if h == nil {
			h = &holding{}
			n.held[b.place] = h
			n.rouse()
		}
		h.ends = began.Add(time.Duration(b.seconds) * time.Second)
		n.draw(change{entry: &e})
	}
	return errs
}

// unbind has the kernel remove what is at p, and takes note of it.
func (n *Interfaces) unbind(p place, link string) error {
	err := n.kernel.unbind(p)
	n.mu.Lock()
	delete(n.held, p)
	if err == nil {
		n.draw(change{entry: &entry{place: p}, gone: true})
	}
	n.mu.Unlock()
	if err != nil {
		return fmt.Errorf("address %s on %s: can't remove it: %w%s", p.prefix, link, err, hint(err, p, link))
	}
	return n.rebind(p)
}

// rebind binds again what the kernel may have removed together with p: an IPv4
// address takes those of the same network along that were added after it, unless
// the sysctl promote_secondaries is set.
func (n *Interfaces) rebind(p place) error {
	if p.prefix.Addr().Is6() || p.prefix.IsSingleIP() {
		return nil
	}
	n.mu.Lock()
	again := map[place]vip.Address{}
	for q := range n.held {
		if q.link == p.link && q.prefix.Masked() == p.prefix.Masked() {
			again[q] = n.wants[q]
		}
	}
	n.mu.Unlock()
	var errs []error
	for q, w := range again {
		if r := n.right(w, time.Now()); r.seconds > 0 {
			errs = append(errs, n.bind(q, w, r))
		}
	}
	return errors.Join(errs...)
}

// unwanted is what bears our mark and is not in wanted, in order.
func (n *Interfaces) unwanted(wanted map[place]vip.Address) []place {
	n.mu.Lock()
	defer n.mu.Unlock()
	var places []place
	for p, e := range n.picture.entries {
		if _, ok := wanted[p]; !ok && e.ours {
			places = append(places, p)
		}
	}
	for p := range n.wants {
		_, bound := n.picture.entries[p]
		if _, ok := wanted[p]; !ok && !bound {
			delete(n.wants, p)
		}
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(cmp.Compare(a.link, b.link), a.prefix.Addr().Compare(b.prefix.Addr()), cmp.Compare(a.prefix.Bits(), b.prefix.Bits()))
	})
	return places
}

// have is what bears our mark and the kernel answers for.
func (n *Interfaces) have() []vip.Address {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := n.known()
	have := slices.Clone(f.bound)
	for i, p := range f.at {
		if w, ok := n.wants[p]; ok { // the kernel doesn't know which claim it stands on
			have[i] = w
		}
	}
	return have
}

// leftover reports whether an address that isn't ours may be taken over: it is
// alone in its network, or was added to a network that the link had. Anything
// else is how a node gets an address of its own.
func (e entry) leftover() bool { return e.prefix.IsSingleIP() || e.secondary }

// hint says what to do about a kernel's errno.
func hint(err error, p place, link string) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return " (the process needs the capability NET_ADMIN in the node's network namespace)"
	case errors.Is(err, unix.EACCES) && p.prefix.Addr().Is6():
		return fmt.Sprintf(" (IPv6 is switched off there: sysctl net.ipv6.conf.%s.disable_ipv6)", link)
	case errors.Is(err, unix.ENODEV):
		return " (the interface is gone)"
	}
	return ""
}
