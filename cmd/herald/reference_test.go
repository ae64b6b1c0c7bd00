package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"text/template"

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
