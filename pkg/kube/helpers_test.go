package kube

import (
	"encoding/base64"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/testing/check"
)

// compareNets lets go-cmp compare addresses.
var compareNets = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
}

// same fails the test, with what they are, if two values differ.
func same(t testing.TB, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, compareNets, cmp.Options(options)); diff != "" {
		t.Errorf("%s -want +got:\n%s", what, diff)
	}
}

// sum adds up a metric over all its label values that contain label.
func sum(t testing.TB, from []prometheus.Collector, name, label string) float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(from...)
	families, err := r.Gather()
	check.OK(t, err)
	total := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if l.GetValue() == label {
					total += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
	}
	return total
}

func base64Of(b []byte) string { return base64.StdEncoding.EncodeToString(b) }
