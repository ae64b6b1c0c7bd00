// Package metric makes the metrics of a room, and lists them.
package metric

import "github.com/prometheus/client_golang/prometheus"

// A Set is the metrics of a room, which embeds it.
type Set struct{ all []prometheus.Collector }

// Collectors returns the metrics, to be registered.
func (s *Set) Collectors() []prometheus.Collector { return s.all }

// Add adds c to s, and returns it.
func Add[C prometheus.Collector](s *Set, c C) C {
	s.all = append(s.all, c)
	return c
}

// Gauge adds a gauge to s.
func Gauge(s *Set, name, help string) prometheus.Gauge {
	return Add(s, prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help}))
}

// Counter adds a counter to s.
func Counter(s *Set, name, help string) prometheus.Counter {
	return Add(s, prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help}))
}

// Gauges adds gauges by labels to s.
func Gauges(s *Set, name, help string, labels ...string) *prometheus.GaugeVec {
	return Add(s, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// Counters adds counters by labels to s.
func Counters(s *Set, name, help string, labels ...string) *prometheus.CounterVec {
	return Add(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

// CountersOf adds counters by one label to s, and begins those of values: a series that begins with its first error
// hides that from rate().
func CountersOf(s *Set, name, help, label string, values ...string) *prometheus.CounterVec {
	v := Counters(s, name, help, label)
	for _, value := range values {
		v.WithLabelValues(value)
	}
	return v
}
