package main

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func TestDescribeMetrics(t *testing.T) {
	tests := []struct {
		collector prometheus.Collector
		want      metric
	}{
		{
			prometheus.NewCounter(prometheus.CounterOpts{Name: "a_total", Help: "Says \"a\", {b} and c|d."}),
			metric{Name: "a_total", Kind: "counter", Help: "Says \"a\", {b} and c|d."},
		},
		{
			prometheus.NewGauge(prometheus.GaugeOpts{Name: "b", Help: "B."}),
			metric{Name: "b", Kind: "gauge", Help: "B."},
		},
		{
			prometheus.NewHistogram(prometheus.HistogramOpts{Name: "c_seconds", Help: "C."}),
			metric{Name: "c_seconds", Kind: "histogram", Help: "C."},
		},
		{
			prometheus.NewCounterVec(prometheus.CounterOpts{Name: "d_total", Help: "D.", ConstLabels: prometheus.Labels{"x": "y"}}, []string{"one", "two"}),
			metric{Name: "d_total", Kind: "counter", Help: "D.", Labels: []string{"one", "two"}},
		},
		{
			prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "e", Help: "E."}, []string{"one"}),
			metric{Name: "e", Kind: "gauge", Help: "E.", Labels: []string{"one"}},
		},
		{
			prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "f", Help: "F."}, []string{"one"}),
			metric{Name: "f", Kind: "histogram", Help: "F.", Labels: []string{"one"}},
		},
	}
	for _, tt := range tests {
		got, err := describeMetrics(tt.collector)
		if err != nil {
			t.Errorf("%s: %v", tt.want.Name, err)
		}
		if diff := cmp.Diff([]metric{tt.want}, got); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
	if got, err := describeMetrics(collectors.NewBuildInfoCollector()); err == nil {
		t.Errorf("a type the page does not know became %v", got)
	}
}

// TestReferenceIsComplete: each page has a row for whatever its room has.
func TestReferenceIsComplete(t *testing.T) {
	rows := func(write func(io.Writer) error) map[string]string {
		var b bytes.Buffer
		check.OK(t, write(&b))
		rows := map[string]string{}
		for line := range strings.Lines(b.String()) {
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

	annotations := rows(annotationsPage)
	for _, a := range kube.Annotations {
		missing("annotations.md", annotations, a.Key)
	}
	events := rows(eventsPage)
	for _, r := range vip.Reasons {
		missing("events.md", events, string(r.Reason))
		if warns := strings.HasPrefix(events[string(r.Reason)], " Warning | "); warns != (r.Event && r.Warning) {
			t.Errorf("events.md: %s is%s", r.Reason, events[string(r.Reason)])
		}
	}
	metrics := rows(metricsPage)
	for _, name := range []string{"herald_claims_held", "herald_pass_duration_seconds", "herald_addresses", "herald_announcements_sent_total", "herald_api_requests_total"} {
		missing("metrics.md", metrics, name) // one of each room
	}
	if got := metrics["herald_vip_lease_writes_total"]; !strings.HasPrefix(got, " counter | `action`, `result` | ") {
		t.Errorf("metrics.md: herald_vip_lease_writes_total is%s", got)
	}
}

// TestMetricNames: names are of one kind, and each metric explains itself.
func TestMetricNames(t *testing.T) {
	n, err := idleNode()
	check.OK(t, err)
	for _, c := range n.collectors() {
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

func TestPage(t *testing.T) {
	var b bytes.Buffer
	err := writePage(&b, "annotations", []kube.Annotation{{Key: "x", Value: "1|2\n3", Meaning: "<p>"}})
	const want = "\n|---|---|---|\n| `x` | 1\\|2 3 | &lt;p> |\n\n## Written"
	if err != nil || !strings.Contains(b.String(), want) {
		t.Errorf("%v\nno %q in\n%s", err, want, &b)
	}
	for name, write := range map[string]func(io.Writer) error{"annotations": annotationsPage, "events": eventsPage, "metrics": metricsPage} {
		full := errors.New("no space left")
		if err := write(broken{full}); !errors.Is(err, full) {
			t.Errorf("%s: %v, want the error of the writer", name, err)
		}
	}
}

// broken is a writer that takes nothing.
type broken struct{ err error }

func (b broken) Write([]byte) (int, error) { return 0, b.err }
