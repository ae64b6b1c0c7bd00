package kube

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// FuzzDHCPLeases: whatever the annotation says, there are two leases at most, of addresses that a VIP can have; and
// what Herald writes of them it reads again.
func FuzzDHCPLeases(f *testing.F) {
	lease := `{"address":"10.0.0.50","bits":24,"mac":"02:00:00:00:00:aa","server":"10.0.0.1","router":"10.0.0.1","expires":"2026-01-01T00:00:00Z"}`
	for _, text := range []string{"[" + lease + "]", "[" + lease + "," + lease + "," + lease + "]", lease, "null",
		`[{"address":"fe80::1%eth0","bits":64}]`,
		`[{"address":"fd00::1","bits":128,"mac":"x"}]`, `[{"address":"::ffff:10.0.0.1","bits":32}]`,
		`[{"address":"10.0.0.1","bits":-1}]`, strings.Repeat("[", 2000)} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		leases := parseDHCPLeases(text)
		if len(leases) > 2 {
			t.Errorf("%d leases", len(leases))
		}
		for _, l := range leases {
			if a := l.Addr; !a.IsGlobalUnicast() || a.Zone() != "" || a.Is4In6() || l.Bits < 1 || l.Bits > a.BitLen() {
				t.Errorf("%+v", l)
			}
		}
		patch := make(map[string]any)
		if err := addLeaseAnnotations(patch, &cachedService{}, vip.Status{DHCPLeases: leases}); err != nil {
			t.Fatal(err)
		}
		again, _ := patch[dhcpLeaseKey].(string)
		if got := parseDHCPLeases(again); len(again) < 4096 && !equalDHCPLeases(got, leases) {
			t.Errorf("%+v is written as %s, and read as %+v", leases, again, got)
		}
	})
}

// FuzzNode: of any Node readNode makes one with valid addresses, each once, and the annotations that have the prefix.
func FuzzNode(f *testing.F) {
	f.Add("10.0.0.1 fd00::1 n1", "10.240.0.0/24 fd00:240::/64", "a/x=1\na/y=2\nb/x=3", "a", "2026-01-01T00:00:00Z", "node is shutting down")
	f.Add("::ffff:10.0.0.1 10.0.0.1 fe80::1%eth0", "10.240.0.1/24 /0", "=\na/=", "", "never", "\x00")
	f.Fuzz(func(t *testing.T, addresses, ranges, annotations, prefix, until, message string) {
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{returnKey: until, drainKey: until}}}
		for line := range strings.Lines(annotations) {
			key, value, _ := strings.Cut(line, "=")
			o.Annotations[key] = value
		}
		for _, a := range strings.Fields(addresses) {
			o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Address: a})
		}
		o.Spec.PodCIDRs = strings.Fields(ranges)
		o.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: message},
			{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: message},
		}
		o.Spec.Taints = []corev1.Taint{{Key: prefix}}
		n := readNode(o, prefix)
		seen := make(map[netip.Addr]bool)
		for _, a := range n.Addresses {
			if !a.IsValid() || a.Is4In6() || seen[a] {
				t.Errorf("address %s", a)
			}
			seen[a] = true
		}
		for _, p := range n.PodCIDRs {
			if !p.IsValid() || p != p.Masked() {
				t.Errorf("pod range %s", p)
			}
		}
		for name, value := range n.Annotations {
			if prefix == "" || o.Annotations[prefix+"/"+name] != string(value) {
				t.Errorf("annotation %q is %q", name, value)
			}
		}
	})
}

// FuzzSlice: of any EndpointSlice readSlice makes sorted names of nodes, none twice; and only Pods and API servers
// have addresses that are kept from Services.
func FuzzSlice(f *testing.F) {
	f.Add("web", "", "10.0.0.1 fd00::1", "n1 n2 n1", "Pod", uint16(0x1234))
	f.Add("web", mirroringController, "10.0.0.1", "", "Pod", uint16(0xffff))
	f.Add("", "x", "::ffff:10.0.0.1 x", "n1", "", uint16(0))
	f.Fuzz(func(t *testing.T, service, managedBy, addresses, nodes, kind string, conditions uint16) {
		o := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: service, discoveryv1.LabelManagedBy: managedBy}}}
		condition := func() *bool {
			v := conditions & 3
			conditions = conditions>>2 | v<<14
			return []*bool{nil, nil, new(true), new(false)}[v]
		}
		for _, node := range append(strings.Fields(nodes), "") {
			e := discoveryv1.Endpoint{Addresses: strings.Fields(addresses), NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: kind}}
			e.Conditions = discoveryv1.EndpointConditions{Ready: condition(), Serving: condition(), Terminating: condition()}
			o.Endpoints = append(o.Endpoints, e)
		}
		s := readSlice(o)
		if s == nil {
			if service != "" {
				t.Error("no slice")
			}
			return
		}
		for _, list := range [][]string{s.Ready, s.Terminating} {
			if !slices.IsSorted(list) || len(slices.Compact(slices.Clone(list))) != len(list) {
				t.Errorf("nodes %q", list)
			}
		}
		if len(s.addrs) > 0 && (kind != "Pod" || managedBy == mirroringController) {
			t.Errorf("addresses %v are not those of pods", s.addrs)
		}
	})
}

// tenantService is what somebody with the role edit in the namespace "tenant" can make of a Service: annotations has
// lines of the form key=value, ports its ports, and each bit of flags something about the rest.
func tenantService(annotations, loadBalancerIP string, ports []byte, flags uint16) *corev1.Service {
	flag := func(n int) bool { return flags>>n&1 == 1 }
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "tenant", Name: "app", UID: "uid-app", CreationTimestamp: metav1.NewTime(othersCreated.Add(time.Hour)),
		Annotations: make(map[string]string),
	}}
	if flag(0) { // older than all others
		o.CreationTimestamp = metav1.NewTime(othersCreated.Add(-time.Hour))
	}
	for line := range strings.Lines(annotations) {
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		o.Annotations[key] = value
	}
	o.Spec.LoadBalancerIP = loadBalancerIP
	o.Spec.Type = corev1.ServiceTypeLoadBalancer
	if flag(1) {
		o.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
		o.Spec.HealthCheckNodePort = 30000
	}
	if flag(2) {
		o.Spec.IPFamilies = append(o.Spec.IPFamilies, corev1.IPv6Protocol)
	}
	if flag(3) {
		o.Spec.IPFamilies = append(o.Spec.IPFamilies, corev1.IPv4Protocol)
	}
	if flag(4) { // what Herald wrote while it was served
		o.Annotations[vipHostKey] = "n1"
		o.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.77.0.60"}}
	}
	for i, p := range ports {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Protocol: []corev1.Protocol{"TCP", "UDP"}[i&1], Port: int32(p) + 1})
	}
	return o
}

// othersCreated is when the Services of others were created.
var othersCreated = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// text is an object as JSON.
func text(o any) string {
	b, err := json.MarshalIndent(o, "", "  ")
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// FuzzService: of any Service readService makes one of a bounded size, whatever the sizes of its annotations are,
// whose sentences about them can be shown, and which is the same each time.
func FuzzService(f *testing.F) {
	for _, a := range Annotations {
		for _, value := range []string{"true", "02:00:00:00:00:01", "65000:1,65000:1:2,no-export", "80=8080", "1h",
			"x\x1b[2J\n", "\x00", "a b", "/", "other/shared", "wahr", "::ffff:1.2.3.4%x", ",", strings.Repeat("ü", 99), "\xff" + strings.Repeat("x", 30000),
			strings.Repeat("65000:1,", 5000) + "no-export", strings.Repeat("a,", 20000) + "a", strings.Repeat("80=80,", 7000)} {
			f.Add(a.Key+"="+value+"\n"+addressesKey+"=10.0.0.1,fd00::1", "", []byte{79}, uint16(0), "10.0.0.1")
		}
	}
	f.Add("kube-vip.io/loadbalanc\xe5rIP=", "", []byte{}, uint16(0), "10.0.0.1")
	f.Add("heraldvip.io/a", "n", []byte("O"), uint16(0), "10.0.0.1")
	f.Add("", "::ffff:10.0.0.1%eth0", []byte{}, uint16(1), "example.com")
	f.Fuzz(func(t *testing.T, annotations, loadBalancerIP string, ports []byte, flags uint16, ingress string) {
		o := tenantService(annotations, loadBalancerIP, ports, flags)
		o.Status.LoadBalancer.Ingress = append(o.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ingress, Hostname: ingress})
		s := readService(o)
		all := text(s.Service)
		if again := text(readService(o).Service); all != again {
			t.Errorf("twice read, two results:\n%s\n%s", all, again)
		}
		if limit := 16<<10 + 100*len(ports) + 6*len(ingress); len(all) > limit {
			t.Errorf("%d bytes are kept of annotations of %d, at most %d should be:\n%.1000s", len(all), len(annotations), limit, all)
		}
		// and one about spec.loadBalancerIP, and what holds as long as addresses can't be read
		if len(s.Invalid) > len(o.Annotations)+2 {
			t.Errorf("%d sentences about %d annotations: %q", len(s.Invalid), len(o.Annotations), s.Invalid)
		}
		for _, sentence := range s.Invalid {
			if len(sentence) > 1000 || strings.ContainsFunc(sentence,
				func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
				t.Errorf("a sentence of %d bytes: %.300q", len(sentence), sentence)
			}
		}
		seen := make(map[netip.Addr]bool)
		for _, a := range s.Addresses {
			if a.Zone() != "" || a.Is4In6() || seen[a] {
				t.Errorf("address %s", a)
			}
			seen[a] = true
		}
		if strings.Contains(s.Lease, "/") || strings.HasPrefix(s.Lease, vip.NodeLeasePrefix) {
			t.Errorf("lease %q", s.Lease)
		}
		if d := s.DHCP; len(d.Macvlan) > 15 || strings.Contains(d.Macvlan, "/") || len(d.Requested) > 2 || len(d.MAC) != 0 &&
			len(d.MAC) != 17 || len(d.Hostname) > 253 {
			t.Errorf("DHCP %+v", d)
		}
		if s.IPMode != "" && s.IPMode != vip.ModeVIP && s.IPMode != vip.ModeProxy {
			t.Errorf("mode %q", s.IPMode)
		}
	})
}
