// Command demo shows what Herald does, on a real cluster in network namespaces of
// this machine: a Service gets its VIP, the VIP moves from node to node without
// a lost connection, a node's Herald is killed and another node takes over, and
// at the end nothing is left. It checks what it shows, and fails if it isn't so.
//
// It needs root, the programs that testing/lab/parts/build.sh builds, the
// packages that testing/lab/deps.sh installs, and bin/herald; "make demo" sees to
// all of that.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

func main() {
	fast := flag.Bool("fast", false, "leave no time to read")
	herald := flag.String("herald", "bin/herald", "the program to show")
	logs := flag.String("logs", "", "keep the logs of everything in this directory")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: don't understand %q\n", flag.Args())
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// "demo | head" must not leave a cluster behind: without a reader it ends as if interrupted.
	// (signal.Notify for SIGPIPE would be wrong: any socket can cause it.)
	signal.Ignore(syscall.SIGPIPE)
	s := newScreen(os.Stdout, *fast)
	s.onWriteError = stop
	context.AfterFunc(ctx, s.skipPauses)
	err := run(ctx, s, *herald, *logs)
	switch {
	case err == nil:
	case ctx.Err() != nil && !errors.As(err, new(removeError)):
		s.line("")
		s.line("  " + s.paint(yellow, "Interrupted.") + " Everything that was brought up is gone again.")
		os.Exit(130)
	default:
		s.line("")
		s.line("  " + s.paint(red, "✗ Something is not as expected:"))
		s.output(err.Error())
		os.Exit(1)
	}
}

// A removeError means that the cluster could not be removed.
type removeError struct{ error }

// run brings a cluster up, runs all chapters, and removes the cluster, also after an error.
func run(ctx context.Context, s *screen, herald, logs string) (err error) {
	herald, err = filepath.Abs(herald)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath(herald); err != nil {
		return fmt.Errorf("%w: build it first (make build)", err)
	}
	opts := lab.Options{Herald: herald, Dir: logs, Log: s, Wait: 10 * time.Minute}
	if err := lab.Check(opts); err != nil {
		return err
	}
	rbac, err := exec.CommandContext(ctx, herald, "manifest", "rbac").Output()
	if err != nil {
		return fmt.Errorf("herald manifest rbac: %w", err)
	}
	opts.RBAC = string(rbac)

	s.line("")
	s.line(s.paint(title, "  Herald: virtual IPs for Services of type LoadBalancer, on bare metal"))
	s.chapter(1, "A cluster")
	s.text("Three nodes, a worker that only runs pods, a client and a control plane, each a network namespace of this machine, " +
		"joined by a switch. etcd, API server, controller-manager and kube-proxy are the real ones.")
	s.line("")
	d := &demo{screen: s, path: herald, heralds: map[string]*lab.Process{}}
	err = s.during("bringing the cluster up", func() error {
		d.lab, err = lab.Up(ctx, opts)
		return err
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && ctx.Err() == nil {
			err = errors.Join(err, errors.New(d.logTails()))
		}
		if down := s.during("removing it", d.lab.Down); down != nil {
			err = errors.Join(err, removeError{fmt.Errorf("something may be left of the cluster: %w", down)})
		}
		if err == nil {
			s.line(s.paint(dim, fmt.Sprintf("  All of it took %.0f s.", time.Since(d.lab.Since()).Seconds())))
			s.line("")
		}
	}()
	return d.run(ctx)
}

// logTails is the last lines of each Herald's log, for an error message.
func (d *demo) logTails() string {
	var b strings.Builder
	b.WriteString("\nthe ends of the logs:")
	for _, n := range d.lab.Nodes() {
		p := d.heralds[n]
		if p == nil {
			continue
		}
		lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
		for _, l := range lines[max(0, len(lines)-6):] {
			fmt.Fprintf(&b, "\n%s  %s", n, l)
		}
	}
	return b.String()
}
