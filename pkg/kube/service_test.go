package kube

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func TestReadService(t *testing.T) {
	born := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	o := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "web", UID: "u1", ResourceVersion: "17", CreationTimestamp: metav1.NewTime(born),
			Annotations: map[string]string{addressesKey: "192.168.0.10,fd00::10", vipHostKey: "n1", interfaceKey: "eth1"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: new(""), LoadBalancerIP: "192.168.0.99",
			IPFamilies:            []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			ClusterIPs:            []string{"10.96.0.7", "fd01::7"},
			Ports:                 []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 443}, {Protocol: corev1.ProtocolUDP, Port: 53}},
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 31234,
			SessionAffinity: corev1.ServiceAffinityClientIP,
		},
		Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{
			{IP: "192.168.0.10", IPMode: new(corev1.LoadBalancerIPModeVIP),
				Ports: []corev1.PortStatus{{Port: 443, Protocol: corev1.ProtocolTCP}}},
			{Hostname: "example.com"},
		}}},
	}
	want := &cachedService{
		Service: vip.Service{
			Key: vip.Key{Namespace: "default", Name: "web"}, UID: "u1", Created: born,
			LoadBalancer: true, HasClass: true, Addresses: addrs("192.168.0.10", "fd00::10"), Source: addressesKey,
			Families: []vip.Family{vip.IPv4, vip.IPv6}, Interface: "eth1", Local: true, HealthCheckNodePort: 31234,
			ClientIPAffinity: true,
			Ports:            []vip.Port{{Protocol: "TCP", Port: 443}, {Protocol: "UDP", Port: 53}},
			Ingress: []vip.Ingress{
				{Addr: netip.MustParseAddr("192.168.0.10"), IPMode: vip.ModeVIP, Ports: []vip.Port{{Protocol: "TCP", Port: 443}}},
				{Hostname: "example.com"},
			},
			VIPHost: "n1",
			Invalid: []string{`spec.loadBalancerIP asks for "192.168.0.99", and has no effect: kube-vip.io/loadbalancerIPs, which comes first, ` +
				`asks for "192.168.0.10,fd00::10". Remove one of them.`},
		},
		version: "17", hasHostAnnotation: true, clusterIPs: addrs("10.96.0.7", "fd01::7"),
	}
	got := readService(o)
	if diff := cmp.Diff(want, got, check.Addresses, cmp.AllowUnexported(cachedService{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	check.Same(t, o.Status.LoadBalancer.Ingress, writeIngress(got.Ingress), "the status written back")
}

func TestAddressSource(t *testing.T) {
	ingress := func(ips ...string) (out []corev1.LoadBalancerIngress) {
		for _, ip := range ips {
			out = append(out, corev1.LoadBalancerIngress{IP: ip})
		}
		return out
	}
	tests := []struct {
		name, annotation, spec string
		status                 []corev1.LoadBalancerIngress
		record                 string
		want                   []netip.Addr
		source                 string
		invalid                int
	}{
		{name: "none"},
		{name: "annotation wins", annotation: "10.0.0.1", spec: "10.0.0.2", status: ingress("10.0.0.3"),
			want: addrs("10.0.0.1"), source: addressesKey, invalid: 1},
		{name: "spec over status", spec: "10.0.0.2", status: ingress("10.0.0.3"), want: addrs("10.0.0.2"), source: "spec.loadBalancerIP"},
		{name: "empty annotation is absent", annotation: " ", spec: "10.0.0.2", want: addrs("10.0.0.2"), source: "spec.loadBalancerIP"},
		{name: "status", status: ingress("10.0.0.3", "fd00::3", "10.0.0.3"), want: addrs("10.0.0.3", "fd00::3"),
			source: "status.loadBalancer.ingress"},
		{name: "status with host names", status: []corev1.LoadBalancerIngress{{Hostname: "a.example"}}},
		{name: "a wrong annotation is not passed over", annotation: "x", spec: "10.0.0.2", source: addressesKey, invalid: 2},
		{name: "... but a VIP stays", annotation: "10.0.0.1,x", spec: "10.0.0.2", status: ingress("10.0.0.3", "fd00::3"),
			want: addrs("10.0.0.3", "fd00::3"), source: "status.loadBalancer.ingress", invalid: 3},
		{name: "a wrong spec is not passed over", spec: "x", source: "spec.loadBalancerIP", invalid: 1},
		{name: "... but a VIP stays", spec: "x", status: ingress("10.0.0.3"), want: addrs("10.0.0.3"),
			source: "status.loadBalancer.ingress", invalid: 2},
		{name: "the status was cleared", record: `{"named":["10.0.0.3"],"given":["fd00::3"]}`, want: addrs("10.0.0.3", "fd00::3"),
			source: "status.loadBalancer.ingress"},
		{name: "... and a field is wrong", spec: "x", record: `{"named":["10.0.0.3"]}`, want: addrs("10.0.0.3"),
			source: "status.loadBalancer.ingress", invalid: 2},
		{name: "... and another is named", spec: "10.0.0.2", record: `{"named":["10.0.0.3"]}`, want: addrs("10.0.0.2"),
			source: "spec.loadBalancerIP"},
		{name: "the status has one of two, and one of a gateway", status: ingress("fd00::3", "192.0.2.1"),
			record: `{"named":["10.0.0.3","fd00::3"]}`, want: addrs("10.0.0.3", "fd00::3"), source: "status.loadBalancer.ingress"},
		{name: "one of two was leased", status: ingress("fd00::3", "10.0.0.3"), record: `{"named":["fd00::3"],"leased":["10.0.0.3"]}`,
			want: addrs("fd00::3", "10.0.0.3"), source: "status.loadBalancer.ingress"},
		{name: "what was leased is not in the status any more", record: `{"leased":["10.0.0.3"]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, LoadBalancerIP: tt.spec}}
			if tt.annotation != "" {
				o.Annotations = map[string]string{addressesKey: tt.annotation}
			}
			o.Status.LoadBalancer.Ingress = tt.status
			if tt.record != "" {
				o.Status.Conditions = []metav1.Condition{{Type: string(vip.Recorded), Status: metav1.ConditionTrue, Message: tt.record}}
			}
			got := readService(o)
			check.Same(t, tt.want, got.Addresses, "addresses")
			check.Equal(t, got.Source, tt.source, "source")
			check.Equal(t, len(got.Invalid), tt.invalid, "how many are told of %q", got.Invalid)
		})
	}
}

// TestReadIngressKeepsInvalidAddresses: an address that netip does not take (the API takes leading zeros in old
// objects) must not look like an empty status.
func TestReadIngressKeepsInvalidAddresses(t *testing.T) {
	got := readIngress([]corev1.LoadBalancerIngress{{IP: "010.0.0.1"}})
	check.Same(t, []vip.Ingress{{Hostname: "010.0.0.1"}}, got, "")
}

// TestInvalidOnlyForLoadBalancers: annotations of others are none of our business.
func TestInvalidOnlyForLoadBalancers(t *testing.T) {
	o := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{addressesKey: "x"}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP}}
	check.Equal(t, len(readService(o).Invalid), 0, "what is told")
	check.Equal(t, readService(o).inWorld(), false, "listed")
	o.Annotations[vipHostKey] = "n1" // it was one
	check.Equal(t, readService(o).inWorld(), true, "a Service that still has the annotation vipHost is in the World")
}

func TestReadSliceConditions(t *testing.T) {
	yes, no := new(true), new(false)
	conditions := func(ready, serving, terminating *bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}
	}
	tests := []struct {
		name string
		node *string
		c    discoveryv1.EndpointConditions
		want vip.Endpoints
	}{
		{"unset means ready", new("n1"), conditions(nil, nil, nil), vip.Endpoints{Ready: []string{"n1"}}},
		{"ready", new("n1"), conditions(yes, yes, no), vip.Endpoints{Ready: []string{"n1"}}},
		{"not ready", new("n1"), conditions(no, no, no), vip.Endpoints{}},
		{"serving but not ready nor terminating", new("n1"), conditions(no, yes, no), vip.Endpoints{}},
		{"serving and terminating", new("n1"), conditions(no, yes, yes), vip.Endpoints{Terminating: []string{"n1"}}},
		{"terminating and not serving", new("n1"), conditions(no, no, yes), vip.Endpoints{}},
		{"terminating and serving unset, which means yes", new("n1"), conditions(no, nil, yes), vip.Endpoints{Terminating: []string{"n1"}}},
		{"ready although terminating", new("n1"), conditions(yes, yes, yes), vip.Endpoints{Ready: []string{"n1"}}},
		{"ready, node unknown", nil, conditions(yes, nil, nil), vip.Endpoints{WithoutNode: true}},
		{"terminating, node unknown", new(""), conditions(no, yes, yes), vip.Endpoints{WithoutNode: true}},
		{"not ready, node unknown", nil, conditions(no, nil, nil), vip.Endpoints{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readSlice(&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-1",
					Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: tt.node, Conditions: tt.c}},
			})
			check.Same(t, tt.want, got.Endpoints, "")
		})
	}
}

// kube-proxy serves each family with endpoints of that family alone.
func TestMergeEndpoints(t *testing.T) {
	slice := func(family discoveryv1.AddressType, serving bool, nodes ...string) *cachedSlice {
		o := &discoveryv1.EndpointSlice{AddressType: family,
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}}
		for _, n := range nodes {
			o.Endpoints = append(o.Endpoints, discoveryv1.Endpoint{NodeName: &n, Addresses: []string{"192.0.2.1"},
				Conditions: discoveryv1.EndpointConditions{Ready: new(!serving), Serving: new(true), Terminating: &serving}})
		}
		return readSlice(o)
	}
	const v4, v6 = discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6
	both := []vip.Family{vip.IPv4, vip.IPv6}
	for _, tt := range []struct {
		name     string
		families []vip.Family
		local    bool
		vips     []string
		slices   []*cachedSlice
		want     string
	}{
		{"of another family", both[:1], false, nil, []*cachedSlice{slice(v6, false, "n1")}, "[] []"},
		{"of both families", both, false, nil, []*cachedSlice{slice(v4, false, "n1", "n2"), slice(v6, false, "n1")}, "[n1 n2] []"},
		{"the Service names no family", nil, false, nil, []*cachedSlice{slice(v6, false, "n1")}, "[n1] []"},
		{"Local: nodes of both families come first", both, true, nil, []*cachedSlice{slice(v4, false, "n1", "n2"), slice(v6, false, "n1")}, "[n1] []"},
		{"Local: one that ends serves as well", both, true, nil, []*cachedSlice{slice(v4, false, "n1", "n2"), slice(v6, true, "n2", "n3")}, "[n2] [n2]"},
		{"Local: a VIP of one family", both, true, []string{"192.0.2.9"}, []*cachedSlice{slice(v4, false, "n1", "n2"), slice(v6, false, "n1", "n3")}, "[n1 n2] []"},
		{"Local: no node has both", both, true, nil, []*cachedSlice{slice(v4, false, "n1"), slice(v6, false, "n2")}, "[n1 n2] []"},
		{"Local: of one family alone", both, true, nil, []*cachedSlice{slice(v4, false, "n1", "n2")}, "[n1 n2] []"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := mergeEndpoints(slices.Values(tt.slices), &vip.Service{Local: tt.local, Families: tt.families, Addresses: addrs(tt.vips...)})
			check.Equal(t, fmt.Sprint(got.Ready, got.Terminating), tt.want, "endpoints")
		})
	}
}

func TestReadSliceIgnores(t *testing.T) {
	labels := map[string]string{discoveryv1.LabelServiceName: "web"}
	if got := readSlice(&discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}); got != nil {
		t.Errorf("a slice of no Service: %+v", got)
	}
	if got := readSlice(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: labels},
		AddressType: discoveryv1.AddressTypeFQDN}); got != nil {
		t.Errorf("a slice of names: %+v", got)
	}
}

// TestReadSlicePodAddresses: only addresses that name their pod are taken for a pod's, or whoever may write Endpoints
// could take the VIP of somebody else. Of an endpoint's addresses the first is kept, as kube-proxy has it: an EndpointSlice of a megabyte costs
// no more than one of as many endpoints.
func TestReadSlicePodAddresses(t *testing.T) {
	pod := &corev1.ObjectReference{Kind: "Pod", Name: "web-1"}
	tests := []struct {
		name      string
		namespace string
		service   string
		managedBy string
		ref       *corev1.ObjectReference
		want      []netip.Addr
	}{
		{"a pod", "default", "web", "endpointslice-controller.k8s.io", pod, addrs("10.0.0.1")},
		{"written by hand", "default", "web", "", nil, nil},
		{"a copy of Endpoints", "default", "web", mirroringController, pod, nil},
		{"a node", "default", "web", "", &corev1.ObjectReference{Kind: "Node"}, nil},
		{"the API servers", "default", "kubernetes", "", nil, addrs("10.0.0.1")},
		{"a namesake of theirs", "other", "kubernetes", "", nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := readSlice(&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Namespace: tt.namespace, Labels: map[string]string{
					discoveryv1.LabelServiceName: tt.service, discoveryv1.LabelManagedBy: tt.managedBy}},
				AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1", "10.0.0.9"}, TargetRef: tt.ref}},
			})
			check.Same(t, tt.want, got.addrs, "")
		})
	}
}

func TestReadNode(t *testing.T) {
	got := readNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Labels: map[string]string{corev1.LabelNodeExcludeBalancers: "false"}, // its value means nothing
			Annotations: map[string]string{"example.com/bgp-peers-0-peer-ip": "192.0.2.1", "other.com/x": "y"}},
		Spec: corev1.NodeSpec{PodCIDRs: []string{"10.200.1.0/24", "fd01:1::/64", "x"}, Unschedulable: true},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}, {Type: corev1.NodeExternalIP, Address: "fd00::1"},
			{Type: corev1.NodeExternalIP, Address: "192.168.0.1"}, {Type: corev1.NodeHostName, Address: "n1"},
		}},
	}, "example.com")
	want := &vip.Node{
		Name: "n1", UID: "u1", Addresses: addrs("192.168.0.1", "fd00::1"),
		PodCIDRs:       []netip.Prefix{netip.MustParsePrefix("10.200.1.0/24"), netip.MustParsePrefix("fd01:1::/64")},
		ExclusionLabel: "node.kubernetes.io/exclude-from-external-load-balancers",

		Annotations: map[string]vip.Secret{"bgp-peers-0-peer-ip": "192.0.2.1"},
	}
	check.Same(t, want, got, "a cordoned node")
	check.Same(t, &vip.Node{}, readNode(&corev1.Node{}, ""), "nothing")
}

func TestExclusionReason(t *testing.T) {
	taint := func(key string) corev1.Node {
		return corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: key}}}}
	}
	tests := []struct {
		node corev1.Node
		want string
	}{
		{corev1.Node{}, ""},
		{corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"node.kubernetes.io/exclude-from-external-load-balancers": ""}}},
			""}, // whether that counts, the plan decides
		{taint("node.kubernetes.io/out-of-service"), "it has the taint node.kubernetes.io/out-of-service"},
		{taint("ToBeDeletedByClusterAutoscaler"), "it has the taint ToBeDeletedByClusterAutoscaler"},
		{taint("node.kubernetes.io/unschedulable"), ""},
	}
	for _, tt := range tests {
		check.Equal(t, exclusionReason(&tt.node), tt.want, "%+v", tt.node)
	}
}

// A condition keeps no VIP off: all nodes may have it, and NetworkUnavailable may be left by a CNI of former days.
func TestNotReady(t *testing.T) {
	type conditions map[corev1.NodeConditionType]corev1.ConditionStatus
	const ready, unavailable = corev1.NodeReady, corev1.NodeNetworkUnavailable
	for _, tt := range []struct {
		conditions conditions
		want       bool
	}{
		{conditions{}, false},
		{conditions{ready: "True", unavailable: "False"}, false},
		{conditions{ready: "False"}, true},
		{conditions{ready: "Unknown", unavailable: "False"}, true},
		{conditions{ready: "True", unavailable: "True"}, true},
		{conditions{ready: "True", unavailable: "Unknown"}, false},
	} {
		for _, first := range []corev1.NodeConditionType{ready, unavailable} { // they come in any order
			var o corev1.Node
			for _, kind := range []corev1.NodeConditionType{first, ready, unavailable} {
				o.Status.Conditions = append(o.Status.Conditions, corev1.NodeCondition{Type: kind, Status: tt.conditions[kind], Reason: "X"})
			}
			check.Equal(t, readNode(&o, "").NotReady, tt.want, "%v: not ready", tt.conditions)
			check.Equal(t, readNode(&o, "").Excluded, "", "%v: why it is excluded", tt.conditions)
		}
	}
}

func TestShuttingDown(t *testing.T) {
	for message, want := range map[string]bool{
		"node is shutting down": true,
		"[container runtime network not ready: cni plugin not initialized, node is shutting down]": true,
		"Kubelet stopped posting node status.":                                                     false,
		"":                                                                                         false,
	} {
		for status, counts := range map[corev1.ConditionStatus]bool{corev1.ConditionFalse: true, corev1.ConditionTrue: false,
			corev1.ConditionUnknown: false} {
			n := readNode(&corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady,
				Status: status, Message: message}}}}, "")
			check.Equal(t, n.ShuttingDown, (want && counts), "Ready is %s, %q: it is shut down", status, message)
			check.Equal(t, n.NetworkNotReady, (strings.Contains(message, "network") && counts), "Ready is %s, %q: its network is not ready", status, message)
		}
	}
}

// TestServiceThatKubeProxyLeavesAlone: nobody has to answer at the healthCheckNodePort of a Service that its labels
// take from kube-proxy: that would look as if kube-proxy had ended on the node, which all VIPs would leave.
func TestServiceThatKubeProxyLeavesAlone(t *testing.T) {
	for label, want := range map[string]uint16{"service.kubernetes.io/service-proxy-name": 0,
		"service.kubernetes.io/headless": 0, "service.kubernetes.io/other": 31234} {
		o := loadBalancer("web", "10.0.0.1")
		o.Labels = map[string]string{label: ""}
		for i := range 100 {
			o.Labels[fmt.Sprint("a", i)] = "" // more than are kept
		}
		o.Spec.HealthCheckNodePort = 31234
		check.Equal(t, readService(o).HealthCheckNodePort, want, "with the label %s", label)
	}
}

// Of tens of thousands of ports, which every node would keep, the first 10000 count, and the user is told.
func TestPortsAreBounded(t *testing.T) {
	o := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	for i := range 20001 {
		o.Spec.Ports = append(o.Spec.Ports, corev1.ServicePort{Protocol: corev1.ProtocolUDP, Port: int32(i + 1)})
	}
	s := readService(o)
	if n := len(s.Ports); n != 10000 || s.Ports[n-1] != (vip.Port{Protocol: "UDP", Port: 10000}) {
		t.Errorf("%d ports are kept", n)
	}
	if len(s.Invalid) != 1 || !strings.HasPrefix(s.Invalid[0], "spec.ports has 20001 ports, of which Herald sees the first 10000") {
		t.Errorf("told %q", s.Invalid)
	}
}
