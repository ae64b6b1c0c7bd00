// Package l2 announces VIPs on a link by gratuitous ARP (RFC 826, RFC 5227) and unsolicited neighbor advertisements
// (RFC 4861, RFC 9131), hears those of others (announce.go, heard.go), and checks who else has, claims or answers for
// addresses (check.go). Neighbours are asked in whohas.go.
//
// The kernel replies for bound addresses; where sysctls keep it from that, announce.go does.
package l2

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

// Options of an Announcer. All fields are required.
type Options struct {
	Log *slog.Logger
	// Poke is called when the next World will differ, PokeNow for an address check's result: the VIP may be bound now.
	// Neither may block.
	Poke, PokeNow func()
	Tenure        func() vip.Tenure
	// Rate is the time between announcements of a VIP after its first seconds (vip_arpRate), longer if that exceeds
	// steadyRate.
	Rate time.Duration
	// Links is all links of the node, from memory; after changes LinksChanged is to be called.
	Links func() []vip.Link
	// Sysctl4 reads net.ipv4.conf.<link>.<name>; 0 if it can't.
	Sysctl4 func(link, name string) int
}

// An Announcer is the agent's Applier of announcements. It sends and receives for AddressChecks and Resolve, too.
type Announcer struct {
	metrics
	opts    Options
	network network
	heard   heard
	checks  *AddressChecks
	started time.Time

	linksChanged mailbox.Signal // to Run
	wake         mailbox.Signal // to Run: announcements or asked have changed

	// mu guards what follows. It is held while a frame is sent, up to sendTimeout, not for each of many (sender).
	mu            sync.Mutex
	announcements map[target]*announcement
	budget        float64                  // how many steady announcements could be sent at budgeted
	budgeted      time.Time                // when takeBudget was last called
	links         map[string]vip.Link      // by name, as last read from Options.Links
	senders       map[string]*sender       // open, by name of the link
	failing       map[string]bool          // links on which a VIP could not be announced; true: that was logged
	asked         map[linkFamily]time.Time // where addresses were asked for, and when last
	receivers     map[linkFamily]*receiver
	reopened      chan struct{}      // closed and replaced when one of them has been opened or closed
	silent        map[string]silence // by link, whether the kernel leaves requests for VIPs unanswered
}

type target struct {
	addr netip.Addr
	link string
}

// newTarget returns the target of addr, unmapped and without a zone.
func newTarget(addr netip.Addr, link string) target {
	return target{addr.Unmap().WithZone(""), link}
}

type linkFamily struct {
	link   string
	family vip.Family
}

func (t target) linkFamily() linkFamily { return linkFamily{t.link, vip.FamilyOf(t.addr)} }

// New makes an Announcer, which opens links once they are needed.
func New(o Options) *Announcer { return newAnnouncer(o, sockets{}) }

func newAnnouncer(o Options, n network) *Announcer {
	m := newMetrics()
	a := &Announcer{
		opts: o, network: n, metrics: m, started: time.Now(),
		heard: heard{
			announcements: m.heard, poke: o.Poke, queued: mailbox.NewSignal(),
			expected: map[target]*expectation{}, lastHeard: map[string]time.Time{}, flooded: map[string]time.Time{},
			resolving: map[target][]chan<- [6]byte{},
		},
		linksChanged: mailbox.NewSignal(), wake: mailbox.NewSignal(),
		announcements: map[target]*announcement{},
		senders:       map[string]*sender{},
		failing:       map[string]bool{},
		asked:         map[linkFamily]time.Time{},
		receivers:     map[linkFamily]*receiver{},
		reopened:      make(chan struct{}),
		silent:        map[string]silence{},
	}
	a.checks = newAddressChecks(a)
	a.LinksChanged() // Run reads them first
	return a
}

// Observe sets w.Heard to other hosts' last announcements, and w.CheckResults.
func (a *Announcer) Observe(w *vip.World) {
	w.Heard = a.heard.lastAnnouncements()
	a.checks.Observe(w)
}

// Run announces, receives and checks until ctx ends.
func (a *Announcer) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer func() {
		tasks.Wait()
		a.mu.Lock()
		defer a.mu.Unlock()
		clear(a.asked)
		clear(a.receivers) // they have ended
		a.closeUnused()
	}()
	tasks.Go(func() { a.checks.run(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		woken := true
		select {
		case <-ctx.Done():
			return nil
		case <-a.linksChanged:
			a.mu.Lock()
			a.readLinks(time.Now())
			a.mu.Unlock()
		case <-a.wake:
		case <-timer.C:
			woken = false
		}
		timer.Reset(a.sendDue(time.Now()))
		if woken {
			a.matchReceivers(ctx, &tasks)
		}
	}
}

type metrics struct {
	*metric.Set
	sent, errors, requests *prometheus.CounterVec
	heard                  prometheus.Counter
	problems               *prometheus.GaugeVec
}

var problems = []string{"in_use", "conflict", "unanswered", "node_unanswered", "foreign_mac", "former_owner"}

// newMetrics makes the metrics, with each value of their labels at 0.
func newMetrics() metrics {
	s := &metric.Set{}
	byFamily := func(name, help string) *prometheus.CounterVec {
		return metric.CountersOf(s, name, help, "family", "ipv4", "ipv6")
	}
	m := metrics{
		Set: s,
		problems: metric.Gauges(s, "herald_vip_problems", "VIPs with a problem that this node has found by ARP or neighbor "+
			"discovery: in_use (another host has an address that is to be used for the first time), conflict (this node has "+
			"it, and another host claims it, too), unanswered (its owner, another node, does not reply), node_unanswered "+
			"(not a VIP: another node does not reply for an address of its own on a link with VIPs), foreign_mac (a host "+
			"other than its owner, another node, replies), former_owner (this node owns it, and does not bind it, since a "+
			"node that has lost its claims goes on to reply, or can't be asked).", "problem"),
		sent: byFamily("herald_announcements_sent_total", "Frames that announced a VIP: gratuitous ARP (ipv4) and "+
			"unsolicited neighbor advertisements (ipv6)."),
		errors: byFamily("herald_announcement_errors_total", "Announcements of a VIP that could not be sent. Each is "+
			"tried again after about a second."),
		requests: byFamily("herald_neighbor_requests_sent_total", "ARP requests and neighbor solicitations sent: for "+
			"other nodes and the gateway, for VIPs that other nodes own, and for VIPs before they are used for the first time."),
		heard: metric.Counter(s, "herald_announcements_heard_total", "Announcements by other hosts of a VIP that this node "+
			"announces, or has just handed to another node."),
	}
	for _, p := range problems {
		m.problems.WithLabelValues(p)
	}
	return m
}

func familyLabel(a netip.Addr) string { return strings.ToLower(vip.FamilyOf(a).String()) }
