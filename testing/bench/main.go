// Command bench measures Herald on a real cluster in network namespaces of this
// machine: how soon a Service's VIP is answered, what Herald costs when nothing
// happens, and what clients see of each fault of an owner. It prints a table and
// writes bench-<date>.json.
//
// It needs root, the programs that testing/lab/parts/build.sh builds, the
// packages that testing/lab/deps.sh installs, and bin/herald; "make bench" sees
// to all of that. What the fault "none" shows is noise of the bench, not
// Herald's doing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/testing/lab"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // "bench | head" must not leave a cluster behind
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// A setup is the program to measure and the options of a run.
type setup struct {
	herald      string
	logs        string
	rbac        string
	nodes       int           // that run Herald
	faultLasts  time.Duration // how long a fault lasts
	bare        bool          // no kube-proxy on the nodes of Herald: for many nodes
	steadyOnly  bool          // no faults at all
	atOnce      int           // faults of a soak that overlap
	faults      string        // what the names of the faults that are made contain; "" makes all
	steadyLasts time.Duration // how long requests and CPU are counted while nothing changes
	log         func(format string, args ...any)
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	services := flags.String("services", "10,100,1000", "how many Services, one run for each")
	soaked := flags.Duration("soak", 0, "make random faults for so long instead, and watch")
	seed := flags.Uint64("seed", uint64(time.Now().Unix()), "of -soak: the same seed makes the same faults")
	repeat := flags.Int("repeat", 1, "how often each is run; the table then has medians and ranges")
	out := flags.String("out", ".", "the directory bench-<date>.json is written to")
	s := setup{log: progress(time.Now())}
	flags.StringVar(&s.herald, "herald", "bin/herald", "the program to measure")
	flags.StringVar(&s.logs, "logs", "", "keep the logs of the last run in this directory")
	flags.StringVar(&s.faults, "faults", "", "make only those faults whose names contain this")
	flags.IntVar(&s.atOnce, "at-once", 1, "how many faults of -soak overlap, on different nodes")
	flags.IntVar(&s.nodes, "nodes", 3, "how many nodes run Herald")
	flags.BoolVar(&s.bare, "bare", false, "no kube-proxies, and no connections: for many nodes (-nodes 30)")
	flags.BoolVar(&s.steadyOnly, "steady-only", false, "make no fault")
	flags.DurationVar(&s.faultLasts, "hold", 20*time.Second, "how long each fault lasts at least")
	flags.DurationVar(&s.steadyLasts, "steady", 30*time.Second, "how long requests and CPU are counted while nothing "+
		"happens")
	if err := flags.Parse(args); err != nil {
		return err
	}
	sizes, err := parseSizes(*services)
	if err != nil {
		return err
	}
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if *soaked > 0 {
		return s.soak(ctx, sizes[0], *soaked, *seed)
	}
	return s.measureAll(ctx, sizes, *repeat, *out)
}

// measureAll measures with each number of Services, repeat times, prints the table and writes the report to the
// directory out.
func (s setup) measureAll(ctx context.Context, sizes []int, repeat int, out string) error {
	report := Report{Began: time.Now().Round(time.Second), Machine: machine(), Version: s.version(ctx)}
	for _, n := range sizes {
		for i := range repeat {
			s.log("%d Services, run %d of %d", n, i+1, repeat)
			r, err := s.measure(ctx, n)
			if err != nil {
				return fmt.Errorf("%d Services: %w", n, err)
			}
			report.Results = append(report.Results, r)
		}
	}
	fmt.Printf("\n%s", report.Table())
	path := filepath.Join(out, "bench-"+report.Began.Format("2006-01-02T150405")+".json")
	text, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	fmt.Printf("\nwritten to %s\n", path)
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// progress returns a function that logs to standard error, with the seconds since began.
func progress(began time.Time) func(string, ...any) {
	return func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, "%7.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}

func parseSizes(text string) ([]int, error) {
	var sizes []int
	for _, t := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(t))
		if err != nil || n < 3 || n > maxServices {
			return nil, fmt.Errorf("--services: %q: want numbers from 3 to %d, separated by commas", t, maxServices)
		}
		sizes = append(sizes, n)
	}
	return sizes, nil
}

// prepare checks that Herald and the lab's programs are there, and gets the RBAC manifest.
func (s *setup) prepare(ctx context.Context) (err error) {
	if s.herald, err = filepath.Abs(s.herald); err != nil {
		return err
	}
	if _, err := exec.LookPath(s.herald); err != nil {
		return fmt.Errorf("%w: build it first (make build)", err)
	}
	if err := lab.Check(lab.Options{Herald: s.herald}); err != nil {
		return err
	}
	rbac, err := exec.CommandContext(ctx, s.herald, "manifest", "rbac").Output()
	if err != nil {
		return fmt.Errorf("herald manifest rbac: %w", err)
	}
	s.rbac = string(rbac)
	return nil
}

// newBench brings a cluster up for a run with n Services.
func (s setup) newBench(ctx context.Context, n int) (*bench, error) {
	l, err := lab.Up(ctx, lab.Options{Nodes: s.nodes, NoProxies: s.bare, Herald: s.herald, Dir: s.logs, RBAC: s.rbac,
		Wait: time.Hour})
	if err != nil {
		return nil, err
	}
	b := &bench{setup: s, lab: l, result: Result{Services: n, Nodes: s.nodes}}
	for a := vips.Addr().Next(); len(b.addrs) < n; a = a.Next() {
		b.addrs = append(b.addrs, a)
	}
	_, err = l.Run(ctx, "cl", "ip", "route", "add", vips.String(), "dev", "eth0")
	if err == nil && s.bare { // many Heralds would leave it nothing
		err = l.PreferControlPlane()
	}
	if err != nil {
		return nil, errors.Join(err, l.Down())
	}
	return b, nil
}

func (s *setup) version(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, s.herald, "version").Output()
	if err != nil {
		return "unknown"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}

// machine describes this machine: cores and kernel.
func machine() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return fmt.Sprintf("%d cores", runtime.NumCPU())
	}
	return fmt.Sprintf("%d cores, Linux %s", runtime.NumCPU(), unix.ByteSliceToString(u.Release[:]))
}
