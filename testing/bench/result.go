package main

import (
	"fmt"
	"maps"
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
	NoFault  Fault
	Stopped  Fault
	Killed   Fault
	Faults   map[string]Fault   // the others, by what was done to an owner
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
	Held           int                // connections that began before the fault and were asked after it
	Broken         int                // of those, the ones that did not outlive it
	AllMoved       float64            // until other nodes' kernels had all of its VIPs
	KernelDropped  float64            // until its own kernel had none
	Ended          float64            // until the process had
	TakenOver      Quantiles          // by VIP: until another node answered
	Requests       map[string]float64 // that the API server answered meanwhile, by "VERB resource"
	Failures       []string           `json:",omitempty"` // the first few, with the time since the probers started
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
		f.Failures = append(f.Failures, fmt.Sprintf("at %.3f s, after %.0f ms: %v", x.Began.Sub(c.Began).Seconds(), millis(x.Latency), x.Err))
	}
}

// A row of the table: a label, and its value of a result.
type row struct {
	label   string
	value   func(Result) float64
	format  string // of fmt, for one value
	ofFault bool   // of one of the lab
}

var rows = []row{
	{"created until answered, p50 (ms)", func(r Result) float64 { return r.Answered.P50 }, "%.0f", false},
	{"                        p99", func(r Result) float64 { return r.Answered.P99 }, "%.0f", false},
	{"                        max", func(r Result) float64 { return r.Answered.Max }, "%.0f", false},
	{"  of that after its endpoints were ready, p50", func(r Result) float64 { return r.AfterEndpoints.P50 }, "%.0f", false},
	{"                                          p99", func(r Result) float64 { return r.AfterEndpoints.P99 }, "%.0f", false},
	{"                                          max", func(r Result) float64 { return r.AfterEndpoints.Max }, "%.0f", false},
	{"  each asked for every", func(r Result) float64 { return r.AskedEvery }, "%.0f", false},
	{"all created after (ms)", func(r Result) float64 { return r.CreatedAll }, "%.0f", false},
	{"all answered after", func(r Result) float64 { return r.AnsweredAll }, "%.0f", false},
	{"all statuses written after", func(r Result) float64 { return r.StatusAll }, "%.0f", false},
	{"last write after (Events)", func(r Result) float64 { return r.QuietAfter }, "%.0f", false},
	{"one more created until answered, p50 (ms)", func(r Result) float64 { return r.Single.P50 }, "%.0f", false},
	{"                                 max", func(r Result) float64 { return r.Single.Max }, "%.0f", false},
	{"  of that after its endpoints were ready, p50", func(r Result) float64 { return r.SingleAfterEndpoints.P50 }, "%.0f", false},
	{"                                          max", func(r Result) float64 { return r.SingleAfterEndpoints.Max }, "%.0f", false},
	{"VIPs per node, max", func(r Result) float64 { return float64(slices.Max(values(r.Spread))) }, "%.0f", false},
	{"               min", func(r Result) float64 { return float64(slices.Min(values(r.Spread))) }, "%.0f", false},
	{},
	{"steady: API requests/s", func(r Result) float64 { return total(r.Steady.Requests) }, "%.2f", false},
	{"  without Herald", func(r Result) float64 { return total(r.Steady.Baseline) }, "%.2f", false},
	{"  frames/s that every host of the LAN receives", func(r Result) float64 { return r.Steady.Frames }, "%.1f", false},
	{"  CPU per node, max (% of a core)", func(r Result) float64 { return slices.Max(values(r.Steady.CPU)) }, "%.2f", false},
	{"  RSS per node, max (MiB)", func(r Result) float64 { return slices.Max(values(r.Steady.RSS)) }, "%.0f", false},
	{"  passes per second and node, max", func(r Result) float64 { return slices.Max(values(r.Steady.Passes)) }, "%.2f", false},
	{},
	{"no fault: longest unanswered (ms)", func(r Result) float64 { return r.NoFault.LongestSilence }, "%.0f", false},
	{"  connections failed", func(r Result) float64 { return float64(r.NoFault.Failed) }, "%.0f", false},
	{"  slowest connection (ms)", func(r Result) float64 { return r.NoFault.SlowestSuccess }, "%.0f", false},
	{},
	{"SIGTERM of an owner: its VIPs", func(r Result) float64 { return float64(r.Stopped.Owned) }, "%.0f", false},
	{"  all moved after (ms)", func(r Result) float64 { return r.Stopped.AllMoved }, "%.0f", false},
	{"  API requests per VIP", func(r Result) float64 { return perVIP(r.Stopped) }, "%.1f", false},
	{"  process ended after", func(r Result) float64 { return r.Stopped.Ended }, "%.0f", false},
	{"  longest unanswered", func(r Result) float64 { return r.Stopped.LongestSilence }, "%.0f", false},
	{"  longest answered by two", func(r Result) float64 { return r.Stopped.LongestDouble }, "%.0f", false},
	{"  connections failed", func(r Result) float64 { return float64(r.Stopped.Failed) }, "%.0f", false},
	{"  slowest connection", func(r Result) float64 { return r.Stopped.SlowestSuccess }, "%.0f", false},
	{"  connections from before", func(r Result) float64 { return float64(r.Stopped.Held) }, "%.0f", false},
	{"  of these broken", func(r Result) float64 { return float64(r.Stopped.Broken) }, "%.0f", false},
	{},
	{"SIGKILL of an owner: its VIPs", func(r Result) float64 { return float64(r.Killed.Owned) }, "%.0f", false},
	{"  gone from its kernel after (ms)", func(r Result) float64 { return r.Killed.KernelDropped }, "%.0f", false},
	{"  taken over after, p50", func(r Result) float64 { return r.Killed.TakenOver.P50 }, "%.0f", false},
	{"                    max", func(r Result) float64 { return r.Killed.TakenOver.Max }, "%.0f", false},
	{"  API requests per VIP", func(r Result) float64 { return perVIP(r.Killed) }, "%.1f", false},
	{"  longest unanswered", func(r Result) float64 { return r.Killed.LongestSilence }, "%.0f", false},
	{"  longest answered by two", func(r Result) float64 { return r.Killed.LongestDouble }, "%.0f", false},
	{"  connections from before", func(r Result) float64 { return float64(r.Killed.Held) }, "%.0f", false},
	{"  of these broken", func(r Result) float64 { return float64(r.Killed.Broken) }, "%.0f", false},
}

func init() {
	for _, s := range lab.Faults {
		of := func(r Result) Fault { return r.Faults[s.Name] }
		rows = append(rows, row{ofFault: true}, row{s.Name + ": its VIPs", func(r Result) float64 { return float64(of(r).Owned) }, "%.0f", true},
			row{"  unanswered, p50 of its VIPs (ms)", func(r Result) float64 { return of(r).Silence.P50 }, "%.0f", true},
			row{"              max", func(r Result) float64 { return of(r).Silence.Max }, "%.0f", true})
		if s.Moves {
			rows = append(rows, row{"  all moved after", func(r Result) float64 { return of(r).AllMoved }, "%.0f", true})
		}
		rows = append(rows,
			row{"  longest answered by two", func(r Result) float64 { return of(r).LongestDouble }, "%.0f", true},
			row{"  VIPs it had no more at the end", func(r Result) float64 { return float64(of(r).Gone) }, "%.0f", true},
			row{"  connections failed", func(r Result) float64 { return float64(of(r).Failed) }, "%.0f", true})
	}
}

// perVIP is how many requests it takes to move one VIP.
func perVIP(f Fault) float64 { return total(f.Requests) / float64(max(1, f.Owned)) }

func values[V any](m map[string]V) []V {
	return slices.Collect(maps.Values(m))
}

// cell is the value of the runs of one size: of several the median, and the range.
func (x row) cell(runs []Result) string {
	var all []float64
	for _, r := range runs {
		all = append(all, x.value(r))
	}
	slices.Sort(all)
	text := fmt.Sprintf(x.format, all[(len(all)-1)/2])
	if len(all) > 1 {
		text += fmt.Sprintf(" ("+x.format+"-"+x.format+")", all[0], all[len(all)-1])
	}
	return text
}

// nodes is how many nodes ran Herald.
func (r Report) nodes() int {
	if len(r.Results) == 0 || r.Results[0].Nodes == 0 {
		return 3
	}
	return r.Results[0].Nodes
}

// Table is the report as a person reads it.
func (r Report) Table() string {
	var sizes []int
	runs := map[int][]Result{}
	for _, x := range r.Results {
		if runs[x.Services] == nil {
			sizes = append(sizes, x.Services)
		}
		runs[x.Services] = append(runs[x.Services], x)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %d nodes on %s, %s\n\n", r.Version, r.nodes(), r.Machine, r.Began.Format("2006-01-02"))
	line := func(label string, cell func(n int) string) {
		fmt.Fprintf(&b, "%-46s", label)
		for _, n := range sizes {
			fmt.Fprintf(&b, "  %16s", cell(n))
		}
		b.WriteByte('\n')
	}
	line("Services", func(n int) string { return fmt.Sprint(n) })
	faults := slices.ContainsFunc(r.Results, func(x Result) bool { return x.Faults != nil })
	for _, x := range rows {
		if x.ofFault && !faults {
			continue
		}
		if x.value == nil {
			b.WriteByte('\n')
			continue
		}
		line(x.label, func(n int) string { return x.cell(runs[n]) })
		if x.label == "  without Herald" {
			for _, verb := range verbs(r.Results) {
				line("    "+verb, func(n int) string {
					last := runs[n][len(runs[n])-1].Steady
					return fmt.Sprintf("%.2f (%.2f)", last.Requests[verb], last.Baseline[verb])
				})
			}
		}
	}
	return b.String()
}

// verbs are the requests, by "VERB resource", of all results; the most frequent first.
func verbs(results []Result) []string {
	sum := map[string]float64{}
	for _, r := range results {
		for k, v := range r.Steady.Requests {
			sum[k] += v
		}
	}
	return slices.SortedFunc(maps.Keys(sum), func(a, b string) int {
		switch {
		case sum[a] > sum[b]:
			return -1
		case sum[a] < sum[b]:
			return 1
		}
		return strings.Compare(a, b)
	})
}
