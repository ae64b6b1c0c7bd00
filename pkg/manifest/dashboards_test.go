package manifest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

// A dashboard is a dashboard of Grafana.
type dashboard struct {
	uid, title string
	variables  []variable
	panels     []panel
}

// A variable is a choice at the top of a dashboard: the values of a label of a metric.
type variable struct{ name, metric, label string }

// A panel shows queries, each with a legend.
type panel struct {
	title, help string
	kind        string // timeseries, stat or table
	unit        string // of Grafana; "" is a number
	width       int    // of 24
	queries     [][2]string
}

// dashboards are the dashboards of manifests/grafana, by file.
var dashboards = map[string]dashboard{
	"grafana/fleet.json": {uid: "herald-fleet", title: "Herald: all nodes", panels: []panel{
		{"Services announced", "Services that a node announces.", "stat", "", 4, [][2]string{{`sum(herald_services{verdict="VIPAnnounced"})`, "announced"}}},
		{"Services without a VIP", "By reason. herald status names them.", "stat", "", 8, [][2]string{{`max by (verdict) (herald_services{verdict!~"VIPAnnounced|VIPElsewhere|VIPClaiming|OtherClass|Ignored|NotLoadBalancer"}) > 0`, "{{verdict}}"}}},
		{"VIPs with a problem", "Found by ARP and NDP.", "stat", "", 6, [][2]string{{`max by (problem) (herald_vip_problems) > 0`, "{{problem}}"}}},
		{"Nodes without the API server", "It is out of reach, or refuses them.", "stat", "", 3, [][2]string{{`count(min by (node) (increase(herald_node_lease_renewals_total{result="ok"}[3m])) == 0) or vector(0)`, "nodes"}}},
		{"Nodes without heartbeats", "", "stat", "", 3, [][2]string{{`count(herald_peers_on == 0) or vector(0)`, "nodes"}}},
		{"VIPs owned", "Where VIPs are.", "timeseries", "", 12, [][2]string{{`herald_claims_held`, "{{node}}"}}},
		{"Writes of the table a minute", "One write has any number of changes: Services that are new, deleted or withdrawn, and moves.", "timeseries", "", 12, [][2]string{{`sum by (result) (rate(herald_table_writes_total[5m])) * 60`, "{{result}}"}}},
		{"Outage of a move", "The time in which nobody answered.", "timeseries", "s", 12, [][2]string{
			{`histogram_quantile(0.5, sum by (le) (rate(herald_vip_outage_seconds_bucket[15m])))`, "half"}, {`histogram_quantile(0.99, sum by (le) (rate(herald_vip_outage_seconds_bucket[15m])))`, "99 %"},
		}},
		{"Addresses of pools", "", "timeseries", "percentunit", 12, [][2]string{{`max by (pool, family) (herald_pool_addresses_used) / max by (pool, family) (herald_pool_addresses)`, "{{pool}} {{family}}"}}},
		{"BGP sessions down", "", "timeseries", "", 12, [][2]string{{`herald_bgp_session_up == 0`, "{{node}} {{peer}}"}}},
		{"Versions", "", "table", "", 12, [][2]string{{`count by (version) (herald_build_info)`, "{{version}}"}}},
	}},
	"grafana/node.json": {uid: "herald-node", title: "Herald: a node", variables: []variable{{"node", "herald_build_info", "node"}}, panels: []panel{
		{"VIPs owned", "", "stat", "", 4, [][2]string{{`herald_claims_held{node="$node"}`, "held"}}},
		{"API server", "1 if it answers.", "stat", "", 4, [][2]string{{`herald_api_reachable{node="$node"}`, "reachable"}}},
		{"Heartbeats", "1 if they are exchanged.", "stat", "", 4, [][2]string{{`herald_peers_on{node="$node"}`, "on"}}},
		{"Data plane fault", "1 if packets to VIPs would not be forwarded.", "stat", "", 4, [][2]string{{`herald_data_plane_fault{node="$node"}`, "fault"}}},
		{"Node lease lost", "In the last day.", "stat", "", 8, [][2]string{{`increase(herald_node_lease_lost_total{node="$node"}[1d])`, "times"}}},
		{"Other nodes by heartbeats", "", "timeseries", "", 12, [][2]string{{`sum by (state) (herald_peers_state{node="$node"})`, "{{state}}"}}},
		{"Renewals of the node lease a second", "", "timeseries", "", 12, [][2]string{{`rate(herald_node_lease_renewals_total{node="$node"}[5m])`, "{{result}}"}}},
		{"Addresses", "", "timeseries", "", 12, [][2]string{{`herald_addresses{node="$node"}`, "bound"}, {`rate(herald_addresses_bound_total{node="$node"}[5m]) * 60`, "bound a minute"}, {`rate(herald_addresses_removed_total{node="$node"}[5m]) * 60`, "removed a minute"}}},
		{"Announcements a second", "", "timeseries", "", 12, [][2]string{{`rate(herald_announcements_sent_total{node="$node"}[5m])`, "sent, {{family}}"}, {`rate(herald_announcement_errors_total{node="$node"}[5m])`, "failed, {{family}}"}}},
		{"Time of a pass", "99 of 100 passes take no longer.", "timeseries", "s", 12, [][2]string{{`histogram_quantile(0.99, sum by (le) (rate(herald_pass_duration_seconds_bucket{node="$node"}[5m])))`, "99 %"}}},
		{"Requests to the API server a second", "", "timeseries", "", 12, [][2]string{{`sum by (verb, resource) (rate(herald_api_requests_total{node="$node"}[5m]))`, "{{verb}} {{resource}}"}}},
	}},
	"grafana/service.json": {uid: "herald-service", title: "Herald: a Service", variables: []variable{{"namespace", "herald_service_announced", "service_namespace"}, {"service", `herald_service_announced{service_namespace="$namespace"}`, "service"}}, panels: []panel{
		{"Announced by", "The nodes that announce it: one, for a moment two while it moves. By BGP without svc_election all that can.", "timeseries", "", 16, [][2]string{{`herald_service_announced{service_namespace="$namespace",service="$service"}`, "{{node}}"}}},
		{"Nodes", "", "stat", "", 8, [][2]string{{`sum(herald_service_announced{service_namespace="$namespace",service="$service"}) or vector(0)`, "nodes"}}},
		{"Moves of the last day", "A node that gets it for the first time since its Herald began does not count.", "stat", "", 8, [][2]string{{`sum(increase(herald_vip_moves_total{service_namespace="$namespace",service="$service"}[1d])) or vector(0)`, "moves"}}},
	}},
}

// json returns the dashboard as Grafana imports it (its JSON model, schema version 39).
func (d dashboard) json(t *testing.T) string {
	type object = map[string]any
	source := object{"type": "prometheus", "uid": "${datasource}"}
	variables := []any{object{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}}
	for _, v := range d.variables {
		query := "label_values(" + v.metric + ", " + v.label + ")"
		variables = append(variables, object{"name": v.name, "type": "query", "datasource": source, "query": object{"query": query, "refId": v.name}, "definition": query, "refresh": 2, "sort": 1})
	}
	const height = 7
	var panels []any
	x, y := 0, 0
	for i, p := range d.panels {
		if x+p.width > 24 {
			x, y = 0, y+height
		}
		var targets []any
		for j, q := range p.queries {
			targets = append(targets, object{"refId": string(rune('A' + j)), "expr": q[0], "legendFormat": q[1], "datasource": source, "instant": p.kind == "table", "format": map[bool]string{true: "table", false: "time_series"}[p.kind == "table"]})
		}
		panels = append(panels, object{
			"id": i + 1, "type": p.kind, "title": p.title, "description": p.help, "datasource": source, "targets": targets,
			"gridPos": object{"x": x, "y": y, "w": p.width, "h": height}, "fieldConfig": object{"defaults": object{"unit": p.unit, "min": 0}, "overrides": []any{}},
		})
		x += p.width
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	check.OK(t, e.Encode(object{
		"uid": d.uid, "title": d.title, "tags": []string{"herald"}, "schemaVersion": 39, "editable": true, "refresh": "30s",
		"time": object{"from": "now-6h", "to": "now"}, "templating": object{"list": variables}, "panels": panels,
	}))
	return b.String()
}
