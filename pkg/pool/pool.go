package pool

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Pool is addresses that Services may have.
type Pool struct {
	Name string // what Services and messages call it: web for pool-web, cidr-default for cidr-default
	Key  string // that it comes from
	addresses

	Namespaces Namespaces      // that it is offered to; no other may ask for its addresses
	Services   labels.Selector // that get an address of it without asking; nil for all
	Interface  string          // of its VIPs; "" if it says nothing
	Nodes      labels.Selector // that may carry its VIPs; nil for all
	Prefer     []Preference    // of those nodes; the weights of all that select a node are added up
	Auto       bool            // Services get addresses of it without asking
	Priority   int             // the highest comes first
	Announce   []vip.Method    // of its VIPs; nil if it says nothing
	Broken     bool            // a part of it could never be read, so it gives nothing

	provider bool        // it comes from a key of kube-vip's provider
	search   []vip.Range // what is given to Services that ask for none in particular, isEnd included
}

// A Preference is nodes that should rather carry the VIPs of a pool.
type Preference struct {
	Nodes  labels.Selector
	Weight int // 1 to 100
}

// Namespaces is those that a pool is offered to: all if it is zero.
type Namespaces struct {
	Names    []string // sorted
	Selector labels.Selector
}

// All reports whether n is every namespace.
func (n Namespaces) All() bool { return n.Names == nil && n.Selector == nil }

// Contains reports whether a namespace belongs to n; without labels (nil) it is in no selector.
func (n Namespaces) Contains(name string, l map[string]string) bool {
	switch {
	case n.Selector != nil:
		return l != nil && n.Selector.Matches(labels.Set(l))
	case n.Names != nil:
		_, found := slices.BinarySearch(n.Names, name)
		return found
	}
	return true
}

// String is for messages.
func (n Namespaces) String() string {
	switch {
	case n.Selector != nil:
		return "the namespaces with labels " + n.Selector.String()
	case len(n.Names) == 1:
		return "the namespace " + n.Names[0]
	case n.Names != nil:
		return "the namespaces " + strings.Join(n.Names, ", ")
	}
	return "all namespaces"
}

// Size is how many addresses of a family p gives to Services that name none.
func (p *Pool) Size(f vip.Family) float64 { return p.Free(f, nil) }

// Free is Size without what is taken.
func (p *Pool) Free(f vip.Family, taken []vip.ReservedRange) (n float64) {
	for _, r := range subtract(p.search, mergeReserved(taken)) {
		if vip.FamilyOf(r.From) == f {
			n += size(r)
		}
	}
	return n
}

// Contains reports whether p may give a; 0.0.0.0 and :: stand for DHCP.
func (p *Pool) Contains(a netip.Addr) bool {
	return contains(p.Ranges, a) || a.IsUnspecified() && slices.Contains(p.DHCP, vip.FamilyOf(a))
}

// Ranges that no Service can have, merged: "this network" (RFC 1122), loopback, link-local, multicast and reserved ones
// (RFC 1112, RFC 4291).
var notForServices = vip.MergeRanges([]vip.Range{
	vip.RangeOf(netip.MustParsePrefix("0.0.0.0/8")),
	vip.RangeOf(netip.MustParsePrefix("127.0.0.0/8")),
	vip.RangeOf(netip.MustParsePrefix("169.254.0.0/16")),
	vip.RangeOf(netip.MustParsePrefix("224.0.0.0/3")),
	vip.RangeOf(netip.MustParsePrefix("::/127")),
	vip.RangeOf(netip.MustParsePrefix("::ffff:0:0/96")),
	vip.RangeOf(netip.MustParsePrefix("fe80::/10")),
	vip.RangeOf(netip.MustParsePrefix("ff00::/8")),
})

// Pools is what a ConfigMap says, never modified.
type Pools struct {
	byName     map[string]*Pool
	all        []*Pool           // sorted by name
	own        []*Pool           // those of pool-<name>, as compare orders them
	limiting   []*Pool           // of these, those that are for some nodes only
	preferring []*Pool           // those that prefer some nodes
	announcing []*Pool           // those that say how their VIPs are announced
	interfaces map[string]string // interface-<namespace>, by namespace
	share      map[string]bool   // allow-share-<namespace>
	descending bool              // search-order is desc
	skipEnds   bool              // skip-end-ips-in-cidr

	good map[string]string // the text in force of each key that can be read
}

func newPools() *Pools {
	return &Pools{
		byName: make(map[string]*Pool), interfaces: make(map[string]string), share: make(map[string]bool),
		good: make(map[string]string),
	}
}

func (p *Pools) complete() {
	p.all = slices.SortedFunc(maps.Values(p.byName), func(a, b *Pool) int { return cmp.Compare(a.Name, b.Name) })
	for _, x := range p.all {
		from := x.Ranges
		if p.skipEnds {
			from = x.inner
		}
		x.search = subtract(from, notForServices)
		if !x.provider {
			p.own = append(p.own, x)
		}
	}
	slices.SortFunc(p.own, compare)
	for _, x := range p.own {
		if x.Nodes != nil {
			p.limiting = append(p.limiting, x)
		}
		if len(x.Prefer) > 0 {
			p.preferring = append(p.preferring, x)
		}
		if x.Announce != nil {
			p.announcing = append(p.announcing, x)
		}
	}
}

// compare orders pools by priority, then who names Services, who names namespaces, then name.
func compare(a, b *Pool) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(b.specificity(), a.specificity()),
		cmp.Compare(a.Name, b.Name))
}

func (p *Pool) specificity() int {
	switch {
	case p.Services != nil:
		return 2
	case !p.Namespaces.All():
		return 1
	}
	return 0
}

// All is every pool, by name, not to be modified.
func (p *Pools) All() []*Pool { return p.all }

// providerPool returns the provider's pool for a namespace: cidr or range, its own or global; or nil.
func (p *Pools) providerPool(namespace string) *Pool {
	return cmp.Or(p.byName[cidrPrefix+namespace], p.byName[cidrPrefix+global], p.byName[rangePrefix+namespace],
		p.byName[rangePrefix+global])
}

// offered returns the pools for a namespace that does not ask, best first.
func (p *Pools) offered(namespace string, namespaceLabels map[string]string) (out []*Pool) {
	for _, x := range p.own {
		if x.Auto && x.Namespaces.Contains(namespace, namespaceLabels) {
			out = append(out, x)
		}
	}
	if x := p.providerPool(namespace); x != nil {
		at, _ := slices.BinarySearchFunc(out, x, compare)
		out = slices.Insert(out, at, x)
	}
	return out
}

// ofNamespace returns what the key of a namespace says, else that of -global.
func ofNamespace[V any](all map[string]V, namespace string) V {
	if v, ok := all[namespace]; ok {
		return v
	}
	return all[global]
}

// MayShare reports whether both namespaces may share a, an IPv4 address of a pool.
func (p *Pools) MayShare(a netip.Addr, one, other string) bool {
	return a.Is4() && ofNamespace(p.share, one) && ofNamespace(p.share, other) && p.find(a) != nil
}

func (p *Pools) find(a netip.Addr) *Pool { return firstWith(p.all, a) }
