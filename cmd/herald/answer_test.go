package main

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/agent"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/serve"
	"github.com/heraldvip/herald/pkg/vip"
)

// TestOneAnswer: for each reason that a condition may have, herald status, herald explain, the page of a node that knows less, and the JSON say the same of a
// Service: reason, message and what to do.
func TestOneAnswer(t *testing.T) {
	for _, r := range vip.Reasons {
		if plan.LevelOf(r.Reason) == plan.Fine {
			continue
		}
		t.Run(string(r.Reason), func(t *testing.T) {
			web := withAnswer(serviceWith("web", "", ""), r.Reason, "because of this")
			want := plan.NewAnswer(web.Key, r.Reason, "because of this")
			s := kube.Snapshot{Services: []vip.Service{web}, Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, linkUp)}, Nodes: []vip.Node{{Name: "n1"}}}
			row := newStatusReport(s, inNamespace(""), noon).Services[0]
			if row.Problem != want.String() || row.Reason != r.Reason || row.Advice != want.Advice {
				t.Errorf("status: %+v", row)
			}
			e, err := newExplainer(s, nil, noon).service(web.Key)
			if err != nil || r.Reason != vip.VIPClaiming && e.headline() != want.String() || e.Advice != want.Advice && r.Reason != vip.VIPClaiming {
				t.Errorf("explain: %v %+v", err, e)
			}
			pass := &agent.Pass{
				World: vip.World{Now: noon, Self: "n2", Services: s.Services, Tenure: vip.Tenure{Until: noon.Add(time.Minute)}},
				Plan:  vip.Plan{Verdicts: []vip.Verdict{{Service: web.Key, Reason: vip.NoAddress, Message: "all that this node knows"}}},
			}
			var v serve.View
			fillOverview(&v, pass, nil)
			if x := v.Services[0]; x.Reason != string(r.Reason) || x.Message != want.Message || x.Class != string(want.Level) {
				t.Errorf("the page: %+v", x)
			}
			if r.Reason != vip.VIPClaiming && r.Reason != vip.DHCPPending && (len(v.Problems) != 1 || v.Problems[0].Message != want.String() || v.Problems[0].Advice != want.Advice) {
				t.Errorf("the page: %+v", v.Problems)
			}
			if want.Advice == "" && !strings.Contains("VIPClaiming DHCPPending VIPWithdrawn NodeNameInUse PoolProblem", string(r.Reason)) {
				t.Error("nothing says what to do")
			}
		})
	}
}

// TestAnswerOfTwoConditions: a Service that is announced is said to be; unless its address has a fault.
func TestAnswerOfTwoConditions(t *testing.T) {
	for allocated, want := range map[vip.Reason]vip.Reason{vip.AddressSet: vip.VIPAnnounced, vip.AddressOutsidePools: vip.AddressOutsidePools} {
		web := serviceWith("web", "10.0.0.1", "10.0.0.1")
		web.Conditions = []vip.Condition{{Type: vip.Announced, Status: vip.ConditionTrue, Reason: vip.VIPAnnounced}, {Type: vip.Allocated, Status: vip.ConditionTrue, Reason: allocated}}
		if got := plan.AnswerAbout(&web, vip.VIPElsewhere, "").Reason; got != want {
			t.Errorf("%s: got %s, want %s", allocated, got, want)
		}
	}
}
