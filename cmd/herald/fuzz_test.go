package main

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

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
	f.Add(lease.NodePrefix+"n1", "n1\tn2", "", `{"waiting":["x"],"bgpSessions":[{"peer":"\u001b[2J","state":"active"}],"connections":{"vips":{"10.0.0.1":-5}}}`, "VIPForeignMAC", "", "\u202e")
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
			Leases:   []*coordinationv1.Lease{nodeLease("n1", time.Second, `{"interface":"eth0","links":[{"name":"eth0","up":true}]}`), tableOf("good", "n1"), l},
			Events:   []kube.StoredEvent{e},
		}
		var b strings.Builder
		check.OK(t, writeStatus(&b, snapshot, "", noon))
		expectTables(t, b.String(), 40)
		fields := ""
		for line := range strings.Lines(b.String()) {
			if strings.HasPrefix(line, "default/good ") || strings.HasPrefix(line, "n1 ") {
				fields += strings.Join(strings.Fields(line), " ") + "\n"
			}
		}
		if want := "default/good 10.0.0.1 n1 60s VIP\n"; !strings.HasPrefix(fields, want) || !strings.Contains(fields, "\nn1 ") || !strings.Contains(fields, " 1s ok\n") {
			t.Errorf("of others it says\n%s\n%.2000q", fields, b.String())
		}
	})
}

// FuzzHistory: whatever the table says, its moves are shown one in a line, and control no terminal.
func FuzzHistory(f *testing.F) {
	f.Add("2026-01-01T00:00:00Z from=n1 to=n2 outage=-1s cause=\x1b[2J\u202e\n  default/kubevip-web\n")
	f.Add("2026-01-01T00:00:00Z\n  /\n  a/b/c\r\n  \t/\n")
	f.Add("x\n  default/a\n")
	f.Fuzz(func(t *testing.T, moves string) {
		r := check.Value(newHistoryReport(withMoves(moves)))(t)
		var b strings.Builder
		check.OK(t, r.write(&b, ""))
		expectTables(t, b.String(), len(r.Moves)+2)
	})
}
