package kube

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// newTestCluster is a Cluster that is connected to nothing; pokes counts its Pokes. The test calls the stores in place of the Reflector.
func newTestCluster(t testing.TB, host string, change ...func(*Options)) (c *Cluster, pokes func() int) {
	t.Helper()
	n := 0
	o := Options{
		NodeLeaseNamespace: "kube-system", Node: "n1", Log: slog.New(slog.DiscardHandler),
		Poke: func() { n++ }, PokeLeases: func() {},
	}
	for _, f := range change {
		f(&o)
	}
	return check.Value(New(&rest.Config{Host: host}, o))(t), func() int {
		defer func() { n = 0 }()
		return n
	}
}

// withPools has a Cluster read the ConfigMap of pools.
func withPools(o *Options) { o.Pools = vip.Key{Namespace: "kube-system", Name: "kubevip"} }

func observe(c *Cluster) vip.World {
	var w vip.World
	c.Observe(&w)
	return w
}

func loadBalancer(name string, addresses string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Annotations: map[string]string{addressesKey: addresses}},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer},
	}
}

func clusterIPService(name string, clusterIPs ...string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, ClusterIPs: clusterIPs},
	}
}

// endpointSlice is a slice of a Service with one ready pod.
func endpointSlice(name, service, address, node string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, NodeName: &node, TargetRef: &corev1.ObjectReference{Kind: "Pod"}}},
	}
}

// TestNamesOfNothing: a name of an option that nothing in the cluster has is told, once.
func TestNamesOfNothing(t *testing.T) {
	for _, tt := range []struct {
		namespace, service, node string
		want                     int // warnings
	}{{"", "web", "n1", 0}, {"", "", "n1.example.com", 1}, {"shop", "web", "", 0}, {"shop", "", "", 1}} {
		c, _ := newTestCluster(t, "https://192.0.2.1:6443")
		var log strings.Builder
		c.o.Namespace, c.o.Log = tt.namespace, slog.New(slog.NewTextHandler(&log, nil))
		var services, nodes []any
		if tt.service != "" {
			services = append(services, loadBalancer(tt.service, ""))
		}
		if tt.node != "" {
			nodes = append(nodes, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: tt.node}})
		}
		observe(c)
		check.OK(t, errors.Join(c.services.Replace(services, "1"), c.slices.Replace(nil, "1"), c.nodes.Replace(nodes, "1")))
		observe(c)
		observe(c)
		check.Equal(t, strings.Count(log.String(), "level=WARN"), tt.want, "warnings with %+v:\n%s", tt, log.String())
	}
}

func TestSynced(t *testing.T) {
	c, pokes := newTestCluster(t, "https://192.0.2.1:6443")
	fill := []func() error{
		func() error { return c.services.Replace(nil, "1") },
		func() error { return c.slices.Replace(nil, "1") },
		func() error { return c.nodes.Replace(nil, "1") },
		func() error { return c.cidrs.Replace(nil, "1") },
	}
	for i, f := range fill {
		if observe(c).Synced {
			t.Fatalf("synced with %d of %d caches", i, len(fill))
		}
		check.OK(t, f())
		check.Equal(t, pokes(), 1, "pokes when cache %d is filled", i)
	}
	check.Equal(t, observe(c).Synced, true, "synced with all caches")
	c.services.Replace(nil, "2")
	check.Equal(t, pokes(), 0, "pokes of a list that changes nothing")
}

// TestPokes: what changes the World pokes, once; what does not, does not.
func TestPokes(t *testing.T) {
	label := func(o *corev1.Service) *corev1.Service {
		o.Labels, o.ResourceVersion = map[string]string{"a": "b"}, "2"
		return o
	}
	node := func(change func(*corev1.Node)) *corev1.Node {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		change(n)
		return n
	}
	ranges := func(cidrs ...string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
	}
	notReady := endpointSlice("web-1", "web", "10.0.0.1", "n1")
	notReady.Endpoints[0].Conditions.Ready = new(false)
	c, pokes := newTestCluster(t, "https://192.0.2.1:6443")
	steps := []struct {
		name string
		do   func() error
		want int
	}{
		{"a new VIP", func() error { return c.services.Add(loadBalancer("web", "192.168.0.1")) }, 1},
		{"the same again", func() error { return c.services.Update(loadBalancer("web", "192.168.0.1")) }, 0},
		{"a label", func() error { return c.services.Update(label(loadBalancer("web", "192.168.0.1"))) }, 0},
		{"another address", func() error { return c.services.Update(loadBalancer("web", "192.168.0.2")) }, 1},
		{"an endpoint", func() error { return c.slices.Add(endpointSlice("web-1", "web", "10.0.0.1", "n1")) }, 1},
		{"the same endpoint", func() error { return c.slices.Update(endpointSlice("web-1", "web", "10.0.0.1", "n1")) }, 0},
		{"it is not ready", func() error { return c.slices.Update(notReady) }, 1},
		{"a Service that is no VIP", func() error { return c.services.Add(clusterIPService("db", "10.96.0.1")) }, 0},
		{"its endpoint", func() error { return c.slices.Add(endpointSlice("db-1", "db", "10.0.0.2", "n1")) }, 0},
		{"its endpoint moves", func() error { return c.slices.Update(endpointSlice("db-1", "db", "10.0.0.3", "n2")) }, 0},
		{"its endpoint gets the address of the VIP", func() error {
			return c.slices.Update(endpointSlice("db-1", "db", "192.168.0.2", "n2"))
		}, 1},
		{"and lets it go", func() error { return c.slices.Delete(endpointSlice("db-1", "db", "192.168.0.2", "n2")) }, 1},
		{"its cluster IP becomes that of the VIP", func() error { return c.services.Update(clusterIPService("db", "192.168.0.2")) }, 1},
		{"and changes again", func() error { return c.services.Update(clusterIPService("db", "10.96.0.2")) }, 1},
		{"it becomes a VIP", func() error { return c.services.Update(loadBalancer("db", "192.168.0.3")) }, 1},
		{"it goes", func() error { return c.services.Delete(loadBalancer("db", "192.168.0.3")) }, 1},
		{"it goes twice", func() error { return c.services.Delete(loadBalancer("db", "192.168.0.3")) }, 0},
		{"a node", func() error { return c.nodes.Add(node(func(*corev1.Node) {})) }, 1},
		{"its heartbeat", func() error {
			return c.nodes.Update(node(func(n *corev1.Node) {
				n.ResourceVersion = "5"
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.Now()}}
			}))
		}, 0},
		{"it is cordoned", func() error { return c.nodes.Update(node(func(n *corev1.Node) { n.Spec.Unschedulable = true })) }, 0},
		{"it is not ready", func() error {
			return c.nodes.Update(node(func(n *corev1.Node) {
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
			}))
		}, 1},
		{"it is tainted", func() error {
			return c.nodes.Update(node(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: autoscalerTaint}} }))
		}, 1},
		{"a range", func() error { return c.cidrs.Add(ranges("10.96.0.0/16")) }, 1},
		{"the same range", func() error { return c.cidrs.Update(ranges("10.96.0.0/16")) }, 0},
		{"a second", func() error { return c.cidrs.Update(ranges("10.96.0.0/16", "fd01::/108")) }, 1},
		{"all Services at once", func() error {
			return c.services.Replace([]any{loadBalancer("a", "192.168.0.4"), loadBalancer("b", "192.168.0.5"), clusterIPService("c")}, "9")
		}, 1},
		{"all Services but one", func() error {
			return c.services.Replace([]any{loadBalancer("a", "192.168.0.4"), clusterIPService("c")}, "10")
		}, 1},
		{"all but one that is no VIP", func() error { return c.services.Replace([]any{loadBalancer("a", "192.168.0.4")}, "11") }, 0},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		check.Equal(t, pokes(), s.want, "pokes of %s", s.name)
	}
}

func TestReserved(t *testing.T) {
	c, _ := newTestCluster(t, "https://[fd00::99]:6443")
	prefix := netip.MustParsePrefix
	reserved := func() []vip.ReservedRange { return observe(c).Reserved }
	host := vip.ReservedRange{Prefix: prefix("fd00::99/128"), Description: "the address of the API server"}
	check := func(when string, want ...vip.ReservedRange) {
		t.Helper()
		check.Same(t, append(want, host), reserved(), "%s", when)
	}
	c.cidrs.Add(&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}})
	cidr := vip.ReservedRange{Prefix: prefix("10.96.0.0/16"), Description: "the cluster's Service range"}
	c.services.Add(clusterIPService("db", "10.97.0.1"))
	c.slices.Add(endpointSlice("db-1", "db", "10.0.0.2", "n1"))
	check("addresses that nobody asks for", cidr)

	servers := endpointSlice("kubernetes", "kubernetes", "192.168.0.250", "n1")
	servers.Endpoints[0].TargetRef = nil
	c.slices.Add(servers)
	server := vip.ReservedRange{Prefix: prefix("192.168.0.250/32"), Description: "the address of an API server"}
	check("an API server", cidr, server)

	c.services.Add(loadBalancer("web", "10.97.0.1,10.0.0.2"))
	pod := vip.ReservedRange{Prefix: prefix("10.0.0.2/32"), Description: "the address of a pod",
		Service: vip.Key{Namespace: "default", Name: "db"}, FromSlice: true}
	clusterIP := vip.ReservedRange{Prefix: prefix("10.97.0.1/32"), Description: "the cluster IP",
		Service: vip.Key{Namespace: "default", Name: "db"}}
	check("a Service that asks for what others have", pod, cidr, clusterIP, server)

	c.slices.Delete(endpointSlice("db-1", "db", "10.0.0.2", "n1"))
	check("the pod is gone", cidr, clusterIP, server)
	c.services.Delete(clusterIPService("db"))
	check("the other Service is gone", cidr, server)
	c.services.Delete(loadBalancer("web", ""))
	c.slices.Delete(servers)
	check("all are gone", cidr)
	if len(c.requested) != 0 {
		t.Errorf("addresses that nobody requests are kept: %v", c.requested)
	}
}

// TestEndpointsOfAllSlices: all slices of a Service count together, and a deleted one does not.
func TestEndpointsOfAllSlices(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443")
	c.services.Add(loadBalancer("web", "192.168.0.1"))
	terminating := endpointSlice("web-3", "web", "10.0.0.3", "n3")
	terminating.Endpoints[0].Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	elsewhere := endpointSlice("web-4", "web", "10.0.0.4", "")
	elsewhere.Endpoints[0].NodeName = nil
	endpoints := func() vip.Endpoints { return observe(c).Services[0].Endpoints }
	for _, s := range []struct {
		do   func() error
		want vip.Endpoints
	}{
		{func() error { return c.slices.Add(endpointSlice("web-2", "web", "10.0.0.2", "n2")) }, vip.Endpoints{Ready: []string{"n2"}}},
		{func() error { return c.slices.Add(endpointSlice("web-1", "web", "10.0.0.1", "n1")) }, vip.Endpoints{Ready: []string{"n1", "n2"}}},
		{func() error { return c.slices.Add(endpointSlice("web-v6", "web", "fd00::1", "n1")) }, vip.Endpoints{Ready: []string{"n1", "n2"}}},
		{func() error { return c.slices.Add(terminating) }, vip.Endpoints{Ready: []string{"n1", "n2"}, Terminating: []string{"n3"}}},
		{func() error { return c.slices.Add(elsewhere) }, vip.Endpoints{Ready: []string{"n1", "n2"},
			Terminating: []string{"n3"}, WithoutNode: true}},
		{func() error { return c.slices.Delete(endpointSlice("web-2", "web", "", "")) },
			vip.Endpoints{Ready: []string{"n1"}, Terminating: []string{"n3"}, WithoutNode: true}},
		{func() error { return c.slices.Delete(elsewhere) }, vip.Endpoints{Ready: []string{"n1"}, Terminating: []string{"n3"}}},
		{func() error { return c.slices.Update(endpointSlice("web-1", "other", "10.0.0.1", "n1")) },
			vip.Endpoints{Ready: []string{"n1"}, Terminating: []string{"n3"}}},
		{func() error { return c.slices.Replace(nil, "9") }, vip.Endpoints{}},
	} {
		check.OK(t, s.do())
		check.Same(t, s.want, endpoints(), "")
	}
}

// TestWorldIsNotChanged: what a pass was given stays as it was.
func TestWorldIsNotChanged(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443")
	c.services.Replace([]any{loadBalancer("a", "192.168.0.1"), loadBalancer("b", "192.168.0.2")}, "1")
	before := observe(c).Services
	want := slices.Clone(before)
	c.services.Update(loadBalancer("a", "192.168.0.9"))
	c.services.Delete(loadBalancer("b", ""))
	c.services.Add(loadBalancer("0", "192.168.0.3"))
	c.slices.Add(endpointSlice("a-1", "a", "10.0.0.1", "n1"))
	observe(c)
	check.Same(t, want, before, "")
}

// TestRandomChanges: whatever order objects come, change and go in, what is observed is what a Cluster observes that is shown only the end.
func TestRandomChanges(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		walked, _ := newTestCluster(t, "https://192.0.2.1:6443")
		services := make(map[string]*corev1.Service)
		parts := make(map[string]*discoveryv1.EndpointSlice)
		ip := func() string { return fmt.Sprintf("10.0.0.%d", rnd.IntN(8)) }
		for range 400 {
			name := fmt.Sprint("s", rnd.IntN(6))
			if rnd.IntN(2) == 0 {
				switch rnd.IntN(4) {
				case 0:
					delete(services, name)
					walked.services.Delete(clusterIPService(name))
					continue
				case 1:
					services[name] = clusterIPService(name, ip())
				default:
					services[name] = loadBalancer(name, ip()+","+ip())
				}
				walked.services.Add(services[name])
			} else {
				part := fmt.Sprint("e", rnd.IntN(6))
				if rnd.IntN(4) == 0 {
					delete(parts, part)
					walked.slices.Delete(endpointSlice(part, "", "", ""))
					continue
				}
				parts[part] = endpointSlice(part, name, ip(), fmt.Sprint("n", rnd.IntN(3)))
				walked.slices.Update(parts[part])
			}
			if rnd.IntN(5) == 0 {
				observe(walked)
			}
		}
		fresh, _ := newTestCluster(t, "https://192.0.2.1:6443")
		for _, o := range parts {
			fresh.slices.Add(o)
		}
		for _, o := range services {
			fresh.services.Add(o)
		}
		check.Same(t, observe(fresh), observe(walked), "seed %d", seed)
		check.Same(t, fresh.requested, walked.requested, "seed %d: requested", seed)
		if diff := cmp.Diff(fresh.slicesOf, walked.slicesOf, check.Addresses, cmp.AllowUnexported(cachedSlice{})); diff != "" {
			t.Fatalf("seed %d: slicesOf (-want +got):\n%s", seed, diff)
		}
	}
}

// APIService is known once the Service default/kubernetes and its endpoints are.
func TestAPIService(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443")
	expect := func(when, service string, servers ...string) {
		t.Helper()
		gotService, gotServers := c.APIService()
		got := []string{}
		for _, a := range gotServers {
			got = append(got, a.String())
		}
		slices.Sort(got)
		if gotService.IsValid() != (service != "") || gotService.IsValid() && gotService.String() != service ||
			!slices.Equal(got, servers) {
			t.Errorf("%s: %s at %v, want %s at %v", when, gotService, got, service, servers)
		}
	}
	servers := endpointSlice("kubernetes", "kubernetes", "192.168.0.250", "n1")
	servers.Endpoints = append(servers.Endpoints, discoveryv1.Endpoint{Addresses: []string{"192.168.0.251"}})
	servers.Ports = []discoveryv1.EndpointPort{{Port: new(int32(6443))}}
	c.slices.Add(servers)
	expect("only the endpoints are known", "")
	s := clusterIPService("kubernetes", "10.96.0.1")
	s.Spec.Ports = []corev1.ServicePort{{Port: 443, Protocol: corev1.ProtocolTCP}}
	c.services.Add(s)
	expect("both are known", "10.96.0.1:443", "192.168.0.250:6443", "192.168.0.251:6443")
	c.slices.Delete(servers)
	expect("the endpoints are gone", "10.96.0.1:443")
}

// TestManyLabels: Node Feature Discovery gives a Node a hundred labels and more, which come before those of topology and of the operator by
// name. Selectors of pools see all of a Node and a Namespace, which tenants can't write, and the first 64 of a Service.
func TestManyLabels(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443", withPools)
	labels := map[string]string{"topology.kubernetes.io/zone": "a"}
	for i := range 150 {
		labels[fmt.Sprint("feature.node.kubernetes.io/cpu-cpuid.", i)] = "true"
	}
	node, namespace, service := &corev1.Node{}, &corev1.Namespace{}, loadBalancer("web", "")
	node.Name, node.Labels, namespace.Name, namespace.Labels, service.Labels = "n1", labels, "blue", labels, labels
	check.OK(t, c.nodes.Add(node))
	check.OK(t, c.namespaces.Add(namespace))
	check.OK(t, c.services.Add(service))
	check.OK(t, c.configMaps.Add(&corev1.ConfigMap{ObjectMeta: loadBalancer("kubevip", "").ObjectMeta}))
	c.o.Pools.Namespace = "default"
	w := observe(c)
	check.Equal(t, w.Nodes[0].Labels["topology.kubernetes.io/zone"], "a", "the zone of the Node")
	check.Equal(t, w.Pools.Namespaces["blue"]["topology.kubernetes.io/zone"], "a", "the zone of the Namespace")
	check.Equal(t, len(w.Services[0].Labels), 64, "labels of the Service")
}

// TestNoServices: with svc_enable=false a node reads the addresses of the API servers, and no Service but theirs. If
// that is refused it holds nothing up, and is warned of nowhere.
func TestNoServices(t *testing.T) {
	api := startAPI(t)
	const leases = `[{"apiGroups":[""],"resources":["nodes"],"verbs":["list","watch"]},{"apiGroups":["networking.k8s.io"],"resources":["servicecidrs"],"verbs":["list","watch"]},
		{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","list","watch","create","update","delete"]}]`
	api.allow(t, "narrow", "", leases)
	api.allow(t, "narrow", "default", `[{"apiGroups":[""],"resources":["services"],"resourceNames":["kubernetes"],"verbs":["list","watch"]},
		{"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"resourceNames":["kubernetes"],"verbs":["list","watch"]}]`)
	api.allow(t, "nobody", "", leases)
	ns := api.namespace(t)
	// the API server writes none for an address of loopback
	const slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	api.must(t, "POST", slices,
		`{"metadata":{"name":"kubernetes","labels":{"kubernetes.io/service-name":"kubernetes"}},"addressType":"IPv4","ports":[{"name":"https","port":6443}],"endpoints":[{"addresses":["192.0.2.9"]}]}`)
	t.Cleanup(func() { api.do("DELETE", slices+"/kubernetes", "") })
	for _, tt := range []struct {
		user    string
		servers bool // whether it knows the API servers
	}{{"narrow", true}, {"nobody", false}, {"admin", true}} {
		t.Run(tt.user, func(t *testing.T) {
			r := newClusterTest(t, tt.user, Options{NoServices: true})
			r.create(t, ns, "web-"+tt.user, "192.168.7.111")
			check.Run(t, r)
			r.poked.until(t, "Synced", r.Synced)
			check.True(t, time.Minute, "what may be read is", func() bool {
				service, servers := r.APIService()
				return service.IsValid() == tt.servers && (len(servers) > 0) == tt.servers &&
					(tt.servers || r.services.refused.Load() && r.slices.refused.Load())
			})
			if w := observe(r.Cluster); len(w.Services) > 0 || len(r.services.values) > 1 {
				t.Errorf("Services: %v", r.services.values)
			}
			check.Equal(t, r.log.count("level=WARN"), 0, "warnings:\n%s", r.log)
		})
	}
}

// forbidden is the answer of the API server to those who lack a right.
var forbidden = apierrors.NewForbidden(schema.GroupResource{Resource: "services"}, "", errors.New("no"))

// TestRefusedThenAnotherError: what is done without since the API server refuses it is not waited for when it then
// answers otherwise, be it by an error.
func TestRefusedThenAnotherError(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443")
	check.OK(t, c.services.Replace(nil, "1"))
	check.OK(t, c.slices.Replace(nil, "1"))
	all := []*watchedResource{&c.nodes.watchedResource, &c.cidrs.watchedResource}
	for range 3 {
		if c.Synced() {
			t.Fatal("synced at once")
		}
		for _, r := range all {
			r.retryDelay(forbidden)
		}
	}
	for _, then := range []func(*watchedResource){
		func(*watchedResource) {},
		func(r *watchedResource) { r.retryDelay(apierrors.NewInternalError(errors.New("etcd is away"))) },
		(*watchedResource).succeeded,
	} {
		for _, r := range all {
			then(r)
		}
		check.Equal(t, c.Synced(), true, "synced")
	}
}

// TestSyncedSoon: what a process that starts waits for that is refused. With svc_enable=false that is one refusal of
// Nodes: an owner of the control plane's VIP that was killed makes its first pass in time to renew the address.
func TestSyncedSoon(t *testing.T) {
	lacking := apierrors.NewGenericServerResponse(http.StatusNotFound, "get",
		schema.GroupResource{Resource: "servicecidrs"}, "", "", 0, true)
	for _, tt := range []struct {
		name                     string
		noServices, listed       bool // listed: Services and EndpointSlices are
		nodes, cidrs             error
		nodesRefused, cidrsAsked int // how often
		want                     bool
	}{
		{"no Services, Nodes not asked for", true, false, forbidden, forbidden, 0, 0, false},
		{"no Services, Nodes refused once", true, false, forbidden, forbidden, 1, 0, true},
		{"no Services, an error of the API server", true, false, apierrors.NewInternalError(errors.New("etcd")), forbidden, 3, 3, false},
		{"Services, all refused twice", false, true, forbidden, forbidden, 2, 2, false},
		{"Services, all refused three times", false, true, forbidden, forbidden, 3, 3, true},
		{"Services, no ServiceCIDRs at this API server", false, true, forbidden, lacking, 3, 1, true},
		{"Services are not listed", false, false, forbidden, forbidden, 3, 3, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began, poked := time.Now(), time.Duration(0)
				c, _ := newTestCluster(t, "https://192.0.2.1:6443", func(o *Options) {
					o.NoServices, o.Poke = tt.noServices, func() { poked = max(1, time.Since(began)) }
				})
				if tt.listed {
					check.OK(t, c.services.Replace(nil, "1"))
					check.OK(t, c.slices.Replace(nil, "1"))
				}
				for range tt.nodesRefused {
					c.nodes.ended(t.Context(), tt.nodes)
				}
				for range tt.cidrsAsked {
					c.cidrs.ended(t.Context(), tt.cidrs)
				}
				check.Equal(t, c.Synced(), tt.want, "synced")
				if tt.want && (poked == 0 || tt.noServices && poked > time.Second) {
					t.Errorf("a pass is made after %v", poked)
				}
			})
		})
	}
}

// TestNoServicesInWorld: with svc_enable=false no pass waits for Services or has any.
func TestNoServicesInWorld(t *testing.T) {
	c, _ := newTestCluster(t, "https://192.0.2.1:6443")
	c.o.NoServices = true
	check.Equal(t, c.Synced(), false, "synced without Nodes")
	check.OK(t, c.nodes.Replace(nil, "1"))
	kubernetes := clusterIPService("kubernetes", "10.112.0.1")
	check.OK(t, c.services.Replace([]any{kubernetes, loadBalancer("web", "192.0.2.7")}, "1"))
	check.OK(t, c.slices.Replace(nil, "1"))
	check.Equal(t, observe(c).Synced, true, "synced")
	check.Equal(t, len(observe(c).Services), 0, "Services")
}

// TestPoolsGone: what a ConfigMap of pools that is gone has said is in the World, with the labels that namespaces
// have now, until there is another; the log says so once. That it may not be read is known, too.
func TestPoolsGone(t *testing.T) {
	var log bytes.Buffer
	c, _ := newTestCluster(t, "https://192.0.2.1:6443", withPools, func(o *Options) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	pools := func(cidr string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kubevip"},
			Data: map[string]string{"cidr-global": cidr}}
	}
	team := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"team": name}}}
	}
	expect := func(cidr, label string, gone bool) {
		t.Helper()
		w := observe(c)
		if w.Pools == nil || w.Pools.Data["cidr-global"] != cidr || w.Pools.Namespaces["web"]["team"] != label ||
			w.Pools.Gone != gone || w.PoolsRefused {
			t.Errorf("got %+v, want %s, %s, gone %v", w.Pools, cidr, label, gone)
		}
		if n := strings.Count(log.String(), "is gone"); n > 0 != gone || n > 1 {
			t.Errorf("the log says: %s", log.String())
		}
	}
	var w vip.World
	c.configMaps.refused.Store(true)
	c.configMaps.doneWithout.Store(true)
	c.configMaps.refused.Store(false) // the next answer was 503
	if c.Observe(&w); w.Pools != nil || !w.PoolsRefused {
		t.Errorf("it may not be read: %+v, refused %v", w.Pools, w.PoolsRefused)
	}
	check.OK(t, c.configMaps.Replace(nil, "1"))
	if c.Observe(&w); w.Pools != nil || w.PoolsRefused {
		t.Errorf("there is none yet: %+v, refused %v", w.Pools, w.PoolsRefused)
	}
	check.OK(t, c.namespaces.Update(team("blue")))
	check.OK(t, c.configMaps.Update(pools("10.0.0.0/24")))
	expect("10.0.0.0/24", "blue", false)
	check.OK(t, c.configMaps.Delete(pools("10.0.0.0/24")))
	expect("10.0.0.0/24", "blue", true)
	check.OK(t, c.namespaces.Update(team("red")))
	expect("10.0.0.0/24", "red", true)
	check.OK(t, c.namespaces.Update(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}))
	if c.Observe(&w); w.Pools.Namespaces["plain"] == nil {
		t.Error("the labels of a namespace that has none pass for unknown")
	}
	log.Reset()
	check.OK(t, c.configMaps.Replace([]any{pools("10.1.0.0/24")}, "9"))
	expect("10.1.0.0/24", "red", false)
}
