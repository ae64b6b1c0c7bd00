package testing_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/testing/check"
)

// TestAlertsFire: each alert of nodes.yaml fires while what it is about lasts, and no longer, by Prometheus' own promtool.
func TestAlertsFire(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("HERALD_LAB") == "require" {
			t.Fatal("promtool is not installed")
		}
		t.Skip("promtool is not installed (make parts)")
	}
	// Series, one value a minute: well for an hour, wrong for an hour, well for two.
	const gauge, inverse, counter = "0x59 1x59 0x120", "1x59 0x59 1x120", "0x59 0+1x59 59x120"
	series := map[string]map[string]string{
		"HeraldVIPUnanswered":     {`herald_vip_problems{node="n1",problem="unanswered"}`: gauge},
		"HeraldTwoHostsAnswer":    {`herald_vip_problems{node="n1",problem="foreign_mac"}`: gauge},
		"HeraldNoEligibleNode":    {`herald_services{node="n1",verdict="NoEligibleNode"}`: gauge},
		"HeraldAbsent":            {`herald_claims_held{node="n1"}`: "0x59 _x59 0x120"},
		"HeraldDataPlaneFault":    {`herald_data_plane_fault{node="n1"}`: gauge},
		"HeraldCannotApply":       {`herald_apply_errors_total{node="n1",applier="addresses"}`: counter},
		"HeraldAPIUnreachable":    {`herald_api_reachable{node="n1"}`: inverse},
		"HeraldNodeLeaseLost":     {`herald_node_lease_lost_total{node="n1"}`: counter},
		"HeraldHeartbeatsOff":     {`herald_peers_on{node="n1"}`: inverse},
		"HeraldHeartbeatsBlocked": {`herald_peers_state{node="n1",state="suspect"}`: gauge},
		"HeraldBGPSessionDown":    {`herald_bgp_session_up{node="n1",peer="192.0.2.1"}`: inverse},
		"HeraldDHCPFailing":       {`herald_dhcp_failures_total{node="n1",family="IPv4",kind="timeout"}`: counter},
		"HeraldPortNotMapped":     {`herald_upnp_failures_total{node="n1",reason="refused"}`: counter},
		"HeraldVIPsFlap":          {`herald_vip_lease_writes_total{node="n1",action="hand over",result="ok"}`: counter, `herald_claims_held{node="n1"}`: "1x300"},
		"HeraldLongOutage":        {`herald_vip_outage_seconds_count{node="n1"}`: counter, `herald_vip_outage_seconds_bucket{node="n1",le="5"}`: "0x300"},
		"HeraldSecondProcess":     {`herald_node_second_process{node="n1"}`: gauge},
	}
	type object = map[string]any
	var tests []any
	for _, g := range alertGroups(t, "nodes.yaml") {
		for _, r := range g.Rules {
			var input []any
			for name, values := range series[r.Alert] {
				input = append(input, object{"series": name, "values": values})
			}
			if len(input) == 0 {
				t.Errorf("%s is not tried", r.Alert)
			}
			var expect []any
			for minute, fires := range map[int]bool{59: false, 115: true, 235: false} {
				// The whole of labels and annotations would be repeated here: that it fires is seen by ALERTS.
				samples := []any{}
				if fires {
					samples = append(samples, object{"labels": "{}", "value": 1})
				}
				expect = append(expect, object{"expr": fmt.Sprintf(`group(ALERTS{alertname=%q,alertstate="firing"})`, r.Alert), "eval_time": fmt.Sprintf("%dm", minute), "exp_samples": samples})
			}
			tests = append(tests, object{"name": r.Alert, "interval": "1m", "input_series": input, "promql_expr_test": expect})
		}
	}
	dir := t.TempDir()
	var rule struct{ Spec object }
	check.OK(t, yaml.Unmarshal(check.Value(os.ReadFile("../manifests/components/alerts/nodes.yaml"))(t), &rule))
	check.OK(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), check.Value(yaml.Marshal(rule.Spec))(t), 0o600))
	check.OK(t, os.WriteFile(filepath.Join(dir, "test.yaml"), check.Value(yaml.Marshal(object{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests}))(t), 0o600))
	cmd := exec.CommandContext(t.Context(), promtool, "test", "rules", "test.yaml")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "SUCCESS") {
		t.Errorf("%v\n%s", err, out)
	}
}
