package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// The VIPs of the Services web, api and mail; vip is that of web.
var (
	vips = []netip.Addr{netip.MustParseAddr("10.77.0.50"), netip.MustParseAddr("10.77.0.51"),
		netip.MustParseAddr("10.77.0.52")}
	vip = vips[0]
)

// A demo is one run of the chapters.
type demo struct {
	*screen
	lab     *lab.Lab // nil before it is up
	path    string   // of herald
	heralds map[string]*lab.Process
}

// kubectl shows and runs kubectl, and shows what it prints.
func (d *demo) kubectl(ctx context.Context, args ...string) error {
	d.command("kubectl " + strings.Join(args, " "))
	out, err := d.lab.Kubectl(ctx, args...)
	d.output(out)
	return err
}

// status shows and runs herald status, and shows what it prints.
func (d *demo) status(ctx context.Context) error {
	d.command("herald status")
	out, err := d.lab.Run(ctx, "cp", d.path, "status")
	d.output(out)
	return err
}

// until calls fn every 20 ms until it returns nil. After 20 s it returns fn's last error.
func until(ctx context.Context, what string, fn func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 20*time.Second, errors.New("not within 20 s"))
	defer cancel()
	for {
		err := fn()
		if err == nil {
			return nil
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w: %w", what, err, context.Cause(ctx))
		}
	}
}

// startHerald starts a node's Herald and waits until it is ready.
func (d *demo) startHerald(ctx context.Context, node string) error {
	p, err := d.lab.StartHerald(node, map[string]string{"svc_enable": "true", "svc_election": "true", "vip_arp": "true"})
	if err != nil {
		return err
	}
	d.heralds[node] = p
	return until(ctx, "Herald on "+node+" gets ready", func() error {
		_, err := d.lab.Get(ctx, node, "http://127.0.0.1:2112/readyz")
		return err
	})
}

func (d *demo) startHeralds(ctx context.Context) error {
	d.chapter("Herald on every node")
	d.text("One process on each node, with the rights of `herald manifest rbac` and no more.")
	d.command("svc_enable=true svc_election=true vip_arp=true herald manager")
	d.print("\n")
	for _, n := range d.lab.Nodes() {
		if err := d.startHerald(ctx, n); err != nil {
			return err
		}
	}
	d.checked("Herald is ready on %s.", strings.Join(d.lab.Nodes(), ", "))
	return nil
}

// expose makes a Service of the Deployment web.
func (d *demo) expose(ctx context.Context, name string, vip netip.Addr) error {
	return d.kubectl(ctx, "expose", "deployment", "web", "--name="+name, "--port=80", "--type=LoadBalancer",
		"--load-balancer-ip="+vip.String())
}

func (d *demo) exposeService(ctx context.Context) error {
	d.chapter("A Service gets its VIP")
	for i := range 3 {
		p := lab.Pod{Name: fmt.Sprintf("web-%d", i), Node: "w1", Labels: map[string]string{"app": "web"}}
		if err := d.lab.AddPod(ctx, p); err != nil {
			return err
		}
	}
	if err := d.lab.AddDeployment(ctx, "default", "web", map[string]string{"app": "web"}); err != nil {
		return err
	}
	d.text("A Deployment `web` runs three pods on the worker. One command gives it an address:")
	who, err := d.lab.WhoHas(ctx, 10*time.Millisecond, vip)
	if err != nil {
		return err
	}
	defer who.Stop()
	began := time.Now()
	if err := d.expose(ctx, "web", vip); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := who.AwaitAnswer(soon, vip, ""); err != nil {
		return err
	}
	d.checked("%s was answered on the LAN %s after kubectl was started.", vip,
		short(who.Stop().Addr(vip).First.Sub(began)))
	if err := d.kubectl(ctx, "wait", "--for=condition=heraldvip.io/Announced", "service/web"); err != nil {
		return err
	}
	d.text("From the client, which is no part of the cluster:")
	d.command("curl http://" + vip.String())
	out, err := d.lab.Get(ctx, "cl", "http://"+vip.String())
	d.output(out)
	if err == nil && !strings.HasPrefix(out, "web-") {
		err = errors.New("no pod of web answered")
	}
	return err
}

func (d *demo) showOwners(ctx context.Context) error {
	d.chapter("Three VIPs, three nodes")
	if err := errors.Join(d.expose(ctx, "api", vips[1]), d.expose(ctx, "mail", vips[2])); err != nil {
		return err
	}
	owners, err := d.owners(ctx)
	if err != nil {
		return err
	}
	if err := d.kubectl(ctx, "wait", "--for=condition=heraldvip.io/Announced", "service/api", "service/mail"); err != nil {
		return err
	}
	d.text("Who announces which VIP, by the cluster's own objects:")
	if err := d.status(ctx); err != nil {
		return err
	}
	slices.Sort(owners)
	if nodes := slices.Compact(owners); len(nodes) != len(vips) {
		return fmt.Errorf("three VIPs are on %d nodes: %v", len(nodes), nodes)
	}
	d.checked("Asked by ARP, each node answers for one of them.")
	return nil
}

// owners returns the node that answers for each VIP, once all are answered.
func (d *demo) owners(ctx context.Context) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	who, err := d.lab.WhoHas(ctx, 20*time.Millisecond, vips...)
	if err != nil {
		return nil, err
	}
	defer who.Stop()
	if err := who.AwaitAnswers(ctx, ""); err != nil {
		return nil, err
	}
	var owners []string
	for _, r := range who.Stop().Addrs {
		owners = append(owners, r.Owners()[len(r.Owners())-1])
	}
	return owners, nil
}

// heal starts Herald where it does not run, waits until the nodes would notice each other's end, and checks that
// meanwhile no VIP moves.
func (d *demo) heal(ctx context.Context) error {
	who, err := d.lab.WhoHas(ctx, 20*time.Millisecond, vips...)
	if err != nil {
		return err
	}
	defer who.Stop()
	for _, n := range d.lab.Nodes() {
		if !d.heralds[n].Running() {
			d.text("Herald on %s is started again.", n)
			if err := d.startHerald(ctx, n); err != nil {
				return err
			}
		}
	}
	if err := until(ctx, "heartbeats between all nodes", func() error { return d.lab.PeersDetectable(ctx) }); err != nil {
		return err
	}
	select { // a VIP may move late
	case <-time.After(time.Second):
	case <-ctx.Done():
		return ctx.Err()
	}
	for _, r := range who.Stop().Addrs {
		if len(r.Owners()) != 1 {
			return fmt.Errorf("%s moved when nothing failed:\n%s", r.Addr, r)
		}
	}
	d.checked("The node is back, and nothing moved: that would cut connections.")
	return nil
}

func (d *demo) removeAll(ctx context.Context) error {
	if err := d.status(ctx); err != nil {
		return err
	}
	d.chapter("Nothing is left")
	who, err := d.lab.WhoHas(ctx, 10*time.Millisecond, vip)
	if err != nil {
		return err
	}
	defer who.Stop()
	began := time.Now()
	if err := d.kubectl(ctx, "delete", "service", "web", "api", "mail"); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	last, err := who.AwaitSilence(soon, vip)
	if err != nil {
		return err
	}
	d.checked("Nobody answers: the last answer came %s after kubectl was started.", short(last.Sub(began)))
	d.text("Then Herald is stopped on all nodes.")
	for _, p := range d.heralds {
		if err := p.Signal(syscall.SIGTERM); err != nil {
			return err
		}
	}
	soon, cancel = context.WithTimeout(ctx, 12*time.Second)
	defer cancel()
	for _, p := range d.heralds {
		if err := p.Wait(soon); err != nil {
			return err
		}
	}
	d.checked("All processes have ended with status 0.")
	return d.kubectl(ctx, "get", "leases", "--all-namespaces", "--selector=app.kubernetes.io/managed-by=herald")
}
