package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
)

const annotationsHead = `# Annotations of Services

<!-- Written by "herald docs" from the table in pkg/kube. Do not edit. -->

What Herald reads and writes on Services. A value that can't be read is told by an
Event on the Service, and harms no other. A change takes effect at once.
`

// annotationsPage writes the reference of annotations.
func annotationsPage(w io.Writer) error {
	var read, written, later [][]string
	for _, a := range kube.Annotations {
		row := []string{code(a.Key), a.Value, a.Meaning}
		switch {
		case a.Unsupported && a.Consequence != "":
			later = append(later, append(row, "Event: "+a.Consequence))
		case a.Unsupported:
			later = append(later, append(row, "no effect"))
		case a.Written:
			written = append(written, row)
		default:
			read = append(read, row)
		}
	}
	p := page{w: w}
	p.text(annotationsHead)
	p.text("\n## To be set\n\n")
	p.table([]string{"annotation", "value", "meaning"}, read)
	p.text("\n## Written by Herald\n\nThey are not for users to set.\n\n")
	p.table([]string{"annotation", "value", "meaning"}, written)
	p.text("\n## On Nodes\n\n")
	p.table([]string{"annotation", "value", "meaning"}, [][]string{
		{code("heraldvip.io/drain"), "a time", "The node carries no VIP (`herald drain`)."},
		{code("heraldvip.io/return"), "a time", "Until then the node gets back what it gave away when it was drained (`herald undrain`)."},
		{code("<annotation>/..."), "", "BGP settings of the node, below the prefix that the option `annotation` names. See [BGP](../bgp.md)."},
	})
	p.text("\n## Of kube-vip, not supported yet\n\n")
	p.table([]string{"annotation", "value", "meaning", "if set"}, later)
	return p.err
}

const eventsHead = `# Events and verdicts

<!-- Written by "herald docs" from the table in pkg/vip. Do not edit. -->

A Service's user learns what becomes of it from Events (` + "`kubectl describe service`" + `).
Each is said once for as long as it holds. Every Service of type LoadBalancer has,
besides, a verdict on every node: ` + "`/debug/plan`" + ` shows it with its message, and the
metric ` + "`herald_services`" + ` counts Services by it.
`

// eventsPage writes the reference of Events and verdicts.
func eventsPage(w io.Writer) error {
	var events, verdicts [][]string
	for _, r := range vip.Reasons {
		kind := "Normal"
		if r.Warning {
			kind = "Warning"
		}
		if r.Event {
			events = append(events, []string{code(string(r.Reason)), kind, r.Meaning})
		} else {
			verdicts = append(verdicts, []string{code(string(r.Reason)), r.Meaning})
		}
	}
	p := page{w: w}
	p.text(eventsHead)
	p.text("\n## Events\n\n")
	p.table([]string{"reason", "type", "meaning"}, events)
	p.text("\n## Verdicts that are no Events\n\n")
	p.table([]string{"reason", "meaning"}, verdicts)
	return p.err
}

const metricsHead = `# Metrics

<!-- Written by "herald docs" from the collectors of all rooms. Do not edit. -->

Served on ` + "`prometheus_server`" + ` at ` + "`/metrics`" + `, besides those of the Go runtime
(` + "`go_*`" + `) and of the process (` + "`process_*`" + `).
`

// metricsPage writes the reference of metrics: what the rooms of a node that is
// wired as usual, but runs nothing and reaches nobody, describe.
func metricsPage(w io.Writer) error {
	n, err := idleNode()
	if err != nil {
		return fmt.Errorf("can't make a node to ask for its metrics: %w", err)
	}
	var metrics []metric
	var errs []error
	for _, c := range n.collectors() {
		described, err := describeMetrics(c)
		metrics, errs = append(metrics, described...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	slices.SortFunc(metrics, func(a, b metric) int { return strings.Compare(a.name, b.name) })
	var rows [][]string
	for _, m := range metrics {
		rows = append(rows, []string{code(m.name), m.kind, code(m.labels...), m.help})
	}
	p := page{w: w}
	p.text(metricsHead + "\n")
	p.table([]string{"metric", "type", "labels", "meaning"}, rows)
	return p.err
}

// idleNode wires a node that has a way to no API server.
func idleNode() (*node, error) {
	dir, err := os.MkdirTemp("", "herald-docs")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	const nowhere = `{apiVersion: v1, kind: Config, current-context: x, contexts: [{name: x, context: {cluster: x}}], clusters: [{name: x, cluster: {server: "http://127.0.0.1:9"}}]}`
	file := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(file, []byte(nowhere), 0o600); err != nil {
		return nil, err
	}
	cfg, _, err := config.Parse(config.Sources{Hostname: "docs", Env: []string{"k8s_config_file=" + file, "vip_allow_interface_not_up=true"}})
	if err != nil {
		return nil, err
	}
	return newNode(cfg, slog.New(slog.DiscardHandler))
}

// A metric is one row of the reference.
type metric struct {
	name, kind, help string
	labels           []string
}

// What prometheus.Desc tells of itself, which is in its String alone.
var (
	descName   = regexp.MustCompile(`fqName: ("(?:[^"\\]|\\.)*")`)
	descHelp   = regexp.MustCompile(`help: ("(?:[^"\\]|\\.)*")`)
	descLabels = regexp.MustCompile(`variableLabels: \{([^}]*)\}`)
)

// describeMetrics is what a collector says of its metrics.
func describeMetrics(c prometheus.Collector) ([]metric, error) {
	all := make(chan *prometheus.Desc)
	go func() {
		defer close(all)
		c.Describe(all)
	}()
	var metrics []metric
	var errs []error
	for d := range all {
		m := metric{kind: kindOf(c)}
		text := d.String()
		name, help, labels := descName.FindStringSubmatch(text), descHelp.FindStringSubmatch(text), descLabels.FindStringSubmatch(text)
		if name == nil || help == nil || labels == nil || m.kind == "" {
			errs = append(errs, fmt.Errorf("can't read the description of a metric: %T %s", c, text))
			continue
		}
		m.name, _ = strconv.Unquote(name[1])
		m.help, _ = strconv.Unquote(help[1])
		if labels[1] != "" {
			m.labels = strings.Split(labels[1], ",")
		}
		metrics = append(metrics, m)
	}
	return metrics, errors.Join(errs...)
}

// kindOf is the type of a collector's metrics, or "".
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

// A page is Markdown on its way to w. The first error stays.
type page struct {
	w   io.Writer
	err error
}

func (p *page) text(s string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, s)
	}
}

// cell keeps text to one cell of a table, and < from being taken for HTML.
var cell = strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ")

// table writes a table.
func (p *page) table(head []string, rows [][]string) {
	p.text("| " + strings.Join(head, " | ") + " |\n|" + strings.Repeat("---|", len(head)) + "\n")
	for _, row := range rows {
		cells := make([]string, len(row))
		for i := range cells {
			cells[i] = cell.Replace(row[i])
		}
		p.text("| " + strings.Join(cells, " | ") + " |\n")
	}
}

// code sets each of words as code.
func code(words ...string) string {
	set := make([]string, len(words))
	for i, w := range words {
		set[i] = "`" + w + "`"
	}
	return strings.Join(set, ", ")
}
