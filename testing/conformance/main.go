// Command conformance runs Kubernetes' own tests of load balancers ("[sig-network] LoadBalancers", e2e.test of
// the release that testing/conformance/parts names) against Herald: on three real nodes, with nothing else
// installed that announces or allocates addresses, from a client in a network of its own behind a router. First
// VIPs are announced by ARP, then by BGP to that router, which spreads connections over the nodes. It prints a
// table, and ends with status 1 if any test has failed that is not in expectedFailures.
//
// It needs root and a quarter of an hour for each of the two; "make test-conformance" builds and installs what it
// takes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	signal.Ignore(syscall.SIGPIPE) // "conformance | head" must not leave a cluster behind
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

// A setup is what to run, and where.
type setup struct {
	herald   string         // the program
	parts    string         // the directory of e2e.test and agnhost
	modes    []mode         // the ways to announce, one after the other
	focus    *regexp.Regexp // of the tests' names
	skip     *regexp.Regexp // of those left out; nil means none
	parallel int            // how many tests run at the same time
	dir      string         // gets the lab's and the tests' logs; "" means none are kept
	began    time.Time
}

func (s setup) log(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%7.1fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("conformance", flag.ContinueOnError)
	s := setup{began: time.Now()}
	flags.StringVar(&s.herald, "herald", "bin/herald", "the program to test")
	flags.StringVar(&s.parts, "parts", "bin/parts", "the directory of e2e.test and agnhost")
	flags.StringVar(&s.dir, "dir", "", "keep the logs of the nodes and of each test in this directory")
	flags.IntVar(&s.parallel, "parallel", 6, "how many tests run at the same time")
	announce := flags.String("announce", "arp,bgp", "the ways to announce, one after the other")
	focus := flags.String("focus", "", "only tests whose names this regular expression matches")
	skip := flags.String("skip", "", "no tests whose names this regular expression matches")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var err error
	if *skip != "" {
		if s.skip, err = regexp.Compile(*skip); err != nil {
			return fmt.Errorf("-skip: %w", err)
		}
	}
	if s.focus, err = regexp.Compile(*focus); err != nil {
		return fmt.Errorf("-focus: %w", err)
	}
	if s.modes, err = parseModes(*announce); err != nil {
		return err
	}
	for _, path := range []*string{&s.herald, &s.parts, &s.dir} {
		if *path == "" {
			continue
		}
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	return s.run(ctx)
}

func parseModes(text string) (list []mode, err error) {
	for _, name := range strings.Split(text, ",") {
		i := slices.IndexFunc(modes, func(m mode) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-announce: %q: want arp, bgp, or both with a comma between", name)
		}
		list = append(list, modes[i])
	}
	return list, nil
}

// run brings the cluster up, runs the tests in each mode, prints the table, and takes the cluster down.
func (s setup) run(ctx context.Context) (err error) {
	specs, err := s.specs(ctx)
	if err != nil {
		return err
	}
	if len(specs) == 0 {
		return fmt.Errorf("-focus: no test's name matches %s", s.focus)
	}
	c, err := s.up(ctx)
	if c != nil {
		defer func() { err = errors.Join(err, c.down()) }()
	}
	if err != nil {
		return err
	}
	var all []result
	for _, m := range s.modes {
		s.log("%d tests with VIPs announced by %s", len(specs), m.title)
		if err := c.install(ctx, m); err != nil {
			return err
		}
		results, err := s.runSpecs(ctx, c, m, specs)
		all = append(all, results...)
		if err := errors.Join(err, c.uninstall(ctx, m)); err != nil {
			fmt.Print(table(s.modes, all))
			return err
		}
	}
	fmt.Print(table(s.modes, all))
	return unexpected(all)
}
