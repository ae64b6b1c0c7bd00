// Package netif keeps VIPs on the node's network interfaces, and tells what
// those interfaces are.
//
// A VIP is bound with a lifetime of a few seconds that is renewed each 0.75 s
// for as long as this node may hold it. So the kernel itself takes the VIPs away
// from a process that is killed, stopped or stuck: there is nothing to clean up.
// Each VIP carries a mark (IFA_PROTO), by which a later process knows its own.
//
// Netlink types stay inside this package.
package netif

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/prometheus/client_golang/prometheus"
)

// Options is what Interfaces needs to know. All fields but the names of links
// and the switch are required.
type Options struct {
	Log *slog.Logger
	// Poke is called when the next World will differ. It must not block.
	Poke func()
	// OnLinkChange is called after Links has changed. It must neither block nor call
	// Interfaces. It may be nil.
	OnLinkChange func()
	// Tenure is this node's right to hold VIPs at the moment of the call.
	Tenure func() vip.Tenure

	Interface         string // vip_interface; "" is the link of the default route
	ServicesInterface string // vip_servicesinterface: a link's name, "auto", or "" for Interface
	AllowNotUp        bool   // vip_allow_interface_not_up
}

// Interfaces is this node's network interfaces: the part of it that binds VIPs,
// and the observer of its links.
type Interfaces struct {
	opts   Options
	log    *slog.Logger
	kernel kernel
	meters meters

	// op lets one at a time change the kernel: a renewal creates the address if
	// it is missing, so it must not run beside its removal.
	op sync.Mutex

	mu      sync.Mutex // guards what follows; never held over a system call
	picture *picture   // the kernel, as known from the first reading and every change since
	drawn   bool       // facts is older than picture
	facts   facts      // what picture means
	held    map[place]*holding
	wants   map[place]vip.Address // what was last wanted there
	epoch   int64                 // the tenure that the last Set was made under
	wake    chan struct{}         // capacity 1: held is no longer empty

	macvlans macvlans
}

// New reads the links and addresses. It fails if the interface of VIPs isn't
// there or isn't up, unless that is allowed.
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
		opts:   o,
		log:    o.Log,
		kernel: k,
		meters: newMeters(),
		held:   map[place]*holding{},
		wants:  map[place]vip.Address{},
		wake:   make(chan struct{}, 1),
	}
	var err error
	if n.picture, err = k.read(); err != nil {
		return nil, err
	}
	n.facts = n.picture.means(o)
	n.meters.addresses.Set(float64(len(n.facts.bound)))
	if err := n.check(); err != nil {
		if !o.AllowNotUp {
			return nil, err
		}
		n.log.Warn("starting although the interface of VIPs is not up", "why", err)
	}
	return n, nil
}

// String names the task.
func (n *Interfaces) String() string { return "network interfaces" }

// Collectors are the room's metrics.
func (n *Interfaces) Collectors() []prometheus.Collector { return n.meters.collectors() }

// Observe fills in Bound, which is what Set would return, and Stray.
func (n *Interfaces) Observe(w *vip.World) {
	w.Bound = n.have()
	n.mu.Lock()
	defer n.mu.Unlock()
	w.Unmanaged = slices.Clone(n.known().stray)
	n.macvlans.observe(n, w)
}

// Info is what the other nodes may know of this one's links.
func (n *Interfaces) Info() vip.NodeInfo {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known().info // replaced as a whole, never changed
}

// Links is all links of this node, lo and macvlans too, in the order of Index. Their Prefixes
// are the global unicast addresses of both families, without VIPs that Herald has bound,
// temporary addresses (RFC 8981), and what kube-proxy has on kube-ipvs0. It does no system
// calls, and the result must not be changed.
func (n *Interfaces) Links() []vip.Link {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known().links
}

// Gateway is the next hop of the default route by a link, of IPv4 if there is
// one; zero if there is none.
func (n *Interfaces) Gateway(link string) netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.known().via[link]
}

// Run renews the bound VIPs and follows what the kernel tells of its links and
// addresses, until ctx ends. It then leaves the VIPs to the kernel: who stops in
// good order has called Set with nothing before.
func (n *Interfaces) Run(ctx context.Context) error {
	var tasks sync.WaitGroup
	tasks.Go(func() { n.follow(ctx) })
	tasks.Go(func() { n.macvlans.watch(ctx, n) })
	n.renewals(ctx)
	tasks.Wait()
	return nil
}

// check says what is wrong with the interface of VIPs, naming the variable that chose it.
func (n *Interfaces) check() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	var errs []error
	named := func(variable, name string) {
		l, ok := n.picture.named(name)
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s=%s: this node has no such interface; it has %s", variable, name, n.picture.names()))
		case !l.up:
			errs = append(errs, fmt.Errorf("%s=%s: the interface is not up (vip_allow_interface_not_up=true starts regardless)", variable, name))
		}
	}
	if n.opts.Interface != "" {
		named("vip_interface", n.opts.Interface)
	}
	if s := n.opts.ServicesInterface; s != "" && s != "auto" && s != n.opts.Interface {
		named("vip_servicesinterface", s)
	}
	if s := n.opts.ServicesInterface; (s == "" || s == "auto") && n.facts.info.DefaultInterface == "" {
		errs = append(errs, errors.New("vip_interface is not set, and this node has no default route to choose an interface by: set vip_interface"))
	}
	return errors.Join(errs...)
}

// address is w's address without IPv4-in-IPv6 mapping or zone, checked.
func address(w vip.Address) (netip.Prefix, error) {
	a := w.Addr.Unmap().WithZone("")
	p := netip.PrefixFrom(a, w.Bits)
	if !p.IsValid() || w.Bits == 0 {
		return netip.Prefix{}, fmt.Errorf("%s/%d is no address to bind", w.Addr, w.Bits)
	}
	return p, nil
}
