// Package nft keeps Herald's own nftables tables equal to what is wanted, and touches no others.
//
// Each purpose and family (ip, ip6) has a table while something is wanted of it: "herald" for connections of moved VIPs
// (former.go), "herald_control_plane" for those to the API server (balance.go), "herald_ports" for open ports of
// VIPs (ports.go), "herald_invalid" for packets that would reset connections (invalid.go), "herald_api_servers" for
// balancing over API servers (balance.go), and "herald_egress" for what pods send with a VIP as source (egress.go). Why
// they are not one: docs/why.md, "nftables".
package nft

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

// Timeout is how long the kernel keeps entries unrenewed: enough for an upgrade of the node.
const Timeout = 5 * time.Minute

const (
	renewAfter  = 10 * time.Second // the age at which a table is written again: entries end, and firewalls flush rules
	retryAfter  = 30 * time.Second // after the kernel has refused
	maxElements = 250              // in one message: a netlink attribute has at most 64 KiB
	answerSize  = 4096             // what the answer to a message takes of the socket's buffer at most, in bytes
	elementSize = 128              // what an element takes of a transaction at most, in bytes
	// what a set takes without its elements, with its chains and rules
	setSize     = 4096
	setMessages = 4 // in how many messages these are
)

// Tables is the tables of this node's network namespace, for the agent's goroutine only.
type Tables struct {
	*metric.Set
	FormerOwners *Table[vip.FormerOwner]
	Translations *Table[vip.Translation]
	OpenPorts    *Table[vip.OpenPort]
	Invalid      *Table[netip.Addr] // VIPs of Services
	Balanced     *Table[vip.BalancedServer]
	Egress       *Table[vip.Egress]
}

// New makes Tables. The first Set of each replaces what an earlier process left.
func New(log *slog.Logger) *Tables {
	s := &metric.Set{}
	errs := metric.Counter(s, "herald_nftables_errors_total", "Transactions that nftables refused.")
	former := metric.Gauge(s, "herald_former_owners", "VIPs for which this node sends packets of connections that it "+
		"does not know to a former owner.")
	return &Tables{
		Set:          s,
		FormerOwners: &Table[vip.FormerOwner]{purpose: formerOwners, log: log, errors: errs, entries: former},
		Translations: &Table[vip.Translation]{purpose: translations, log: log, errors: errs},
		Balanced:     &Table[vip.BalancedServer]{purpose: balanced, log: log, errors: errs},
		OpenPorts:    &Table[vip.OpenPort]{purpose: openPorts, log: log, errors: errs},
		Invalid:      &Table[netip.Addr]{purpose: invalid, log: log, errors: errs},
		Egress:       &Table[vip.Egress]{purpose: egress, log: log, errors: errs},
	}
}

// LinksChanged has the next Set of FormerOwners look at indexes of links, without blocking.
func (t *Tables) LinksChanged() {
	for i := range t.FormerOwners.state {
		t.FormerOwners.state[i].linksChanged.Store(true)
	}
}

// Observe fills in FormerOwners, PortsNotLimited and EgressRefused.
func (t *Tables) Observe(w *vip.World) {
	w.FormerOwners = slices.Concat(t.FormerOwners.state[0].written, t.FormerOwners.state[1].written)
	w.PortsNotLimited, w.EgressRefused = t.OpenPorts.refusals(), t.Egress.refusals()
}

// Check returns an error if the kernel does not take a table; nothing changes.
func Check() error {
	var pods []vip.Egress
	for _, a := range []string{"192.0.2.1", "2001:db8::1"} {
		own := vip.Egress{VIP: netip.MustParseAddr(a)}
		elsewhere := own
		elsewhere.Via = own.VIP
		pods = append(pods, own, elsewhere)
	}
	return errors.Join(formerOwners.check(), translations.check(), openPorts.check(), invalid.check(), balanced.check(),
		egress.check(pods...))
}

const checkTable = "herald_check"

// check returns an error if the kernel does not take a table of the purpose with some entries.
func (p purpose[E]) check(entries ...E) error {
	var errs []error
	for _, f := range families {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		entries := p.of(f, entries)
		table, maps := c.AddTable(f.table(checkTable)), p.maps(f, entries)
		for _, m := range maps {
			m.Table = table
			errs = append(errs, c.AddSet(m, nil))
		}
		p.build(c, f, table, maps, entries)
		c.DelTable(table)
		if err := c.Flush(); err != nil {
			errs = append(errs, fmt.Errorf("%s (%s): %w", p.what, f.name, err))
		}
	}
	return errors.Join(errs...)
}

// A purpose decides all that is in a Table.
type purpose[E any] struct {
	table       string             // its name
	what        string             // what it holds, for messages
	consequence string             // what happens without it, for messages
	addr        func(E) netip.Addr // the VIP, whose family decides in which table the entry is
	compare     func(a, b E) int   // orders entries
	equal       func(a, b E) bool  // nil: where compare returns 0
	link        func(E) string     // the link whose index the entry has; nil: none
	maps        func(f family, entries []E) []*nftables.Set
	build       func(c *nftables.Conn, f family, table *nftables.Table, maps []*nftables.Set, entries []E)
	elements    func(f family, entries []E) [][]nftables.SetElement // of maps; of equal keys the first counts
}

// A Table keeps one purpose's tables, one for each family, equal to wanted entries.
type Table[E any] struct {
	purpose[E]
	log     *slog.Logger
	errors  prometheus.Counter
	entries prometheus.Gauge // may be nil

	state [2]state[E] // of each of families: what the kernel refuses of one is nothing to the other
}

type state[E any] struct {
	written []E         // what the kernel has, sorted
	at      time.Time   // when that was written
	known   bool        // false: the kernel may have other entries, an earlier process's, or after an error
	links   linkIndexes // of the links of written, as they were then
	failed  time.Time   // when the kernel last refused; zero: not since the last success
	why     error       // what the kernel then said

	linksChanged atomic.Bool // the kernel's links may be others than links
}

// Set makes the kernel's entries those of want, a transaction a family, and returns them.
func (t *Table[E]) Set(_ context.Context, want []E) (have []E, err error) {
	now := time.Now()
	// what is refused is left alone for half a minute: VIPs move all the same
	want = slices.SortedFunc(slices.Values(want), t.compare)
	for i, f := range families {
		have = append(have, t.setFamily(&t.state[i], f, t.of(f, want), now)...)
	}
	if t.entries != nil {
		t.entries.Set(float64(len(have)))
	}
	return have, nil
}

func (t *Table[E]) setFamily(s *state[E], f family, want []E, now time.Time) []E {
	if !s.failed.IsZero() && now.Sub(s.failed) < retryAfter {
		return nil
	}
	renew := len(want) > 0 &&
		(now.Sub(s.at) >= renewAfter || s.linksChanged.Swap(false) && !maps.Equal(t.linksOf(s.written), s.links))
	equal := t.equal
	if equal == nil {
		equal = func(a, b E) bool { return t.compare(a, b) == 0 }
	}
	if s.known && !renew && slices.EqualFunc(want, s.written, equal) {
		return s.written
	}
	links := t.linksOf(want) // before they are written: what changes later is told by LinksChanged
	if err := t.write(s, f, want); err != nil {
		t.fail(s, want, err, now)
		return nil
	}
	if !s.failed.IsZero() {
		t.log.Info("nftables takes the "+t.what+" again", "family", f.name)
	}
	s.written, s.links, s.at, s.known, s.failed, s.why = want, links, now, true, time.Time{}, nil
	return want
}

// refusals returns what the kernel last said of a family it refused, or nil.
func (t *Table[E]) refusals() (all map[vip.Family]string) {
	for i, f := range []vip.Family{vip.IPv4, vip.IPv6} { // as families
		if why := t.state[i].why; why != nil {
			if all == nil {
				all = make(map[vip.Family]string)
			}
			all[f] = why.Error()
		}
	}
	return all
}

// linksOf returns the indexes of the links of entries, 0 for missing ones.
func (t *Table[E]) linksOf(entries []E) linkIndexes {
	if t.link == nil {
		return nil
	}
	all := make(linkIndexes)
	for _, x := range entries {
		all.part(t.link(x))
	}
	return all
}

// fail stores that the kernel has refused want, and logs it the first time.
func (t *Table[E]) fail(s *state[E], want []E, err error, now time.Time) {
	if len(want) == 0 {
		s.known = true
		return
	}
	if s.failed.IsZero() {
		t.log.Warn("nftables refuses the "+t.what+": "+t.consequence, "err", err)
	}
	t.errors.Inc()
	s.written, s.known, s.failed, s.why = nil, false, now, err
}

// write makes the entries of one family those of want, in one transaction.
func (t *Table[E]) write(s *state[E], f family, want []E) error {
	if s.known && len(want) == 0 && len(s.written) == 0 {
		return nil
	}
	maps, elements := t.maps(f, want), t.elements(f, want)
	c, err := nftables.New(nftables.WithSockOptions(makeRoom(maps, elements)))
	if err != nil {
		return err
	}
	c.AddTable(f.table(t.table)) // one that is not there can't be deleted
	c.DelTable(f.table(t.table))
	if len(want) > 0 {
		table := c.AddTable(f.table(t.table))
		for _, m := range maps {
			m.Table = table
			if err := c.AddSet(m, nil); err != nil {
				return err
			}
		}
		t.build(c, f, table, maps, want)
		for i, all := range elements {
			for some := range slices.Chunk(withoutTwins(all), maxElements) {
				if err := c.SetAddElements(maps[i], some); err != nil {
					return err
				}
			}
		}
	}
	if err := c.Flush(); err != nil {
		return fmt.Errorf("table %s %s: %w", f.name, t.table, err)
	}
	return nil
}

// withoutTwins leaves out elements whose key another one before them has: the kernel refuses a second one with another
// value.
func withoutTwins(all []nftables.SetElement) []nftables.SetElement {
	type place struct {
		key string
		end bool
	}
	seen := make(map[place]bool, len(all))
	return slices.DeleteFunc(all, func(x nftables.SetElement) bool {
		at := place{string(x.Key), x.IntervalEnd}
		twin := seen[at]
		seen[at] = true
		return twin
	})
}

// makeRoom makes a socket's buffers large enough for one sendmsg(2) and all its answers.
func makeRoom(sets []*nftables.Set, elements [][]nftables.SetElement) func(*netlink.Conn) error {
	bytes, messages := 1<<16+setSize*len(sets), 64+setMessages*len(sets)
	for _, all := range elements {
		bytes += elementSize * len(all)
		messages += (len(all) + maxElements - 1) / maxElements
	}
	return func(c *netlink.Conn) error {
		return errors.Join(c.SetWriteBuffer(bytes), c.SetReadBuffer(answerSize*messages))
	}
}

func (p purpose[E]) of(f family, all []E) (found []E) {
	for _, x := range all {
		if p.addr(x).Is4() == f.is4 {
			found = append(found, x)
		}
	}
	return found
}
