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

// Set binds what is wanted, as Tenure allows, removes marked others, and returns what is bound.
func (n *Interfaces) Set(ctx context.Context, want []vip.Address) ([]vip.Address, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	wanted, order, errs := n.wantedKeys(want)
	n.setting = true
	errs = append(errs, n.promoteSecondaries(order))
	began := time.Now()
	for part := range slices.Chunk(order, batch) {
		if ctx.Err() != nil {
			errs = append(errs, fmt.Errorf("not all addresses were looked at: %w", context.Cause(ctx)))
			break
		}
		errs = append(errs, n.ensureAllBound(part, wanted)...)
		began = n.release(began)
	}
	unwanted := n.unwanted(wanted)
	errs = append(errs, n.promoteSecondaries(unwanted))
	for _, key := range unwanted {
		delete(n.renewed, key) // all of them, or those whose turn comes later would be renewed meanwhile
	}
	for _, key := range unwanted {
		errs = append(errs, n.remove(key, "no longer wanted"))
		began = n.release(began)
	}
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	n.metrics.errors.Add(float64(len(errs)))
	n.setting = false
	n.publish()
	if n.unpublished {
		n.unpublished = false
		n.opts.Poke()
	}
	return slices.Clone(n.view.Load().bound), vip.JoinErrors(errs)
}

const portion = 2 * time.Millisecond

// batch is how many addresses Set binds at a time: about a portion (BenchmarkTakeOver).
const batch = 32

// release unlocks mu for a moment after a portion, and returns since when it is held.
func (n *Interfaces) release(began time.Time) time.Time {
	if time.Since(began) < portion {
		return began
	}
	// who has waited 1 ms gets it by the second Unlock (sync.Mutex)
	n.mu.Unlock()
	n.mu.Lock()
	return time.Now()
}

// wantedKeys returns where each address is to be bound, and these keys in order.
func (n *Interfaces) wantedKeys(want []vip.Address) (wanted map[addressKey]vip.Address, order []addressKey,
	errs []error) {
	wanted = map[addressKey]vip.Address{}
	bits := map[addressKey]int{} // by link and address alone
	for _, w := range want {
		key, err := n.keyOf(w)
		alone := addressKey{key.link, netip.PrefixFrom(key.prefix.Addr(), key.prefix.Addr().BitLen())}
		_, twice := wanted[key]
		switch {
		case err != nil:
			errs = append(errs, err)
		case !twice && bits[alone] != 0: // IPv6 can't do that (inet6_rtm_newaddr)
			errs = append(errs, fmt.Errorf("address %s on %s: it is wanted with the prefix length %d, too, which goes first",
				key.prefix, w.Link, bits[alone]))
		case !twice:
			wanted[key], bits[alone] = w, key.prefix.Bits()
			order = append(order, key)
		}
	}
	return wanted, order, errs
}

func (n *Interfaces) keyOf(w vip.Address) (addressKey, error) {
	prefix := netip.PrefixFrom(w.Addr.Unmap().WithZone(""), w.Bits)
	if !prefix.IsValid() || w.Bits == 0 {
		return addressKey{}, fmt.Errorf("%s/%d is no address to bind", w.Addr, w.Bits)
	}
	l, ok := n.snapshot.linkNamed(w.Link)
	if !ok {
		return addressKey{}, fmt.Errorf("address %s: this node has no interface %q; it has %s", prefix, w.Link,
			n.snapshot.names())
	}
	return addressKey{l.index, prefix}, nil
}

// ensureAllBound is ensureBound for several, with one request for what is missing.
func (n *Interfaces) ensureAllBound(keys []addressKey, wanted map[addressKey]vip.Address) (errs []error) {
	var absent []bindRequest
	for _, key := range keys {
		w := wanted[key]
		_, wantedBefore := n.wanted[key]
		if n.wanted[key] != w {
			n.wanted[key], n.changed = w, true
		}
		v := n.validity(w, time.Now())
		if _, there := n.snapshot.addresses[key]; there || v.seconds == 0 || len(n.snapshot.otherLengths(key)) > 0 {
			errs = append(errs, n.ensureBound(key, w, v, wantedBefore))
			continue
		}
		absent = append(absent, bindRequest{key, w.Link, v.seconds})
	}
	for i, err := range n.bind(n.kernel.bind, absent) {
		if errs = append(errs, err); err == nil {
			n.recordBound(absent[i].addressKey, wanted[absent[i].addressKey])
		}
	}
	return errs
}

// recordBound counts and logs what is new at key, and has stale connections forgotten.
func (n *Interfaces) recordBound(key addressKey, w vip.Address) {
	n.metrics.bound.Inc()
	n.log.Info("bound an address", "address", key.prefix, "link", w.Link)
	if w.LocalDelivery {
		n.reset(key, ownClients)
	}
	n.forget(key.prefix.Addr())
}

// ensureBound binds w at key if Tenure is certain.
func (n *Interfaces) ensureBound(key addressKey, w vip.Address, v validity, wantedBefore bool) error {
	a, there := n.snapshot.addresses[key]
	switch r := n.renewed[key]; {
	case v.seconds == 0 && there && a.marked && v.over:
		return n.remove(key, "the right to hold it has ended")
	case v.seconds == 0 && there && a.marked:
		return nil
	case v.seconds == 0:
		return fmt.Errorf("address %s on %s: not bound, since this node's right to hold it is not certain", key.prefix,
			w.Link)
	case r != nil && there && a.marked && !a.tentative && !r.ends.After(v.end):
		return nil
	}
	return n.bindOrTakeOver(key, w, v, wantedBefore)
}

// bindOrTakeOver binds w at key, over what others left, but not the node's own address.
func (n *Interfaces) bindOrTakeOver(key addressKey, w vip.Address, v validity, wantedBefore bool) error {
	a, there := n.snapshot.addresses[key]
	others := n.snapshot.otherLengths(key)
	for _, o := range append(others, a) {
		if o.prefix.IsValid() && !o.marked && !o.leftBehind() {
			return fmt.Errorf("address %s on %s: the interface has %s already, which looks like the node's own address: "+
				"remove it (ip address delete %s dev %s) or give the Service another address",
				key.prefix, w.Link, o.prefix, o.prefix, w.Link)
		}
	}
	if key.prefix.Addr().Is6() { // one prefix length at a time (inet6_rtm_newaddr)
		if err := n.removeOtherLengths(others, w.Link); err != nil {
			return err
		}
	}
	// the kernel would keep it so (inet6_addr_modify)
	if a.tentative {
		if err := n.unbind(key, w.Link); err != nil {
			return err
		}
		n.log.Info("removed an address that the kernel does not answer for, to bind it without duplicate address detection",
			"address", key.prefix, "link", w.Link)
	}
	if err := n.bind(n.kernel.bind, []bindRequest{{key, w.Link, v.seconds}})[0]; err != nil {
		return err
	}
	switch {
	case !there:
		n.recordBound(key, w)
	case !a.marked:
		n.log.Info("took over an address that another program had bound", "address", key.prefix, "link", w.Link)
	case !wantedBefore:
		n.log.Info("kept an address that an earlier process had bound", "address", key.prefix, "link", w.Link)
	}
	if key.prefix.Addr().Is4() {
		return n.removeOtherLengths(others, w.Link)
	}
	return nil
}

// removeOtherLengths removes an address with other prefix lengths that another program left.
func (n *Interfaces) removeOtherLengths(others []kernelAddress, linkName string) error {
	var errs []error
	for _, o := range others {
		if o.marked && o.prefix.Addr().Is4() {
			continue
		}
		if err := n.unbind(o.addressKey, linkName); err != nil {
			errs = append(errs, err)
			continue
		}
		n.log.Info("removed an address that is to have another prefix length", "address", o.prefix, "link", linkName)
	}
	return errors.Join(errs...)
}

// remove removes what is bound at key, and resets its connections if it has LocalDelivery.
func (n *Interfaces) remove(key addressKey, why string) error {
	name := n.snapshot.links[key.link].name
	if w := n.wanted[key]; w.LocalDelivery {
		kinds := served
		// its API server does not work, or it would hold its node lease
		if w.ResetTranslated || !n.opts.Tenure().Holds(time.Now()) {
			kinds |= translated
		}
		n.reset(key, kinds)
	}
	if err := n.unbind(key, name); err != nil {
		return err
	}
	n.metrics.removed.Inc()
	n.log.Info("removed an address", "address", key.prefix, "link", name, "why", why)
	return nil
}

func (n *Interfaces) reset(key addressKey, kinds connectionKinds) {
	switch ended, err := n.kernel.resetConnections(key.prefix.Addr(), kinds); {
	case err != nil: // they end by themselves, later
		n.log.Warn("not all connections to an address that moves could be reset", "address", key.prefix, "err", err)
	case ended > 0:
		n.log.Info("reset connections to an address that moves", "address", key.prefix, "connections", ended)
	}
}

// bind has the kernel bind or renew by method, and renews what succeeded.
func (n *Interfaces) bind(method func([]bindRequest) []error, list []bindRequest) []error {
	began := time.Now() // their time runs from then on, if not later
	errs := method(list)
	for i, b := range list {
		if errs[i] != nil {
			errs[i] = fmt.Errorf("address %s on %s: can't bind it: %w%s", b.prefix, b.linkName, errs[i],
				addressHint(errs[i], b.prefix, b.linkName))
			continue
		}
		a, there := n.snapshot.addresses[b.addressKey]
		if !there {
			a = kernelAddress{addressKey: b.addressKey, global: true}
		}
		a.marked, a.permanent = true, false
		r := n.renewed[b.addressKey]
		if r == nil {
			r = &renewal{}
			n.renewed[b.addressKey] = r
			n.wake.Send()
		}
		r.ends = began.Add(time.Duration(b.seconds) * time.Second)
		n.apply(change{address: &a})
	}
	return errs
}

// unbind removes what is at key, and renews it no more, even if that fails.
func (n *Interfaces) unbind(key addressKey, linkName string) error {
	delete(n.renewed, key)
	if err := n.kernel.unbind(key); err != nil {
		return fmt.Errorf("address %s on %s: can't remove it: %w%s", key.prefix, linkName, err,
			addressHint(err, key.prefix, linkName))
	}
	n.apply(change{address: &kernelAddress{addressKey: key}, gone: true})
	return nil
}

// promoteSecondaries has addresses outlive others of their network (__inet_del_ifa), for good.
func (n *Interfaces) promoteSecondaries(keys []addressKey) error {
	var errs []error
	seen := map[int]bool{}
	for _, key := range keys {
		if key.prefix.Addr().Is6() || key.prefix.IsSingleIP() || seen[key.link] {
			continue
		}
		seen[key.link] = true
		name := n.snapshot.links[key.link].name
		switch changed, err := n.kernel.promoteSecondaries(key.link, name); {
		case err != nil:
			errs = append(errs, fmt.Errorf("other addresses of %s may go with a VIP: can't set the sysctl "+
				"net.ipv4.conf.%s.promote_secondaries to 1: %w", name, name, err))
		case changed:
			n.log.Info("addresses of a link stay from now on when another one of their network is removed", "link", name,
				"promote_secondaries", 1)
		}
	}
	return errors.Join(errs...)
}

// unwanted returns what is marked and not in wanted, and forgets what has gone.
func (n *Interfaces) unwanted(wanted map[addressKey]vip.Address) (keys []addressKey) {
	for key, a := range n.snapshot.addresses {
		if _, ok := wanted[key]; !ok && a.marked {
			keys = append(keys, key)
		}
	}
	for key := range n.wanted {
		_, bound := n.snapshot.addresses[key]
		if _, ok := wanted[key]; !ok && !bound {
			delete(n.wanted, key)
		}
	}
	slices.SortFunc(keys, func(a, b addressKey) int {
		return cmp.Or(cmp.Compare(a.link, b.link), a.prefix.Compare(b.prefix))
	})
	return keys
}

// leftBehind reports whether an unmarked address is no node's own: alone or second in its network.
func (a kernelAddress) leftBehind() bool { return a.prefix.IsSingleIP() || a.secondary }

// addressHint returns what to do about an errno, in brackets, or "".
func addressHint(err error, prefix netip.Prefix, linkName string) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return capabilityHint
	case errors.Is(err, unix.EACCES) && prefix.Addr().Is6():
		return fmt.Sprintf(" (IPv6 is switched off there: sysctl net.ipv6.conf.%s.disable_ipv6)", linkName)
	case errors.Is(err, unix.ENODEV):
		return " (the interface is gone)"
	}
	return ""
}

const capabilityHint = " (the process needs the capability NET_ADMIN in the node's network namespace)"
