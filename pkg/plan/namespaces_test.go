package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// tenant makes s one of another namespace that is older than all others, has another port and can be served without endpoints.
func tenant(s *vip.Service) {
	s.Key.Namespace, s.Created, s.Ports = "tenant", epoch.Add(-1), []vip.Port{{Protocol: "TCP", Port: 9}}
	s.Endpoints, s.AllowWithoutEndpoints = vip.Endpoints{}, true
}

func on(link string) func(*vip.Service) { return func(s *vip.Service) { s.Interface = link } }

func sharing(key string) func(*vip.Service) { return func(s *vip.Service) { s.SharingKey = key } }

// proxied says that s asks for UPnP and ipMode Proxy, as its status shows, and what its Record says it has.
func proxied(addrs string) func(*vip.Service) {
	return func(s *vip.Service) {
		s.IPMode, s.Forward = vip.ModeProxy, &vip.Forward{}
		recorded(s, vip.Record{Named: svc("", addrs).Addresses})
		for i := range s.Ingress {
			s.Ingress[i].IPMode = vip.ModeProxy
		}
	}
}

// heldBy says that node holds the lease of that namespace and Service.
func heldBy(w vip.World, namespace, name, node string) vip.World {
	w.Claims[vip.Key{Namespace: namespace, Name: "kubevip-" + name}] = vip.Claim{Holder: node, Valid: true, Transitions: 1}
	return w
}

// anothers says that another announcer, or a user, renews the Lease of that Service of the tenant.
func anothers(w *vip.World, name string) {
	w.Claims[vip.Key{Namespace: "tenant", Name: "kubevip-" + name}] = vip.Claim{Holder: "somebody", Foreign: true, Valid: true}
}

// twoIncumbents has Service a on n1 and b on n2, announced both, and the others given.
func twoIncumbents(others ...vip.Service) vip.World {
	a, b := svc("a", "10.77.0.50", written("n1")), svc("b", "10.77.0.51", written("n2"))
	return held(held(world(append([]vip.Service{a, b}, others...)...), "a", "n1"), "b", "n2")
}

// What a Service of another namespace asks for changes nothing for those that have it. Seen from n1.
func TestNewcomerOfOtherNamespace(t *testing.T) {
	const unchanged = `kubevip-a -> n1
		bind 10.77.0.50/32 dev eth0
		a: VIPAnnounced
		b: VIPElsewhere
		`
	for _, tt := range []struct {
		name string
		w    vip.World
		want string
	}{
		{"names all addresses, an unused port and a link that is not there", twoIncumbents(svc("x", "10.77.0.50,10.77.0.51", tenant, on("nope"))), unchanged + `x: AddressConflict`},
		{"of the same namespace, on a link that is not there: shares, and bars no node", twoIncumbents(svc("x", "10.77.0.50", port(9), younger, on("nope"))),
			"kubevip-a -> n1; kubevip-x -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced; b: VIPElsewhere; x: VIPAnnounced"},
		{"gets the others that it asks for", heldBy(twoIncumbents(svc("x", "10.77.0.50,10.77.0.52,10.77.0.51", tenant)), "tenant", "x", "n1"),
			`kubevip-x -> n1
			kubevip-a -> n1
			bind 10.77.0.52/32 dev eth0
			bind 10.77.0.50/32 dev eth0
			a: VIPAnnounced
			b: VIPElsewhere
			x: VIPAnnounced
			event x AddressConflict`},
		{"has other addresses already",
			heldBy(twoIncumbents(svc("x", "10.77.0.52,10.77.0.50", tenant, func(s *vip.Service) { s.Ingress = []vip.Ingress{{Addr: addr("10.77.0.52")}} })), "tenant", "x", "n3"),
			unchanged + `x: VIPElsewhere`},
		{"sharing keys differ",
			with(twoIncumbents(svc("x", "10.77.0.50", tenant, sharing("k"))), func(w *vip.World) { w.Services[0].SharingKey = "other" }), unchanged + `x: AddressConflict`},
		{"consent: shared on the lease of the one that has it",
			with(heldBy(twoIncumbents(svc("x", "10.77.0.50", tenant, sharing("k"))), "tenant", "x", "n1"), func(w *vip.World) { w.Services[0].SharingKey = "k" }),
			"kubevip-a -> n1; kubevip-x -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced; b: VIPElsewhere; x: VIPAnnounced"},
		{"consent, on another link",
			with(twoIncumbents(svc("x", "10.77.0.50", tenant, sharing("k"), on("nope"))), func(w *vip.World) { w.Services[0].SharingKey = "k" }), unchanged + `x: AddressConflict`},
		{"consent, Local",
			with(twoIncumbents(svc("x", "10.77.0.50", tenant, sharing("k"), local("n3"))), func(w *vip.World) { w.Services[0].SharingKey = "k" }), unchanged + `x: AddressConflict`},
		{"consent of two that are on two nodes: shares with neither",
			with(twoIncumbents(svc("x", "10.77.0.50,10.77.0.51", tenant, sharing("k"))), func(w *vip.World) { w.Services[0].SharingKey, w.Services[1].SharingKey = "k", "k" }),
			unchanged + `x: AddressConflict`},
		{"shared since before consent was asked for: goes on", heldBy(twoIncumbents(svc("x", "10.77.0.50", tenant, written("n1"))), "tenant", "x", "n1"),
			"kubevip-x -> n1; kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced; b: VIPElsewhere; x: VIPAnnounced"},
		{"all Heralds restarted: who is named by a status has it",
			with(twoIncumbents(svc("x", "10.77.0.50,10.77.0.51", tenant, on("nope"))), func(w *vip.World) { clear(w.Claims) }),
			"kubevip-a -> n1; kubevip-b -> n2; a: VIPClaiming; b: VIPClaiming; x: AddressConflict"},
		{"no status is written: who holds a lease has it", with(twoIncumbents(svc("x", "10.77.0.50,10.77.0.51", tenant)), func(w *vip.World) {
			for i := range w.Services {
				w.Services[i].Ingress = nil
			}
		}), unchanged + `x: AddressConflict`},
		{"the one that has it waits for endpoints: keeps its status",
			with(twoIncumbents(svc("x", "10.77.0.50", tenant)), func(w *vip.World) { w.Services[0].Endpoints = vip.Endpoints{} }),
			"a: NoEndpoints; b: VIPElsewhere; x: AddressConflict; event a NoEndpoints"},
		{"the one that has it has ipMode Proxy and UPnP: the status is its own",
			with(heldBy(twoIncumbents(svc("x", "10.77.0.52,10.77.0.50", tenant, written("n3"))), "tenant", "x", "n3"), func(w *vip.World) {
				w.Services[2].Ingress = w.Services[2].Ingress[:1]
				proxied("10.77.0.50")(&w.Services[0])
			}), unchanged + "x: VIPElsewhere\nevent a PortNotMapped"},
		{"nobody has it yet: the older", world(svc("x", "10.77.0.50", tenant, younger), svc("a", "10.77.0.50", younger)), "kubevip-x -> n1; a: AddressConflict; x: VIPClaiming"},
		{"nobody has it yet, and another announcer renews the Lease of the younger: the older",
			with(world(svc("a", "10.77.0.50"), svc("x", "10.77.0.50", tenant, younger)), func(w *vip.World) { anothers(w, "x") }), "kubevip-a -> n2; a: VIPClaiming; x: AddressConflict"},
		{"consent, and another announcer renews its Lease: it waits alone",
			with(world(svc("a", "10.77.0.50", sharing("k")), svc("x", "10.77.0.50", tenant, sharing("k"))), func(w *vip.World) { anothers(w, "x") }),
			"kubevip-a -> n2; a: VIPClaiming; x: HeldByOtherAnnouncer"},
		{"another announcer's Service has it", world(svc("a", "10.77.0.50", func(s *vip.Service) {
			s.HasClass, s.Class, s.Ingress = true, "other", []vip.Ingress{{Addr: addr("10.77.0.50"), IPMode: vip.ModeVIP}}
		}), svc("x", "10.77.0.50", tenant)), "a: OtherClass; x: AddressConflict"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := rules()
			r.NoStatus = strings.HasPrefix(tt.name, "no status")
			p := Make(r, bind(r, tt.w))
			p.Statuses = nil
			p.Events = slices.DeleteFunc(p.Events, func(e vip.Event) bool { return e.Reason == vip.VIPAnnounced })
			if tt.want == "" || !strings.Contains(tt.want, "event x") { // which node adds it is a matter of hashes
				p.Events = slices.DeleteFunc(p.Events, func(e vip.Event) bool { return e.Service.Name == "x" })
			}
			diff(t, summary(p), tt.want)
		})
	}
}

// All Heralds stop, or no node is eligible: whose an address is must be known afterwards, where a Service of another
// namespace asks for it, or no pool offers it any more.
func TestStatusKeptWhenAllStop(t *testing.T) {
	for _, keeps := range []string{"contended", "unoffered", ""} {
		for _, stop := range []func(w *vip.World){
			func(w *vip.World) { w.Stopping, w.Members = true, w.Members[:1] },
			func(w *vip.World) { w.Services[0].Interface, w.Members = "nope", w.Members[:1] },
			func(w *vip.World) {
				w.Services[0].Endpoints, w.Stopping, w.Members = vip.Endpoints{}, true, w.Members[:1]
			},
		} {
			w := held(world(svc("a", "10.77.0.50", written("n1"))), "a", "n1")
			r := rules()
			switch keeps {
			case "contended":
				w.Services = append(w.Services, svc("x", "10.77.0.50", tenant))
			case "unoffered":
				r, w.Pools = poolRules(), poolWorld("").Pools
				r.PoolsOnly, w.Pools.Data = true, nil
			}
			stop(&w)
			p := Make(r, w)
			if cleared := len(addressStatuses(p)) > 0; cleared == (keeps != "") {
				t.Errorf("%s: the statuses are %v", keeps, p.Statuses)
			}
		}
	}
}

// Exactly one node tells the newcomer, each reason once, and nothing about whose the addresses are.
func TestNewcomerIsTold(t *testing.T) {
	var told []string
	for _, self := range []string{"n1", "n2", "n3"} {
		w := twoIncumbents(svc("x", "10.77.0.50,10.77.0.51", tenant))
		w.Self = self
		for _, e := range Make(rules(), w).Events {
			if e.Service.Name == "x" {
				told = append(told, e.Message)
			}
		}
	}
	const want = "10.77.0.50, 10.77.0.51: in use by a Service of another namespace; ask for another address, or agree with its user on a value of the annotation heraldvip.io/sharing-key for both"
	check.Same(t, []string{want}, told, "what the newcomer is told")
}

// The VIP of the API servers depends on no Service: neither on one whose status names it, nor on one that names its lease.
func TestControlPlaneAndOtherNamespaces(t *testing.T) {
	const want = "plndr-cp-lock -> n1\nbind 10.77.0.50/32 dev eth0\nbind fd77::50/128 dev eth0\ncontrol-plane: VIPAnnounced\n"
	inKubeSystem := func(s *vip.Service) { s.Key.Namespace = cpLease.Namespace }
	named := svc("x", "10.77.0.60", inKubeSystem, on("nope"), func(s *vip.Service) { s.Lease = cpLease.Name })
	for _, tt := range []struct {
		enabled bool
		s       vip.Service
		want    string
	}{
		{false, svc("x", "10.77.0.50", inKubeSystem, written("n2")), "x: Ignored"},
		{true, named, "x: InvalidField"},
	} {
		r := controlPlaneRules()
		r.Enabled, r.Election = tt.enabled, true
		w := controlPlaneHeld(controlPlaneWorld("n1 n2", tt.s), "n1")
		p := Make(r, bind(r, w))
		p.Events, p.Statuses = nil, nil
		diff(t, summary(p), want+tt.want)
	}
}

func reasonOf(p vip.Plan, name string) vip.Reason {
	return p.Verdicts[slices.IndexFunc(p.Verdicts, func(v vip.Verdict) bool { return v.Service.Name == name })].Reason
}

// A tenant's Service that had an address asks for another, or for nothing that can be read, and its user has removed
// or changed what says who wrote its status: so it could come back to the address. Nobody of another namespace gets
// that as long as the status names it. Seen from n1.
func TestStatusThatNobodyClears(t *testing.T) {
	const a = "10.77.0.60"
	left := func(s *vip.Service) {
		tenant(s)
		s.Ingress = []vip.Ingress{{Addr: addr(a), IPMode: vip.ModeVIP}}
	}
	unreadable := func(s *vip.Service) {
		s.Source, s.Invalid = "kube-vip.io/loadbalancerIPs", []string{"kube-vip.io/loadbalancerIPs is wrong."}
	}
	by := func(node string) func(*vip.Service) { return func(s *vip.Service) { s.VIPHost = node } }
	byProxy := func(s *vip.Service) { s.Ingress[0].IPMode, s.Forward = vip.ModeProxy, &vip.Forward{} }
	for _, tt := range []struct {
		name string
		x    vip.Service
		want string // the verdict of a newcomer that asks for the address
	}{
		{"it asks for another", svc("x", "10.77.0.61", left), "v: AddressConflict"},
		{"what it asks for can't be read", svc("x", "", left, unreadable), "v: AddressConflict"},
		{"what it asks for is refused", svc("x", "127.0.0.1", left), "v: AddressConflict"},
		{"it is to be ignored", svc("x", a, left, func(s *vip.Service) { s.Ignore = true }), "v: AddressConflict"},
		{"of the mode of gateways", svc("x", "10.77.0.61", left, byProxy), "v: AddressConflict"},
		{"a Herald is about to clear it", svc("x", "", left, unreadable, by("n1")), "v: AddressConflict"},
		{"the node that wrote it is gone", svc("x", "10.77.0.61", left, by("nobody")), "v: AddressConflict"},
		{"of the same namespace", svc("x", "", left, unreadable, func(s *vip.Service) { s.Key.Namespace = "default" }), "v: VIPClaiming"},
		{"it is no LoadBalancer", svc("x", "", left, func(s *vip.Service) { s.LoadBalancer = false }), "v: VIPClaiming"},
		{"it asks for another, on a link that is nowhere: cleared", svc("x", "10.77.0.61", left, on("nope"), by("n1")), "status x\nv: AddressConflict"},
		{"another announcer holds its lease: kept", svc("x", "10.77.0.61", left, by("n1"), func(s *vip.Service) { s.Lease = "foreign" }), "-> n3\nv: AddressConflict\nz: VIPClaiming\nx: HeldByOtherAnnouncer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := world(tt.x, svc("v", a), svc("z", "10.77.0.99"))
			w.Claims[vip.Key{Namespace: "tenant", Name: "foreign"}] = vip.Claim{Holder: "somebody", Valid: true, Foreign: true}
			check.Contains(t, summary(Make(rules(), w)), tt.want)
		})
	}
}

// With allow-share for both namespaces the operator lets their Services share addresses of pools, whether these were given or asked for by
// name: for others, of no pool, and where they differ in how they are announced, nothing changes.
func TestShareByPool(t *testing.T) {
	const shared = "herald-pools -> n3; kubevip-a -> n1; kubevip-x -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced; x: VIPAnnounced"
	const refused = "herald-pools -> n3; kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; a: VIPAnnounced; x: AddressConflict; event x AddressConflict"
	given := func(s *vip.Service) { s.Allocated = "cidr-global" }
	for _, tt := range []struct {
		name, pools string
		change      []func(*vip.Service)
		want        string
	}{
		{"for all", "cidr-global=10.77.0.0/24 allow-share-global=true", []func(*vip.Service){given}, shared},
		{"asked for by name", "cidr-global=10.77.0.0/24 allow-share-default=true allow-share-tenant=true", nil, shared},
		{"for one namespace only", "cidr-global=10.77.0.0/24 allow-share-global=true allow-share-tenant=false", []func(*vip.Service){given}, refused},
		{"of no pool", "cidr-global=10.77.1.0/24 allow-share-global=true", nil, refused},
		{"Local", "cidr-global=10.77.0.0/24 allow-share-global=true", []func(*vip.Service){given, local("n1")}, refused},
		{"on another link", "cidr-global=10.77.0.0/24 allow-share-global=true", []func(*vip.Service){given, on("eth1")}, refused},
		{"with the same port", "cidr-global=10.77.0.0/24 allow-share-global=true", []func(*vip.Service){given, func(s *vip.Service) { s.Ports = svc("a", "").Ports }}, refused},
	} {
		t.Run(tt.name, func(t *testing.T) {
			x := svc("x", "10.77.0.50", append([]func(*vip.Service){tenant}, tt.change...)...)
			w := heldBy(held(world(svc("a", "10.77.0.50", written("n1")), x), "a", "n1"), "tenant", "x", "n1")
			w.Pools = &vip.PoolSource{Data: poolData(tt.pools)}
			diff(t, summary(Make(poolRules(), w)), tt.want)
		})
	}
}
