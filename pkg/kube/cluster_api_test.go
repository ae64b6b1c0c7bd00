package kube

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// rules are all that Herald needs, cluster-wide.
const rules = `[
	{"apiGroups":[""],"resources":["services","nodes"],"verbs":["list","watch"]},
	{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]},
	{"apiGroups":[""],"resources":["events"],"verbs":["create"]},
	{"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list","watch"]},
	{"apiGroups":["networking.k8s.io"],"resources":["servicecidrs"],"verbs":["list","watch"]},
	{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","list","watch","create","update","delete"]}]`

// narrowRules are all that it needs in the namespace of the Services.
const narrowRules = `[
	{"apiGroups":[""],"resources":["services"],"verbs":["list","watch"]},
	{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]},
	{"apiGroups":[""],"resources":["events"],"verbs":["create"]},
	{"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list","watch"]},
	{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","list","watch","create","update","delete"]}]`

// leaseRules are all that it needs in the announcer's.
const leaseRules = `[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","list","watch","create","update","delete"]}]`

// A rig is a Cluster at work on a real API server.
type rig struct {
	*Cluster
	api    *apiServer
	bell   bell // rung by Poke
	leases bell // rung by PokeLeases
	log    *journal
}

func newRig(t testing.TB, user string, o Options) *rig {
	t.Helper()
	r := &rig{api: startAPI(t), bell: make(bell, 1), leases: make(bell, 1), log: &journal{}}
	o.Log, o.Poke, o.PokeLeases = r.log.logger(), r.bell.ring, r.leases.ring
	if o.Node == "" {
		o.Node = "n1"
	}
	if o.Announcer == "" {
		o.Announcer = "kube-system"
	}
	c, err := New(r.api.as(user), o)
	if err != nil {
		t.Fatal(err)
	}
	r.Cluster = c
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	return r
}

// service is what the World says of a Service, or nil.
func (r *rig) service(k vip.Key) *vip.Service {
	var w vip.World
	r.Observe(&w)
	for i := range w.Services {
		if w.Services[i].Key == k {
			return &w.Services[i]
		}
	}
	return nil
}

// create makes a Service of type LoadBalancer.
func (r *rig) create(t testing.TB, namespace, name, address string) {
	t.Helper()
	r.api.must(t, "POST", "/api/v1/namespaces/"+namespace+"/services", `{"metadata":{"name":"`+name+`","annotations":{"kube-vip.io/loadbalancerIPs":"`+address+`"}},
		"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`)
}

func TestExactPermissions(t *testing.T) {
	api := startAPI(t)
	api.allow(t, "herald", "", rules)
	ns := api.namespace(t)
	api.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"kube-node-lease"}}`)
	api.must(t, "POST", "/api/v1/nodes", `{"metadata":{"name":"n1"},"spec":{"podCIDRs":["10.200.1.0/24"]}}`)
	t.Cleanup(func() { api.do("DELETE", "/api/v1/nodes/n1", "") })
	api.must(t, "PATCH", "/api/v1/nodes/n1/status", `{"status":{"addresses":[{"type":"InternalIP","address":"192.168.7.1"},{"type":"Hostname","address":"n1"}]}}`)

	r := newRig(t, "herald", Options{})
	if r.Synced() || r.Leases().Synced() {
		t.Fatal("synced before Run")
	}
	run(t, r, r.Statuses(), r.Notes())
	r.bell.until(t, "Synced", r.Synced)

	key := vip.Key{Namespace: ns, Name: "web"}
	r.create(t, ns, "web", "192.168.7.100")
	api.must(t, "POST", "/apis/discovery.k8s.io/v1/namespaces/"+ns+"/endpointslices", `{"metadata":{"name":"web-1","labels":{"kubernetes.io/service-name":"web"}},
		"addressType":"IPv4","endpoints":[{"addresses":["10.200.1.5"],"nodeName":"n1","conditions":{"ready":true}}]}`)
	r.bell.until(t, "the Service with an endpoint", func() bool { s := r.service(key); return s != nil && s.Endpoints.Any() })

	var w vip.World
	r.Observe(&w)
	if diff := cmp.Diff([]vip.Node{{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr("192.168.7.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.200.1.0/24")}}},
		w.Nodes, compareNets, cmpopts.IgnoreFields(vip.Node{}, "UID")); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	wantReserved := []vip.ReservedRange{
		{Prefix: netip.MustParsePrefix("10.112.0.0/16"), Description: "the cluster's Service range"},
		{Prefix: netip.MustParsePrefix("127.0.0.1/32"), Description: "the address of the API server"},
	}
	if diff := cmp.Diff(wantReserved, w.Reserved, compareNets); diff != "" {
		t.Errorf("reserved (-want +got):\n%s", diff)
	}

	r.haveStatus(t, vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.100"), IPMode: vip.ModeVIP, Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}})
	r.haveStatus(t, vip.Status{Service: key})
	if s := r.service(key); s.VIPHost != "" || s.Ingress != nil {
		t.Errorf("after clearing: host %q, ingress %v", s.VIPHost, s.Ingress)
	}

	r.useLeases(t, ns)
	if n := r.log.count("level=WARN"); n != 0 {
		t.Errorf("%d warnings:\n%s", n, r.log)
	}
}

// haveStatus has a status written and waits until the cache says so.
// useLeases does with Leases what package lease does.
func (r *rig) useLeases(t testing.TB, ns string) {
	t.Helper()
	ctx := t.Context()
	l := r.Leases()
	r.leases.until(t, "the leases", l.Synced)
	node := "n1"
	created, err := l.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kubevip-web"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &node}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "kubevip-web"}}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second Create: %v, want AlreadyExists", err)
	}
	var have *coordinationv1.Lease
	find := func() *coordinationv1.Lease {
		changed, dropped := l.TakeChanges()
		is := func(o *coordinationv1.Lease) bool { return o.Namespace == ns && o.Name == "kubevip-web" }
		if slices.ContainsFunc(dropped, is) {
			have = nil
		}
		if i := slices.IndexFunc(changed, is); i >= 0 {
			have = changed[i]
		}
		return have
	}
	r.leases.until(t, "the Lease in the cache", func() bool { return find() != nil })

	change := created.DeepCopy()
	other := "n2"
	change.Spec.HolderIdentity = &other
	updated, err := l.Update(ctx, change)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Update(ctx, change); !apierrors.IsConflict(err) {
		t.Errorf("an Update of an old version: %v, want Conflict", err)
	}
	r.leases.until(t, "the new holder", func() bool { return *find().Spec.HolderIdentity == "n2" })
	if got, err := l.Get(ctx, ns, "kubevip-web"); err != nil || got.ResourceVersion != updated.ResourceVersion {
		t.Errorf("Get: %v, %v", got, err)
	}
	if err := l.Delete(ctx, ns, "kubevip-web", created.ResourceVersion); !apierrors.IsConflict(err) {
		t.Errorf("a Delete of an old version: %v, want Conflict", err)
	}
	if err := l.Delete(ctx, ns, "kubevip-web", updated.ResourceVersion); err != nil {
		t.Error(err)
	}
	r.leases.until(t, "the Lease to go", func() bool { return find() == nil })
	if _, err := l.Get(ctx, ns, "kubevip-web"); !apierrors.IsNotFound(err) {
		t.Errorf("Get of a deleted Lease: %v, want NotFound", err)
	}
}

// TestHeartbeatsOfKubeletsAreLeftOut: the field selector works.
func TestHeartbeatsOfKubeletsAreLeftOut(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	api.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"kube-node-lease"}}`)
	beat := "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	api.must(t, "POST", beat, `{"metadata":{"name":"before"}}`)
	t.Cleanup(func() { api.do("DELETE", beat, "") })
	r := newRig(t, "admin", Options{})
	run(t, r)
	r.leases.until(t, "the leases", r.Leases().Synced)
	r.bell.until(t, "Synced", r.Synced)
	select {
	case <-r.bell:
	default:
	}
	api.must(t, "POST", beat, `{"metadata":{"name":"after"}}`)
	api.must(t, "POST", "/apis/coordination.k8s.io/v1/namespaces/"+ns+"/leases", `{"metadata":{"name":"last"}}`)
	r.leases.until(t, "the last Lease", func() bool {
		changed, _ := r.Leases().TakeChanges()
		for _, l := range changed {
			if l.Namespace == "kube-node-lease" {
				t.Fatalf("Lease %s/%s is in the cache", l.Namespace, l.Name)
			}
			if l.Name == "last" && l.Namespace == ns {
				return true
			}
		}
		return false
	})
	select {
	case <-r.bell:
		t.Error("a Lease woke the agent")
	default:
	}
}

// TestOneNamespace: a Role in each of the namespaces named is enough.
func TestOneNamespace(t *testing.T) {
	api := startAPI(t)
	ns, own, locks, foreign := api.namespace(t), api.namespace(t), api.namespace(t), api.namespace(t)
	api.allow(t, "narrow", ns, narrowRules)
	api.allow(t, "narrow", own, leaseRules)
	api.allow(t, "narrow", locks, leaseRules)
	r := newRig(t, "narrow", Options{Namespace: ns, Announcer: own, Locks: []string{locks}})
	run(t, r, r.Statuses(), r.Notes())
	r.create(t, ns, "web", "192.168.7.101")
	r.create(t, foreign, "web", "192.168.7.102")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.bell.until(t, "the Service", func() bool { return r.Synced() && r.service(key) != nil })
	if r.service(vip.Key{Namespace: foreign, Name: "web"}) != nil {
		t.Error("it sees a Service of another namespace")
	}
	r.haveStatus(t, vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.101"), IPMode: vip.ModeVIP}}})
	r.useLeases(t, ns)
	r.useLeases(t, own)
	r.useLeases(t, locks)
	note := vip.Event{Service: key, UID: r.service(key).UID, Reason: vip.VIPAnnounced, Message: "node n1 announces 192.168.7.101 on eth0"}
	r.haveNotes(t, note)
	if n := r.log.count("level=WARN"); n != 0 {
		t.Errorf("%d warnings:\n%s", n, r.log)
	}
}

// haveNotes has Notes told and waits until they are.
// TestWithoutPermissions: what is missing is named once each, and what can be
// gone without is gone without.
func TestWithoutPermissions(t *testing.T) {
	api := startAPI(t)
	api.allow(t, "nobody", "", `[{"apiGroups":[""],"resources":["services"],"verbs":["list","watch"]},
		{"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list","watch"]}]`)
	ns := api.namespace(t)
	r := newRig(t, "nobody", Options{})
	run(t, r, r.Statuses(), r.Notes())
	r.create(t, ns, "web", "192.168.7.103")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.bell.until(t, "Synced without Nodes and ServiceCIDRs", func() bool { return r.Synced() && r.service(key) != nil })
	for _, resource := range []string{"nodes", "servicecidrs"} {
		if n := r.log.count("level=WARN", "not allowed to watch "+resource, "herald manifest rbac"); n != 1 {
			t.Errorf("%s: said %d times, want once", resource, n)
		}
	}
	status := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.103")}}}
	note := vip.Event{Service: key, Reason: vip.VIPAnnounced, Message: "hello"}
	deadline := time.Now().Add(20 * time.Second)
	for r.log.count("level=WARN", "status of Services", "herald manifest rbac") == 0 || r.log.count("level=WARN", "create Events", "herald manifest rbac") == 0 {
		if have, err := r.Statuses().Set(t.Context(), []vip.Status{status}); len(have) != 0 || err != nil {
			t.Fatalf("statuses: %v, %v", have, err)
		}
		if have, err := r.Notes().Set(t.Context(), []vip.Event{note}); len(have) != 0 || err != nil {
			t.Fatalf("notes: %v, %v", have, err)
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing said of missing permissions to write")
		}
		time.Sleep(20 * time.Millisecond)
	}
	// The permission comes late.
	api.allow(t, "nobody", "", `[{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]}]`)
	r.haveStatus(t, status)
}

func TestServerGoesAndComesBack(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	r := newRig(t, "admin", Options{})
	run(t, r, r.Statuses())
	r.bell.until(t, "Synced", r.Synced)
	r.create(t, ns, "web", "192.168.7.104")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.bell.until(t, "the Service", func() bool { return r.service(key) != nil })

	api.kill()
	for end := time.Now().Add(20 * time.Second); r.log.count("level=WARN", "can't be reached") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing said of the server that went away")
		}
	}
	if !r.Synced() || r.service(key) == nil {
		t.Error("the caches are lost")
	}
	status := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.104"), IPMode: vip.ModeVIP}}}
	if have, err := r.Statuses().Set(t.Context(), []vip.Status{status}); len(have) != 0 || err != nil {
		t.Errorf("Set with no server: %v, %v", have, err)
	}
	began := time.Now()
	if err := api.start(); err != nil {
		t.Fatal(err)
	}
	ready := time.Now()
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web", `{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":"192.168.7.105"}}}`)
	r.bell.until(t, "the change", func() bool {
		return cmp.Equal(r.service(key).Addresses, []netip.Addr{netip.MustParseAddr("192.168.7.105")}, compareNets)
	})
	t.Logf("server ready after %v, change seen after another %v", ready.Sub(began), time.Since(ready))
	r.bell.until(t, "the status wanted while it was away", func() bool { return r.service(key).VIPHost == "n1" })
	if n := r.log.count("can't be reached"); n != 1 {
		t.Errorf("said %d times that the server is away, want once", n)
	}
	if n := r.log.count("answers again"); n != 1 {
		t.Errorf("said %d times that the server is back, want once", n)
	}
}

// TestStartsBeforeTheServer: a server that is away at start is waited for.
func TestStartsBeforeTheServer(t *testing.T) {
	api := startAPI(t)
	api.kill()
	r := newRig(t, "admin", Options{})
	run(t, r)
	for end := time.Now().Add(20 * time.Second); r.log.count("level=WARN", "can't be reached") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing said of the server that is away")
		}
	}
	if r.Synced() {
		t.Error("synced with nothing")
	}
	if err := api.start(); err != nil {
		t.Fatal(err)
	}
	r.bell.until(t, "Synced", r.Synced)
	r.leases.until(t, "the leases", r.Leases().Synced)
}

// TestRunEnds: with a server, without one, and in the middle of a back-off.
func TestRunEnds(t *testing.T) {
	api := startAPI(t)
	for _, away := range []bool{false, true} {
		r := newRig(t, "admin", Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Run(ctx)
		}()
		if away {
			api.kill()
			for sum(t, r.Collectors(), "herald_api_requests_total", "error") < 30 { // the back-off has grown
				time.Sleep(10 * time.Millisecond)
			}
		} else {
			r.bell.until(t, "Synced", r.Synced)
		}
		began := time.Now()
		cancel()
		select {
		case <-ended:
			if took := time.Since(began); took > time.Second {
				t.Errorf("server away %v: Run ended after %v", away, took)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("server away %v: Run does not end", away)
		}
	}
	if err := api.start(); err != nil {
		t.Fatal(err)
	}
}

// TestStatusIsCorrected: what somebody else writes is put right, and said.
// TestRequestsOfAStatus: a status costs one request, and none when it holds.
// describeByKubectl: kubectl shows the Events of a Service.
// TestStatusPreconditions: the API server takes a write only for the version that
// it was made for.
// TestClearedAfterTypeChange: a Service that is no LoadBalancer any more is
// listed until its last mark is gone.
// TestResourceThatIsAbsent: an older API server has no ServiceCIDRs. That is
// nothing to warn of, and not asked for again and again.
func TestResourceThatIsAbsent(t *testing.T) {
	startAPI(t)
	r := newRig(t, "admin", Options{})
	r.ranges.resource = "nosuchthings"
	run(t, r)
	r.bell.until(t, "Synced without it", r.Synced)
	if n := r.log.count("level=WARN"); n != 0 {
		t.Errorf("%d warnings, want none", n)
	}
}

// TestTokenThatIsWrong: an answer that does not pass by itself is told.
func TestTokenThatIsWrong(t *testing.T) {
	startAPI(t)
	r := newRig(t, "a stranger", Options{})
	run(t, r)
	for end := time.Now().Add(20 * time.Second); r.log.count("level=WARN", "services", "Unauthorized") == 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing said")
		}
	}
	if r.Synced() {
		t.Error("synced with nothing")
	}
}
