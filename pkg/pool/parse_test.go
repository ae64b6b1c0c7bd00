package pool

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// data makes a ConfigMap's data of lines "key=value".
func data(lines ...string) map[string]string {
	out := make(map[string]string)
	for _, l := range lines {
		key, value, _ := strings.Cut(l, "=")
		out[key] = value
	}
	return out
}

// text is Pools as the tests write them: one line per pool.
func (p *Pools) text() string {
	var out []string
	for _, x := range p.all {
		line := x.Name + ":"
		for _, r := range x.search {
			line += " " + r.String()
		}
		for _, f := range x.DHCP {
			line += " DHCP" + f.String()
		}
		if !x.provider {
			for _, a := range []struct {
				name string
				set  bool
				text any
			}{
				{"namespaces", !x.Namespaces.All(), x.Namespaces},
				{"services", x.Services != nil, x.Services},
				{"interface", x.Interface != "", x.Interface},
				{"nodes", x.Nodes != nil, x.Nodes},
				{"prefer", x.Prefer != nil, x.Prefer},
				{"auto", !x.Auto, x.Auto},
				{"priority", x.Priority != 0, x.Priority},
				{"announce", x.Announce != nil, x.Announce},
			} {
				if a.set {
					line += fmt.Sprintf("; %s %v", a.name, a.text)
				}
			}
		}
		if x.Broken {
			line += "; broken"
		}
		out = append(out, line)
	}
	return strings.Join(out, "\n")
}

func TestAddressesOfKeys(t *testing.T) {
	for _, tt := range []struct{ name, value, want, problem string }{
		{"a CIDR", "192.168.0.200/29", "192.168.0.200-192.168.0.207", ""},
		{"with bits beyond its length", "192.168.0.203/29", "192.168.0.200-192.168.0.207", ""},
		{"several, in any order, overlapping", "10.0.0.8/29,10.0.0.0/29, 10.0.0.4/30", "10.0.0.0-10.0.0.15", ""},
		{"one address", "10.0.0.7/32", "10.0.0.7", ""},
		{"one address without a length", "10.0.0.7", "10.0.0.7", ""},
		{"a range", "192.168.0.10-192.168.0.11", "192.168.0.10-192.168.0.11", ""},
		{"a range with spaces", "192.168.0.10 - 192.168.0.11 , 192.168.1.1-192.168.1.1", "192.168.0.10-192.168.0.11 192.168.1.1", ""},
		{"ranges and CIDRs in one key", "10.0.0.5-10.0.0.6,10.0.1.0/30", "10.0.0.5-10.0.0.6 10.0.1.0-10.0.1.3", ""},
		{"both families", "10.0.0.0/30,2001:db8::10/126", "10.0.0.0-10.0.0.3 2001:db8::10-2001:db8::13", ""},
		{"lines of a block scalar", "10.0.0.0/30\n10.0.1.0/30\n", "10.0.0.0-10.0.0.3 10.0.1.0-10.0.1.3", ""},
		{"a comma too many", "10.0.0.0/30,,", "10.0.0.0-10.0.0.3", ""},
		{"an IPv4-mapped IPv6 prefix", "::ffff:10.0.0.0/126", "10.0.0.0-10.0.0.3", ""},
		{"DHCP", "0.0.0.0/32", "DHCPIPv4", ""},
		{"DHCP without a length", "0.0.0.0", "DHCPIPv4", ""},
		{"DHCPv6 besides", "0.0.0.0/32,::/128,0.0.0.0/32", "DHCPIPv4 DHCPIPv6", ""},
		{"DHCP for one family only", "0.0.0.0/32,2001:db8::10/127", "2001:db8::10-2001:db8::11 DHCPIPv4", ""},
		{"what no Service may have", "127.0.0.1/32,10.0.0.1/32,224.0.0.0/30,169.254.1.1,fe80::1,ff02::1,255.255.255.255", "10.0.0.1", ""},
		{"empty", "", "; broken", "it has no addresses"},
		{"only commas", " , ", "; broken", "it has no addresses"},
		{"a host name", "web.example.com", "; broken", `"web.example.com" is neither a CIDR nor a range`},
		{"a length too long", "10.0.0.0/33", "; broken", `"10.0.0.0/33" is no CIDR`},
		{"a range that ends before it begins", "10.0.0.9-10.0.0.2", "; broken", `ends before it begins; write 10.0.0.2-10.0.0.9`},
		{"a range of two families", "10.0.0.9-2001:db8::1", "; broken", "both must be of one family"},
		{"a zone", "fe80::1%eth0-fe80::2%eth0", "; broken", "neither a CIDR nor a range"},
		{"one mistake in a list: nothing of it counts", "10.0.0.0/30,10.0.1.0-", "; broken", `"10.0.1.0-" is neither`},
		{"a mapped prefix that is too short", "::ffff:10.0.0.0/90", "; broken", "is no CIDR"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// cidr- and range- take the same: people write ranges to cidr- and the other way round.
			for _, key := range []string{"cidr-global", "range-global", "cidr-web", "range-web", "pool-web"} {
				p, problems := Parse(nil, map[string]string{key: tt.value})
				name := strings.TrimPrefix(key, "pool-")
				want := strings.Replace(name+": "+tt.want, ": ;", ":;", 1)
				check.Equal(t, p.text(), want, "%s", key)
				switch {
				case tt.problem == "" && len(problems) > 0, tt.problem != "" && len(problems) != 1:
					t.Errorf("%s: problems %v", key, problems)
				case tt.problem != "" && (!strings.Contains(problems[0].Message, tt.problem) || problems[0].Warning || problems[0].Key != key):
					t.Errorf("%s: problem %v, want %s", key, problems[0], tt.problem)
				}
			}
		})
	}
}

// The provider looks for the keys of a namespace, and of all, in this order.
func TestPrecedenceOfTheProvidersKeys(t *testing.T) {
	all := data("cidr-ns=10.0.1.0/24", "cidr-global=10.0.2.0/24", "range-ns=10.0.3.1-10.0.3.9", "range-global=10.0.4.1-10.0.4.9")
	for _, tt := range []struct{ without, ns, other string }{
		{"", "cidr-ns", "cidr-global"},
		{"cidr-ns", "cidr-global", "cidr-global"},
		{"cidr-ns cidr-global", "range-ns", "range-global"},
		{"cidr-global", "cidr-ns", "range-global"},
		{"cidr-ns cidr-global range-ns", "range-global", "range-global"},
		{"cidr-ns cidr-global range-global", "range-ns", ""},
		{"cidr-ns cidr-global range-ns range-global", "", ""},
	} {
		left := make(map[string]string)
		for k, v := range all {
			if !slices.Contains(strings.Fields(tt.without), k) {
				left[k] = v
			}
		}
		p, _ := Parse(nil, left)
		names := func(ns string) string {
			var out []string
			for _, x := range p.offered(ns, nil) {
				out = append(out, x.Name)
			}
			return strings.Join(out, " ")
		}
		check.Equal(t, names("ns"), tt.ns, "without %q ns gets of", tt.without)
		check.Equal(t, names("other"), tt.other, "without %q others get of", tt.without)
	}
}

func TestKeys(t *testing.T) {
	for _, tt := range []struct {
		name     string
		data     map[string]string
		pools    string
		problems []string // parts of each
	}{
		{"none", nil, "", nil},
		{"range-ns behind cidr-global", data("cidr-global=10.0.0.4", "range-ns=10.0.1.1-10.0.1.2"),
			"cidr-global: 10.0.0.4\nrange-ns: 10.0.1.1-10.0.1.2", []string{"range-ns: no Service gets an address of it, since cidr-global comes before it; name it cidr-ns"}},
		{"range-ns behind cidr-ns", data("cidr-ns=10.0.0.4", "range-ns=10.0.1.1-10.0.1.2"),
			"cidr-ns: 10.0.0.4\nrange-ns: 10.0.1.1-10.0.1.2", []string{"range-ns: no Service gets an address of it, since cidr-ns comes before it; put its addresses there"}},
		{"the ends of CIDRs", data("cidr-global=10.0.0.0/29,10.0.1.0/31,10.0.2.1/32,10.0.3.4-10.0.3.8,2001:db8::10/126", "skip-end-ips-in-cidr=true"),
			"cidr-global: 10.0.0.1-10.0.0.6 10.0.1.0-10.0.1.1 10.0.2.1 10.0.3.4-10.0.3.8 2001:db8::10-2001:db8::13", nil},
		{"nothing but ends", data("cidr-global=10.0.0.255/32"), "cidr-global: 10.0.0.255", []string{"cidr-global: it gives no address"}},
		{"a key of nobody", data("cdir-global=10.0.0.4"), "", []string{"cdir-global: no such key"}},
		{"a key of an older provider", data("allow-shared-web=true"), "", []string{"did you mean allow-share-web?"}},
		{"no namespace", data("cidr-=10.0.0.4"), "", []string{"cidr-: no such key"}},
		{"an order", data("search-order=descending"), "", []string{`search-order: "descending" is not an order; write desc for the highest address first, asc for the lowest. Until then the lowest address comes first`}},
		{"ends", data("skip-end-ips-in-cidr=yes"), "", []string{`skip-end-ips-in-cidr: "yes" is neither true nor false`}},
		{"shares", data("allow-share-web=T", "allow-share-global=maybe"), "", []string{`allow-share-global: "maybe" is neither`}},
		{"links", data("interface-web=eth0", "interface-global=a/b"), "", []string{`interface-global: "a/b" is no name of a network interface`}},
		{"a mistake beside what is good", data("cidr-web=nonsense", "cidr-db=10.0.0.4"), "cidr-db: 10.0.0.4\ncidr-web:; broken", []string{"cidr-web: "}},

		{"a pool with all attributes", data("pool-web=10.0.0.4/30,2001:db8::10-2001:db8::19", "pool-web.namespaces=shop, admin", "pool-web.services=tier=gold", "pool-web.interface=vlan7",
			"pool-web.nodes=zone in (a,b)", "pool-web.prefer=100 zone=a; 20 zone=b", "pool-web.auto=false", "pool-web.priority=7", "pool-web.announce=bgp, arp"),
			"web: 10.0.0.4-10.0.0.7 2001:db8::10-2001:db8::19; namespaces the namespaces admin, shop; services tier=gold; interface vlan7; nodes zone in (a,b); prefer [{zone=a 100} {zone=b 20}]; auto false; priority 7; announce [bgp arp]",
			nil},
		{"namespaces by label", data("pool-web=10.0.0.4", "pool-web.namespaces=team=blue"), "web: 10.0.0.4; namespaces the namespaces with labels team=blue", nil},
		{"an attribute without a pool", data("pool-web.auto=false"), "", []string{"pool-web.auto: there is no pool web; write its addresses to the key pool-web"}},
		{"a pool for all opens one for some namespaces", data("pool-all=10.0.0.0/24", "pool-all.auto=false", "cidr-team-c=10.0.0.0/24", "pool-b=10.0.0.8/31", "pool-b.namespaces=team-b",
			"pool-c=10.0.0.6/31", "pool-d=10.0.1.8/31", "pool-d.namespaces=team-b"),
			"all: 10.0.0.0-10.0.0.255; auto false\nb: 10.0.0.8-10.0.0.9; namespaces the namespace team-b\nc: 10.0.0.6-10.0.0.7\ncidr-team-c: 10.0.0.0-10.0.0.255\nd: 10.0.1.8-10.0.1.9; namespaces the namespace team-b",
			[]string{"pool-b.namespaces: other namespaces may have addresses of the pool all the same, since pool-all, which is for all, has some of them, too"}},
		{"an attribute that is none", data("pool-web=10.0.0.4", "pool-web.namespace=shop"), "web: 10.0.0.4", []string{`pool-web.namespace: a pool has no attribute "namespace", so it is ignored; there are namespaces, services`}},
		{"a name that is none", data("pool-Web=10.0.0.4", "pool-cidr-web=10.0.0.5"), "", []string{`pool-Web: "Web" is no name of a pool`, "pool-cidr-web: a pool can't be called cidr-web"}},
		{"attributes that can't be read close the pool", data("pool-web=10.0.0.4", "pool-web.namespaces=Shop!", "pool-web.nodes=zone in", "pool-web.prefer=zone=a", "pool-web.auto=no", "pool-web.priority=high", "pool-web.announce=ospf"),
			"web: 10.0.0.4; auto false; broken", []string{"pool-web.announce", "pool-web.auto", "pool-web.namespaces", "pool-web.nodes", "pool-web.prefer", "pool-web.priority"}},
		{"empty attributes", data("pool-web=10.0.0.4", "pool-web.namespaces=", "pool-web.services= "), "web: 10.0.0.4; broken", []string{"it names no namespace", "the selector is empty"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, problems := Parse(nil, tt.data)
			check.Equal(t, p.text(), tt.pools, "the pools")
			if len(problems) != len(tt.problems) {
				t.Fatalf("%d problems: %v", len(problems), problems)
			}
			for i, want := range tt.problems {
				check.Contains(t, problems[i].String(), want)
			}
		})
	}
}

// What says how VIPs of a pool are announced, and could never be read, counts as absent there, and the operator is told so.
func TestAnnouncedWithoutWhatCanNotBeRead(t *testing.T) {
	p, problems := Parse(nil, data("pool-a=10.7.0.0/24", "pool-a.nodes=zone=a,,", "pool-a.interface=vlan100-of-the-dmz", "pool-a.announce=ospf", "pool-a.prefer=zone=a"))
	if a := netip.MustParseAddr("10.7.0.1"); p.WhyNotOn(a, nil) != "" || p.Interface("web", a) != "" || p.Weight(a, map[string]string{"zone": "a"}) != 0 {
		t.Error("it counts")
	}
	for _, x := range problems {
		check.Contains(t, x.Message, "its VIPs are announced as if the key were absent")
	}
	check.Equal(t, len(problems), 4, "problems")
}

// What was good stays in force, key by key.
func TestMistakeLeavesWhatWasGood(t *testing.T) {
	good, problems := Parse(nil, data("cidr-web=10.0.0.4/31", "cidr-db=10.0.1.4/31", "pool-a=10.0.2.4", "pool-a.namespaces=shop", "search-order=desc"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	edited, problems := Parse(good, data("cidr-web=10.0.0.4/99", "cidr-db=10.0.1.8/31", "pool-a=10.0.2.4", "pool-a.namespaces=!", "search-order=up"))
	want := "a: 10.0.2.4; namespaces the namespace shop\ncidr-db: 10.0.1.8-10.0.1.9\ncidr-web: 10.0.0.4-10.0.0.5"
	if got := edited.text(); got != want || !edited.descending || len(problems) != 3 {
		t.Errorf("got\n%s\nwant\n%s\nproblems %v", got, want, problems)
	}
	check.Contains(t, problems[0].Message, `Until then the value before it stays in force where Herald has not been restarted since: "10.0.0.4/31"`)
	again, _ := Parse(edited, data("cidr-web=still wrong", "cidr-db=10.0.1.8/31"))
	check.Equal(t, again.text(), "cidr-db: 10.0.1.8-10.0.1.9\ncidr-web: 10.0.0.4-10.0.0.5", "a second mistake")
}

func TestSizes(t *testing.T) {
	for value, want := range map[string]float64{
		"10.0.0.0/16":                65536 - 512,
		"10.0.0.255/32,10.0.1.0/24":  254,
		"10.0.0.250-10.0.1.3":        8,
		"2001:db8::/112":             65535,
		"2001:db8::5":                1,
		"2001:db8::/63":              2*(1<<64) - 2,
		"0.0.0.0/32":                 0,
		"10.0.0.1-10.0.0.3,10.0.0.2": 3,
	} {
		p, _ := Parse(nil, map[string]string{"cidr-global": value})
		check.Equal(t, p.all[0].Size(vip.IPv4)+p.all[0].Size(vip.IPv6), want, "how many %s has", value)
	}
}

// FuzzParse: whatever a ConfigMap says, Parse does not panic, repeats itself, names keys that
// are there, and an Allocator of its Pools gives only what they contain.
func FuzzParse(f *testing.F) {
	f.Add("cidr-global", "10.0.0.0/30,2001:db8::/126", "range-ns", "10.0.0.1-10.0.0.9", "search-order", "desc")
	f.Add("pool-web", "10.0.0.0/30", "pool-web.namespaces", "a,b", "pool-web.prefer", "100 zone=a; 20 zone in (b)")
	f.Add("pool-web", "255.255.255.0/24,ffff::/1", "skip-end-ips-in-cidr", "true", "allow-share-global", "1")
	f.Add("cidr-ns", "0.0.0.0/0", "interface-ns", "auto", "pool-x.nodes", "!a,b notin (c)")
	f.Add("cidr-ns", "::/0,0.0.0.0/32", "pool-.", "\xff", "pool-a.b.c", "-")
	f.Fuzz(func(t *testing.T, k1, v1, k2, v2, k3, v3 string) {
		d := map[string]string{k1: v1, k2: v2, k3: v3}
		p, problems := Parse(nil, d)
		again, _ := Parse(p, d)
		if p.text() != again.text() {
			t.Fatalf("a second time:\n%s\nfirst:\n%s", again.text(), p.text())
		}
		for _, x := range problems {
			if _, there := d[x.Key]; !there || x.Message == "" || utf8.ValidString(strings.Join([]string{k1, v1, k2, v2, k3, v3}, "\x00")) && !utf8.ValidString(x.String()) {
				t.Fatalf("problem %q", x)
			}
		}
		s := request("s", func(s *vip.Service) { s.Families, s.DualStack = []vip.Family{vip.IPv4, vip.IPv6}, vip.PreferDualStack })
		in := vip.PoolInput{Allocate: true, Now: start, Source: &vip.PoolSource{}, Requests: []vip.AddressRequest{s}}
		for _, d := range decide(p, &in, nil, newMemory(0)).assignments {
			for _, x := range d.Addresses {
				if !x.IsUnspecified() && (p.find(x) == nil || contains(notForServices, x)) {
					t.Fatalf("gave %s", x)
				}
			}
			if d.Reason == "" {
				t.Fatal("no reason")
			}
		}
	})
}
