package testing_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/testing/check"
)

// An alertGroup is a group of a PrometheusRule.
type alertGroup struct {
	Rules []struct {
		Alert, Expr, For string
		Annotations      map[string]string
	}
}

// alertGroups returns the groups of a file of the component alerts.
func alertGroups(t *testing.T, file string) []alertGroup {
	var rule struct{ Spec struct{ Groups []alertGroup } }
	check.OK(t, yaml.Unmarshal(check.Value(os.ReadFile("../manifests/components/alerts/"+file))(t), &rule))
	return rule.Spec.Groups
}

// TestAlerts: each alert asks for metrics that exist, says what to do, and names a heading of the documentation.
func TestAlerts(t *testing.T) {
	var groups []alertGroup
	for _, file := range []string{"alerts.yaml", "nodes.yaml"} {
		groups = append(groups, alertGroups(t, file)...)
	}
	metrics := string(check.Value(os.ReadFile("../docs/reference/metrics.md"))(t))
	n := 0
	for _, g := range groups {
		for _, r := range g.Rules {
			n++
			names := regexp.MustCompile(`herald_[a-z_]+`).FindAllString(r.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%s asks for nothing: %s", r.Alert, r.Expr)
			}
			for _, name := range names {
				name = histogramName(name)
				if !strings.Contains(metrics, "| `"+name+"` |") {
					t.Errorf("%s: there is no metric %s", r.Alert, name)
				}
			}
			for _, key := range []string{"summary", "description", "runbook_url"} {
				if r.Annotations[key] == "" {
					t.Errorf("%s has no %s", r.Alert, key)
				}
			}
			page, ok := strings.CutPrefix(r.Annotations["runbook_url"], "https://github.com/heraldvip/herald/blob/main/")
			file, anchor, _ := strings.Cut(page, "#")
			if text, err := os.ReadFile("../" + file); !ok || err != nil || !slices.Contains(anchors(string(text)), anchor) {
				t.Errorf("%s: there is no %s", r.Alert, r.Annotations["runbook_url"])
			}
		}
	}
	if n == 0 {
		t.Error("there are no alerts")
	}
}

// TestLabels: no metric has a label that the Prometheus operator gives what it scrapes of a Pod: it would be renamed to exported_..., and a
// dashboard would ask for another. "node" of metrics about another node is, on purpose: rules ask for the node that is scraped.
func TestLabels(t *testing.T) {
	rows := regexp.MustCompile("(?m)^\\| `(herald_[a-z_]+)` \\| \\w+ \\| ([^|]*) \\|").FindAllStringSubmatch(string(check.Value(os.ReadFile("../docs/reference/metrics.md"))(t)), -1)
	if len(rows) < 30 {
		t.Errorf("only %d metrics were looked at", len(rows))
	}
	for _, r := range rows {
		for _, label := range []string{"namespace", "pod", "container", "endpoint", "job", "instance"} {
			if strings.Contains(r[2], "`"+label+"`") {
				t.Errorf("%s has the label %s", r[1], label)
			}
		}
	}
}

// TestDashboards: every query of a dashboard names metrics that exist, and labels that they have.
func TestDashboards(t *testing.T) {
	files, err := filepath.Glob("../manifests/grafana/*.json")
	if err != nil || len(files) != 3 {
		t.Fatalf("%v: %d dashboards, want 3", err, len(files))
	}
	rows := regexp.MustCompile("(?m)^\\| `(herald_[a-z_]+)` \\| \\w+ \\| ([^|]*) \\|").FindAllStringSubmatch(string(check.Value(os.ReadFile("../docs/reference/metrics.md"))(t)), -1)
	labels := make(map[string]string)
	for _, r := range rows {
		labels[r[1]] = r[2] + "`node` `le`" // which Prometheus adds
	}
	query, metric, label := regexp.MustCompile(`"(?:expr|query)": "((?:[^"\\]|\\.)*)"`), regexp.MustCompile(`(herald_[a-z_]+)(?:\{([^}]*)\})?`), regexp.MustCompile(`(\w+)(?:=~|!~|!=|=)`)
	for _, file := range files {
		queries := query.FindAllStringSubmatch(string(check.Value(os.ReadFile(file))(t)), -1)
		if len(queries) < 3 {
			t.Errorf("%s has %d queries", file, len(queries))
		}
		for _, q := range queries {
			for _, m := range metric.FindAllStringSubmatch(strings.ReplaceAll(q[1], `\"`, `'`), -1) {
				name := histogramName(m[1])
				known, ok := labels[name]
				if !ok {
					t.Errorf("%s: there is no metric %s", file, name)
				}
				for _, l := range label.FindAllStringSubmatch(m[2], -1) {
					if !strings.Contains(known, "`"+l[1]+"`") {
						t.Errorf("%s: %s has no label %s", file, name, l[1])
					}
				}
			}
		}
	}
}

// histogramName returns the name of the histogram whose series has that name, or the name itself.
func histogramName(series string) string {
	return regexp.MustCompile(`^(herald_(?:vip_outage|pass_duration)_seconds)_(?:count|bucket|sum)$`).ReplaceAllString(series, "$1")
}
