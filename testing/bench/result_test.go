package main

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/lab"
)

func TestQuantiles(t *testing.T) {
	ms := func(n ...int) (ds []time.Duration) {
		for _, n := range n {
			ds = append(ds, time.Duration(n)*time.Millisecond)
		}
		return ds
	}
	var hundred, thousand []int
	for i := range 1000 {
		if i < 100 {
			hundred = append(hundred, 100-i) // not in order
		}
		thousand = append(thousand, i+1)
	}
	for _, c := range []struct {
		name string
		in   []time.Duration
		want Quantiles
	}{
		{"none", nil, Quantiles{}},
		{"one", ms(7), Quantiles{7, 7, 7}},
		{"two", ms(9, 1), Quantiles{1, 9, 9}},
		{"three", ms(3, 1, 2), Quantiles{2, 3, 3}},
		{"hundred", ms(hundred...), Quantiles{50, 99, 100}},
		{"thousand", ms(thousand...), Quantiles{500, 990, 1000}},
		{"a fraction", []time.Duration{1234 * time.Microsecond}, Quantiles{1.2, 1.2, 1.2}},
	} {
		before := append([]time.Duration(nil), c.in...)
		if d := cmp.Diff(c.want, quantiles(c.in)); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		if d := cmp.Diff(before, c.in); d != "" {
			t.Errorf("%s: the argument was changed: %s", c.name, d)
		}
	}
}

func addr(last byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 16, last}) }

func TestFaultNote(t *testing.T) {
	var f Fault
	began := time.Now()
	failures := make([]lab.Attempt, 7)
	for i := range failures {
		failures[i] = lab.Attempt{Began: began.Add(1500 * time.Millisecond), Latency: 2 * time.Second, Err: errors.New("no answer")}
	}
	f.record(
		lab.WhoHasReport{Every: 20 * time.Millisecond, Addrs: []lab.AddrReport{
			{Addr: addr(1), LongestSilence: 30 * time.Millisecond, LongestDouble: 60 * time.Millisecond},
			{Addr: addr(2), LongestSilence: 90 * time.Millisecond, LongestDouble: 20 * time.Millisecond},
		}},
		lab.ConnectReport{Began: began, Attempts: 500, Failures: failures, Max: 8 * time.Millisecond})
	line := "at 1.500 s, after 2000 ms: no answer"
	want := Fault{Watched: 2, AskedEvery: 20, LongestSilence: 90, Silence: Quantiles{30, 90, 90}, LongestDouble: 60, Connections: 500, Failed: 7, SlowestSuccess: 8,
		Failures: []string{line, line, line, line, line}}
	if d := cmp.Diff(want, f); d != "" {
		t.Error(d)
	}
}

func result(n int, p50 float64) Result {
	nodes := func(v float64) map[string]float64 { return map[string]float64{"n1": v, "n2": v / 2, "n3": v / 4} }
	return Result{Services: n, Answered: Quantiles{P50: p50}, Spread: map[string]int{"n1": 3, "n2": 4, "n3": 3},
		Steady: Steady{Requests: map[string]float64{"PUT leases": 1.6, "GET x": 0.2}, Baseline: map[string]float64{"PUT leases": 0.1},
			CPU: nodes(0.5), RSS: nodes(30), Passes: nodes(1)}}
}

func TestTable(t *testing.T) {
	r := Report{Version: "herald 1", Machine: "2 cores", Results: []Result{result(10, 50), result(100, 70), result(10, 30), result(10, 90)}}
	r.Results[1].Faults = map[string]Fault{"killed": {Owned: 34}}
	lines := map[string]string{}
	for l := range strings.Lines(r.Table()) {
		if len(l) > 64 {
			lines[strings.TrimSpace(l[:64])] = strings.Join(strings.Fields(l[64:]), " ")
		}
		if n := len(strings.TrimRight(l, "\n")); n > 110 {
			t.Errorf("%d characters wide: %s", n, l)
		}
	}
	for label, want := range map[string]string{
		"Services":                       "10 (10-10) 100",
		"Answered: P50":                  "50 (30-90) 70",
		"Spread: n2":                     "4 (4-4) 4",
		"Steady: Requests: PUT leases":   "1.6 (1.6-1.6) 1.6",
		"Steady: Baseline: PUT leases":   "0.1 (0.1-0.1) 0.1",
		"Steady: CPU: n1":                "0.5 (0.5-0.5) 0.5",
		"Steady: RSS: n1":                "30 (30-30) 30",
		"Faults: killed: Owned":          "34",
		"Faults: killed: LongestSilence": "0",
	} {
		if got, ok := lines[label]; !ok || got != want {
			t.Errorf("%q: got %q, want %q\n%s", label, got, want, r.Table())
		}
	}
}
