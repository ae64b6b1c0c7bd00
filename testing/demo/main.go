// Command demo shows what Herald does, on a real cluster in network namespaces of this machine: a Service gets its VIP,
// the VIP moves from node to node without a lost connection, a node fails and another takes over, and at the end
// nothing is left. It checks what it shows, and fails if it isn't so.
//
// It needs root, the programs that testing/lab/parts/build.sh builds, the packages that testing/lab/deps.sh installs,
// and bin/herald; "make demo" sees to all of that.
package main

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
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
	// Without a reader, as in "demo | head", it ends as if interrupted. (Notify would take SIGPIPE of any socket.)
	signal.Ignore(syscall.SIGPIPE)
	s := newScreen(ctx, os.Stdout, *fast, stop)
	began := time.Now()
	d := &demo{screen: s, heralds: map[string]*lab.Process{}}
	err := d.run(ctx, *herald, *logs)
	if err != nil && ctx.Err() == nil {
		s.output("\n" + s.paint(red, "✗ Something is not as expected: ") + err.Error() + d.logTails())
	}
	left := d.down()
	switch {
	case left != nil:
		s.output(s.paint(red, "✗ Something may be left of the cluster: ") + left.Error())
	case ctx.Err() != nil:
		s.output("\n" + s.paint(yellow, "Interrupted.") + " Everything that was brought up is gone again.")
		os.Exit(130)
	case err == nil:
		s.output(s.paint(dim, fmt.Sprintf("All of it took %.0f s.", time.Since(began).Seconds())))
		return
	}
	os.Exit(1)
}

// run brings a cluster up and tells the story on it.
func (d *demo) run(ctx context.Context, herald, logs string) (err error) {
	if d.path, err = filepath.Abs(herald); err != nil {
		return err
	}
	rbac, err := exec.CommandContext(ctx, d.path, "manifest", "rbac").Output()
	if err != nil {
		return fmt.Errorf("%s manifest rbac: %w (build it first: make build)", herald, err)
	}
	d.print("\n  " + d.paint(title, "Herald: virtual IPs for Services of type LoadBalancer, on bare metal") + "\n")
	d.chapter("A cluster")
	d.text(`Three nodes, a worker that only runs pods, a client and a control plane,
each a network namespace of this machine, joined by a switch. etcd, API
server, controllers and kube-proxy are the real ones.
`)
	d.lab, err = lab.Up(ctx,
		lab.Options{Herald: d.path, Dir: logs, RBAC: string(rbac), Log: d.screen, Wait: 10 * time.Minute})
	if err != nil {
		return err
	}
	for _, tell := range []func(context.Context) error{d.startHeralds, d.exposeService, d.showOwners, d.showFaults,
		d.removeAll} {
		if err := tell(ctx); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// down removes the cluster, if there is one.
func (d *demo) down() error {
	if d.lab == nil {
		return nil
	}
	return d.lab.Down()
}

// logTails is the end of each Herald's log.
func (d *demo) logTails() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(d.heralds)) {
		lines := strings.Split(strings.TrimSpace(d.heralds[n].Log()), "\n")
		fmt.Fprintf(&b, "\n%s's log ends:\n%s", n, strings.Join(lines[max(0, len(lines)-6):], "\n"))
	}
	return b.String()
}
