// Package dhcp leases addresses for VIPs from DHCP servers: DHCPv4 (RFC 2131) and non-temporary addresses of DHCPv6
// (RFC 8415).
//
// Each DHCPRequest has a client. To servers the Service is the client, not the node: hardware address and identifiers
// are the DHCPRequest's, the same on every node. So any owner goes on with its lease.
//
// Whatever a server sends is checked, and affects no other client.
package dhcp

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

// Options is what Clients needs to know; only Attempts may be missing.
type Options struct {
	Log  *slog.Logger
	Poke func()
	// Tenure is this node's right to hold VIPs; without it nothing is sent: another node may be about to.
	Tenure func() vip.Tenure
	// Attempts is after how many unanswered attempts a client pauses (dhcp_backoff_attempts); 0: never.
	Attempts int
	// Open opens a request's link for one exchange with servers. Its addresses are *PacketAddr.
	Open func(vip.DHCPRequest) (net.PacketConn, error)
	// InUse asks a link's neighbours for some 100 ms who has an address (RFC 2131 section 4.4.1, RFC 4862 section 5.4),
	// and returns the first MAC. used is false if none answers, or the link can't be asked.
	InUse func(ctx context.Context, link string, addr netip.Addr) (mac string, used bool)
}

// Clients gets and keeps the lease of each DHCPRequest.
type Clients struct {
	o Options
	metrics
	want    *mailbox.Mailbox[[]vip.DHCPRequest]
	clients atomic.Pointer[map[key]*client] // written by Run, never changed afterwards
}

type key struct {
	id     string
	family vip.Family
}

func keyOf(r vip.DHCPRequest) key { return key{r.ID, r.Family} }

// New makes Clients, which touch the network only once something is wanted.
func New(o Options) *Clients {
	c := &Clients{o: o, metrics: newMetrics(), want: mailbox.New[[]vip.DHCPRequest]()}
	c.clients.Store(&map[key]*client{})
	return c
}

// Put replaces the requests for Run. A missing one's lease stays at the server for another node; one with Release is
// given back.
func (c *Clients) Put(want []vip.DHCPRequest) { c.want.Put(want) }

// Observe fills in DHCPStates of requests that a client works on, by ID and family.
func (c *Clients) Observe(w *vip.World) {
	clients := *c.clients.Load()
	for _, r := range c.want.Get() {
		if x := clients[keyOf(r)]; x != nil {
			state := *x.state.Load()
			state.Request = *x.latest.Load()
			w.DHCPStates = append(w.DHCPStates, state)
		}
	}
	slices.SortFunc(w.DHCPStates, func(a, b vip.DHCPState) int {
		return cmp.Or(strings.Compare(a.Request.ID, b.Request.ID), cmp.Compare(a.Request.Family, b.Request.Family))
	})
}

// Run runs a client for each request until ctx ends. No lease is given back then: another process goes on.
func (c *Clients) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for {
		c.reconcile(ctx, &tasks)
		select {
		case <-ctx.Done():
			return nil
		case <-c.want.Changed: // or a client has ended
		}
	}
}

// reconcile starts, instructs and stops clients; a stopped one must have ended before it is replaced. One that servers
// are to know by another identity gives its lease back.
func (c *Clients) reconcile(ctx context.Context, tasks *sync.WaitGroup) {
	want := make(map[key]vip.DHCPRequest)
	for _, r := range c.want.Get() {
		want[keyOf(r)] = r
	}
	clients := maps.Clone(*c.clients.Load())
	ended := false
	for k, x := range clients {
		r, wanted := want[k]
		switch {
		case x.ended.Load():
			delete(clients, k)
			ended = true
			if wanted && !sameIdentity(r, x.request) { // the recorded lease is not the next one's
				r.LastLease = vip.DHCPLease{}
				want[k] = r
			}
		case wanted && !sameIdentity(r, x.request):
			last := x.request
			last.Release = true
			x.instruct(last)
		case !wanted || !sameClient(r, x.request):
			x.cancel()
		default:
			x.instruct(r)
		}
	}
	var started []*client
	for k, r := range want {
		if clients[k] == nil && !r.Release {
			clients[k] = newClient(&c.o, c.metrics, r)
			started = append(started, clients[k])
		}
	}
	c.clients.Store(&clients)
	for _, x := range started {
		var inner context.Context
		inner, x.cancel = context.WithCancel(ctx)
		tasks.Go(func() {
			defer x.cancel()
			x.run(inner)
			x.ended.Store(true)
			c.want.Changed.Send()
		})
	}
	if ended {
		c.o.Poke()
	}
}

// sameIdentity reports whether servers take a and b for one client (RFC 2131 section 4.2, RFC 8415 section 6.2).
func sameIdentity(a, b vip.DHCPRequest) bool {
	return a.MAC == b.MAC && a.DUID == b.DUID && a.IAID == b.IAID && (a.Family == vip.IPv6 || a.Hostname == b.Hostname)
}

// sameClient reports whether a client that was made for b, of the same identity, can work on a.
func sameClient(a, b vip.DHCPRequest) bool {
	return a.Link == b.Link && a.Parent == b.Parent && a.Hostname == b.Hostname && a.Broadcast == b.Broadcast
}

type metrics struct {
	*metric.Set
	leases   *prometheus.GaugeVec
	sent     *prometheus.CounterVec
	renewals *prometheus.CounterVec
	failures *prometheus.CounterVec
}

// Kinds of failure.
const (
	failNoAnswer = "no_answer"
	failRefused  = "refused"  // DHCPNAK, or a status that means it
	failExpired  = "expired"  // the lease ended
	failDeclined = "declined" // the address is in use, or not for a VIP
	failInvalid  = "invalid"  // an answer that was not accepted
	failLink     = "link"     // the link or the socket
)

func newMetrics() metrics {
	s := &metric.Set{}
	m := metrics{
		Set: s,
		leases: metric.Gauges(s, "herald_dhcp_leases", "Addresses that this node holds a DHCP lease for, by family.",
			"family"),
		sent: metric.Counters(s, "herald_dhcp_messages_sent_total", "Messages sent to DHCP servers, by type as the RFCs "+
			"name it.", "type"),
		renewals: metric.Counters(s, "herald_dhcp_renewals_total", "DHCP leases that a server has renewed, by family.",
			"family"),
		failures: metric.Counters(s, "herald_dhcp_failures_total", "What went wrong with DHCP, by family and kind: "+
			"no_answer, refused (DHCPNAK and the like), expired, declined (the address is in use, or not for a VIP), invalid "+
			"(an answer that was not accepted), link (the link or the socket).", "family", "kind"),
	}
	for _, f := range []vip.Family{vip.IPv4, vip.IPv6} {
		m.leases.WithLabelValues(f.String())
		m.renewals.WithLabelValues(f.String())
		for _, kind := range []string{failNoAnswer, failRefused, failExpired, failDeclined, failInvalid, failLink} {
			m.failures.WithLabelValues(f.String(), kind)
		}
	}
	return m
}
