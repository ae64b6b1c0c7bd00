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

// withMoves is a cluster with a table that has these moves.
func withMoves(moves string, services ...vip.Service) kube.Snapshot {
	table := owns("default/kubevip-web", "n1", "", "")
	table.Annotations[lease.MovesAnnotation] = moves
	return kube.Snapshot{Leases: []*coordinationv1.Lease{nodeLease("n1", time.Second, "{}"), table}, Services: services}
}

// TestHistory: the moves of units are shown as those of Services, the oldest first.
func TestHistory(t *testing.T) {
	shared := serviceWith("dns", "10.0.0.2", "10.0.0.2")
	shared.Lease = "both"
	s := withMoves(`2026-01-01T11:00:02.500000Z from=n2 to=n1 outage=2.312s cause=n2: it is dead on the VIPs' link
  default/kubevip-web
  default/both
2026-01-01T11:00:01.000000Z from=n1 cause=no Service needs it any more
  default/kubevip-gone
`, serviceWith("web", "10.0.0.1", "10.0.0.1"), shared)
	r := check.Value(newHistoryReport(s))(t)
	var out strings.Builder
	check.OK(t, r.write(&out, ""))
	const want = `WHEN (UTC)               SERVICE       VIP       FROM  TO      OUTAGE               WHY
2026-01-01 11:00:01.000  default/gone  -         n1    nobody  -                    no Service needs it any more
2026-01-01 11:00:02.500  default/dns   10.0.0.2  n2    n1      unanswered for 2.31s  n2: it is dead on the VIPs' link
2026-01-01 11:00:02.500  default/web   10.0.0.1  n2    n1      unanswered for 2.31s  n2: it is dead on the VIPs' link
`
	if squeeze(out.String()) != squeeze(want) {
		t.Errorf("got\n%swant\n%s", &out, want)
	}
}

// squeeze returns text with one space in place of several.
func squeeze(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestHistoryOfNobody: that nothing has moved is said only of a table.
func TestHistoryOfNobody(t *testing.T) {
	r := check.Value(newHistoryReport(withMoves("")))(t)
	var out strings.Builder
	check.OK(t, r.write(&out, ""))
	if !strings.Contains(out.String(), "nothing has moved") {
		t.Errorf("of no move it says %s", &out)
	}
	s := withMoves("")
	s.Leases, s.Missing = s.Leases[:1], []string{"Leases"}
	if _, err := newHistoryReport(s); err == nil || !strings.Contains(err.Error(), "herald-table") || !strings.Contains(err.Error(), "missing: Leases") {
		t.Errorf("without a table: %v", err)
	}
}
