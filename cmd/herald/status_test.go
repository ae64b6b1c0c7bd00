package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// up is a node whose link is up.
const up = `{"interface":"eth0","links":[{"name":"eth0","up":true}]}`

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// nodeLease is the lease of a node that was renewed so long before noon.
func nodeLease(node string, silent time.Duration, info string) *coordinationv1.Lease {
	renewed, seconds, epoch := metav1.NewMicroTime(noon.Add(-silent)), int32(15), int32(7)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: vip.NodeLeasePrefix + node, Annotations: map[string]string{lease.NodeAnnotation: info}},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, RenewTime: &renewed, LeaseDurationSeconds: &seconds, LeaseTransitions: &epoch},
	}
}

// statusText is the status of a namespace, "" for all, as tables.
func statusText(t testing.TB, s kube.Snapshot, namespace string) string {
	t.Helper()
	var b strings.Builder
	check.OK(t, newStatusReport(s, vip.Key{Namespace: namespace}, noon).writeTables(&b, false))
	return b.String()
}

// tableOf is the table in which a node has a Service since a minute.
func tableOf(service, node string) *coordinationv1.Lease {
	return owns("default/kubevip-"+service, node, "", "")
}

// owns is the table in which a node has a unit since a minute, which another one had before.
func owns(unit, node, from, cause string) *coordinationv1.Lease {
	text := node + "@7 number=1 since=" + noon.Add(-time.Minute).Format(time.RFC3339)
	if from != "" {
		text += fmt.Sprintf(" moves=1 before=%s@%d", from, noon.Add(-time.Minute).Unix())
	}
	if cause != "" {
		text += " cause=" + cause
	}
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: lease.TableName,
		Annotations: map[string]string{lease.OwnersAnnotation: text + "\n  " + unit + "\n"}}}
}

// serviceWith is a Service that asks for the first addresses and shows the others.
func serviceWith(name, asked, has string) vip.Service {
	s := vip.Service{Key: vip.Key{Namespace: "default", Name: name}, UID: name, LoadBalancer: true}
	for a := range strings.FieldsSeq(asked) {
		s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
	}
	for a := range strings.FieldsSeq(has) {
		s.Ingress = append(s.Ingress, vip.Ingress{Addr: netip.MustParseAddr(a), IPMode: vip.ModeVIP})
	}
	return s
}

// withAnswer returns s with a condition Announced that is not True.
func withAnswer(s vip.Service, reason vip.Reason, message string) vip.Service {
	s.Conditions = []vip.Condition{{Type: vip.Announced, Status: vip.ConditionFalse, Reason: reason, Message: message}}
	return s
}

// matches fails the test unless a text has each of the patterns.
func matches(t *testing.T, text string, patterns ...string) {
	t.Helper()
	for _, p := range patterns {
		if !regexp.MustCompile(p).MatchString(text) {
			t.Errorf("no %s in\n%.3000s", p, text)
		}
	}
}

func storedEvent(service string, reason vip.Reason, warning bool, message string) kube.StoredEvent {
	return kube.StoredEvent{Event: vip.Event{UID: service, Reason: reason, Warning: warning, Message: message}}
}

func TestStatusTable(t *testing.T) {
	const down, none = `{"interface":"eth0","links":[{"name":"eth0","up":false}]}`, `{"interface":"","links":[]}`
	const restarted, faulty = `{"interface":"eth0","links":[{"name":"eth0","up":true}],"restarts":[1,2,3]}`, `{"interface":"eth0","links":[{"name":"eth0","up":true}],"dataPlaneFault":"kube-proxy is gone"}`
	bad := serviceWith("bad", "10.0.0.4", "10.0.0.4")
	bad.Invalid = []string{"kube-vip.io/ignore is wrong."}
	bad = withAnswer(bad, vip.AddressInUse, "somebody answers")
	typo := serviceWith("typo", "10.0.0.7", "10.0.0.7")
	typo.Invalid = []string{"it is wrong."}
	open := serviceWith("open", "10.0.0.6", "10.0.0.6")
	open.Forward = &vip.Forward{}
	open.Ingress = append(open.Ingress, vip.Ingress{Addr: netip.MustParseAddr("11.22.33.1"), IPMode: vip.ModeProxy, Ports: []vip.Port{{Protocol: "TCP", Port: 53}, {Protocol: "UDP", Port: 53}, {Protocol: "TCP", Port: 8080}}})
	leased := serviceWith("leased", "0.0.0.0 ::", "10.0.0.9")
	leased.DHCP.Leases = []vip.DHCPLease{{Addr: netip.MustParseAddr("10.0.0.9"), Bits: 24, MAC: "02:00:00:00:00:01", Server: "10.0.0.1", Expires: noon.Add(time.Hour)}}
	s := kube.Snapshot{
		Services: []vip.Service{
			leased, open, typo,
			serviceWith("good", "10.0.0.1", "10.0.0.1"), serviceWith("half", "10.0.0.2 fd00::2", "10.0.0.2"), withAnswer(serviceWith("none", "10.0.0.3", ""), vip.NoEndpoints, "not ready"), withAnswer(serviceWith("idle", "10.0.0.6", "10.0.0.6"), vip.NoEndpoints, "nobody there"), bad,
			serviceWith("sad", "10.0.0.5", "10.0.0.5"), withAnswer(serviceWith("taker", "10.0.0.1 10.0.0.5", ""), vip.AddressConflict, "10.0.0.1, 10.0.0.5: in use"),
		},
		Leases: []*coordinationv1.Lease{
			nodeLease("n1", time.Second, up), nodeLease("n2", time.Second, down), nodeLease("n3", time.Second, none), nodeLease("n4", time.Minute, up),
			nodeLease("n5", time.Second, restarted), nodeLease("n6", time.Second, faulty), nodeLease("n7", time.Second, up), nodeLease("n8", time.Second, up), nodeLease("n9", time.Minute, up),
			tableOf("good", "n1"), tableOf("half", "n1"), tableOf("bad", "n1"), tableOf("sad", "n4"), tableOf("open", "n1"), tableOf("typo", "n1"),
		},
		Nodes: []vip.Node{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}, {Name: "n4"}, {Name: "n5"}, {Name: "n6"}, {Name: "n7", NotReady: true}},
		Events: []kube.StoredEvent{
			storedEvent("half", vip.AddressRefused, true, "no IPv6"), storedEvent("half", vip.VIPAnnounced, false, "n1 announces it"),
			storedEvent("good", vip.VIPAnnounced, false, "n1 announces it"), storedEvent("good", vip.AddressOffLink, false, "it is off the link"),
		},
	}
	matches(t, statusText(t, s, ""),
		`default/good +10\.0\.0\.1 +n1 +60s +VIP *\n`,
		`default/half .*not announced: fd00::2 \(no IPv6\)`,
		`default/none +\(10\.0\.0\.3\) +- .*NoEndpoints: not ready`,
		`default/idle +10\.0\.0\.6 +- .*NoEndpoints: nobody there`,
		`default/bad .*AddressInUse: somebody answers`,
		`\nIn no network of the link, so clients need a route: default/good\n`,
		`default/typo +10\.0\.0\.7 +n1 +60s +VIP +InvalidField: it is wrong\. *\n`,
		`default/leased .*not announced: ::`,
		`DHCP LEASE +ADDRESS +MAC +SERVER +EXPIRES IN\ndefault/leased +10\.0\.0\.9/24 +02:00:00:00:00:01 +10\.0\.0\.1 +60m\n`,
		`default/sad .*n4.*silent for 60s`,
		`default/open +10\.0\.0\.6,11\.22\.33\.1:53,11\.22\.33\.1:8080 +n1 +60s +VIP *\n`,
		`n1 +5 +1s +ok`,
		`n2 .*its link eth0 is down`,
		`n3 .*no default route`,
		`n4 +1 +60s +silent`,
		`n5 .*killed or crashed 3 times`,
		`n6 .*only if no other node can: kube-proxy is gone`,
		`n7 .*only if no other node can: .*Ready`,
		`n8 .*Kubernetes has no Node of that name`,
	)
	matches(t, statusText(t, kube.Snapshot{}, ""), "no Herald runs", "no Service of type LoadBalancer")
	without := kube.Snapshot{Services: []vip.Service{serviceWith("web", "10.0.0.1", "")}}
	matches(t, statusText(t, without, ""), `(?m)^REASON +SERVICES +WHAT TO DO\n- +default/web +look at its Pods`)
}

// exclusionLabel is the label that kubeadm puts on control-plane nodes.
const exclusionLabel = "node.kubernetes.io/exclude-from-external-load-balancers"

// labelState is the state of a node cp1 with that label, which another node has not.
const labelState = "ok, without VIPs of Services: it has the label " + exclusionLabel + ", and other nodes have not (kubeadm sets it on control-plane nodes; kubectl label node cp1 " + exclusionLabel + "- takes it away)"

// TestStatusOfLabelledNodes: a node that the label keeps from VIPs of Services says so, and is nothing to mend; where all have it, it counts for nothing, nor
// does it of a node that announces no Services.
func TestStatusOfLabelledNodes(t *testing.T) {
	for _, tt := range []struct {
		name, info string
		others     string // the label of the other nodes
		want       string
	}{
		{"one of three", up, "", labelState},
		{"all", up, exclusionLabel, "ok"},
		{"svc_enable=false there", strings.TrimSuffix(up, "}") + `,"options":{"arp":true}}`, "", "ok"},
		{"its link is down", strings.Replace(up, "true", "false", 1), "", "carries no VIP: its link eth0 is down"},
	} {
		s := kube.Snapshot{
			Leases: []*coordinationv1.Lease{nodeLease("cp1", time.Second, tt.info), nodeLease("w1", time.Second, up), nodeLease("w2", time.Second, up)},
			Nodes:  []vip.Node{{Name: "cp1", ExclusionLabel: exclusionLabel}, {Name: "w1", ExclusionLabel: tt.others}, {Name: "w2", ExclusionLabel: tt.others}},
		}
		r := newStatusReport(s, vip.Key{}, noon)
		if n := r.Nodes[0]; n.State != tt.want || n.Barred != strings.HasPrefix(tt.want, "carries no") || r.wrong() != n.Barred {
			t.Errorf("%s: %+v, wrong: %t", tt.name, n, r.wrong())
		}
		if r.Nodes[1].State != "ok" || r.Nodes[2].State != "ok" {
			t.Errorf("%s: %+v", tt.name, r.Nodes)
		}
	}
}

// TestStatusOfWhatIsWell: nothing is wrong with what no Herald is to announce, or no status is to tell.
func TestStatusOfWhatIsWell(t *testing.T) {
	options := func(text string) string { return strings.TrimSuffix(up, "}") + `,"options":{` + text + `}}` }
	elected, theirs := options(`"services":true,"arp":true,"election":true,"class":"ours"`), "example.com/theirs"
	classed := func(s vip.Service, class string) vip.Service { s.HasClass, s.Class = true, class; return s }
	ignored, host := serviceWith("a", "10.0.0.1", ""), serviceWith("a", "", "")
	ignored.Ignore, host.Ingress = true, []vip.Ingress{{Hostname: "a.example.com"}}
	const quiet = `"services":true,"arp":true,"noStatus":true`
	again := storedEvent("a", vip.VIPAnnounced, false, "n1 announces it")
	for _, tt := range []struct {
		name, info string
		s          vip.Service
		owned      bool
		events     []kube.StoredEvent
		want       string // VIP, what is wrong or the note; and "wrong"
	}{
		{"ignored", elected, ignored, false, nil, "(10.0.0.1) ignored (kube-vip.io/ignore)"},
		{"another class", elected, classed(serviceWith("a", "10.0.0.1", ""), theirs), false, nil, "(10.0.0.1) no node announces its class"},
		{"another class, which others announce", elected, classed(serviceWith("a", "", "10.0.0.1"), theirs), false, nil, "10.0.0.1 no node announces its class"},
		{"another class, and its status has a name", elected, classed(host, theirs), false, nil, "- no node announces its class"},
		{"svc_enable=false", options(`"arp":true`), serviceWith("a", "", "10.0.0.1"), false, nil, "10.0.0.1 no node announces its class"},
		{"this class", elected, classed(serviceWith("a", "10.0.0.1", ""), "ours"), false, nil, "(10.0.0.1) VIPClaiming: no node announces it yet wrong"},
		{"a version without options", up, classed(serviceWith("a", "10.0.0.1", ""), theirs), false, nil, "(10.0.0.1) VIPClaiming: no node announces it yet wrong"},
		{"disable_service_updates", options(quiet + `,"election":true`), serviceWith("a", "10.0.0.1", ""), true, nil, "(10.0.0.1)"},
		{"disable_service_updates, not placed", options(quiet + `,"election":true`), serviceWith("a", "10.0.0.1", ""), false, nil, "(10.0.0.1) VIPClaiming: no node announces it yet wrong"},
		{"disable_service_updates, svc_election=false", options(quiet), serviceWith("a", "10.0.0.1", ""), false, nil, "(10.0.0.1)"},
		{"disable_service_updates, with a fault", options(quiet), serviceWith("a", "10.0.0.1", ""), false,
			[]kube.StoredEvent{again, storedEvent("a", vip.NoEndpoints, true, "none is ready")}, "(10.0.0.1) NoEndpoints: none is ready wrong"},
		{"disable_service_updates, after a fault", options(quiet), serviceWith("a", "10.0.0.1", ""), false,
			[]kube.StoredEvent{storedEvent("a", vip.NoEndpoints, true, "none is ready"), again}, "(10.0.0.1)"},
		{"no right to write statuses", elected, serviceWith("a", "10.0.0.1", ""), true, []kube.StoredEvent{again},
			"(10.0.0.1) VIPClaiming: its status does not name the VIP yet; if it stays so, Herald may not write it: look at the log of its owner wrong"},
	} {
		s := kube.Snapshot{Services: []vip.Service{tt.s}, Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, tt.info)}, Events: tt.events}
		if tt.owned {
			s.Leases = append(s.Leases, tableOf("a", "n1"))
		}
		r := newStatusReport(s, vip.Key{}, noon)
		_, got, _ := strings.Cut(strings.Join(strings.Fields(r.serviceRows(false)[0]), " "), " ")
		got = regexp.MustCompile(`^(\S+) \S+ \S+ \S+ ?`).ReplaceAllString(got, "$1 ")
		if got = strings.TrimSpace(got); r.wrong() {
			got += " wrong"
		}
		check.Equal(t, got, tt.want, "%s", tt.name)
	}
}

// TestStatusOfOldEvents: what was said before the owner's claim is of another owner. The API server keeps the times of Events in whole
// seconds, those of claims in microseconds: an Event of the second of the claim counts. That a status was refused is over
// once Herald has written it, which its managedFields say.
func TestStatusOfOldEvents(t *testing.T) {
	claimed := noon.Add(-time.Minute).Add(300 * time.Millisecond)
	for _, tt := range []struct {
		reason      vip.Reason
		at, written time.Time
		shown       bool
	}{
		{vip.VIPForeignMAC, claimed.Add(5 * time.Second), time.Time{}, true},
		{vip.VIPForeignMAC, claimed.Truncate(time.Second), time.Time{}, true},
		{vip.VIPForeignMAC, claimed.Truncate(time.Second).Add(-time.Second), time.Time{}, false},
		{vip.StatusRefused, claimed, noon.Add(-2 * time.Minute), true},
		{vip.StatusRefused, claimed, noon.Add(-30 * time.Second), false},
	} {
		e, l, web := storedEvent("web", tt.reason, true, "what is wrong"), tableOf("web", "n1"), serviceWith("web", "10.0.0.1", "10.0.0.1")
		e.At, l.Spec.AcquireTime, web.Written = tt.at, new(metav1.NewMicroTime(claimed)), tt.written
		s := kube.Snapshot{
			Services: []vip.Service{web}, Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, up), l}, Events: []kube.StoredEvent{e},
		}
		b := statusText(t, s, "")
		check.Equal(t, strings.Contains(b, "what is wrong"), tt.shown, "%s of %v is shown, the claim is of %v, the status of %v:\n%s", tt.reason, tt.at, claimed, tt.written, b)
	}
}

// TestStatusOfOneNamespace: the Services are those of the namespace, and the nodes are there all the same, with all the VIPs that they
// have. Who has a Role in that namespace only gets what can be read there.
func TestStatusOfOneNamespace(t *testing.T) {
	other := serviceWith("other", "10.0.0.1", "")
	other.Key.Namespace = "team"
	all := kube.Snapshot{
		Services: []vip.Service{serviceWith("web", "10.0.0.1", "10.0.0.1"), other},
		Leases:   []*coordinationv1.Lease{nodeLease("n1", time.Second, up), tableOf("web", "n1")},
	}
	b := statusText(t, all, "team")
	if !strings.Contains(b, "default/web has 10.0.0.1") || strings.Contains(b, "\ndefault/web") || !regexp.MustCompile(`n1 +1 +1s +ok`).MatchString(b) {
		t.Errorf("the status of one namespace is\n%s", b)
	}
	check.Contains(t, statusText(t, kube.Snapshot{Services: []vip.Service{other}}, "team"), "team/other", "may not be read") // for a user of one namespace
}

// TestStatusWithoutTheAnnouncersLeases: for who may not read these, a Service's status and conditions count, in herald status and explain.
func TestStatusWithoutTheAnnouncersLeases(t *testing.T) {
	well, old := serviceWith("a", "10.0.0.1", "10.0.0.1"), serviceWith("a", "10.0.0.1", "10.0.0.1")
	well.VIPHost, old.VIPHost = "n1", "n1"
	well.Conditions = []vip.Condition{{Type: vip.Announced, Status: vip.ConditionTrue, Reason: vip.VIPAnnounced, Message: "node n1 announces it"}}
	theirs := serviceWith("a", "", "10.0.0.1")
	for _, tt := range []struct {
		name           string
		s              vip.Service
		owner, problem string
		headline       string
	}{
		{"announced", well, "n1", "", "VIPAnnounced: node n1 announces it"},
		{"announced, by a version without conditions", old, "n1", "", "announced by node n1"},
		{"another announcer's", theirs, "", "", "VIPElsewhere: its status names the VIP"},
		{"without endpoints", withAnswer(serviceWith("a", "10.0.0.1", ""), vip.NoEndpoints, "none is ready"), "", "NoEndpoints: none is ready", "NoEndpoints: none is ready"},
		{"new", serviceWith("a", "10.0.0.1", ""), "", "VIPClaiming: no node announces it yet", "VIPClaiming: no node announces it yet"},
	} {
		s := kube.Snapshot{Services: []vip.Service{tt.s}, FewerLeases: true, Nodes: []vip.Node{{Name: "n1"}}}
		r := newStatusReport(s, vip.Key{Namespace: "default"}, noon)
		if x := r.Services[0]; x.Owner != tt.owner || x.Problem != tt.problem || r.wrong() != (tt.problem != "") || len(r.Nodes) > 0 {
			t.Errorf("%s: %+v, wrong: %t, nodes %+v", tt.name, x, r.wrong(), r.Nodes)
		}
		e := check.Value(observe(s, nil, noon).service(tt.s.Key))(t)
		check.Equal(t, e.headline(), tt.headline, "%s: herald explain", tt.name)
		check.Contains(t, text(observe(s, nil, noon).writeNode(io.Discard, "n1", "")), "may not be read")
	}
}

// TestStatusOfControlPlane: its VIP has no Service, but a lease, whose name the nodes say if they have vip_leasename.
func TestStatusOfControlPlane(t *testing.T) {
	t.Run("vip_leasename", func(t *testing.T) {
		cp := owns("kube-system/my-lock", "n1", "", "")
		up := nodeLease("n1", time.Second, `{"interface":"eth0","links":[{"name":"eth0","up":true}],"apiServerReady":true,"options":{"controlPlaneLease":"kube-system/my-lock"}}`)
		matches(t, statusText(t, kube.Snapshot{Leases: []*coordinationv1.Lease{up, cp}}, ""), `\(control plane\) +- +n1 +60s +- +API servers ready: 1\n`)
	})
	cp := owns("kube-system/"+defaultControlPlaneLease, "n2", "", "")
	s := kube.Snapshot{Leases: []*coordinationv1.Lease{
		nodeLease("n1", time.Second, `{"interface":"eth0","links":[{"name":"eth0","up":true}],"apiServerReady":true}`),
		nodeLease("n2", time.Second, `{"interface":"eth0","links":[{"name":"eth0","up":true}],"apiServerReady":true}`), cp,
	}}
	matches(t, statusText(t, s, ""), `\(control plane\) +- +n2 +60s +- +API servers ready: 2\n`)
	for _, way := range []string{"bgp", "arp"} {
		s.Leases = []*coordinationv1.Lease{nodeLease("n1", time.Second, `{"interface":"eth0","links":[{"name":"eth0","up":true}],"options":{"`+way+`":true,"controlPlane":["10.0.0.40"]}}`)}
		matches(t, statusText(t, s, ""), `\(control plane\) +10\.0\.0\.40 +- +- +- +no node carries it; API servers ready: 0\n`)
	}
	check.Equal(t, newStatusReport(s, vip.Key{}, noon).wrong(), true, "something is wrong")
	s.Leases = append(s.Leases, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: defaultControlPlaneLease},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: new("n9"), LeaseDurationSeconds: new(int32(15)), RenewTime: new(metav1.NewMicroTime(noon))}})
	// kube-vip has it, but nobody could take it.
	matches(t, statusText(t, s, ""), `\(control plane\) +10\.0\.0\.40 +- +- +- +no Herald could take it: no node's own API server is ready at its port \(port, control_plane_health_check_address\)\n`)
	s.Leases[0] = nodeLease("n1", time.Second, `{"interface":"eth0","links":[{"name":"eth0","up":true}],"apiServerReady":true,"options":{"arp":true,"controlPlane":["10.0.0.40"]}}`)
	check.Equal(t, newStatusReport(s, vip.Key{}, noon).wrong(), false, "something is wrong, though kube-vip has it")
	s.Leases[0] = nodeLease("n1", time.Second, `{"options":{"services":true,"arp":true,"lease":"kube-system/services-plndr-cp-lock"}}`)
	check.Equal(t, newStatusView(s, noon).claims[newStatusView(s, noon).options().SharedLease].Foreign, true, "the Lease is another's, where kube-vip has one for both")
	s.Leases = nil
	check.Equal(t, strings.Contains(statusText(t, s, ""), "control plane"), false, "the control plane is named")
}

// The BGP sessions of all nodes are a table of their own.
func TestStatusBGPSessions(t *testing.T) {
	const info = `{"interface":"eth0","links":[{"name":"eth0","up":true}],"bgpSessions":[` +
		`{"peer":"192.0.2.1","as":65001,"state":"established","since":"2026-01-01T11:00:00Z","prefixes":7},` +
		`{"peer":"eth1","state":"active","since":"2026-01-01T11:59:00Z","reason":"the peer refuses connections"}]}`
	b := statusText(t, kube.Snapshot{Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, info)}}, "")
	want := "\nNODE  PEER       AS     STATE        SINCE  PREFIXES  WHY\n" +
		"n1    192.0.2.1  65001  established  60m    7         \n" +
		"n1    eth1       0      active       60s    0         the peer refuses connections\n"
	if _, got, _ := strings.Cut(b, "ok\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	check.Equal(t, strings.Contains(statusText(t, kube.Snapshot{Leases: []*coordinationv1.Lease{nodeLease("n1", time.Hour, info)}}, ""), "192.0.2.1"), false, "a node that does not run has sessions")
}

// What a tenant can write adds no rows and columns, controls no terminal, and says nothing about the nodes and the control plane.
func TestStatusOfForgedObjects(t *testing.T) {
	const up = `{"interface":"eth0","links":[{"name":"eth0","up":true}],"apiServerReady":true}`
	owner := nodeLease("x", time.Second, "")
	owner.Namespace, owner.Name, owner.Spec.HolderIdentity = "default", "kubevip-x", new("n1\n\x1b[2Jn2\tSINCE"+strings.Repeat("x", 100000))
	forged, cp := nodeLease("n1", time.Hour, up), owns("kube-system/"+defaultControlPlaneLease, "forged", "", "")
	forged.Namespace, cp.Namespace = "tenant", "tenant"
	s := kube.Snapshot{
		Services: []vip.Service{serviceWith("good", "10.0.0.1", "10.0.0.1"), withAnswer(serviceWith("x", "10.0.0.2", ""), vip.AddressConflict, "in\tuse\ndefault/good\x1b[31m \u202e")},
		Leases:   []*coordinationv1.Lease{forged, nodeLease("n1", time.Second, up), tableOf("good", "n1"), owner, cp},
	}
	b := statusText(t, s, "")
	if strings.ContainsAny(b, "\x1b\t\u202e") || strings.Count(b, "\n") != 10 || len(b) > 5000 {
		t.Errorf("%d bytes, %d lines, or characters that are not printable:\n%.2000q", len(b), strings.Count(b, "\n"), b)
	}
	matches(t, b, `default/good +10\.0\.0\.1 +n1 +60s +VIP *\n`, `\(control plane\) +- +- .*API servers ready: 1\n`, `n1 +1 +1s +ok\n`)
}

// TestStatusOfManyForgedLeases: a thousand Leases of a tenant, renewed or not, add few rows, and nothing is wrong for them; what to do about problems is
// said once for each reason.
func TestStatusOfManyForgedLeases(t *testing.T) {
	s := kube.Snapshot{Services: []vip.Service{serviceWith("good", "10.0.0.1", "10.0.0.1")}, Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, up), tableOf("good", "n1")}}
	for i := range 1000 {
		forged := nodeLease(fmt.Sprintf("ghost%d", i), time.Duration(i%2)*time.Hour, "{}")
		forged.Namespace = "tenant"
		s.Leases = append(s.Leases, forged)
	}
	check.Equal(t, newStatusReport(s, vip.Key{}, noon).wrong(), false, "something is wrong for forged Leases")
	b := statusText(t, s, "")
	if n := strings.Count(b, "\ntenant/"); n != maxOtherNodes || strings.Count(b, "ghost") != n {
		t.Errorf("%d rows of forged nodes in\n%s", n, b)
	}
	for i := range 300 {
		s.Services = append(s.Services, withAnswer(serviceWith(fmt.Sprintf("x%03d", i), "10.0.0.1", ""), vip.AddressConflict, "10.0.0.1: in use"))
	}
	matches(t, statusText(t, s, ""), `\nREASON +SERVICES +WHAT TO DO\nAddressConflict +default/x000, .*default/x004 and 295 more +ask for another address.*\n\nNODE`)
}

// TestForgedNodeLeases: what a Lease of another namespace publishes as a node's says nothing to any command of pools, of options.
func TestForgedNodeLeases(t *testing.T) {
	const links = `"interface":"eth0","links":[{"name":"eth0","up":true,"mac":"02:00:00:00:00:0%d"}]`
	forged := nodeLease("n1", time.Second, `{"serviceAddresses":"any","options":{"pools":"evil/pools"},`+fmt.Sprintf(links, 9)+`}`)
	forged.Namespace = "evil"
	s := kube.Snapshot{Leases: []*coordinationv1.Lease{forged, nodeLease("n1", time.Second, `{"serviceAddresses":"pools","options":{"services":true,"pools":"kube-system/kubevip"},`+fmt.Sprintf(links, 1)+`}`)}}
	check.Equal(t, publishedPools(s).Namespace, "kube-system", "the namespace of the ConfigMap of pools")
	check.Contains(t, whatMayBeAskedFor(s), "svc_addresses=pools")
}

// fakeAPI is an API server whose clock shows what clock returns, with these Leases and nothing else.
func fakeAPI(t *testing.T, clock func() time.Time, leases ...coordinationv1.Lease) *rest.Config {
	t.Helper()
	lists := map[string]any{
		"leases":   coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "LeaseList"}, Items: leases},
		"services": corev1.ServiceList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceList"}},
		"nodes":    corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}},
		"events":   corev1.EventList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "EventList"}},
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", clock().UTC().Format(http.TimeFormat))
		_ = json.NewEncoder(w).Encode(lists[r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]]) // a client that is gone
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

// Neither the clock of the machine on which herald status runs nor that of a node makes a node silent that renews its node lease, or
// hides one that does not: the API server's counts.
func TestStatusByTheClockOfTheAPIServer(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour, -time.Hour} {
		server := func() time.Time { return time.Now().Add(ahead) }
		renewed := func(node string, ago, nodesClock time.Duration) coordinationv1.Lease {
			l := nodeLease(node, 0, up)
			at := server().Add(-ago)
			l.Spec.RenewTime = new(metav1.NewMicroTime(at.Add(nodesClock)))
			l.ManagedFields = []metav1.ManagedFieldsEntry{
				{Manager: "herald", Operation: metav1.ManagedFieldsOperationUpdate, Time: new(metav1.NewTime(at)), FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:renewTime":{}}}`)},
				{Manager: "other", Operation: metav1.ManagedFieldsOperationUpdate, Time: new(metav1.NewTime(server())), FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{}}}`)},
			}
			return *l
		}
		unmanaged := renewed("n6", 2*time.Second, 0)
		unmanaged.ManagedFields = nil
		r := check.Value(takeStatus(t.Context(), fakeAPI(t, server,
			renewed("n1", 2*time.Second, 0), renewed("n2", 2*time.Second, -40*time.Second), renewed("n3", 2*time.Second, 40*time.Second),
			renewed("n4", time.Minute, 0), renewed("n5", time.Minute, time.Minute), unmanaged), vip.Key{}))(t)
		got := make(map[string]string)
		for _, n := range r.Nodes {
			got[n.Node], _, _ = strings.Cut(n.State, " ")
		}
		if want := (map[string]string{"n1": "ok", "n2": "ok", "n3": "ok", "n4": "silent", "n5": "silent", "n6": "ok"}); !maps.Equal(got, want) {
			t.Errorf("the API server's clock is %v ahead: %v, want %v", ahead, got, want)
		}
	}
}

// expectTables fails the test if a text has lines beyond limit, or characters that a terminal acts on.
func expectTables(t *testing.T, text string, limit int) {
	t.Helper()
	if n := strings.Count(text, "\n"); n > limit {
		t.Errorf("%d lines, want %d at most:\n%.3000q", n, limit, text)
	}
	if strings.ContainsAny(text, "\x1b\t\r\x00\x7f\u202e\u0085") {
		t.Errorf("characters that are not printable:\n%.3000q", text)
	}
}

// FuzzStatus: whatever a tenant writes into a Lease, an Event and a Service of a namespace, herald status says of the others what it says without
// that, in as many lines as there are objects, and controls no terminal.
func FuzzStatus(f *testing.F) {
	f.Add("kubevip-x", "n1", "n1@7", `{"interface":"eth0"}`, "AddressConflict", "in use\n\x1b[2J", "default/x")
	f.Add(vip.NodeLeasePrefix+"n1", "n1\tn2", "", `{"waiting":["x"],"bgpSessions":[{"peer":"\u001b[2J","state":"active"}],"connections":{"vips":{"10.0.0.1":-5}}}`, "VIPForeignMAC", "", "\u202e")
	f.Add(defaultControlPlaneLease, "ghost", "ghost@99999999999999999999", strings.Repeat("[", 5000), "", strings.Repeat("x", 2000), "")
	f.Fuzz(func(t *testing.T, name, holder, claim, info, reason, message, invalid string) {
		l := nodeLease("n1", time.Second, info)
		l.Namespace, l.Name, l.Spec.HolderIdentity = "tenant", name, &holder
		l.Annotations[lease.ClaimAnnotation], l.Annotations[lease.OwnersAnnotation] = claim, holder+"@7 number=1\n  default/kubevip-good\n"
		s := serviceWith("x", "10.0.0.2", "")
		s.Key.Namespace, s.Invalid, s.VIPHost = "tenant", []string{invalid}, holder
		e := storedEvent("x", vip.Reason(reason), true, message)
		e.Node = holder
		snapshot := kube.Snapshot{
			Services: []vip.Service{serviceWith("good", "10.0.0.1", "10.0.0.1"), s},
			Leases:   []*coordinationv1.Lease{nodeLease("n1", time.Second, up), tableOf("good", "n1"), l},
			Events:   []kube.StoredEvent{e},
		}
		b, fields := statusText(t, snapshot, ""), ""
		expectTables(t, b, 40)
		for line := range strings.Lines(b) {
			if strings.HasPrefix(line, "default/good ") || strings.HasPrefix(line, "n1 ") {
				fields += strings.Join(strings.Fields(line), " ") + "\n"
			}
		}
		if want := "default/good 10.0.0.1 n1 60s VIP\n"; !strings.HasPrefix(fields, want) || !strings.Contains(fields, "\nn1 ") || !strings.Contains(fields, " 1s ok\n") {
			t.Errorf("of others it says\n%s\n%.2000q", fields, b)
		}
	})
}

// FuzzHistory: whatever the table says, its moves are shown one in a line, and control no terminal.
func FuzzHistory(f *testing.F) {
	f.Add("2026-01-01T00:00:00Z from=n1 to=n2 outage=-1s cause=\x1b[2J\u202e\n  default/kubevip-web\n")
	f.Add("2026-01-01T00:00:00Z\n  /\n  a/b/c\r\n  \t/\n")
	f.Add("x\n  default/a\n")
	f.Fuzz(func(t *testing.T, moves string) {
		r := check.Value(newHistoryReport(withMoves(moves), 24*time.Hour))(t)
		var b strings.Builder
		check.OK(t, r.write(&b, ""))
		expectTables(t, b.String(), len(r.Moves)+2)
	})
}
