package main

import (
	"encoding/json"
	"errors"
	"math"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
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

func TestRates(t *testing.T) {
	got := rates(map[string]float64{"PUT leases": 45, "GET x": 3}, 30*time.Second)
	if d := cmp.Diff(map[string]float64{"PUT leases": 1.5, "GET x": 0.1}, got); d != "" {
		t.Error(d)
	}
	if sum := total(got); math.Abs(sum-1.6) > 1e-9 {
		t.Errorf("total is %v, want 1.6", sum)
	}
}

func TestByName(t *testing.T) {
	if got, want := byName(map[string]float64{"n2": 2, "n1": 0.5}), "n1 0.50, n2 2.00"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestParseSizes(t *testing.T) {
	got, err := parseSizes("10, 100,1000")
	if d := cmp.Diff([]int{10, 100, 1000}, got); err != nil || d != "" {
		t.Error(err, d)
	}
	for _, bad := range []string{"", "10,", "ten", "-5", "2", "5000"} {
		if got, err := parseSizes(bad); err == nil || !strings.Contains(err.Error(), "--services") {
			t.Errorf("parseSizes(%q) = %v, %v; want an error that names the flag", bad, got, err)
		}
	}
}

func TestMetric(t *testing.T) {
	text := "# HELP a_sum x\na_sum 1.5\na_sum_of_all 9\na_count 3\nb{x=\"a_sum \"} 7\n"
	for name, want := range map[string]float64{"a_sum": 1.5, "a_count": 3} {
		if got, err := metric(text, name); err != nil || got != want {
			t.Errorf("%s: got %v, %v, want %v", name, got, err, want)
		}
	}
	if _, err := metric(text, "missing"); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("got %v, want an error that names the metric", err)
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

// Everything in the report can be read back from what is written.
func TestJSON(t *testing.T) {
	want := Report{Began: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Version: "v", Machine: "m", Results: []Result{result(10, 5)}}
	text, err := json.Marshal(want)
	check.OK(t, err)
	var got Report
	check.OK(t, json.Unmarshal(text, &got))
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Flags that can't be defined, or a wrong one, are found before anything is built or brought up.
func TestFlags(t *testing.T) {
	if err := run(t.Context(), []string{"-no-such-flag"}); err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("got %v", err)
	}
}
