package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/testing/check"
)

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
