package testing_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/testing/check"
)

type (
	object = map[string]any
	series = map[string]string // by name and labels: one value a minute
	fires  = map[int]bool      // by minute: whether the alert fires then
)

// TestAlertsFire: each alert fires while what it is about lasts, and no longer, by Prometheus' own promtool.
func TestAlertsFire(t *testing.T) {
	promtool := check.Program(t, "promtool")
	// Well for an hour, wrong for two, well for two.
	const gauge, inverse, counter = "0x59 1x119 0x120", "1x59 0x119 1x120", "0x59 0+1x119 119x120"
	lasting := fires{59: false, 175: true, 295: false}
	tests := []struct {
		alert  string
		series series
		fires  fires
	}{
		{"HeraldVIPUnanswered", series{`herald_vip_problems{problem="unanswered"}`: gauge}, lasting},
		{"HeraldTwoHostsAnswer", series{`herald_vip_problems{problem="foreign_mac"}`: gauge}, lasting},
		{"HeraldNoEligibleNode", series{`herald_services{verdict="NoEligibleNode"}`: gauge}, lasting},
		{"HeraldAbsent", series{`herald_claims_held`: "0x59 _x119 0x120"}, lasting},
		{"HeraldDataPlaneFault", series{`herald_data_plane_fault`: gauge}, lasting},
		{"HeraldCannotApply", series{`herald_apply_errors_total{applier="addresses"}`: counter}, lasting},
		{"HeraldAPIUnreachable", series{`herald_node_lease_renewals_total{result="ok"}`: "0+30x59 1770x119 1800+30x120"}, lasting},
		{"HeraldNodeLeaseLost", series{`herald_node_lease_lost_total`: counter}, lasting},
		{"HeraldHeartbeatsOff", series{`herald_peers_on`: inverse}, lasting},
		{"HeraldHeartbeatsBlocked", series{`herald_peers_state{state="suspect"}`: gauge}, lasting},
		{"HeraldBGPSessionDown", series{`herald_bgp_session_up{peer="192.0.2.1"}`: inverse}, lasting},
		{"HeraldDHCPFailing", series{`herald_dhcp_failures_total{family="IPv4",kind="timeout"}`: counter}, lasting},
		{"HeraldPortNotMapped", series{`herald_upnp_failures_total{reason="refused"}`: counter}, lasting},
		{"HeraldVIPsFlap", series{`herald_vip_moves_total{service_namespace="a",service="b"}`: counter}, lasting},
		{"HeraldLongOutage", series{`herald_vip_outage_seconds_count`: counter, `herald_vip_outage_seconds_bucket{le="5"}`: "0x300"}, lasting},
		{"HeraldPoolNearlyFull", series{`herald_pool_addresses_free{pool="a",family="IPv4"}`: "10x59 1x119 10x120", `herald_pool_addresses{pool="a",family="IPv4"}`: "20x300",
			`herald_pool_addresses_free{pool="small",family="IPv4"}`: "0x300", `herald_pool_addresses{pool="small",family="IPv4"}`: "2x300"}, lasting},
		{"HeraldServiceWithoutAddress", series{`herald_pool_services_waiting{pool="a"}`: gauge}, lasting},
		{"HeraldPoolProblem", series{`herald_pool_problems`: gauge}, lasting},
		{"HeraldAddressOutsidePools", series{`herald_pool_addresses_outside`: gauge}, lasting},

		// Faults that are over within minutes: a router that restarts, a link that is made again, a DHCP server that ten VIPs miss.
		{"HeraldPortNotMapped", series{`herald_upnp_failures_total{reason="unreachable"}`: "0x59 6 8 10x120"}, fires{62: false, 90: false, 179: false}},
		{"HeraldCannotApply", series{`herald_apply_errors_total{applier="addresses"}`: "0x59 30 60 90x120"}, fires{62: false, 90: false, 179: false}},
		{"HeraldDHCPFailing", series{`herald_dhcp_failures_total{kind="no_answer"}`: "0x59 10 20 30 40x120"}, fires{63: false, 90: false, 179: false}},
		// A single VIP asks ever more seldom, in the end once in 200 s.
		{"HeraldDHCPFailing", series{`herald_dhcp_failures_total{kind="invalid"}`: "0x59 0+0.3x120"}, fires{90: true, 120: true, 150: true, 175: true}},
		// Prometheus 3 writes le="5" as "5.0"; what took less than 5 s is in the bucket.
		{"HeraldLongOutage", series{`herald_vip_outage_seconds_count`: counter, `herald_vip_outage_seconds_bucket{le="5.0"}`: "0x300"}, lasting},
		{"HeraldLongOutage", series{`herald_vip_outage_seconds_count`: counter, `herald_vip_outage_seconds_bucket{le="5.0"}`: counter}, fires{100: false}},
		// A session that comes up again after each end, as where large packets are lost, and a router that was restarted.
		{"HeraldBGPSessionDown", series{`herald_bgp_session_up`: "1x180", `herald_bgp_session_flaps_total`: "0x59 0+1x120"}, fires{100: true}},
		{"HeraldBGPSessionDown", series{`herald_bgp_session_up`: "1x180", `herald_bgp_session_flaps_total`: "0x94 1 2 3x90"}, fires{100: false}},
		// nftables refuses, which is tried each half minute.
		{"HeraldCannotApply", series{`herald_apply_errors_total`: "0x180", `herald_nftables_errors_total`: "0x59 0+2x120"}, fires{100: true}},
		{"HeraldCannotApply", series{`herald_apply_errors_total`: "0x180", `herald_nftables_errors_total`: "0x92 2x90"}, fires{100: false}},
	}
	rules := make(map[string]any)
	for _, g := range append(alertGroups(t, "alerts.yaml"), alertGroups(t, "nodes.yaml")...) {
		for _, r := range g.Rules {
			rules[r.Alert] = object{"alert": r.Alert, "expr": r.Expr, "for": cmp.Or(r.For, "0s")}
		}
	}
	tried := make(map[string]bool)
	for _, tt := range tests {
		if rules[tt.alert] == nil {
			t.Errorf("there is no alert %s", tt.alert)
			continue
		}
		tried[tt.alert] = true
		var input, expect []any
		for name, values := range tt.series {
			input = append(input, object{"series": name, "values": values})
		}
		for minute, fires := range tt.fires {
			// The whole of labels and annotations would be repeated here: that it fires is seen by ALERTS.
			samples := []any{}
			if fires {
				samples = append(samples, object{"labels": "{}", "value": 1})
			}
			expr := fmt.Sprintf(`group(ALERTS{alertname=%q,alertstate="firing"})`, tt.alert)
			expect = append(expect, object{"expr": expr, "eval_time": fmt.Sprintf("%dm", minute), "exp_samples": samples})
		}
		dir := t.TempDir()
		for name, content := range map[string]any{ // each alert alone: promtool would evaluate all rules for each test
			"rules.yaml": object{"groups": []any{object{"name": "alone", "rules": []any{rules[tt.alert]}}}},
			"test.yaml": object{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m",
				"tests": []any{object{"name": tt.alert, "interval": "1m", "input_series": input, "promql_expr_test": expect}}},
		} {
			check.OK(t, os.WriteFile(filepath.Join(dir, name), check.Value(yaml.Marshal(content))(t), 0o600))
		}
		cmd := exec.CommandContext(t.Context(), promtool, "test", "rules", "test.yaml")
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "SUCCESS") {
			t.Errorf("%s: %v\n%s", tt.alert, err, out)
		}
	}
	for alert := range rules {
		if !tried[alert] {
			t.Errorf("%s is not tried", alert)
		}
	}
}
