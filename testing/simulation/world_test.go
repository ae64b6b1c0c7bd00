package simulation

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/agent"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/lease/leasetest"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// A size is how large a cluster is.
type size struct {
	nodes, services int
	pass            time.Duration // how long a pass of the plan takes
	gap             time.Duration // between faults, on average; 0: faults end only by another call of toggle
	skew            float64       // limit of a clock's error: 0.01 is 1 %
	timing          quorum.Timing // zero: defaultTiming
	apart           bool          // VIPs are on eth1, which has no faults; heartbeats on eth0
}

var (
	defaultTiming = quorum.Timing{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
	kubeVIPTiming = quorum.Timing{LeaseDuration: 5 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: time.Second} // of its static Pods
)

// A cluster is nodes, an API server, and a wire.
type cluster struct {
	t *testing.T
	size
	api   *leasetest.Server
	rules plan.Rules
	nodes []*node
	wire  *wire // nil: nodes can't see each other on the wire

	mu           sync.Mutex // guards all below, and all nodes; no package of Herald is called while it is held
	services     []vip.Service
	index        map[vip.Key]int
	list         []vip.Service // services as the caches show them; nil: they have changed
	created      bool          // the services are there
	bound        map[netip.Addr][]*node
	listeners    map[netip.Addr][]*node
	answersSince map[addrOnSide]map[*node]time.Time // who answers, and since when
	overlaps     map[addrOnSide]bool                // where two do
	history      []historyLine
	broken       bool // an invariant
	mustAnswer   bool // it is an error if nobody answers for a VIP
	eventCount   map[string]int

	delay  time.Duration         // of the writes of all
	backup *coordinationv1.Lease // the table as it was once

	apiAwaySince  time.Time         // since when the API server is away for all; zero: it is not
	voters        map[*node]bool    // the nodes that had been without fault for long then
	clusterFaults map[faultKind]int // the cluster's own; 1: it has the fault

	resumed     *sync.Cond               // of mu: a process no longer hangs
	silentSince map[netip.Addr]time.Time // since when nobody answers, with maxSilence
	maxSilence  time.Duration            // it is an error if nobody answers for a VIP for longer; 0: it is not
	lateWatches bool                     // when the API server is back for all, each watch is for up to 10 s later: the connection is dead, or its server lags
	strict      bool                     // a VIP is bound only once the kernels of former owners do not answer

	restarts sync.WaitGroup
	passes   atomic.Int64
	timeIsUp *atomic.Bool // HERALD_SIMULATE is over; may be nil
}

// A historyLine is an event, for the report of a broken invariant.
type historyLine struct {
	at   time.Time
	n    *node // nil: all
	addr netip.Addr
	text string
}

// A node is a machine: its kernel outlives the process that runs on it.
type node struct {
	c    *cluster
	id   int
	name string
	rate float64 // of its clock

	noServices bool // its Herald has svc_enable=false; set before it starts
	otherClass bool // its Herald serves a class alone that no Service has; set before it starts

	options func(*vip.CommonOptions) // changes them; set while it does not run

	// All below is guarded by the cluster's mutex.
	client      *leasetest.Client // of the process that runs, or ran last
	proc        *process          // nil if none runs
	kernel      map[netip.Addr]*kernelAddress
	heard       map[netip.Addr]vip.HeardAnnouncement
	poked       map[netip.Addr]time.Time // when an announcement last poked the agent
	untilHeard  map[netip.Addr]bool      // bound only until the successor is heard
	announced   map[netip.Addr]bool      // announced
	listens     map[netip.Addr]bool      // announced or listened for
	cable       bool                     // the VIPs' link is up
	transmits   bool                     // and what it sends arrives
	receives    bool                     // and what others send to it does
	side        int                      // of the LAN, if that is split
	portBlocked bool                     // its heartbeat port is blocked
	faults      map[faultKind]int        // that it has; the value is faultCount when it began
	slow        leasetest.Faults
	changed     time.Time // when a fault began or ended last
	renews      time.Time // since when its process could renew and watch without fault; zero: it can't
	down        bool      // it is being restarted
	off         bool      // it has no power
	faultCount  int       // how many faults have begun
}

// A process is a Herald that runs on a node, or ran.
type process struct {
	n       *node
	agent   *agent.Agent
	pending int // statuses that could not be written; used by the agent's goroutine
	leases  *lease.Leases
	client  *leasetest.Client
	stop    context.CancelFunc
	done    chan struct{}

	// both are guarded by the cluster's mutex
	former    map[netip.Addr]*formerCheck // whether former owners still answer
	neighbors map[netip.Addr]time.Time    // nodes' own addresses that are asked for, and since when nobody answers
}

func newCluster(t *testing.T, s size) *cluster {
	time.Sleep(time.Until(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))) // first epochs are counted from 2020
	s.timing = cmp.Or(s.timing, defaultTiming)
	c := &cluster{
		t: t, size: s, api: leasetest.NewServer(),
		rules: plan.Rules{Enabled: true, ARP: true, CommonOptions: vip.CommonOptions{Election: true}, Bits4: 32, Bits6: 128, IPMode: vip.ModeVIP},
		index: map[vip.Key]int{}, bound: map[netip.Addr][]*node{}, listeners: map[netip.Addr][]*node{},
		answersSince: map[addrOnSide]map[*node]time.Time{}, overlaps: map[addrOnSide]bool{}, eventCount: map[string]int{}, silentSince: map[netip.Addr]time.Time{}, clusterFaults: map[faultKind]int{},
	}
	c.resumed = sync.NewCond(&c.mu)
	for i := range s.services {
		name := fmt.Sprintf("s%04d", i)
		k := vip.Key{Namespace: "default", Name: name}
		c.index[k] = i
		c.services = append(c.services, vip.Service{
			Key: k, UID: name, Created: time.Unix(int64(i/4), 0), LoadBalancer: true,
			Addresses: []netip.Addr{ownAddress(i)},
			Ports:     []vip.Port{{Protocol: "TCP", Port: 80}},
			Endpoints: vip.Endpoints{WithoutNode: true},
			Interface: c.link(),
		})
	}
	for i := range s.nodes {
		c.nodes = append(c.nodes, &node{
			c: c, id: i, name: fmt.Sprintf("n%d", i+1), cable: true, transmits: true, receives: true, rate: 1,
			kernel: map[netip.Addr]*kernelAddress{}, heard: map[netip.Addr]vip.HeardAnnouncement{}, poked: map[netip.Addr]time.Time{},
			untilHeard: map[netip.Addr]bool{}, faults: map[faultKind]int{},
		})
	}
	return c
}

// link is that of VIPs.
func (s size) link() string {
	if s.apart {
		return "eth1"
	}
	return "eth0"
}

// ownAddress is the address that Service i requests first. The next address is requested by no
// other, so that it can change to that.
func ownAddress(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 1, byte(i >> 7), byte(i<<1) + 1})
}

// record appends an event of n (nil: of all), about a (may be zero), to the history.
func (c *cluster) record(n *node, a netip.Addr, format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recordLocked(n, a, format, args...)
}

func (c *cluster) recordLocked(n *node, a netip.Addr, format string, args ...any) {
	const limit = 50000
	if len(c.history) >= 2*limit {
		c.history = slices.Clone(c.history[limit:])
	}
	c.history = append(c.history, historyLine{time.Now(), n, a, fmt.Sprintf(format, args...)})
}

// explain returns the history of an address, or of all if a is zero, and of the nodes and their leases.
func (c *cluster) explain(a netip.Addr, nodes []*node) string {
	names := []string{lease.TableName + " "}
	for _, n := range nodes {
		names = append(names, vip.NodeLeasePrefix+n.name+" ")
	}
	var lines []string
	often, room := map[string]int{}, map[bool]int{true: 30, false: 50}
	for _, l := range slices.Backward(c.history) {
		about := l.addr.IsValid() && l.addr == a
		if !about && l.n != nil && (l.addr.IsValid() || !slices.Contains(nodes, l.n)) || room[about] == 0 {
			continue
		}
		who := ""
		if l.n != nil {
			who = l.n.name + ": "
		}
		kind := who + l.text[:min(len(l.text), 60)]
		if often[kind]++; often[kind] > 4 && !about {
			continue // a repeated line
		}
		room[about]--
		lines = append(lines, l.at.Format("04:05.000 ")+who+l.text)
	}
	slices.Reverse(lines)
	text := strings.Join(lines, "\n") + "\n--- leases\n"
	lines = slices.DeleteFunc(strings.Split(c.api.Trace(1<<20), "\n"), func(l string) bool {
		return !slices.ContainsFunc(names, func(name string) bool { return strings.Contains(l, name) })
	})
	return text + strings.Join(lines[max(0, len(lines)-60):], "\n")
}

// fail reports a broken invariant. Only the first one is printed, with what led to it.
func (c *cluster) fail(a netip.Addr, nodes []*node, format string, args ...any) {
	if !c.broken {
		c.t.Errorf("%s: %s\n%s", time.Now().Format("04:05.000"), fmt.Sprintf(format, args...), c.explain(a, nodes))
	}
	c.broken = true
}

func (c *cluster) isBroken() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken
}

// cachedServices is what a cache of the Services shows. It is shared, and must not be changed.
func (c *cluster) cachedServices() []vip.Service {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.list == nil && c.created {
		c.list = slices.Clone(c.services)
	}
	return c.list
}

// change changes one Service and pokes every node's agent.
func (c *cluster) change(i int, f func(*vip.Service)) {
	c.mu.Lock()
	f(&c.services[i])
	c.list = nil
	c.mu.Unlock()
	for _, n := range c.nodes {
		n.poke()
	}
}

func (n *node) poke() {
	n.c.mu.Lock()
	p := n.proc
	n.c.mu.Unlock()
	if p != nil {
		p.agent.Poke()
	}
}

// clock is how long d takes by this node's clock.
func (n *node) clock(d time.Duration) time.Duration { return time.Duration(float64(d) / n.rate) }

// start runs a Herald on n.
func (n *node) start() {
	ctx, stop := context.WithCancel(context.Background())
	rest, stopRest := context.WithCancel(context.Background())
	p := &process{n: n, stop: stop, done: make(chan struct{}), former: map[netip.Addr]*formerCheck{}}
	p.client = leasetest.NewClient(n.c.api, func() { p.leases.Wake() })
	poke := func() { p.agent.Poke() }
	log := slog.New(historyHandler{n: n})
	o := lease.Options{
		Node: n.name, Namespace: "kube-system",
		Timing: quorum.Timing{LeaseDuration: n.clock(n.c.timing.LeaseDuration), RenewDeadline: n.clock(n.c.timing.RenewDeadline), RetryPeriod: n.clock(n.c.timing.RetryPeriod)},
		Info: func() vip.NodeInfo {
			n.c.mu.Lock()
			p.awaitRunning()
			n.c.mu.Unlock()
			info := n.info()
			info.Unanswered = p.unanswered()
			if p.agent.Stopping() {
				info.Excluded = "it is stopping"
			}
			return info
		},
		Log: log, Poke: poke,
	}
	if n.c.wire != nil {
		w := n.c.wire.connect(p)
		if w.realGateway {
			w.runGateway(rest)
		}
		o.Peers, o.Gateway = w, w.Liveness
	}
	p.leases = lease.New(p.client, o)
	p.agent = agent.New(agent.Options{
		Self: n.name, Log: log,
		Plan: func(w vip.World) vip.Plan {
			if n.c.pass > 0 {
				time.Sleep(n.c.pass)
			}
			n.c.passes.Add(1)
			return plan.Make(n.rules(), w)
		},
		Observers:     []agent.Observer{p.leases, p},
		Addresses:     applierFunc[vip.Address](p.bind),
		Announcements: applierFunc[vip.Announcement](p.announce),
		Statuses: applierFunc[vip.Status](func(want []vip.Status) ([]vip.Status, error) {
			p.pending = len(want) - len(p.write(want))
			return nil, nil
		}),
		AddressChecks: applierFunc[vip.AddressCheck](p.check),
		HealthChecks:  applierFunc[vip.HealthCheck](func(want []vip.HealthCheck) ([]vip.HealthCheck, error) { return want, nil }),
		Events:        applierFunc[vip.Event](func(want []vip.Event) ([]vip.Event, error) { return want, nil }),
		Leases:        p.leases,
	})
	n.c.mu.Lock()
	n.client, n.proc, n.announced, n.off = p.client, p, nil, false
	delete(n.faults, hung)
	n.applyFaults()
	n.c.mu.Unlock()
	n.c.wire.peersChanged(n)
	go func() {
		defer close(p.done)
		var group sync.WaitGroup
		group.Go(func() { p.client.Watch(rest) })
		group.Go(func() { p.leases.Run(rest) })
		group.Go(func() { p.refresh(rest) })
		group.Go(func() { p.askFormer(rest) })
		p.agent.Run(ctx)
		stopRest()
		group.Wait()
		n.c.mu.Lock()
		if n.proc == p {
			n.proc, n.changed, n.renews = nil, time.Now(), time.Time{}
		}
		n.c.mu.Unlock()
		n.c.wire.peersChanged(n)
	}()
}

// rules returns the options of n's Herald.
func (n *node) rules() plan.Rules {
	r := n.c.rules
	r.Enabled = !n.noServices
	if n.options != nil {
		n.options(&r.CommonOptions)
	}
	if n.otherClass {
		r.Class, r.ClassOnly = "other", true
	}
	return r
}

// stop ends the process as SIGTERM does, and waits for its end; nothing if none runs.
func (n *node) stop() {
	n.end(hung)
	n.c.mu.Lock()
	p := n.proc
	n.c.mu.Unlock()
	if p != nil {
		p.stop()
		<-p.done
	}
}

// kill ends the process as SIGKILL does: nothing it does from now on has an effect. With
// power the node loses its power: its kernel answers nothing until start.
func (n *node) kill(power bool) {
	n.c.mu.Lock()
	p := n.proc
	n.proc, n.changed, n.renews = nil, time.Now(), time.Time{}
	delete(n.faults, hung)
	n.c.resumed.Broadcast()
	if power {
		n.off = true
		n.expire(time.Time{})
	}
	n.c.mu.Unlock()
	if p != nil {
		p.client.SetFaults(func(f *leasetest.Faults) { f.Cut = true })
	}
	n.c.wire.peersChanged(n)
	if p != nil {
		p.stop()
	}
}

// awaitRunning blocks while p hangs, as each of its goroutines does at its next step, and reports whether p runs then. The cluster's mutex
// must be held; it is unlocked meanwhile.
func (p *process) awaitRunning() bool {
	for p.runs() && p.n.has(hung) {
		p.n.c.resumed.Wait()
	}
	return p.runs()
}

// runs reports whether p is the process that runs. The cluster's mutex must be held.
func (p *process) runs() bool { return p.n.proc == p }

// applierFunc makes an agent.Applier or agent.Mailbox of a function.
type applierFunc[W any] func(want []W) ([]W, error)

func (f applierFunc[W]) Set(_ context.Context, want []W) ([]W, error) { return f(want) }

func (f applierFunc[W]) Put(want []W) { f(want) }

// write writes statuses to the Services and returns them; none while p is cut from the API server.
func (p *process) write(want []vip.Status) (have []vip.Status) {
	if p.client.Faults().Cut {
		return nil
	}
	c := p.n.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, w := range want {
		s := &c.services[c.index[w.Service]]
		s.Conditions = slices.DeleteFunc(slices.Clone(w.Conditions), func(c vip.Condition) bool { return c.Status == vip.ConditionAbsent })
		if w.ConditionsOnly {
			continue
		}
		if s.VIPHost != w.VIPHost || !slices.EqualFunc(s.Ingress, w.Ingress, func(a, b vip.Ingress) bool { return a.Addr == b.Addr }) {
			s.VIPHost, s.Ingress = w.VIPHost, w.Ingress
			c.list = nil
		}
	}
	return want
}

// address is n's own on eth0, or with apart that on eth1; VIPs are in the network of the last.
func (n *node) address(link int) netip.Prefix {
	if link == 1 || !n.c.apart {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, 255, byte(n.id + 1)}), 16)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(n.id + 1)}), 16)
}

func (n *node) info() vip.NodeInfo {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	info := vip.NodeInfo{Interface: "eth0", DefaultInterface: "eth0", Links: []vip.Link{{Name: "eth0", Up: n.cable, MAC: n.name, Prefixes: []netip.Prefix{n.address(0)}}}, Options: &vip.NodeOptions{Services: !n.noServices, ARP: true, CommonOptions: n.rules().CommonOptions}}
	if n.c.apart {
		info.Links = append(info.Links, vip.Link{Name: "eth1", Up: true, MAC: n.name, Prefixes: []netip.Prefix{n.address(1)}})
	}
	if n.has(excluded) {
		info.Excluded = "it is excluded"
	}
	return info
}

// Observe writes what the node's kernel, wire and caches show into w.
func (p *process) Observe(w *vip.World) {
	n := p.n
	w.Services = n.c.cachedServices()
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	w.Synced = p.runs()
	w.StatusesPending = p.pending
	for _, o := range n.c.nodes {
		w.Nodes = append(w.Nodes, vip.Node{Name: o.name, Drained: o.has(drained) || o.has(excluded)})
	}
	n.expire(w.Now)
	for a, b := range n.kernel {
		bound := vip.Address{Addr: a, Bits: 32, Link: n.c.link()}
		if b.by == p { // the kernel does not know the lease
			bound.Lease = b.lease
		}
		w.Bound = append(w.Bound, bound)
	}
	w.CheckResults = map[netip.Addr]vip.CheckResult{}
	for a, x := range p.former {
		if x.unanswered >= 3 {
			w.CheckResults[a] = vip.CheckResult{AddressCheck: x.want, At: w.Now, NoAnswer: true}
		}
	}
	w.Heard = make(map[netip.Addr]vip.HeardAnnouncement, len(n.listens))
	for a := range n.listens {
		if s, ok := n.heard[a]; ok {
			w.Heard[a] = s
		}
	}
}

// A historyHandler records a node's log lines in the history, and checks what they report.
type historyHandler struct {
	n     *node
	attrs []slog.Attr
}

func (d historyHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (d historyHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(`"` + r.Message + `"`)
	for _, a := range d.attrs {
		fmt.Fprintf(&b, " %s", a)
	}
	r.Attrs(func(a slog.Attr) bool { fmt.Fprintf(&b, " %s", a); return true })
	statuses := d.n.c.wire.statusesOf(d.n) // before the lock
	d.n.c.mu.Lock()
	defer d.n.c.mu.Unlock()
	d.n.c.eventCount[r.Message]++
	d.n.c.recordLocked(d.n, netip.Addr{}, "%s", b.String())
	if strings.Contains(r.Message, "have agreed on who takes its VIPs") {
		d.n.checkAgreement()
	}
	if strings.Contains(b.String(), "why="+quorum.ReasonDead) {
		d.n.checkFence(statuses)
	}
	return nil
}

func (d historyHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return historyHandler{d.n, slices.Concat(d.attrs, attrs)}
}

func (d historyHandler) WithGroup(string) slog.Handler { return d }
