package main

import (
	_ "embed"
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
	"text/template"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
)

//go:embed reference.md.tmpl
var referencePages string

// writePage writes the page of this name of reference.md.tmpl.
func writePage(w io.Writer, name string, data any) error {
	cell := strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ").Replace // keeps text to one cell, and < from being taken for HTML
	pages, err := template.New("").Funcs(template.FuncMap{"cell": cell}).Parse(referencePages)
	if err != nil {
		return err
	}
	return pages.ExecuteTemplate(w, name, data)
}

// annotationsPage writes the reference of annotations.
func annotationsPage(w io.Writer) error { return writePage(w, "annotations", kube.Annotations) }

// eventsPage writes the reference of Events and verdicts.
func eventsPage(w io.Writer) error { return writePage(w, "events", vip.Reasons) }

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
	slices.SortFunc(metrics, func(a, b metric) int { return strings.Compare(a.Name, b.Name) })
	return writePage(w, "metrics", metrics)
}

// idleNode wires a node whose API server does not exist.
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
