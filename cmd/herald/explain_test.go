package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/agent"
	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/plan"
	"github.com/heraldvip/herald/pkg/serve"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

const linkUp, linkDown = `{"interface":"eth0","links":[{"name":"eth0","up":true,"mac":"02:00:00:00:00:01","prefixes":["10.0.0.11/24"]}]}`, `{"interface":"eth0","links":[{"name":"eth0","up":false,"mac":"02:00:00:00:00:03"}]}`

// explained is the text of herald explain at noon.
func explained(t *testing.T, s kube.Snapshot, service string) string {
	t.Helper()
	e := check.Value(observe(s, nil, noon).service(vip.Key{Namespace: "default", Name: service}))(t)
	var b strings.Builder
	check.OK(t, e.write(&b, "", noon))
	for format, first := range map[string]string{"json": "{\n", "yaml": "addresses:\n"} {
		var coded strings.Builder
		check.OK(t, e.write(&coded, format, noon))
		if !strings.HasPrefix(coded.String(), first) || !strings.Contains(coded.String(), "default/"+service) {
			t.Errorf("%s: %.200s", format, coded.String())
		}
	}
	return b.String()
}

// TestExplainText: what an operator reads about a Service that is well, and about one that is not.
func TestExplainText(t *testing.T) {
	web := serviceWith("web", "10.0.0.1", "10.0.0.1")
	web.Source, web.Endpoints = "kube-vip.io/loadbalancerIPs", vip.Endpoints{Ready: []string{"w1"}}
	sad := serviceWith("sad", "10.0.0.2", "")
	sad = withAnswer(sad, vip.NoEligibleNode, "no node may announce it\nat \x1b[31mpresent")
	sad.Source, sad.Local, sad.Endpoints = "spec.loadBalancerIP", true, vip.Endpoints{Ready: []string{"n2"}}
	s := kube.Snapshot{
		Services: []vip.Service{sad, web},
		Leases:   []*coordinationv1.Lease{nodeLease("n1", time.Second, linkUp), nodeLease("n2", time.Second, linkDown), owns("default/kubevip-web", "n1", "n2", "n2: its link eth0 is down")},
		Events:   []kube.StoredEvent{storedEvent("sad", vip.NoEligibleNode, true, "no node may announce it\nat \x1b[31mpresent")},
		Nodes:    []vip.Node{{Name: "n1"}, {Name: "n2"}},
		Missing:  []string{"Events"},
	}
	want := `default/web: announced by node n1
Owner: n1, for 60s (since 2026-01-01T11:59:00Z); before that n2
It moved since n2: its link eth0 is down
In the table herald-table: default/kubevip-web
Endpoints: ready on w1
ipMode: VIP (kube-proxy serves the address on every node: what Pods and nodes send to it leaves no node)

ADDRESS   FROM                         IN ITS STATUS
10.0.0.1  kube-vip.io/loadbalancerIPs  yes

NODE  MAY CARRY IT  WHY
n1    owner         
n2    no            its link eth0 is down

MAY NOT BE READ
Events
`
	check.Equal(t, explained(t, s, "web"), want, "the explanation")
	check.Contains(t, explained(t, s, "sad"),
		"default/sad: NoEligibleNode: no node may announce it at  [31mpresent\n",
		"What to do: mend what keeps the nodes from it",
		"Endpoints: ready on n2 (externalTrafficPolicy Local: only a node with one may carry it)\n",
		"n1    no            no ready endpoint there (externalTrafficPolicy Local)\n",
	)
	if _, err := observe(s, nil, noon).service(vip.Key{Namespace: "default", Name: "none"}); err == nil || !strings.Contains(err.Error(), "there is no Service of type LoadBalancer default/none") {
		t.Error(err)
	}
	for _, find := range []func(vip.Key) error{
		func(k vip.Key) error { return checkExists(s.Services, k) },
		func(k vip.Key) error { _, err := observe(s, nil, noon).service(k); return err },
	} {
		check.Equal(t, text(find(vip.Key{Namespace: "shop", Name: "web"})), "there is no Service of type LoadBalancer shop/web, but default/web", "the error")
	}
}

func TestExplainNodeText(t *testing.T) {
	web := serviceWith("web", "10.0.0.1", "10.0.0.1")
	web.Local, web.Endpoints = true, vip.Endpoints{Ready: []string{"n1"}}
	x := observe(kube.Snapshot{
		Services: []vip.Service{web}, Nodes: []vip.Node{{Name: "n1"}, {Name: "n2"}, {Name: "w1"}},
		Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, linkUp), nodeLease("n2", time.Second, linkDown), tableOf("web", "n1")},
	}, nil, noon)
	for node, want := range map[string]string{
		"n1": `Node n1: ok
Services: it carries 1, and could carry 0 more.

SERVICE      VIP       OWNER  MAY IT      WHY
default/web  10.0.0.1  n1     carries it  NO OTHER NODE MAY CARRY IT: a stop or a drain of the node takes it down
`,
		"n2": `Node n2: carries no VIP: its link eth0 is down
Services: it carries 0, and could carry 0 more.

SERVICE      VIP       OWNER  MAY IT  WHY
default/web  10.0.0.1  n1     no      its link eth0 is down
`,
		"w1": "Node w1: no Herald runs there\nServices: it carries 0, and could carry 0 more.\n\n",
	} {
		var b strings.Builder
		if err := x.writeNode(&b, node, ""); err != nil || b.String() != want {
			t.Errorf("%v\ngot\n%s\nwant\n%s", err, b.String(), want)
		}
		b.Reset()
		check.OK(t, x.writeNode(&b, node, "json"))
		var back map[string]any
		if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back["node"] != node {
			t.Errorf("%v: %s", err, b.String())
		}
	}
	if err := x.writeNode(&strings.Builder{}, "n9", ""); err == nil {
		t.Error("a node that does not exist is explained")
	}
}

// TestExplainRoutingTable: with routes in a routing table alone a Service that asks for routes is well.
func TestExplainRoutingTable(t *testing.T) {
	web := serviceWith("web", "10.0.0.1", "10.0.0.1")
	web.Announce, web.Endpoints = []vip.Method{vip.ByBGP}, vip.Endpoints{Ready: []string{"w1"}}
	s := kube.Snapshot{Services: []vip.Service{web}, Leases: []*coordinationv1.Lease{
		nodeLease("n1", time.Second, strings.TrimSuffix(linkUp, "}")+`,"options":{"services":true,"routingTable":198}}`)}}
	e, err := observe(s, nil, noon).service(web.Key)
	if err != nil || e.Reason != vip.VIPAnnounced || e.Message != "advertised by routing table 198 from n1" || len(e.Nodes) != 1 || !e.Nodes[0].Able {
		t.Errorf("%v %+v", err, e.Explanation)
	}
}

// What Events say of an earlier claim is not shown of the present one, nor a VIP that nobody owns as owned, nor a
// cut cable as a fault of the switch.
func TestStatusSaysWhatHolds(t *testing.T) {
	at := func(e kube.StoredEvent, ago time.Duration) kube.StoredEvent { e.At = noon.Add(-ago); return e }
	options := func(election string) string {
		return strings.TrimSuffix(linkUp, "}") + `,"options":{"services":true,"arp":true` + election + `}}`
	}
	back := serviceWith("back", "10.0.0.1", "10.0.0.1")
	stopped, shared := serviceWith("stopped", "10.0.0.2", "10.0.0.2"), serviceWith("shared", "10.0.0.3", "10.0.0.3")
	stopped.VIPHost, shared.VIPHost = "n9", "n2"
	s := kube.Snapshot{
		Services: []vip.Service{back, shared, stopped},
		Leases: []*coordinationv1.Lease{
			nodeLease("n1", time.Second, options(`,"election":true`)), nodeLease("n2", time.Second, options("")), tableOf("back", "n1"),
			nodeLease("n3", time.Second, strings.TrimSuffix(linkDown, "}")+`,"isolated":true}`),
		},
		Nodes:  []vip.Node{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}, {Name: "n9"}},
		Events: []kube.StoredEvent{at(storedEvent("back", vip.NoEligibleNode, true, "n1: its Herald is stopping"), 2*time.Minute)},
	}
	r := newStatusReport(s, vip.Key{}, noon)
	const otherOptions = "carries no VIP of a Service: lb_class_name, lb_class_only, lb_class_legacy_handling, svc_election or svc_leasename " +
		"is another there than on most nodes: they must be the same on all"
	for i, want := range []serviceStatus{{Owner: "n1", Problem: "its owner n1: " + otherOptions}, {Owner: "n2"}, {Problem: "its status names a VIP, but no node owns it"}} {
		check.Equal(t, r.Services[i].Owner, want.Owner, "the owner of %s", r.Services[i].Service)
		check.Equal(t, r.Services[i].Problem, want.Problem, "what is wrong with %s", r.Services[i].Service)
	}
	for i, want := range []string{otherOptions, "ok", "carries no VIP: its link eth0 is down", "no Herald runs there"} {
		check.Equal(t, r.Nodes[i].State, want, "%s", r.Nodes[i].Node)
	}
	// Who is fenced may have had no VIP, or one that nobody else may carry; who renews no node lease may run.
	fenced := nodeLease("n1", time.Second, linkUp)
	fenced.Annotations["heraldvip.io/fenced"] = "7"
	if got := newStatusReport(kube.Snapshot{Leases: []*coordinationv1.Lease{fenced}, Services: []vip.Service{stopped}}, vip.Key{}, noon); got.Nodes[0].State != "fenced: its claims are over, and other nodes may take its VIPs" ||
		got.Services[0].Problem != "no Herald runs on any node, or none reaches the API server" {
		t.Errorf("a fenced node: %+v", got)
	}
	// A claim ends with the fence of its node: that is not the owner any more, and the Event says why there is none.
	only := withAnswer(serviceWith("only", "10.0.0.4", "10.0.0.4"), vip.NoEligibleNode, "no ready endpoint there")
	left := newStatusReport(kube.Snapshot{Leases: []*coordinationv1.Lease{fenced, nodeLease("n2", time.Second, linkUp), tableOf("only", "n1")}, Services: []vip.Service{only}}, vip.Key{}, noon)
	if x := left.Services[0]; x.Owner != "" || x.Problem != "NoEligibleNode: no ready endpoint there" || left.Nodes[0].VIPs != 0 {
		t.Errorf("the VIP of a fenced node: %+v, %+v", x, left.Nodes)
	}
	// What is not wrong, but of interest: the VIP is in no network of its link.
	off := serviceWith("off", "10.9.9.9", "10.9.9.9")
	hint := storedEvent("off", vip.AddressOffLink, false, "10.9.9.9 is in none of the networks that node n2 has on eth0")
	hint.At = noon
	told := newStatusReport(kube.Snapshot{Leases: []*coordinationv1.Lease{nodeLease("n2", time.Second, linkUp), tableOf("off", "n2")}, Services: []vip.Service{off}, Events: []kube.StoredEvent{hint}}, vip.Key{}, noon)
	if x := told.Services[0]; x.Problem != "" || !x.OffLink || told.wrong() {
		t.Errorf("the VIP of another network: %+v", x)
	}
	// No Event counts that Heralds left which have been killed since.
	later := newStatusReport(s, vip.Key{}, noon.Add(time.Hour))
	for i, want := range []string{"its owner n1: silent for", "no Herald runs on any node", "no Herald runs on any node"} {
		if got := later.Services[i].Problem; !strings.HasPrefix(got, want) {
			t.Errorf("an hour later: %s: got %q, want %q", later.Services[i].Service, got, want)
		}
		if got := later.Services[i].Advice; strings.HasPrefix(want, "no Herald") && !strings.HasPrefix(got, "look at its Pods and their log: kubectl -n kube-system get pods") {
			t.Errorf("an hour later: %s: what to do is %q", later.Services[i].Service, got)
		}
	}
}

// TestStatusOfSharedLease: with svc_election=false a node has its VIPs since it has the lease of all Services, whatever else it has.
func TestStatusOfSharedLease(t *testing.T) {
	web := serviceWith("web", "10.0.0.1", "10.0.0.1")
	web.VIPHost = "n1"
	table, since := owns("kube-system/plndr-svcs-lock", "n1", "", ""), noon.Add(-100*time.Hour)
	table.Annotations[lease.OwnersAnnotation] += "n1@7 number=2 since=" + since.Format(time.RFC3339) + "\n  kube-system/herald-pools\n  kube-system/plndr-cp-lock\n"
	for name, want := range map[string]time.Time{"plndr-svcs-lock": noon.Add(-time.Minute), "renamed-since": {}} {
		for range 20 { // a map has another order each time
			info := strings.TrimSuffix(linkUp, "}") + `,"options":{"services":true,"arp":true,"lease":"kube-system/` + name + `"}}`
			r := newStatusReport(kube.Snapshot{Services: []vip.Service{web}, Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, info), table}}, vip.Key{}, noon)
			if x := r.Services[0]; x.Owner != "n1" || !x.Since.Equal(want) {
				t.Fatalf("%s: owner %s since %v, want n1 since %v", name, x.Owner, x.Since, want)
			}
		}
	}
}

func TestStatusCommand(t *testing.T) {
	well := kube.Snapshot{
		Services: []vip.Service{serviceWith("web", "10.0.0.1", "10.0.0.1")},
		Leases:   []*coordinationv1.Lease{nodeLease("n1", time.Second, linkUp), tableOf("web", "n1")},
	}
	broken := well
	broken.Leases = well.Leases[:1]
	run := func(format string, exitStatus bool, s kube.Snapshot) (string, error) {
		var b strings.Builder
		r := newStatusReport(s, vip.Key{}, noon)
		r.color = format == "color"
		err := r.write(&b, strings.TrimPrefix(format, "color"), exitStatus)
		return b.String(), err
	}
	for _, format := range []string{"json", "yaml", "wide", ""} {
		out, err := run(format, true, well)
		if err != nil || !strings.Contains(out, "10.0.0.1") || strings.Contains(out, "\x1b") {
			t.Errorf("%s: %v\n%s", format, err, out)
		}
		if _, err := run(format, true, broken); err != errSomethingWrong || status(err) != 3 {
			t.Errorf("%s: %v", format, err)
		}
		if _, err := run(format, false, broken); err != nil {
			t.Error(err)
		}
	}
	var back statusReport
	out, _ := run("json", false, well)
	if err := json.Unmarshal([]byte(out), &back); err != nil || len(back.Services) != 1 || back.Services[0].Owner != "n1" || !back.Nodes[0].Herald {
		t.Errorf("%v: %+v", err, back)
	}
	out, _ = run("color", false, broken)
	check.Contains(t, out, "\x1b[31mits status names a VIP")
	if isTerminal(&strings.Builder{}) || isTerminal(check.Value(os.Open(os.DevNull))(t)) {
		t.Error("what is no terminal gets colors")
	}
}

// The arguments of kubectl's habits.
func TestServiceArgument(t *testing.T) {
	for _, tt := range []struct {
		flags     accessFlags
		arg, want string
	}{
		{accessFlags{}, "", "/"}, {accessFlags{namespace: "shop"}, "", "shop/"}, {accessFlags{}, "web", "default/web"},
		{accessFlags{}, "shop/web", "shop/web"}, {accessFlags{namespace: "shop"}, "web", "shop/web"}, {accessFlags{}, "svc/web", "default/web"},
		{accessFlags{namespace: "shop"}, "other/web", "error"}, {accessFlags{}, "shop/", "error"}, {accessFlags{namespace: "a", all: true}, "", "error"},
		{accessFlags{}, "/web", "error"}, {accessFlags{namespace: "shop"}, "shop/web", "shop/web"}, {accessFlags{all: true}, "", "/"}, {accessFlags{format: "x", formats: []string{"json"}}, "", "error"},
	} {
		var args []string
		if tt.arg != "" {
			args = append(args, tt.arg)
		}
		k, err := tt.flags.service(args)
		got := k.Namespace + "/" + k.Name
		if err != nil {
			if got = "error"; status(err) != 2 {
				t.Errorf("%s: exit status %d", tt.arg, status(err))
			}
		}
		check.Equal(t, got, tt.want, "%+v %q", tt.flags, tt.arg)
	}
}

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
			row := newStatusReport(s, vip.Key{}, noon).Services[0]
			if row.Problem != want.String() || row.Reason != r.Reason || row.Advice != want.Advice {
				t.Errorf("status: %+v", row)
			}
			e, err := observe(s, nil, noon).service(web.Key)
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
		check.Equal(t, plan.AnswerAbout(&web, vip.VIPElsewhere, "").Reason, want, "the answer with %s", allocated)
	}
}

// TestPublishedOptions: other nodes know of the VIP of the control plane, and whether Services are announced.
func TestPublishedOptions(t *testing.T) {
	for _, tt := range []struct{ env, want string }{
		{"cp_enable=true vip_arp=true address=192.0.2.10", `{"arp":true,"lease":"kube-system/plndr-svcs-lock","classStrict":true,"controlPlane":["192.0.2.10"],"controlPlaneLease":"kube-system/plndr-cp-lock"}`},
		{"svc_enable=true vip_routingtable=true vip_routingtableid=7 svc_pools=", `{"services":true,"routingTable":7,"lease":"kube-system/plndr-svcs-lock","classStrict":true}`},
		{"svc_enable=true vip_arp=true address=192.0.2.10 svc_election=true svc_pools=", `{"services":true,"arp":true,"election":true,"classStrict":true}`},
	} {
		cfg, _, err := config.Parse(config.Sources{Env: strings.Fields(tt.env), Hostname: "n1"})
		check.OK(t, err)
		o := publishedOptions(cfg)
		o.Class, o.ClassStrict = "", true
		check.Equal(t, string(check.Value(json.Marshal(o))(t)), tt.want, "what is published with %s", tt.env)
	}
}

// TestNoServicesNode: what commands say of Services follows from the nodes with svc_enable, though one that has cp_enable alone is the first by name.
func TestNoServicesNode(t *testing.T) {
	with := func(more string) string { return strings.TrimSuffix(linkUp, "}") + more + "}" }
	cp1 := nodeLease("cp1", time.Second, with(`,"options":{"arp":true}`))
	n1 := nodeLease("n1", time.Second, with(`,"serviceAddresses":"any","options":{"services":true,"arp":true,"election":true,"pools":"kube-system/kubevip"}`))
	web := serviceWith("web", "10.0.0.1", "")
	web.Endpoints = vip.Endpoints{Ready: []string{"n1"}}
	left := serviceWith("left", "10.0.0.2", "10.0.0.2")
	left.VIPHost = "cp1"
	s := kube.Snapshot{Services: []vip.Service{left, web}, Leases: []*coordinationv1.Lease{cp1, n1}, Nodes: []vip.Node{{Name: "cp1"}, {Name: "n1"}}}
	check.Contains(t, explained(t, s, "web"), "cp1   no            its Herald announces no Services (svc_enable is false there)\n", "n1    yes")
	var b strings.Builder
	check.OK(t, observe(s, nil, noon).writeNode(&b, "cp1", ""))
	check.Contains(t, b.String(), "VIPs of Services: its Herald announces no Services", "could carry 0 more")
	check.Equal(t, publishedPools(s).Name, "kubevip", "the ConfigMap of pools")
	check.Contains(t, whatMayBeAskedFor(s), "svc_addresses=any")
	if owner, _ := newStatusView(s, noon).owner(&left); owner != "" {
		t.Errorf("a node that announces no Services owns one: %s", owner)
	}
	s.Leases = s.Leases[:1]
	if e, err := observe(s, nil, noon).service(web.Key); err != nil || e.Message != "svc_enable is false" {
		t.Errorf("no node has svc_enable: %+v, %v", e, err)
	}
}
