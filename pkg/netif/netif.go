// Package netif binds VIPs to the node's network interfaces, and publishes what those are.
//
// A VIP is bound for 5 seconds, and renewed each 0.75 s while this node may hold it. So the kernel itself removes the
// VIPs of a process that is killed, stopped or stuck. Each carries a mark (IFA_PROTO) for later processes.
//
// Netlink types stay inside this package.
package netif

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/metric"
	"github.com/heraldvip/herald/pkg/vip"
)

// Options of Interfaces; only names of links, AllowNotUp and OnLinkChange may be missing. Functions are called with a
// lock held: they must neither block nor call Set.
type Options struct {
	Log  *slog.Logger
	Poke func()
	// OnLinkChange, if not nil, is called after Links has changed.
	OnLinkChange func()
	Tenure       func() vip.Tenure

	Interface         string // vip_interface; "" is the link of the default route
	ServicesInterface string // vip_servicesinterface: a link's name, "auto", or "" for Interface
	AllowNotUp        bool   // vip_allow_interface_not_up
}

// Interfaces is this node's network interfaces.
type Interfaces struct {
	opts   Options
	log    *slog.Logger
	kernel kernel
	metrics
	view atomic.Pointer[view] // what others read, without mu
	wake mailbox.Signal       // renewed is no longer empty

	routesChanged mailbox.Signal // a route that matters came or went
	looks         mailbox.Signal // came or senders has more

	// mu guards what follows and Macvlans, and lets one change the kernel at a time: a renewal creates a missing address,
	// so it must not run beside its removal. It is held over system calls.
	mu       sync.Mutex
	snapshot *snapshot // the kernel, by the first reading and every change since
	changed  bool      // view is older than what it is made from
	renewed  map[addressKey]*renewal
	wanted   map[addressKey]vip.Address // what was last wanted there
	// the link of VIPs by the default route, or the last such; see linkByRoute
	byRoute  string
	macvlans *Macvlans

	setting     bool // Set is under way, and publishes at its end
	unpublished bool // another has not published because of that

	taken      map[netip.Addr][]time.Time // when another program removed a VIP, in the last FightWindow
	came       map[netip.Addr]time.Time   // when VIPs to which forgetStale looks for flows were bound, or advertised
	advertised map[netip.Prefix]bool      // of the last Put
	egress     map[netip.Addr]vip.Egress  // of the last Put of Senders, by VIP
	senders    map[netip.Addr]sender      // pods of which forgetStale looks for flows, by address
}

// New reads the links and addresses; it fails if a link of VIPs does not exist, unless AllowNotUp.
func New(o Options) (*Interfaces, error) {
	k, err := openNetlink()
	if err != nil {
		return nil, err
	}
	n, err := newInterfaces(o, k)
	if err == nil {
		n.macvlans.kernel = k
	}
	return n, err
}

func newInterfaces(o Options, k kernel) (*Interfaces, error) {
	n := &Interfaces{
		opts:    o,
		log:     o.Log,
		kernel:  k,
		metrics: newMetrics(),
		renewed: map[addressKey]*renewal{},
		wanted:  map[addressKey]vip.Address{},
		taken:   map[netip.Addr][]time.Time{},
		came:    map[netip.Addr]time.Time{},
		senders: map[netip.Addr]sender{},
		wake:    mailbox.NewSignal(),

		routesChanged: mailbox.NewSignal(),
		looks:         mailbox.NewSignal(),
	}
	n.macvlans = &Macvlans{n: n, before: map[int]ipv4Conf{}}
	var err error
	if n.snapshot, err = k.read(); err != nil {
		return nil, err
	}
	n.macvlans.ready = n.snapshot.leftMacvlans()
	n.view.Store(n.newView())
	if missing, err := n.WhyNotUp(); missing && !o.AllowNotUp {
		return nil, err
	} else if err != nil {
		n.log.Warn("an interface of VIPs is not up yet; its VIPs wait for it", "why", err)
	}
	return n, nil
}

// Observe fills in Bound, Unmanaged, AddressFights, and the World's macvlans.
func (n *Interfaces) Observe(w *vip.World) {
	v := n.view.Load()
	w.AddressFights = make(map[netip.Addr]bool)
	for a, times := range v.taken {
		if len(times) >= fightTimes && w.Now.Sub(times[len(times)-fightTimes]) < vip.FightWindow {
			w.AddressFights[a] = true
		}
	}
	w.Bound, w.Unmanaged = v.bound, v.unmanaged
	w.Macvlans, w.MacvlanErrors = v.macvlans, v.macvlanErrors
	w.StrictRPFilter = v.macvlansWanted && Sysctl4("all", "rp_filter") == 1
}

// Info returns what this node tells of its links; not to be changed.
func (n *Interfaces) Info() vip.NodeInfo { return n.view.Load().info }

// Links returns all links by Index, with own global addresses; not to be changed.
func (n *Interfaces) Links() []vip.Link { return n.view.Load().links }

// Gateway returns the next hop of a link's default route, IPv4 first, or zero.
func (n *Interfaces) Gateway(link string) netip.Addr { return n.view.Load().gateways[link] }

// IsLocal reports whether a is any address of this node, without blocking.
func (n *Interfaces) IsLocal(a netip.Addr) bool {
	_, ok := n.view.Load().local[a]
	return ok
}

// IsVIP reports whether a is here for a Service, by Herald or kube-proxy (kube-ipvs0).
func (n *Interfaces) IsVIP(a netip.Addr) bool { return n.view.Load().local[a] }

// Run renews VIPs, repairs macvlans and follows the kernel until ctx ends; lifetimes end the rest.
func (n *Interfaces) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	tasks.Go(func() { n.followKernel(ctx) })
	tasks.Go(func() { n.followRoutes(ctx) })
	tasks.Go(func() { n.macvlans.repair(ctx) })
	tasks.Go(func() { n.forgetStale(ctx) })
	n.runRenewals(ctx)
	tasks.Wait()
	return nil
}

// WhyNotUp returns an error for each interface of VIPs that is not up; missing: one does not exist.
func (n *Interfaces) WhyNotUp() (missing bool, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	check := func(option, name string) {
		l, ok := n.snapshot.linkNamed(n.snapshot.realName(name))
		switch {
		case !ok:
			missing = true
			errs = append(errs, fmt.Errorf("%s=%s: this node has no such interface; it has %s. Correct the name, or set "+
				"vip_allow_interface_not_up=true if the interface is made later", option, name, n.snapshot.names()))
		case !l.up:
			errs = append(errs, fmt.Errorf("%s=%s: the interface is not up: check its cable and the switch port", option, name))
		}
	}
	if n.opts.Interface != "" {
		check("vip_interface", n.opts.Interface)
	}
	switch s := n.opts.ServicesInterface; {
	case s != "" && s != "auto" && s != n.opts.Interface:
		check("vip_servicesinterface", s)
	case (s == "" || s == "auto") && n.Info().DefaultInterface == "":
		errs = append(errs, errors.New("vip_interface is not set, and this node has no default route to choose an "+
			"interface by: set vip_interface"))
	}
	return missing, errors.Join(errs...)
}

type metrics struct {
	*metric.Set
	addresses                        prometheus.Gauge
	bound, removed, renewals, errors prometheus.Counter
}

func newMetrics() metrics {
	s := &metric.Set{}
	return metrics{
		Set:       s,
		addresses: metric.Gauge(s, "herald_addresses", "VIPs that the kernel of this node has bound for Herald."),
		bound:     metric.Counter(s, "herald_addresses_bound_total", "VIPs that were bound to an interface of this node."),
		removed: metric.Counter(s, "herald_addresses_removed_total", "VIPs that were removed from an interface of this "+
			"node."),
		renewals: metric.Counter(s, "herald_address_renewals_total", "Renewals of the lifetime of a bound VIP. Each VIP is "+
			"renewed each 0.75 s."),
		errors: metric.Counter(s, "herald_address_errors_total", "Failures to bind, renew or remove a VIP."),
	}
}
