package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/template"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestReference: the pages of docs/reference follow from the code. Those of options and of RBAC
// are compared by the tests of pkg/config and pkg/manifest.
func TestReference(t *testing.T) {
	const reference = "../../docs/reference"
	known := []string{"options.md", "rbac.md"}
	for file, page := range map[string]string{
		"annotations.md": annotationsPage(t),
		"events.md":      eventsPage(t),
		"kube-vip.md":    kubeVIPPage(t),
		"metrics.md":     metricsPage(t),
	} {
		known = append(known, file)
		check.Golden(t, filepath.Join(reference, file), page)
	}
	entries, err := os.ReadDir(reference)
	check.OK(t, err)
	for _, e := range entries {
		if !slices.Contains(known, e.Name()) {
			t.Errorf("%s/%s is written by nothing", reference, e.Name())
		}
	}
}

// TestReferenceIsComplete: each page has a row for whatever its room has.
func TestReferenceIsComplete(t *testing.T) {
	rows := func(page string) map[string]string {
		rows := map[string]string{}
		for line := range strings.Lines(page) {
			if _, rest, ok := strings.Cut(line, "| `"); ok {
				name, rest, _ := strings.Cut(rest, "` |")
				rows[name] = rest
			}
		}
		return rows
	}
	missing := func(page string, rows map[string]string, name string) {
		t.Helper()
		if rows[name] == "" {
			t.Errorf("%s has no row for %s", page, name)
		}
	}

	annotations := rows(annotationsPage(t))
	for _, a := range kube.Annotations {
		missing("annotations.md", annotations, a.Key)
	}
	events := rows(eventsPage(t))
	for _, r := range vip.Reasons {
		missing("events.md", events, string(r.Reason))
		if warns := strings.HasPrefix(events[string(r.Reason)], " Warning | "); warns != (r.Event && r.Warning) {
			t.Errorf("events.md: %s is%s", r.Reason, events[string(r.Reason)])
		}
	}
	metrics := rows(metricsPage(t))
	for _, name := range []string{"herald_claims_held", "herald_pass_duration_seconds", "herald_addresses", "herald_announcements_sent_total", "herald_api_requests_total"} {
		missing("metrics.md", metrics, name) // one of each room
	}
	if got := metrics["herald_table_writes_total"]; !strings.HasPrefix(got, " counter | `result` | ") {
		t.Errorf("metrics.md: herald_table_writes_total is%s", got)
	}
}

func TestPage(t *testing.T) {
	got := writePage(t, "annotations", []kube.Annotation{{Key: "x", Value: "1|2\n3", Meaning: "<p>"}})
	const want = "\n|---|---|---|\n| `x` | 1\\|2 3 | &lt;p> |\n\n## Written"
	if !strings.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, got)
	}
}

// writePage returns the page of this name of testdata/reference.md.tmpl.
func writePage(t *testing.T, name string, data any) string {
	t.Helper()
	cell := strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace // keeps text to one cell, and < from being taken for HTML
	pages := template.Must(template.New("").Funcs(template.FuncMap{"cell": cell}).ParseFiles("testdata/reference.md.tmpl"))
	var b strings.Builder
	check.OK(t, pages.ExecuteTemplate(&b, name, data))
	return b.String()
}

// annotationsPage returns the reference of annotations.
func annotationsPage(t *testing.T) string { return writePage(t, "annotations", kube.Annotations) }

// eventsPage returns the reference of Events and verdicts.
func eventsPage(t *testing.T) string { return writePage(t, "events", vip.Reasons) }

// metricsPage returns the reference of metrics: what the rooms of a node that is
// wired as usual, but runs nothing and reaches nobody, describe.
func metricsPage(t *testing.T) string {
	t.Helper()
	var metrics []metric
	for _, c := range idleNode(t).collectors() {
		described, err := describeMetrics(c)
		check.OK(t, err)
		metrics = append(metrics, described...)
	}
	slices.SortFunc(metrics, func(a, b metric) int { return strings.Compare(a.Name, b.Name) })
	return writePage(t, "metrics", metrics)
}

// TestMetricNames: names are of one kind, and each metric explains itself.
func TestMetricNames(t *testing.T) {
	for _, c := range idleNode(t).collectors() {
		all, err := describeMetrics(c)
		if err != nil {
			t.Error(err)
		}
		for _, m := range all {
			if !strings.HasPrefix(m.Name, "herald_") || (m.Kind == "counter") != strings.HasSuffix(m.Name, "_total") {
				t.Errorf("%s is no name for a %s", m.Name, m.Kind)
			}
			if !strings.HasSuffix(m.Help, ".") {
				t.Errorf("%s: help %q is no full sentence", m.Name, m.Help)
			}
		}
	}
}

// idleNode wires a node whose API server does not exist.
func idleNode(t *testing.T) *node {
	t.Helper()
	const nowhere = `{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x}}], clusters: [{name: x, cluster: {server: "http://127.0.0.1:9"}}]}`
	file := filepath.Join(t.TempDir(), "kubeconfig")
	check.OK(t, os.WriteFile(file, []byte(nowhere), 0o600))
	cfg, _, err := config.Parse(config.Sources{Hostname: "docs", Env: []string{"k8s_config_file=" + file, "vip_allow_interface_not_up=true"}})
	check.OK(t, err)
	return check.Value(newNode(t.Context(), cfg, slog.New(slog.DiscardHandler)))(t)
}

// A metric is one row of the reference.
type metric struct {
	Name, Kind, Help string
	Labels           []string
}

// What a prometheus.Desc contains, which only its String returns.
var (
	descName   = regexp.MustCompile(`fqName: ("(?:[^"\\]|\\.)*")`)
	descHelp   = regexp.MustCompile(`help: ("(?:[^"\\]|\\.)*")`)
	descLabels = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
)

// describeMetrics returns the metrics of a collector. A description that can't be parsed is an error.
func describeMetrics(c prometheus.Collector) ([]metric, error) {
	all := make(chan *prometheus.Desc)
	go func() {
		defer close(all)
		c.Describe(all)
	}()
	var metrics []metric
	var errs []error
	for d := range all {
		m := metric{Kind: kindOf(c)}
		text := d.String()
		name, help, labels := descName.FindStringSubmatch(text), descHelp.FindStringSubmatch(text), descLabels.FindStringSubmatch(text)
		if name == nil || help == nil || labels == nil || m.Kind == "" {
			errs = append(errs, fmt.Errorf("can't read the description of a metric: %T %s", c, text))
			continue
		}
		m.Name, _ = strconv.Unquote(name[1])
		m.Help, _ = strconv.Unquote(help[1])
		if labels[1] != "" {
			m.Labels = strings.Split(labels[1], ",")
		}
		metrics = append(metrics, m)
	}
	return metrics, errors.Join(errs...)
}

// kindOf returns the type of a collector's metrics, or "" if it is none of ours.
func kindOf(c prometheus.Collector) string {
	switch c.(type) {
	case prometheus.Gauge, *prometheus.GaugeVec: // before Counter, whose methods a Gauge has as well
		return "gauge"
	case prometheus.Counter, *prometheus.CounterVec:
		return "counter"
	case prometheus.Histogram, *prometheus.HistogramVec:
		return "histogram"
	}
	return ""
}
