package main

import (
	"context"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// twoClasses has n1 and n2 with class a, and n3, which has the Service web of class b.
func twoClasses() kube.Snapshot {
	s := snapshotOf("n3", "")
	s.Leases = []*coordinationv1.Lease{s.Leases[1]}
	for node, class := range map[string]string{"n1": "a", "n2": "a", "n3": "b"} {
		s.Leases = append(s.Leases, nodeLease(node, -time.Since(noon), strings.TrimSuffix(linkUp, "}")+`,"options":{"services":true,"arp":true,"election":true,"class":"`+class+`"}}`))
	}
	web := serviceWith("web", "10.0.0.1", "10.0.0.1")
	web.HasClass, web.Class, web.Endpoints.Ready = true, "b", []string{"n1", "n2", "n3"}
	s.Services = []vip.Service{web}
	return s
}

// TestDrainOfAnotherClass: what only a node of another class than the first one's may carry needs --force.
func TestDrainOfAnotherClass(t *testing.T) {
	d, ctx := newTestDrain(t, twoClasses())
	d.node = "n3"
	d.mark = func(context.Context) error { t.Error("the node is drained"); return nil }
	_, err := d.handOver(ctx)
	const want = "nothing was done: no other node may carry default/web (n1, n2: its Herald serves another class"
	if !strings.HasPrefix(text(err), want) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}

// TestExplainAnotherClass: a Service, and a node, are explained by the options of a node that serves that Service's class, and of that node.
func TestExplainAnotherClass(t *testing.T) {
	s := twoClasses()
	x := newExplainer(s, nil, time.Now())
	e, err := x.service(s.Services[0].Key)
	if check.OK(t, err); e.Reason != vip.VIPElsewhere || e.Owner != "n3" || len(e.Nodes) != 3 {
		t.Errorf("%+v", e.Explanation)
	}
	for node, want := range map[string]string{"n3": "it carries 1, and could carry 0 more", "n1": "it carries 0, and could carry 0 more"} {
		var b strings.Builder
		if check.OK(t, x.writeNode(&b, node, "")); !strings.Contains(b.String(), want) {
			t.Errorf("%s: no %q in\n%s", node, want, b.String())
		}
	}
	s.Services[0].Class = "c"
	if e, _ := newExplainer(s, nil, time.Now()).service(s.Services[0].Key); e.Message != `spec.loadBalancerClass is "c", this Herald serves "a"` {
		t.Errorf("of no node's class: %s", e.Message)
	}
}
