package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// A Report is all that was measured.
type Report struct {
	Began   time.Time
	Machine string
	Version string
	Results []Result
}

// A Result is one run. Times are in milliseconds.
type Result struct {
	Services int
	Nodes    int

	// From the moment the client sent the Service to the API server until
	// somebody answered for its VIP, and the part of it after the Service's
	// endpoints were ready, which Herald waits for.
	Answered, AfterEndpoints Quantiles
	AskedEvery               float64 // the limit of the error of the times above
	CreatedAll, AnsweredAll  float64 // since the first was sent
	StatusAll                float64
	QuietAfter               float64 // until the last write of all this

	// The same of Services that were created one by one, besides those.
	Single, SingleAfterEndpoints Quantiles

	Spread map[string]int // VIPs by node

	Steady   Steady
	Faults   map[string]Fault   // by what was done to an owner
	PassMean map[string]float64 // by node: how long a pass of the agent took while all this came up
}

// Quantiles of some durations, in milliseconds.
type Quantiles struct{ P50, P99, Max float64 }

// Steady is what Herald does while nothing changes.
type Steady struct {
	Seconds  float64
	Requests map[string]float64 // per second, by "VERB resource"
	Baseline map[string]float64 // the same, before Herald was started
	Frames   float64            // per second, that every host of the LAN receives
	CPU      map[string]float64 // by node, per cent of a core
	RSS      map[string]float64 // by node, MiB
	Passes   map[string]float64 // by node, per second
}

// A Fault is what the probers saw of VIPs of one owner.
type Fault struct {
	Owned          int // VIPs of that owner
	Watched        int // that were probed
	AskedEvery     float64
	LongestSilence float64
	Silence        Quantiles // by VIP: its longest time without an answer
	Gone           int       // how many of its VIPs it had no more at the end
	LongestDouble  float64
	Connections    int
	Failed         int
	SlowestSuccess float64
	Held           int      // connections that began before the fault and were asked after it
	Broken         int      // of those, the ones that did not outlive it
	AllMoved       float64  // until other nodes\' kernels had all of its VIPs
	Failures       []string `json:",omitempty"` // the first few, with the time since the probers started
}

// quantiles of durations; none make zeros.
func quantiles(ds []time.Duration) Quantiles {
	if len(ds) == 0 {
		return Quantiles{}
	}
	ds = slices.Sorted(slices.Values(ds))
	// Nearest rank: the least value that is at least as great as q of them all.
	at := func(q int) float64 { return millis(ds[(len(ds)*q+99)/100-1]) }
	return Quantiles{P50: at(50), P99: at(99), Max: millis(ds[len(ds)-1])}
}

func millis(d time.Duration) float64 {
	return float64(d.Round(100*time.Microsecond)) / float64(time.Millisecond)
}

// rates is what was counted per second.
func rates(counts map[string]float64, over time.Duration) map[string]float64 {
	r := make(map[string]float64, len(counts))
	for k, n := range counts {
		r[k] = n / over.Seconds()
	}
	return r
}

// byName prints figures by node.
func byName(m map[string]float64) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		all = append(all, fmt.Sprintf("%s %.2f", k, m[k]))
	}
	return strings.Join(all, ", ")
}

func total(m map[string]float64) float64 {
	sum := 0.0
	for _, k := range slices.Sorted(maps.Keys(m)) {
		sum += m[k]
	}
	return sum
}

// record stores what the probers saw.
func (f *Fault) record(w lab.WhoHasReport, c lab.ConnectReport) {
	f.Watched, f.AskedEvery = len(w.Addrs), millis(w.Every)
	var silence []time.Duration
	for _, a := range w.Addrs {
		silence = append(silence, a.LongestSilence)
		f.LongestSilence = max(f.LongestSilence, millis(a.LongestSilence))
		f.LongestDouble = max(f.LongestDouble, millis(a.LongestDouble))
	}
	f.Silence = quantiles(silence)
	f.Connections, f.Failed, f.SlowestSuccess = c.Attempts, len(c.Failures), millis(c.Max)
	for _, x := range c.Failures[:min(5, len(c.Failures))] {
		f.Failures = append(f.Failures, fmt.Sprintf("at %.3f s, after %.0f ms: %v", x.Began.Sub(c.Began).Seconds(),
			millis(x.Latency), x.Err))
	}
}

// Table is the report as a person reads it: a line for each number, named by its path in the report, and a column for
// each number of Services. Of several runs it has the median, and the range.
func (r Report) Table() string {
	var sizes []int
	var paths []string
	values := map[string]map[int][]float64{} // by path and size
	for _, x := range r.Results {
		if !slices.Contains(sizes, x.Services) {
			sizes = append(sizes, x.Services)
		}
		numbers(reflect.ValueOf(x), nil, func(path string, n float64) {
			if values[path] == nil {
				paths, values[path] = append(paths, path), map[int][]float64{}
			}
			values[path][x.Services] = append(values[path][x.Services], n)
		})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s, %s\n\n", r.Version, r.Machine, r.Began.Format("2006-01-02"))
	for _, path := range paths {
		fmt.Fprintf(&b, "%-64s", path)
		for _, n := range sizes {
			fmt.Fprintf(&b, "  %16s", cell(values[path][n]))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// numbers calls add with each number in v and the names that lead to it: of fields, in their order, and keys.
func numbers(v reflect.Value, path []string, add func(path string, n float64)) {
	path = slices.Clip(path)
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			numbers(v.Field(i), append(path, v.Type().Field(i).Name), add)
		}
	case reflect.Map:
		keys := v.MapKeys()
		slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, k := range keys {
			numbers(v.MapIndex(k), append(path, k.String()), add)
		}
	case reflect.Int:
		add(strings.Join(path, ": "), float64(v.Int()))
	case reflect.Float64:
		add(strings.Join(path, ": "), v.Float())
	}
}

// cell is the value of the runs of one size, "" without any.
func cell(runs []float64) string {
	if len(runs) == 0 {
		return ""
	}
	all := slices.Sorted(slices.Values(runs))
	text := fmt.Sprintf("%.4g", all[(len(all)-1)/2])
	if len(all) > 1 {
		text += fmt.Sprintf(" (%.4g-%.4g)", all[0], all[len(all)-1])
	}
	return text
}
