// Package check has helpers for the tests of all packages: for errors, for values that differ, for conditions that are
// waited for, and for tasks.
package check

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sys/unix"
)

// OK ends the test if err is not nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value takes the two results of a call and returns a function that returns v, or ends the test if
// err is not nil:
//
//	conn := check.Value(net.Dial(network, address))(t)
func Value[T any](v T, err error) func(t testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return v
	}
}

// Program returns the path of a program that the test runs. Without it the test is skipped; with HERALD_LAB=require
// it fails.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	switch {
	case err != nil && os.Getenv("HERALD_LAB") == "require":
		t.Fatalf("%v: testing/lab/deps.sh installs it", err)
	case err != nil:
		t.Skipf("%s is not installed (testing/lab/deps.sh)", name)
	}
	return path
}

// Equal fails the test if got is not want. What and its args say what they are, as for fmt.Sprintf.
func Equal[T comparable](t testing.TB, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s:\n got %v\nwant %v", fmt.Sprintf(what, args...), got, want)
	}
}

// Between fails the test if got is less than least, or more than most.
func Between[T ~int | ~int64 | ~float64](t testing.TB, got, least, most T, what string, args ...any) {
	t.Helper()
	if !(got >= least && got <= most) { // NaN is neither
		t.Errorf("%s: got %v, want %v to %v", fmt.Sprintf(what, args...), got, least, most)
	}
}

// Is fails the test unless err is target, as errors.Is says.
func Is(t testing.TB, err, target error, what string, args ...any) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("%s: got %v, want %v", fmt.Sprintf(what, args...), err, target)
	}
}

// Contains fails the test unless text has each of the parts.
func Contains(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
}

// Lacks fails the test if a text contains one of the parts.
func Lacks(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if strings.Contains(text, p) {
			t.Errorf("there is %q in\n%s", p, text)
		}
	}
}

// Addresses has go-cmp compare addresses by value.
var Addresses = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})

// Same fails the test if got is not want, and says what differs; addresses are compared by value.
func Same(t testing.TB, want, got any, what string, args ...any) {
	t.Helper()
	if d := cmp.Diff(want, got, Addresses); d != "" {
		t.Errorf("%s (-want +got):\n%s", fmt.Sprintf(what, args...), d)
	}
}

// Lines makes text comparable: indentation and empty lines are taken away.
func Lines(text string) string {
	var lines []string
	for l := range strings.Lines(text) {
		if l = strings.TrimSpace(l); l != "" {
			lines = append(lines, l)
		}
	}
	return strings.Join(lines, "\n")
}

// Metric is the sum of the counters and gauges that from has, or NaN if there are none: of those named as the first
// word of which, or of all if it is empty, that have its second word, if any, as the value of a label.
func Metric(t testing.TB, which string, from ...prometheus.Collector) float64 {
	t.Helper()
	name, value, labeled := strings.Cut(which, " ")
	r := prometheus.NewRegistry()
	r.MustRegister(from...)
	sum, n := 0.0, 0
	for _, f := range Value(r.Gather())(t) {
		for _, m := range f.Metric {
			has := func(l *dto.LabelPair) bool { return l.GetValue() == value }
			if (name == "" || f.GetName() == name) && (!labeled || slices.ContainsFunc(m.Label, has)) {
				sum, n = sum+m.GetCounter().GetValue()+m.GetGauge().GetValue(), n+1
			}
		}
	}
	if n == 0 {
		return math.NaN()
	}
	return sum
}

// Until calls look every 5 ms until it returns nil, and returns how long that took. If that
// takes longer than within, it ends the test with what and look's last error.
func Until(t testing.TB, within time.Duration, what string, look func() error) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		err := look()
		if err == nil {
			return time.Since(began)
		}
		if time.Since(began) > within {
			t.Fatalf("not within %v: %s: %v", within, what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// True is Until for a condition that has no error of its own.
func True(t testing.TB, within time.Duration, what string, ok func() bool) time.Duration {
	t.Helper()
	return Until(t, within, what, func() error {
		if !ok() {
			return fmt.Errorf("the condition is false")
		}
		return nil
	})
}

// A Task is a long-lived part of the process, as cmd/herald runs them.
type Task interface {
	Run(ctx context.Context) error
}

// Run runs a Task until stop is called, or the test ends. An error of Run fails the test.
func Run(t testing.TB, task Task) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- task.Run(ctx) }()
	var done bool
	stop = func() {
		t.Helper()
		if done {
			return
		}
		done = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%T: %v", task, err)
		}
	}
	t.Cleanup(stop)
	return stop
}

// Allocates fails the test if do allocates more than limit bytes.
func Allocates(t testing.TB, limit uint64, do func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > limit {
		t.Errorf("%d KiB are allocated, more than %d", n>>10, limit>>10)
	}
}

// CPU returns how much CPU time this process uses while do runs.
func CPU(t testing.TB, do func()) time.Duration {
	t.Helper()
	used := func() time.Duration {
		var u unix.Rusage
		OK(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	runtime.GC() // what was there before is collected by then
	before := used()
	do()
	return used() - before
}

// A Buffer is a bytes.Buffer for several goroutines.
type Buffer struct {
	mu    sync.Mutex
	b     bytes.Buffer
	taken int
}

func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is all that was written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// Take is what was written since the last Take.
func (b *Buffer) Take() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	text := b.b.String()[b.taken:]
	b.taken = b.b.Len()
	return text
}

// Log is a logger that writes to the test's output.
func Log(t testing.TB) *slog.Logger { return slog.New(slog.NewTextHandler(t.Output(), nil)) }
