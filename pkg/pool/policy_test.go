package pool

import (
	"net/netip"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

func TestWhoMayAskForWhat(t *testing.T) {
	p, _ := Parse(nil, data("cidr-web=10.0.1.0/24", "pool-blue=10.0.2.0/24", "pool-blue.namespaces=team=blue",
		"pool-kept=10.0.3.0/24", "pool-kept.namespaces=shop", "pool-all=10.0.4.0/24,0.0.0.0/32", "pool-all.auto=false",
		"pool-both=10.0.3.64/26", "pool-both.namespaces=team=blue", "pool-bad=10.0.6.0/24", "pool-bad.namespaces=-"))
	check.Equal(t, p.KeepsOut(), true, "they keep others out")
	if open, _ := Parse(nil, data("cidr-web=10.0.1.0/24", "range-global=10.0.2.1-10.0.2.9", "pool-all=10.0.4.0/24")); open.KeepsOut() {
		t.Error("pools that name no namespaces keep others out")
	}
	const none, other = "is of no pool that is offered to the namespace ", "is of a pool that is not offered to the namespace "
	blue := map[string]string{"team": "blue"}
	for _, tt := range []struct {
		namespace   string
		labels      map[string]string
		addr        string
		any, pooled string
	}{
		{"web", nil, "10.0.1.9", "", ""},
		{"db", nil, "10.0.1.9", "", other},
		{"db", nil, "10.0.2.9", other, other},
		{"db", blue, "10.0.2.9", "", ""},
		{"db", nil, "10.0.3.9", other, other},
		{"shop", nil, "10.0.3.9", "", ""},
		{"db", nil, "10.0.3.70", other, other},
		{"db", blue, "10.0.3.70", "", ""}, // two pools have it
		{"db", nil, "10.0.4.9", "", ""},
		{"db", nil, "10.0.5.9", "", none},
		{"db", nil, "10.0.6.9", other, other}, // for whom it is can't be read
		{"db", nil, "0.0.0.0", "", ""},
		{"db", nil, "::", "", none},
	} {
		for poolsOnly, want := range map[bool]string{false: tt.any, true: tt.pooled} {
			if want != "" {
				want = tt.addr + " " + want + tt.namespace
			}
			got := p.WhyNotOffered(tt.namespace, tt.labels, netip.MustParseAddr(tt.addr), poolsOnly)
			check.Equal(t, got, want, "%s of %s %v, pools only %v", tt.addr, tt.namespace, tt.labels, poolsOnly)
		}
	}
}

func TestInterfaceOfPools(t *testing.T) {
	p, _ := Parse(nil, data("interface-web=eth1", "interface-global=eth0", "interface-none=", "pool-v=10.7.0.0/24", "pool-v.interface=vlan7", "pool-w=10.8.0.0/24", "cidr-global=10.0.0.0/24"))
	for _, tt := range []struct{ namespace, addr, want string }{
		{"web", "10.0.0.1", "eth1"},
		{"db", "10.0.0.1", "eth0"},
		{"none", "10.0.0.1", ""},
		{"web", "10.7.0.1", "vlan7"},
		{"web", "10.8.0.1", ""},
		{"web", "10.9.0.1", ""}, // of no pool
	} {
		check.Equal(t, p.Interface(tt.namespace, netip.MustParseAddr(tt.addr)), tt.want, "%s %s", tt.namespace, tt.addr)
	}
}

// TestNamespaceNotKnown: a namespace that is not known, since Namespaces can't be read or its own has not come yet, belongs to no selector, be it one of labels that are not there.
func TestNamespaceNotKnown(t *testing.T) {
	p, _ := Parse(nil, data("pool-a=10.7.0.0/24", "pool-a.namespaces=trust!=external", "pool-b=10.8.0.0/24", "pool-b.namespaces=!external"))
	for _, a := range []netip.Addr{netip.MustParseAddr("10.7.0.1"), netip.MustParseAddr("10.8.0.1")} {
		if p.WhyNotOffered("web", nil, a, true) == "" || p.WhyNotOffered("web", map[string]string{}, a, true) != "" {
			t.Errorf("%s is offered to one that is not known, or is not to one without labels", a)
		}
	}
	w := newWorld(t, 0, "pool-b=10.8.0.0/24", "pool-b.namespaces=!external")
	w.set("web/a", nil)
	if waits := w.decide(); waits["a"] == "" {
		t.Error("an address is given to one that is not known: ", w.has("web/a"))
	}
	w.labels = map[string]map[string]string{"web": {}}
	w.decide()
	w.expect("web/a: 10.8.0.1 of b")

	// Where others are known its own will come, and may have it belong to a better pool.
	w = newWorld(t, 0, "pool-blue=10.0.0.0/24", "pool-blue.namespaces=team=blue", "range-global=10.1.0.0-10.1.0.9")
	w.labels = map[string]map[string]string{"other": {}}
	w.set("web/a", nil)
	check.Equal(t, w.decide()["a"], "the labels of namespace web are not known yet", "waits")
	w.labels["web"] = map[string]string{"team": "blue"}
	w.decide()
	w.expect("web/a: 10.0.0.1 of blue")
}

func TestNodesOfPools(t *testing.T) {
	p, _ := Parse(nil, data("pool-a=10.7.0.0/24", "pool-a.nodes=zone in (a,b)", "pool-b=10.8.0.0/24"))
	const why = "pool a, of which 10.7.0.1 is, is for nodes with zone in (a,b)"
	for _, tt := range []struct{ addr, zone, want string }{{"10.7.0.1", "a", ""}, {"10.7.0.1", "c", why}, {"10.8.0.1", "c", ""}, {"10.9.0.1", "c", ""}} {
		a := netip.MustParseAddr(tt.addr)
		check.Equal(t, p.WhyNotOn(a, map[string]string{"zone": tt.zone}), tt.want, "%s in zone %s", tt.addr, tt.zone)
	}
}
