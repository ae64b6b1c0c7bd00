package main

import (
	"bufio"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// steadyAfter is when the last change is over for Herald: it announces VIPs more often for 30 s.
const steadyAfter = 35 * time.Second

// measureSteady records API requests, frames, CPU, memory and passes while nothing changes.
func (b *bench) measureSteady(ctx context.Context) error {
	b.log("counting for %v while nothing happens, after %v of it", b.setup.steadyLasts, steadyAfter)
	sleep(ctx, steadyAfter)
	cpu, passes := map[string]time.Duration{}, map[string]float64{}
	s := &b.result.Steady
	s.CPU, s.RSS, s.Passes = map[string]float64{}, map[string]float64{}, map[string]float64{}
	for _, n := range b.lab.Nodes() {
		used, _, err := b.lab.Herald(n).Usage()
		if err != nil {
			return err
		}
		cpu[n] = used
		if _, passes[n], err = b.passes(ctx, n); err != nil {
			return err
		}
	}
	frames, err := b.framesHeard(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	requests, err := b.requestRates(ctx, b.setup.steadyLasts)
	if err != nil {
		return err
	}
	s.Seconds, s.Requests = time.Since(began).Seconds(), requests
	heard, err := b.framesHeard(ctx)
	if err != nil {
		return err
	}
	s.Frames = (heard - frames) / s.Seconds
	for _, n := range b.lab.Nodes() {
		used, rss, err := b.lab.Herald(n).Usage()
		if err != nil {
			return err
		}
		_, count, err := b.passes(ctx, n)
		if err != nil {
			return err
		}
		s.CPU[n] = 100 * (used - cpu[n]).Seconds() / s.Seconds
		s.RSS[n] = float64(rss) / (1 << 20)
		s.Passes[n] = (count - passes[n]) / s.Seconds
	}
	b.log("%.2f requests/s; %.1f frames/s; CPU, %% of a core: %s", total(requests), s.Frames, byName(s.CPU))
	return nil
}

// framesHeard is how many frames the host pr has received from the LAN so far. It asks for nothing
// and serves nothing in the steady state, so they are those that every host of the LAN receives.
func (b *bench) framesHeard(ctx context.Context) (float64, error) {
	text, err := b.lab.Run(ctx, "pr", "cat", "/proc/net/dev")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == "eth0:" {
			return strconv.ParseFloat(f[2], 64)
		}
	}
	return 0, fmt.Errorf("pr has no eth0:\n%s", text)
}

// recordPasses records the mean duration of the passes so far, by node.
func (b *bench) recordPasses(ctx context.Context) error {
	b.result.PassMean = map[string]float64{}
	for _, n := range b.lab.Nodes() {
		sum, count, err := b.passes(ctx, n)
		if err != nil {
			return err
		}
		b.result.PassMean[n] = 1000 * sum / max(1, count)
	}
	b.log("mean time of a pass, ms: %s", byName(b.result.PassMean))
	return nil
}

// passes is how many passes a node's agent has made, and how long all of them took, in seconds.
func (b *bench) passes(ctx context.Context, node string) (sum, count float64, err error) {
	text, err := b.lab.Get(ctx, node, "http://127.0.0.1:2112/metrics")
	if err != nil {
		return 0, 0, err
	}
	if sum, err = metric(text, "herald_pass_duration_seconds_sum"); err != nil {
		return 0, 0, err
	}
	count, err = metric(text, "herald_pass_duration_seconds_count")
	return sum, count, err
}

// metric returns the value of a metric without labels; none is an error.
func metric(text, name string) (float64, error) {
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if v, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(v, 64)
		}
	}
	return 0, fmt.Errorf("there is no metric %s", name)
}
