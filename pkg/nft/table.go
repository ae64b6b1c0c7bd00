// Package nft keeps Herald's own nftables tables equal to what is wanted. Tables of others are
// never touched.
//
// It has one purpose: when a VIP has moved, packets of TCP connections that began on a former
// owner are sent on to that node, whose conntrack knows them (docs/connections.md). In the table
// "herald" of each family (ip, ip6) there is one chain and one map:
//
//	map former_owners { type ipv4_addr . iface_index : ipv4_addr; flags timeout; }
//	chain established {
//	  type filter hook prerouting priority -150; policy accept;
//	  meta l4proto tcp ct state & (established | related) == 0 tcp flags & (syn | rst | ack) != syn
//	    ip daddr . iif map @former_owners ip ttl > 16 ip ttl set 16
//	  meta l4proto tcp ct state & (established | related) == 0 tcp flags & (syn | rst | ack) != syn
//	    ip ttl > 1 counter dup to ip daddr . iif map @former_owners device iif drop
//	}
//
// The chain comes after conntrack (priority -200), which says whether this node knows the
// connection, and before kube-proxy's translation of addresses (-100). Nodes that name each other
// send a packet to and fro until its TTL (hop limit) has ended: nf_dup_ipv4 and nf_dup_ipv6 take
// one off, but it is the rule that has to look at it, since on this way no kernel function does. A tenant can have nodes name
// each other, by the annotation of a VIP lease, so the first rule leaves a packet 16.
// While nothing is wanted there is no table.
package nft

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"

	"github.com/heraldvip/herald/pkg/vip"
)

// Timeout is how long the kernel keeps an entry that no process renews: long enough for a
// restart of the process, so that packets find their way through nodes that are being upgraded.
const Timeout = 5 * time.Minute

const (
	renewAfter  = time.Minute      // the age at which the entries are renewed
	retryAfter  = 30 * time.Second // after the kernel has refused
	maxElements = 250              // in one message: a netlink attribute has at most 64 KiB
)

// Tables is the tables of this node's network namespace. Only one goroutine, the agent's, may
// use it.
type Tables struct {
	log     *slog.Logger
	metrics *metrics
	written []vip.FormerOwner // what the kernel has, sorted
	at      time.Time         // when that was written
	known   bool              // false: the kernel may have other entries, an earlier process's, or after an error
	failed  time.Time         // when the kernel last refused; zero: not since the last success
}

// New makes Tables. What an earlier process left in the kernel is replaced by the first Set.
func New(log *slog.Logger) *Tables {
	return &Tables{log: log, metrics: newMetrics()}
}

// Observe implements agent.Observer.
func (t *Tables) Observe(w *vip.World) { w.FormerOwners = t.written }

// Check returns an error if nftables can't be used: the kernel has none, or this process no
// CAP_NET_ADMIN. It changes nothing.
func Check() error {
	c, err := nftables.New()
	if err == nil {
		_, err = c.ListTables()
	}
	return err
}

// Set makes the entries in the kernel those of want, in one transaction for each family. Those
// that are older than a minute are renewed, so it should be called at least that often. It returns the entries that the kernel then has, sorted. Entries on a link that is not
// there are left out.
//
// If the kernel refuses, Set logs why, leaves it alone for half a minute, and has no entries
// meanwhile. That is no error: VIPs move all the same, and established connections are reset.
func (t *Tables) Set(_ context.Context, want []vip.FormerOwner) ([]vip.FormerOwner, error) {
	now := time.Now()
	if !t.failed.IsZero() && now.Sub(t.failed) < retryAfter {
		return nil, nil
	}
	want = slices.SortedFunc(slices.Values(want), compare)
	if t.known && slices.Equal(want, t.written) && (len(want) == 0 || now.Sub(t.at) < renewAfter) {
		return t.written, nil
	}
	err := t.write(want)
	if err != nil && t.known { // another program has removed a table: all of it again
		t.known = false
		err = t.write(want)
	}
	if err != nil {
		t.fail(want, err, now)
		return nil, nil
	}
	if !t.failed.IsZero() {
		t.log.Info("nftables takes the former owners of VIPs again")
	}
	t.written, t.at, t.known, t.failed = want, now, true, time.Time{}
	t.metrics.entries.Set(float64(len(want)))
	return want, nil
}

// fail stores that the kernel has refused want. It logs that, unless it has refused before, or
// want is empty: then nothing was to be written, and without nftables nothing is there.
func (t *Tables) fail(want []vip.FormerOwner, err error, now time.Time) {
	if len(want) == 0 {
		t.known = true
		return
	}
	if t.failed.IsZero() {
		t.log.Warn("nftables refuses the former owners of VIPs: established connections of VIPs that have moved to this node are reset", "err", err)
	}
	t.metrics.errors.Inc()
	t.metrics.entries.Set(0)
	t.written, t.known, t.failed = nil, false, now
}

// write makes the entries in the kernel those of want.
func (t *Tables) write(want []vip.FormerOwner) error {
	var errs []error
	for _, f := range families {
		errs = append(errs, t.writeFamily(f, f.of(want), f.of(t.written)))
	}
	return errors.Join(errs...)
}

// writeFamily makes the entries of one family those of want, in one transaction. had is what
// its table has if t.known.
func (t *Tables) writeFamily(f family, want, had []vip.FormerOwner) error {
	if t.known && len(want) == 0 && len(had) == 0 {
		return nil
	}
	c, err := nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		return c.SetWriteBuffer(1<<16 + 128*len(want)) // one sendmsg(2) for the transaction
	}))
	if err != nil {
		return err
	}
	switch {
	case len(want) == 0 || len(had) == 0 || !t.known:
		c.AddTable(f.table()) // one that is not there can't be deleted
		c.DelTable(f.table())
		if len(want) > 0 {
			if err := f.build(c); err != nil {
				return err
			}
		}
	default:
		c.FlushSet(f.set())
	}
	for some := range slices.Chunk(f.elements(want), maxElements) {
		if err := c.SetAddElements(f.set(), some); err != nil {
			return err
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("table %s herald: %w", f.name, err)
	}
	return nil
}

// compare orders entries by VIP, link and next hop.
func compare(a, b vip.FormerOwner) int {
	return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.Link, b.Link), a.NextHop.Compare(b.NextHop))
}
