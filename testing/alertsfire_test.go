package testing_test

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/testing/check"
)

type object = map[string]any

// runPromtool has Prometheus' own promtool try tests of rules, which may be empty.
func runPromtool(t *testing.T, rules object, tests []any) {
	t.Helper()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("HERALD_LAB") == "require" {
			t.Fatal("promtool is not installed")
		}
		t.Skip("promtool is not installed (make parts)")
	}
	dir := t.TempDir()
	check.OK(t, os.WriteFile(filepath.Join(dir, "rules.yaml"), check.Value(yaml.Marshal(rules))(t), 0o600))
	check.OK(t, os.WriteFile(filepath.Join(dir, "test.yaml"), check.Value(yaml.Marshal(object{"rule_files": []string{"rules.yaml"}, "evaluation_interval": "1m", "tests": tests}))(t), 0o600))
	cmd := exec.CommandContext(t.Context(), promtool, "test", "rules", "test.yaml")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "SUCCESS") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestAlertsFire: each alert fires while what it is about lasts, and no longer, by Prometheus' own promtool.
func TestAlertsFire(t *testing.T) {
	// Series, one value a minute: well for an hour, wrong for two, well for two.
	const gauge, inverse, counter = "0x59 1x119 0x120", "1x59 0x119 1x120", "0x59 0+1x119 119x120"
	series := map[string]map[string]string{
		"HeraldVIPUnanswered":     {`herald_vip_problems{node="n1",problem="unanswered"}`: gauge},
		"HeraldTwoHostsAnswer":    {`herald_vip_problems{node="n1",problem="foreign_mac"}`: gauge},
		"HeraldNoEligibleNode":    {`herald_services{node="n1",verdict="NoEligibleNode"}`: gauge},
		"HeraldAbsent":            {`herald_claims_held{node="n1"}`: "0x59 _x119 0x120"},
		"HeraldDataPlaneFault":    {`herald_data_plane_fault{node="n1"}`: gauge},
		"HeraldCannotApply":       {`herald_apply_errors_total{node="n1",applier="addresses"}`: counter},
		"HeraldAPIUnreachable":    {`herald_api_reachable{node="n1"}`: inverse},
		"HeraldNodeLeaseLost":     {`herald_node_lease_lost_total{node="n1"}`: counter},
		"HeraldHeartbeatsOff":     {`herald_peers_on{node="n1"}`: inverse},
		"HeraldHeartbeatsBlocked": {`herald_peers_state{node="n1",state="suspect"}`: gauge},
		"HeraldBGPSessionDown":    {`herald_bgp_session_up{node="n1",peer="192.0.2.1"}`: inverse},
		"HeraldDHCPFailing":       {`herald_dhcp_failures_total{node="n1",family="IPv4",kind="timeout"}`: counter},
		"HeraldPortNotMapped":     {`herald_upnp_failures_total{node="n1",reason="refused"}`: counter},
		"HeraldVIPsFlap":          {`herald_vip_moves_total{node="n1",service_namespace="a",service="b"}`: counter},
		"HeraldLongOutage":        {`herald_vip_outage_seconds_count{node="n1"}`: counter, `herald_vip_outage_seconds_bucket{node="n1",le="5"}`: "0x300"},
		"HeraldSecondProcess":     {`herald_node_second_process{node="n1"}`: gauge},
		"HeraldPoolNearlyFull": {`herald_pool_addresses_free{node="n1",pool="a",family="IPv4"}`: "10x59 1x119 10x120", `herald_pool_addresses{node="n1",pool="a",family="IPv4"}`: "20x300",
			`herald_pool_addresses_free{node="n1",pool="small",family="IPv4"}`: "0x300", `herald_pool_addresses{node="n1",pool="small",family="IPv4"}`: "2x300"},
		"HeraldServiceWithoutAddress": {`herald_pool_services_waiting{node="n1",pool="a"}`: gauge},
		"HeraldPoolProblem":           {`herald_pool_problems{node="n1"}`: gauge},
		"HeraldAddressOutsidePools":   {`herald_pool_addresses_outside{node="n1"}`: gauge},
	}
	groups := append(alertGroups(t, "alerts.yaml"), alertGroups(t, "nodes.yaml")...)
	for _, g := range groups {
		for _, r := range g.Rules {
			var input []any
			for name, values := range series[r.Alert] {
				input = append(input, object{"series": name, "values": values})
			}
			if len(input) == 0 {
				t.Errorf("%s is not tried", r.Alert)
			}
			var expect []any
			for minute, fires := range map[int]bool{59: false, 175: true, 295: false} {
				// The whole of labels and annotations would be repeated here: that it fires is seen by ALERTS.
				samples := []any{}
				if fires {
					samples = append(samples, object{"labels": "{}", "value": 1})
				}
				expect = append(expect, object{"expr": fmt.Sprintf(`group(ALERTS{alertname=%q,alertstate="firing"})`, r.Alert), "eval_time": fmt.Sprintf("%dm", minute), "exp_samples": samples})
			}
			// Each alone: promtool would evaluate all rules for each test.
			rule := object{"alert": r.Alert, "expr": r.Expr, "for": cmp.Or(r.For, "0s")}
			runPromtool(t, object{"groups": []any{object{"name": "alone", "rules": []any{rule}}}}, []any{object{"name": r.Alert, "interval": "1m", "input_series": input, "promql_expr_test": expect}})
		}
	}
}

// TestAlertsOfShortFaults: a fault that is over within minutes, and is counted while it lasts, fires nothing, also later: a router that restarts, a link that is
// made again.
func TestAlertsOfShortFaults(t *testing.T) {
	for alert, input := range map[string]object{
		"HeraldPortNotMapped": {"series": `herald_upnp_failures_total{node="n1",reason="unreachable"}`, "values": "0x59 6 8 10x120"},
		"HeraldCannotApply":   {"series": `herald_apply_errors_total{node="n1",applier="addresses"}`, "values": "0x59 30 60 90x120"},
		"HeraldDHCPFailing":   {"series": `herald_dhcp_failures_total{node="n1",family="IPv4",kind="no_answer"}`, "values": "0x59 10 20 30 40x120"}, // a server that restarts, and ten VIPs
	} {
		tryAlert(t, alert, []any{input}, object{"expr": fmt.Sprintf(`count_over_time(ALERTS{alertname=%q,alertstate="firing"}[2h])`, alert), "eval_time": "179m", "exp_samples": []any{}})
	}
}

// TestOneVIPWithoutLease: HeraldDHCPFailing fires for a single VIP, too, which asks ever more seldom: by DHCPv6 a server that has no address for it refuses once in 150 s
// in the end, here in 200 s.
func TestOneVIPWithoutLease(t *testing.T) {
	values := "0x59"
	for minute := range 120 {
		values += fmt.Sprint(" ", minute*60/200)
	}
	input := []any{object{"series": `herald_dhcp_failures_total{node="n1",family="IPv6",kind="invalid"}`, "values": values}}
	for _, minute := range []int{90, 120, 150, 179} {
		tryAlert(t, "HeraldDHCPFailing", input, object{"expr": `group(ALERTS{alertname="HeraldDHCPFailing",alertstate="firing"})`, "eval_time": fmt.Sprintf("%dm", minute), "exp_samples": []any{object{"labels": "{}", "value": 1}}})
	}
}

// TestLongOutageByVersions: HeraldLongOutage finds the bucket of 5 s as either version of Prometheus stores it: 3 writes le="5" as "5.0" (its migration guide).
func TestLongOutageByVersions(t *testing.T) {
	for _, le := range []string{"5", "5.0"} {
		for outages, fires := range map[string]bool{"0x120": true, "0x59 0+1x60": false} { // those that took less than 5 s
			input := []any{
				object{"series": `herald_vip_outage_seconds_count{node="n1"}`, "values": "0x59 0+1x60"},
				object{"series": fmt.Sprintf(`herald_vip_outage_seconds_bucket{node="n1",le=%q}`, le), "values": outages},
				object{"series": `herald_vip_outage_seconds_bucket{node="n1",le="50"}`, "values": "0x59 0+1x60"},
			}
			samples := []any{}
			if fires {
				samples = append(samples, object{"labels": "{}", "value": 1})
			}
			tryAlert(t, "HeraldLongOutage", input, object{"expr": `group(ALERTS{alertname="HeraldLongOutage",alertstate="firing"})`, "eval_time": "100m", "exp_samples": samples})
		}
	}
}

// TestSessionThatFlaps: HeraldBGPSessionDown fires, too, for a session that comes up again after each end, as with a path that loses large packets, and not for
// a router that was restarted.
func TestSessionThatFlaps(t *testing.T) {
	for flaps, samples := range map[string][]any{"0x59 0+1x120": {object{"labels": "{}", "value": 1}}, "0x95 1x90": {}, "0x94 1 2 3x90": {}} {
		input := []any{
			object{"series": `herald_bgp_session_up{node="n1",peer="192.0.2.1",as="65001"}`, "values": "1x180"},
			object{"series": `herald_bgp_session_flaps_total{node="n1",peer="192.0.2.1",as="65001"}`, "values": flaps},
		}
		tryAlert(t, "HeraldBGPSessionDown", input, object{"expr": `group(ALERTS{alertname="HeraldBGPSessionDown",alertstate="firing"})`, "eval_time": "100m", "exp_samples": samples})
	}
}

// TestNftablesRefuses: HeraldCannotApply fires, too, where nftables refuses, which is tried each half minute: VIPs whose ports can't be limited are not bound.
func TestNftablesRefuses(t *testing.T) {
	for refused, samples := range map[string][]any{"0x59 0+2x120": {object{"labels": "{}", "value": 1}}, "0x92 2x90": {}} {
		input := []any{
			object{"series": `herald_apply_errors_total{node="n1",applier="addresses"}`, "values": "0x180"},
			object{"series": `herald_nftables_errors_total{node="n1"}`, "values": refused},
		}
		tryAlert(t, "HeraldCannotApply", input, object{"expr": `group(ALERTS{alertname="HeraldCannotApply",alertstate="firing"})`, "eval_time": "100m", "exp_samples": samples})
	}
}

// tryAlert has promtool try one alert with series, and one query of what has fired.
func tryAlert(t *testing.T, alert string, series []any, query object) {
	t.Helper()
	for _, g := range alertGroups(t, "nodes.yaml") {
		for _, r := range g.Rules {
			if r.Alert == alert {
				rule := object{"alert": r.Alert, "expr": r.Expr, "for": cmp.Or(r.For, "0s")}
				runPromtool(t, object{"groups": []any{object{"name": "alone", "rules": []any{rule}}}}, []any{object{"name": r.Alert, "interval": "1m", "input_series": series, "promql_expr_test": []any{query}}})
				return
			}
		}
	}
	t.Errorf("there is no alert %s", alert)
}

// TestDashboardsHaveData: each query of a dashboard yields something, by promtool, from series that have the labels of the metrics, two values
// of each, and those that the query itself names.
func TestDashboardsHaveData(t *testing.T) {
	files := check.Value(filepath.Glob("../manifests/grafana/*.json"))(t)
	query, selector, matcher := regexp.MustCompile(`"expr": "((?:[^"\\]|\\.)*)"`), regexp.MustCompile(`(herald_[a-z_]+)(?:\{([^}]*)\})?`), regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
	labels := make(map[string][]string) // by metric
	for _, r := range regexp.MustCompile("(?m)^\\| `(herald_[a-z_]+)` \\| \\w+ \\| ([^|]*) \\|").FindAllStringSubmatch(string(check.Value(os.ReadFile("../docs/reference/metrics.md"))(t)), -1) {
		for _, l := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(r[2], -1) {
			labels[r[1]] = append(labels[r[1]], l[1])
		}
	}
	var tests []any
	for _, file := range files {
		for _, q := range query.FindAllStringSubmatch(string(check.Value(os.ReadFile(file))(t)), -1) {
			text := regexp.MustCompile(`\$(\w+)`).ReplaceAllString(strings.ReplaceAll(q[1], `\"`, `"`), "a-$1")
			series := make(map[string]string)
			for _, m := range selector.FindAllStringSubmatch(text, -1) {
				for n, buckets := range []string{"0.5", "+Inf"} {
					values := map[string]string{"node": fmt.Sprint("n", n)}
					for _, l := range labels[histogramName(m[1])] {
						values[l] = fmt.Sprint("value", n)
					}
					if strings.HasSuffix(m[1], "_bucket") {
						values["le"] = buckets
					}
					for _, x := range matcher.FindAllStringSubmatch(m[2], -1) {
						if x[2] == "=" || x[2] == "=~" {
							values[x[1]], _, _ = strings.Cut(x[3], "|")
						}
					}
					var pairs []string
					for k, v := range values {
						pairs = append(pairs, fmt.Sprintf("%s=%q", k, v))
					}
					slices.Sort(pairs)
					growing := "0+10x60"
					if strings.Contains(text, "== 0") {
						growing = "0x60"
					}
					series[m[1]+"{"+strings.Join(pairs, ",")+"}"] = growing
				}
			}
			var input []any
			for name, values := range series {
				input = append(input, object{"series": name, "values": values})
			}
			tests = append(tests, object{"name": text, "interval": "1m", "input_series": input, "promql_expr_test": []any{
				object{"expr": "group(" + text + ")", "eval_time": "30m", "exp_samples": []any{object{"labels": "{}", "value": 1}}},
			}})
		}
	}
	if len(tests) < 25 {
		t.Errorf("only %d queries were found", len(tests))
	}
	runPromtool(t, object{"groups": []any{}}, tests)
}
