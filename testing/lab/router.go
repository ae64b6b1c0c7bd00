package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A Router is a BGP daemon in a namespace, with its own files.
type Router struct {
	lab           *Lab
	ns            string
	dir           string
	bird          bool
	bfd           bool // FRR's bfdd runs, too
	procs         []*Process
	sysctlsBefore []string // the sysctls before
}

// routing are a router's sysctls; by ICMP redirects the client would bypass ECMP.
var routing = []string{
	"net/ipv4/ip_forward=1", "net/ipv6/conf/all/forwarding=1", "net/ipv4/conf/all/send_redirects=0",
	"net/ipv4/conf/eth0/send_redirects=0",
	"net/ipv4/fib_multipath_hash_policy=1", "net/ipv6/fib_multipath_hash_policy=1",
}

const frrDir = "/usr/lib/frr/"

// FRR runs zebra and bgpd in the namespace ns with a configuration, and bfdd if that asks for BFD.
func (l *Lab) FRR(ctx context.Context, ns, conf string) (*Router, error) {
	r, err := l.newRouter(ns, map[string]string{"zebra.conf": "hostname " + ns + "\n", "bgpd.conf": conf, "bfdd.conf": ""})
	if err != nil {
		return nil, err
	}
	r.bfd = strings.Contains(conf, " bfd\n")
	return r, r.Start(ctx)
}

// BIRD runs BIRD in the namespace ns with a configuration.
func (l *Lab) BIRD(ctx context.Context, ns, conf string) (*Router, error) {
	r, err := l.newRouter(ns, map[string]string{"bird.conf": conf})
	if err != nil {
		return nil, err
	}
	r.bird = true
	return r, r.Start(ctx)
}

func (l *Lab) newRouter(ns string, files map[string]string) (*Router, error) {
	dir, err := os.MkdirTemp("", "herald-router-") // FRR runs as a user of its own
	if err != nil {
		return nil, err
	}
	r := &Router{lab: l, ns: ns, dir: dir}
	errs := []error{os.Chmod(dir, 0o777)}
	for name, text := range files {
		errs = append(errs, os.WriteFile(r.file(name), []byte(text), 0o644))
	}
	errs = append(errs, inNamespace(ns, func() error {
		for _, s := range routing {
			name, _, _ := strings.Cut(s, "=")
			if value, err := os.ReadFile("/proc/sys/" + name); err == nil {
				r.sysctlsBefore = append(r.sysctlsBefore, name+"="+strings.TrimSpace(string(value)))
			}
		}
		return setSysctls(routing...)
	}))
	return r, errors.Join(errs...)
}

func (r *Router) file(name string) string { return filepath.Join(r.dir, name) }

// Start starts the daemons, again after Kill.
func (r *Router) Start(ctx context.Context) error {
	if r.bird {
		return r.start(ctx, "bird", []string{"bird", "-f", "-c", r.file("bird.conf"), "-s", r.file("bird.ctl"), "-P",
			r.file("bird.pid")},
			func() error { _, err := r.Birdc(ctx, "show status"); return err })
	}
	argv := func(name string) []string {
		return []string{frrDir + name, "-f", r.file(name + ".conf"), "-i", r.file(name + ".pid"), "-z", r.file("zserv.api"),
			"--vty_socket", r.dir, "-P", "0"}
	}
	err := r.start(ctx, "zebra", argv("zebra"), func() error { _, err := os.Stat(r.file("zserv.api")); return err })
	if r.bfd {
		err = errors.Join(err, r.start(ctx, "bfdd", append(argv("bfdd"), "--bfdctl", r.file("bfdd.sock")),
			func() error { _, err := r.Vtysh(ctx, "show bfd peers"); return err }))
	}
	return errors.Join(err,
		r.start(ctx, "bgpd", argv("bgpd"), func() error { _, err := r.Vtysh(ctx, "show version"); return err }),
	)
}

func (r *Router) start(ctx context.Context, name string, argv []string, ready func() error) error {
	p, err := r.lab.Start(r.ns, name+"-"+r.ns, argv)
	if err != nil {
		return err
	}
	r.procs = append(r.procs, p)
	return r.lab.await(ctx, p, ready)
}

// Kill ends the daemons at once, and removes their routes from the kernel.
func (r *Router) Kill() error {
	for _, p := range r.procs {
		p.Kill()
	}
	r.procs = nil
	var errs []error
	for _, family := range []string{"-4", "-6"} {
		errs = append(errs, r.flush(family, "bgp"), r.flush(family, "bird"))
	}
	return errors.Join(errs...)
}

// flush removes one family's routes of zebra (bgp) or BIRD (bird). Those by a nexthop object go with it; ip route flush
// leaves them out. It tries for a second.
func (r *Router) flush(family, protocol string) error {
	var left string
	for range 20 {
		_, err := r.lab.Run(context.Background(), r.ns, "ip", "nexthop", "flush", "proto", "11") // RTPROT_ZEBRA
		if err == nil {
			_, err = r.lab.Run(context.Background(), r.ns, "ip", family, "route", "flush", "proto", protocol)
		}
		left, _ = r.lab.Run(context.Background(), r.ns, "ip", family, "route", "show", "proto", protocol)
		if left == "" {
			return nil
		}
		left = fmt.Sprint(left, err)
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("routes of %s stay: %s", r.ns, left)
}

// Close ends the daemons, removes their files, and leaves the namespace as it was.
func (r *Router) Close() error {
	return errors.Join(r.Kill(), os.RemoveAll(r.dir),
		inNamespace(r.ns, func() error { return setSysctls(r.sysctlsBefore...) }))
}

// Vtysh gives FRR commands and returns the answers.
func (r *Router) Vtysh(ctx context.Context, commands ...string) (string, error) {
	argv := []string{"vtysh", "--vty_socket", r.dir}
	for _, c := range commands {
		argv = append(argv, "-c", c)
	}
	return r.lab.Run(ctx, r.ns, argv...)
}

// Birdc gives BIRD a command and returns the answer.
func (r *Router) Birdc(ctx context.Context, command string) (string, error) {
	return r.lab.Run(ctx, r.ns, append([]string{"birdc", "-s", r.file("bird.ctl")}, strings.Fields(command)...)...)
}

// Hops are the kernel's next hops for a prefix, in no order.
func (r *Router) Hops(ctx context.Context, prefix string) ([]string, error) {
	family := "-4"
	if strings.Contains(prefix, ":") {
		family = "-6"
	}
	out, err := r.lab.Run(ctx, r.ns, "ip", family, "route", "show", prefix)
	if err != nil {
		return nil, fmt.Errorf("routes of %s: %w", r.ns, err)
	}
	var hops []string
	f := strings.Fields(out)
	for i, field := range f {
		if field == "via" && i+1 < len(f) {
			hops = append(hops, f[i+1])
		}
	}
	return hops, nil
}

// AwaitHops waits until the kernel has exactly want next hops for a prefix, and returns how long that took.
func (r *Router) AwaitHops(ctx context.Context, prefix string, want int) (time.Duration, error) {
	began := time.Now()
	for {
		hops, err := r.Hops(ctx, prefix)
		if err == nil && len(hops) == want {
			return time.Since(began), nil
		}
		select {
		case <-ctx.Done():
			return time.Since(began), fmt.Errorf("%s has the next hops %v for %s, want %d: %w", r.ns, hops, prefix, want,
				errors.Join(err, ctx.Err()))
		case <-time.After(5 * time.Millisecond):
		}
	}
}
