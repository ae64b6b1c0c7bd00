package plan

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// explained is an Explanation in few words.
func explained(e Explanation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s owner=%s from=%s cause=%s\n", e.Service.Name, e.Reason, e.Owner, e.MovedFrom, e.MoveCause)
	for _, a := range e.Addresses {
		fmt.Fprintf(&b, "%s %s status=%t refused=%t\n", a.Address, a.Origin, a.InStatus, a.Refused)
	}
	for _, n := range e.Nodes {
		fmt.Fprintf(&b, "%s %t %s\n", n.Node, n.Able, n.Why)
	}
	return b.String()
}

// TestExplain: where addresses come from, and node by node who may carry them; seen by a node, and by an observer that is none.
func TestExplain(t *testing.T) {
	source := func(s *vip.Service) { s.Source = "kube-vip.io/loadbalancerIPs" }
	pooled := func(s *vip.Service) { s.Source, s.Allocated = "kube-vip.io/loadbalancerIPs", "default" }
	tests := []struct {
		name  string
		world vip.World
		want  string
	}{
		{"owned, and moved", with(held(world(svc("a", "10.77.0.200", source, written("n2"))), "a", "n2"), claimOfA(func(c *vip.Claim) {
			c.PreviousHolder, c.Cause = "n1", "n1: it is drained"
		})), `a VIPElsewhere owner=n2 from=n1 cause=n1: it is drained
			10.77.0.200 kube-vip.io/loadbalancerIPs status=true refused=false
			n1 true
			n2 true
			n3 true`},
		{"only one node has an endpoint, and that is drained; another is dead",
			with(world(svc("a", "10.77.0.200", pooled, local("n2"))), func(w *vip.World) {
				w.Nodes = allNodes(vip.Node{Name: "n2", Drained: true}, vip.Node{Name: "n1", NotReady: true})
				w.Members[2].Alive = false
			}), `a NoEligibleNode owner= from= cause=
			10.77.0.200 pool default status=false refused=false
			n1 false no ready endpoint there (externalTrafficPolicy Local)
			n2 false it is drained (herald undrain n2 ends that)
			n3 false its node lease is not renewed, or fenced: its Herald has ended, hangs, or does not reach the API server`},
		{"one does not reach the API server",
			with(world(svc("a", "10.77.0.200", source)), func(w *vip.World) { w.Members[2].Alive, w.Members[2].APIUnreached = false, true }),
			`a VIPClaiming owner= from= cause=
			10.77.0.200 kube-vip.io/loadbalancerIPs status=false refused=false
			n1 true
			n2 true
			n3 false its Herald does not reach the API server, so it gave its VIPs up`},
		{"no endpoints", world(svc("a", "10.77.0.200", source, func(s *vip.Service) { s.Endpoints = vip.Endpoints{} })),
			"a NoEndpoints owner= from= cause=; 10.77.0.200 kube-vip.io/loadbalancerIPs status=false refused=false; n1 true; n2 true; n3 true"},
		{"a refused address, and a node that comes after others",
			with(held(world(svc("a", "10.77.0.200,10.77.0.11", source)), "a", "n2"), func(w *vip.World) {
				w.Members[0].Info.DataPlaneFault = "kube-proxy is gone"
				w.Members[2].Info.Links[0].Up = false
			}), `a VIPElsewhere owner=n2 from= cause=
			10.77.0.200 kube-vip.io/loadbalancerIPs status=false refused=false
			10.77.0.11 kube-vip.io/loadbalancerIPs status=false refused=true
			n1 true comes after others: kube-proxy is gone
			n2 true
			n3 false its link eth0 is down`},
		{"another class", world(svc("a", "10.77.0.200", source, func(s *vip.Service) { s.HasClass, s.Class = true, "other" })),
			"a OtherClass owner= from= cause=; 10.77.0.200 kube-vip.io/loadbalancerIPs status=false refused=true"},
	}
	for _, tt := range tests {
		for _, self := range []string{"n1", ""} {
			w := tt.world
			if w.Self = self; self == "" {
				w.Tenure = vip.Tenure{}
			}
			e, ok := Explain(rules(), w, key("a"))
			if !ok {
				t.Fatalf("%s: no such Service", tt.name)
			}
			t.Run(tt.name+" by "+self, func(t *testing.T) { diff(t, explained(e), tt.want) })
			if _, err := json.Marshal(e); err != nil {
				t.Error(err)
			}
		}
	}
	if _, ok := Explain(rules(), world(), key("a")); ok {
		t.Error("a Service that is not there is explained")
	}
}

func TestExplainNode(t *testing.T) {
	w := held(world(svc("a", "10.77.0.200", local("n2")), svc("b", "10.77.0.201")), "a", "n2")
	w.Nodes = allNodes(vip.Node{Name: "n2", NotReady: true}, vip.Node{Name: "n3", Drained: true})
	for node, want := range map[string]string{
		"n1": `n1 true ""
			default/a owner=n2 able=false others=1 no ready endpoint there (externalTrafficPolicy Local)
			default/b owner= able=true others=1`,
		"n2": `n2 true "comes after others: Kubernetes does not have it as Ready, or has its network as unavailable"
			default/a owner=n2 able=true others=0 comes after others: Kubernetes does not have it as Ready, or has its network as unavailable
			default/b owner= able=true others=1 comes after others: Kubernetes does not have it as Ready, or has its network as unavailable`,
		"n3": `n3 true "it is drained (herald undrain n3 ends that)"
			default/a owner=n2 able=false others=1 it is drained (herald undrain n3 ends that)
			default/b owner= able=false others=2 it is drained (herald undrain n3 ends that)`,
	} {
		e, ok := ExplainNode(rules(), w, node)
		var b strings.Builder
		fmt.Fprintf(&b, "%s %t %q\n", e.Node, e.Alive && ok, e.Why)
		for _, s := range e.Services {
			fmt.Fprintf(&b, "%s owner=%s able=%t others=%d %s\n", s.Service, s.Owner, s.Able, s.Others, s.Why)
		}
		diff(t, b.String(), want)
	}
	w.Nodes = allNodes(vip.Node{Name: "n2", ShuttingDown: true}, vip.Node{Name: "n3", Drained: true})
	e, _ := ExplainNode(rules(), w, "n1")
	check.Equal(t, e.Services[1].Others, 0, "other nodes that can carry a VIP, while one is shut down and one is drained")
	if _, ok := ExplainNode(rules(), w, "n9"); ok {
		t.Error("a node that is not there is explained")
	}
}

// TestAdvice: every reason that is a Warning comes with something to do, and names no placeholder.
func TestAdvice(t *testing.T) {
	for _, r := range vip.Reasons {
		text := Advice(vip.Key{Namespace: "shop", Name: "web"}, r.Reason)
		if r.Warning && text == "" && r.Reason != vip.NodeNameInUse && r.Reason != vip.PoolProblemFound {
			t.Errorf("nothing to do about %s", r.Reason)
		}
		check.Equal(t, strings.Contains(text, "NAME"), false, "the advice about %s has a placeholder: %s", r.Reason, text)
	}
}

// TestMoveCause: a lease that is handed over, or acquired from another node, says why.
func TestMoveCause(t *testing.T) {
	tests := []struct {
		name  string
		world vip.World
		rules func(*Rules)
		want  string
	}{
		{"data plane", with(held(world(svc("a", "10.77.0.200")), "a", "n1"), func(w *vip.World) {
			w.DataPlaneFault, w.Members[0].Info.DataPlaneFault = "kube-proxy is gone", "kube-proxy is gone"
		}), nil, "n1: kube-proxy is gone"},
		{"dead", with(held(world(svc("a", "10.77.0.200", local("n1"))), "a", "n2"), func(w *vip.World) {
			w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2"}
			w.Members[1].Alive, w.Members[1].Gone = false, true
		}), nil, "n2: neither its Herald nor its kernel answers on the VIPs' link"},
		{"rebalanced",
			with(held(held(held(world(svc("a", "10.77.0.200"), svc("b", "10.77.0.201", younger), svc("c", "10.77.0.202")), "a", "n1"), "b", "n1"), "c", "n3"), func(w *vip.World) { w.Members[1].Stable = true }),
			func(r *Rules) { r.Rebalance = true }, "vip_rebalance: n1 had 2 of them, n2 0"},
		{"new", world(svc("a", "10.77.0.200", local("n1"))), nil, ""},
	}
	for _, tt := range tests {
		r := rules()
		if tt.rules != nil {
			tt.rules(&r)
		}
		got, w := "no change", tt.world
		for _, o := range Make(r, w).Owners {
			had := w.Claims[o.Unit].Holder
			if !o.Stays && o.Node != had && (had != "" || got == "no change" && o.Node == w.Self) {
				got = o.Cause
			}
		}
		check.Equal(t, got, tt.want, "%s", tt.name)
	}
	w := with(held(world(svc("a", "10.77.0.200", written("n2"))), "a", "n1"), claimOfA(func(c *vip.Claim) {
		c.PreviousHolder, c.Cause, c.AcquiredAt = "n2", "n2: its link eth0 is down", epoch.Add(time.Minute)
	}))
	events := Make(rules(), bind(rules(), w)).Events
	if len(events) != 1 || events[0].Message != "moved from node n2 (n2: its link eth0 is down) to node n1" {
		t.Errorf("%+v", events)
	}
	// That it has another address since is another Event, and not that move again.
	w.Services[0].Addresses = []netip.Addr{addr("10.77.0.201")}
	later := Make(rules(), bind(rules(), w)).Events
	if len(later) != 2 || later[0] != events[0] || later[1].Reason != vip.VIPAnnounced || !strings.Contains(later[1].Message, "10.77.0.201") {
		t.Errorf("with another address: %+v", later)
	}
}

// A Service that may not have what it asks for, because what it shares a lease with would have to move, is in no
// unit; it is explained like others, and so are the nodes.
func TestExplainLeftOutOfUnit(t *testing.T) {
	shared := func(s *vip.Service) { s.Lease = "shared" }
	w := world(svc("a", "10.77.0.50", written("n1"), sharing("k")), svc("x", "10.77.0.52", tenant, shared), svc("y", "10.77.0.50", tenant, shared, sharing("k"), younger))
	w = held(w, "a", "n1")
	if e, ok := Explain(rules(), w, vip.Key{Namespace: "tenant", Name: "y"}); !ok || e.Reason != vip.AddressConflict {
		t.Errorf("%v %+v", ok, e)
	}
	if e, ok := ExplainNode(rules(), w, "n2"); !ok || len(e.Services) != 2 {
		t.Errorf("%v %+v", ok, e)
	}
}
