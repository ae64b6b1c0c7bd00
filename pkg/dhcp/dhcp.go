// Package dhcp leases addresses for VIPs from DHCP servers: DHCPv4 (RFC 2131) and
// the non-temporary addresses of DHCPv6 (RFC 8415).
//
// There is one client for each Hire. To the server it is the Service that is the
// client, not the node: hardware address and identifiers come with the Hire, and are
// the same on every node. So whoever owns the Service goes on with its lease.
//
// Whatever a server says is checked before it is believed, and no answer can do
// harm to another Hire.
package dhcp

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/prometheus/client_golang/prometheus"
)

// Options is what Clients needs to know. All fields but Attempts are required.
type Options struct {
	Log *slog.Logger
	// Poke is called when the next World will differ. It must not block.
	Poke func()
	// Tenure is this node's right to hold VIPs at the moment of the call. A node
	// without it says nothing to a server: another may be about to.
	Tenure func() vip.Tenure
	// Attempts is after how many unanswered tries in a row a client rests for a
	// while (dhcp_backoff_attempts); 0 is never.
	Attempts int
	// Open opens the link of a Hire for one exchange with servers. The addresses it
	// takes and gives are *Peer.
	Open func(vip.DHCPRequest) (net.PacketConn, error)
	// InUse asks the link who has an address (RFC 2131 section 4.4.1, RFC 4862
	// section 5.4), and says by which hardware address it was answered.
	InUse func(ctx context.Context, link string, addr netip.Addr) (mac string, used bool)
}

// Clients is the part of the node that leases addresses.
type Clients struct {
	o      Options
	meters meters
	wake   chan struct{} // capacity 1: want has changed

	mu   sync.Mutex // guards what follows, and what every client tells
	want map[key]vip.DHCPRequest
	all  map[key]*client
}

// A key says which Hire it is.
type key struct {
	id     string
	family vip.Family
}

// New makes Clients. It touches the network only once something is wanted.
func New(o Options) *Clients {
	return &Clients{o: o, meters: newMeters(), wake: make(chan struct{}, 1), want: map[key]vip.DHCPRequest{}, all: map[key]*client{}}
}

// String names the task.
func (c *Clients) String() string { return "DHCP clients" }

// Set has Run work on what is wanted, and returns what is leased at present. What
// is not wanted any more is dropped without a word to the server, so that another
// node can go on with it; a Hire with Release is given back first.
func (c *Clients) Set(_ context.Context, want []vip.DHCPRequest) ([]vip.DHCPRequest, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.want = make(map[key]vip.DHCPRequest, len(want))
	for _, h := range want {
		c.want[key{h.ID, h.Family}] = h
	}
	for k, x := range c.all {
		h, wanted := c.want[k]
		if !wanted || !same(h, x.hire) || x.ended && !h.Release {
			x.stop()
			continue
		}
		x.order(h)
	}
	c.rouse()
	var have []vip.DHCPRequest
	for k, x := range c.all {
		if h, ok := c.want[k]; ok && !x.ended && x.now.Lease.Addr.IsValid() {
			have = append(have, h)
		}
	}
	slices.SortFunc(have, func(a, b vip.DHCPRequest) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), cmp.Compare(a.Family, b.Family))
	})
	return have, nil
}

// same reports whether a client that was made for b does for a.
func same(a, b vip.DHCPRequest) bool {
	return a.Link == b.Link && a.MAC == b.MAC && a.DUID == b.DUID && a.IAID == b.IAID && a.Hostname == b.Hostname && a.Broadcast == b.Broadcast
}

func (c *Clients) rouse() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Observe fills in Hired.
func (c *Clients) Observe(w *vip.World) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, x := range c.all {
		if _, wanted := c.want[k]; wanted && !x.ended {
			w.DHCPStates = append(w.DHCPStates, x.now)
		}
	}
	slices.SortFunc(w.DHCPStates, func(a, b vip.DHCPState) int {
		return cmp.Or(strings.Compare(a.Request.ID, b.Request.ID), cmp.Compare(a.Request.Family, b.Request.Family))
	})
}

// Run runs a client for each Hire until ctx ends. No lease is given back then: the
// next process, or another node, goes on with it.
func (c *Clients) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for {
		c.reconcile(ctx, &tasks)
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		}
	}
}

// reconcile starts the clients that are missing. One that has been stopped is
// replaced only once it has ended: there is never more than one for a lease.
func (c *Clients) reconcile(ctx context.Context, tasks *sync.WaitGroup) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, x := range c.all {
		_, wanted := c.want[k]
		if x.ended && (x.stopped || !wanted) {
			delete(c.all, k)
		}
	}
	for k, h := range c.want {
		if c.all[k] != nil || h.Release {
			continue
		}
		x := newClient(c, h)
		c.all[k] = x
		own, cancel := context.WithCancel(ctx)
		x.cancel = cancel
		tasks.Go(func() {
			defer cancel()
			x.run(own)
			c.mu.Lock()
			x.ended = true
			c.count()
			c.mu.Unlock()
			c.rouse()
			c.o.Poke()
		})
	}
}

// count keeps the number of leases. c.mu is held.
func (c *Clients) count() {
	n := map[vip.Family]int{}
	for k, x := range c.all {
		if !x.ended && x.now.Lease.Addr.IsValid() {
			n[k.family]++
		}
	}
	c.meters.leases.WithLabelValues(vip.IPv4.String()).Set(float64(n[vip.IPv4]))
	c.meters.leases.WithLabelValues(vip.IPv6.String()).Set(float64(n[vip.IPv6]))
}

// Collectors are the room's metrics.
func (c *Clients) Collectors() []prometheus.Collector { return c.meters.collectors() }

// A Peer is the other end of a message, as far as it matters.
type Peer struct {
	Src, Dst netip.Addr       // IP addresses of the message
	MAC      net.HardwareAddr // the neighbour it goes to, or came from; nil is all of them
}

// Network is "dhcp".
func (p *Peer) Network() string { return "dhcp" }

// String is for messages.
func (p *Peer) String() string { return fmt.Sprintf("%s to %s by %s", p.Src, p.Dst, p.MAC) }

// meters are the room's metrics.
type meters struct {
	leases   *prometheus.GaugeVec
	sent     *prometheus.CounterVec
	renewals *prometheus.CounterVec
	failures *prometheus.CounterVec
}

// Kinds of failure.
const (
	silent   = "silent"   // nobody answered
	refused  = "refused"  // DHCPNAK, or a status that means it
	expired  = "expired"  // the lease ended
	declined = "declined" // the address is in use, or not for a VIP
	invalid  = "invalid"  // an answer that can't be believed
	local    = "local"    // the link or the socket
)

func newMeters() meters {
	m := meters{
		leases: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "herald_dhcp_leases", Help: "Addresses that this node holds a DHCP lease for, by family.",
		}, []string{"family"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_dhcp_messages_sent_total", Help: "Messages sent to DHCP servers, by type as the RFCs name it.",
		}, []string{"type"}),
		renewals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_dhcp_renewals_total", Help: "DHCP leases that a server has prolonged, by family.",
		}, []string{"family"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_dhcp_failures_total", Help: "What went wrong with DHCP, by family and kind: silent (no answer), refused (DHCPNAK and the like), expired, declined (the address is in use, or not for a VIP), invalid (an answer that can't be believed), local (the link or the socket).",
		}, []string{"family", "kind"}),
	}
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		m.leases.WithLabelValues(f.String())
		m.renewals.WithLabelValues(f.String())
		for _, k := range []string{silent, refused, expired, declined, invalid, local} {
			m.failures.WithLabelValues(f.String(), k)
		}
	}
	return m
}

func (m meters) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.leases, m.sent, m.renewals, m.failures}
}
