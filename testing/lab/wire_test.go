package lab

import (
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/mdlayher/arp"
	"github.com/mdlayher/ndp"
	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/check"
)

var prober = host{name: "pr", octet: 101, lan: true}

func TestParseAnswer(t *testing.T) {
	n1, n2 := host{octet: 11}, host{octet: 12}
	vip4, vip6 := netip.MustParseAddr("10.77.0.50"), netip.MustParseAddr("fd77::1050")
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	arpFrame := func(to net.HardwareAddr, op arp.Operation, target netip.Addr) []byte {
		p, err := arp.NewPacket(op, n1.mac(0x77), vip4, to, target)
		check.OK(t, err)
		b, _ := p.MarshalBinary() // never an error
		return append(ethernetHeader(to, n1.mac(0x77), unix.ETH_P_ARP), b...)
	}
	naFrame := func(na *ndp.NeighborAdvertisement) []byte {
		b, err := ndp.MarshalMessage(na)
		check.OK(t, err)
		h := make([]byte, ipv6Len)
		h[0], h[6] = 0x60, unix.IPPROTO_ICMPV6
		return append(append(ethernetHeader(prober.mac(0x77), n1.mac(0x77), unix.ETH_P_IPV6), h...), b...)
	}
	lla := []ndp.Option{&ndp.LinkLayerAddress{Direction: ndp.Target, Addr: n2.mac(0x77)}}
	tests := []struct {
		name  string
		frame []byte
		addr  netip.Addr
		mac   string
		ok    bool
	}{
		{"reply", arpFrame(prober.mac(0x77), arp.OperationReply, prober.lan4()), vip4, "02:77:00:00:00:11", true},
		{"reply to somebody else", arpFrame(n2.mac(0x77), arp.OperationReply, n2.lan4()), netip.Addr{}, "", false},
		{"announcement", arpFrame(broadcast, arp.OperationReply, vip4), netip.Addr{}, "", false},
		{"a request to us", arpFrame(prober.mac(0x77), arp.OperationRequest, prober.lan4()), netip.Addr{}, "", false},
		{"advertisement", naFrame(&ndp.NeighborAdvertisement{Solicited: true, TargetAddress: vip6, Options: lla}), vip6, "02:77:00:00:00:12", true},
		{"advertisement without the option", naFrame(&ndp.NeighborAdvertisement{Solicited: true, TargetAddress: vip6}), vip6, "02:77:00:00:00:11", true},
		{"unsolicited", naFrame(&ndp.NeighborAdvertisement{TargetAddress: vip6, Options: lla}), netip.Addr{}, "", false},
		{"cut short", naFrame(&ndp.NeighborAdvertisement{Solicited: true, TargetAddress: vip6})[:60], netip.Addr{}, "", false},
		{"half an ARP packet", arpFrame(prober.mac(0x77), arp.OperationReply, prober.lan4())[:30], netip.Addr{}, "", false},
		{"nothing", nil, netip.Addr{}, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			addr, mac, ok := parseAnswer(prober, tt.frame)
			if addr != tt.addr || mac != tt.mac || ok != tt.ok {
				t.Errorf("got %v %q %v, want %v %q %v", addr, mac, ok, tt.addr, tt.mac, tt.ok)
			}
		})
	}
}

func TestHosts(t *testing.T) {
	var names []string
	seen := map[string]bool{}
	for _, h := range hosts(60, false) {
		names = append(names, h.name)
		for _, a := range []string{h.mac(0x77).String(), h.lan4().String(), h.lan6().String(), h.pods4().String()} {
			if seen[a] && (h.node || !strings.HasSuffix(a, "/24")) {
				t.Errorf("%s shares %s with another host", h.name, a)
			}
			seen[a] = true
		}
	}
	if got, want := strings.Join(names[:25], " "), "cp rt cl pr w1 n1 n2 n3 n4 n5 n6 n7 n8 n9 n10 n11 n12 n13 n14 n15 n16 n17 n18 n19 n20"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	n3 := hosts(3, false)[7]
	got := []string{n3.name, n3.lan4().String(), n3.lan6().String(), n3.mgmt4().String(), n3.mac(0x77).String(), n3.pods4().String(),
		n3.pods6().String(), nth(n3.pods4(), 1).String(), nth(n3.pods6(), 300).String()}
	want := []string{"n3", "10.77.0.13", "fd77::13", "10.78.0.13", "02:77:00:00:00:13", "10.240.3.0/24", "fd77:240:3::/64", "10.240.3.1", "fd77:240:3::12c"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("n3 (-want +got):\n%s", d)
	}
}

func TestCountRequests(t *testing.T) {
	got, err := countRequests([]byte(`# HELP apiserver_request_total Counter
# TYPE apiserver_request_total counter
apiserver_request_total{code="200",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 12
apiserver_request_total{code="409",component="apiserver",dry_run="",group="coordination.k8s.io",resource="leases",scope="resource",subresource="",verb="PUT",version="v1"} 3
apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="services",scope="resource",subresource="status",verb="PATCH",version="v1"} 1.5e+06
apiserver_request_total{code="0",component="apiserver",dry_run="",group="",resource="services",scope="cluster",subresource="",verb="WATCH",version="v1"} 7
apiserver_request_total{code="200",component="",dry_run="",group="",resource="",scope="",subresource="/metrics",verb="GET",version=""} 2
apiserver_request_terminations_total{code="429"} 1
`))
	check.OK(t, err)
	want := map[string]float64{"PUT leases": 15, "PATCH services/status": 1.5e6, "GET /metrics": 2}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if _, err := countRequests([]byte(`apiserver_request_total{verb="GET"} many`)); err == nil {
		t.Error("a number that is none: want an error")
	}
	since := Since(map[string]float64{"PUT leases": 20, "GET /metrics": 2, "LIST pods": 1}, want)
	if d := cmp.Diff(map[string]float64{"PUT leases": 5, "LIST pods": 1}, since); d != "" {
		t.Errorf("Since (-want +got):\n%s", d)
	}
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{{Nodes: 61}, {Nodes: -1}, {ProxyMode: "ipvs"}} {
		if _, err := o.withDefaults(); err == nil {
			t.Errorf("%+v: want an error", o)
		}
	}
	o, err := Options{}.withDefaults()
	check.OK(t, err)
	if o.Nodes != 3 || o.ProxyMode != "nftables" || !strings.HasSuffix(o.Parts, "/bin/parts") || !strings.HasSuffix(o.Herald, "/bin/herald") {
		t.Errorf("defaults: %+v", o)
	}
	t.Chdir("/tmp")
	if _, err := (Options{}).withDefaults(); err == nil {
		t.Error("outside a checkout: want an error")
	}
	o, err = Options{Parts: "/nowhere", Herald: "bin/herald", Dir: "x"}.withDefaults()
	if err != nil || o.Parts != "/nowhere" || o.Herald != "/tmp/bin/herald" || o.Dir != "/tmp/x" {
		t.Errorf("got %+v, error %v", o, err)
	}
}
