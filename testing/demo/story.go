package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// The VIPs, by Service; vip is that of web.
var (
	vip  = netip.MustParseAddr("10.77.0.50")
	vips = map[string]netip.Addr{"web": vip, "api": netip.MustParseAddr("10.77.0.51"), "mail": netip.MustParseAddr("10.77.0.52")}
)

// The limits that the demo checks.
const (
	maxSilence       = 100 * time.Millisecond  // that ARP requests go unanswered during a hand-over
	maxKernelAnswers = 6500 * time.Millisecond // until a killed owner's kernel removes its addresses: their lifetime is 5 s
	maxFailover      = 7 * time.Second         // until a killed owner's VIPs have a new one: when its kernel has removed them
	maxDouble        = 200 * time.Millisecond  // that two nodes answer for the VIPs of a killed owner
	maxCutFailover   = 4 * time.Second         // the same of an owner whose networks fail; usually 0.4 s
)

// A demo is one run of the chapters.
type demo struct {
	*screen
	lab     *lab.Lab
	path    string // of herald
	heralds map[string]*lab.Process

	kubectlStarted time.Time // when the latest kubectl was started
}

func (d *demo) run(ctx context.Context) error {
	for i, a := range []struct {
		name string
		tell func(context.Context) error
	}{
		{"Herald on every node", d.startHeralds},
		{"A Service gets its VIP", d.exposeService},
		{"What a user sees", d.showOwners},
		{"The owner is stopped: no connection is lost", d.stopOwner},
		{"The owner is killed", d.killOwner},
		{"The owner's networks fail", d.cutOwner},
		{"It comes back", d.restartHeralds},
		{"Nothing is left", d.removeAll},
	} {
		d.chapter(i+2, a.name)
		if err := a.tell(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// kubectl shows and runs kubectl, and shows what it prints.
func (d *demo) kubectl(ctx context.Context, args ...string) (string, error) {
	d.command("kubectl " + strings.Join(args, " "))
	d.kubectlStarted = time.Now()
	out, err := d.lab.Kubectl(ctx, args...)
	if err == nil && strings.TrimSpace(out) == "" {
		out = "No resources found" // it says so on standard error
	}
	if err == nil {
		d.output(out)
	}
	return out, err
}

// status shows and runs herald status, and shows what it prints.
func (d *demo) status(ctx context.Context) (string, error) {
	d.command("herald status")
	out, err := d.lab.Run(ctx, "cp", d.path, "status")
	if err == nil {
		d.output(out)
	}
	return out, err
}

// until calls fn every 20 ms until it returns nil. After limit it returns fn's last error.
func (d *demo) until(ctx context.Context, limit time.Duration, what string, fn func() error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("not within %v", limit))
	defer cancel()
	return d.during(what, func() error {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			err := fn()
			if err == nil {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("%s: %w: %w", what, err, context.Cause(ctx))
			}
		}
	})
}

// bound lists the VIPs on a node's eth0, as its kernel has them.
func (d *demo) bound(node string) (list []netip.Addr, err error) {
	err = d.lab.InNamespace(node, func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := eth0.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && slices.Contains(slices.Collect(maps.Values(vips)), p.Addr()) {
				list = append(list, p.Addr())
			}
		}
		return err
	})
	return list, err
}

func (d *demo) startHerald(ctx context.Context, node string) error {
	p, err := d.lab.StartHerald(node, map[string]string{"svc_enable": "true", "svc_election": "true", "svc_leasenamespace": "announcers", "vip_arp": "true"})
	if err != nil {
		return err
	}
	d.heralds[node] = p
	return d.until(ctx, 15*time.Second, "Herald on "+node+" gets ready", func() error {
		if !p.Running() {
			return errors.New("it ended")
		}
		_, err := d.lab.Get(ctx, node, "http://127.0.0.1:2112/readyz")
		return err
	})
}

func (d *demo) startHeralds(ctx context.Context) error {
	d.text("One process per node, with the rights of `herald manifest rbac` and no more.")
	d.command("svc_enable=true svc_election=true svc_leasenamespace=announcers vip_arp=true herald manager   # n1, n2, n3")
	d.line("")
	for _, n := range d.lab.Nodes() {
		if err := d.startHerald(ctx, n); err != nil {
			return err
		}
	}
	d.checked("Herald is ready on %s.", strings.Join(d.lab.Nodes(), ", "))
	d.text("Each node renews one Lease of its own, however many Services there are.")
	_, err := d.kubectl(ctx, "get", "leases", "--namespace=kube-system", "--selector=app.kubernetes.io/managed-by=herald")
	return err
}

func (d *demo) exposeService(ctx context.Context) error {
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
	if _, err := d.kubectl(ctx, "expose", "deployment", "web", "--port=80", "--type=LoadBalancer", "--load-balancer-ip="+vip.String()); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	if _, err := who.AwaitAnswer(soon, vip, ""); err != nil {
		return err
	}
	took := who.Stop().Addr(vip).First.Sub(d.kubectlStarted)
	err = d.until(ctx, 5*time.Second, "waiting for EXTERNAL-IP", func() error {
		ip, err := d.lab.Kubectl(ctx, "get", "service", "web", "--output=jsonpath={.status.loadBalancer.ingress[0].ip}")
		if err == nil && ip != vip.String() {
			err = fmt.Errorf("it is %q", ip)
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "get", "services"); err != nil {
		return err
	}
	d.checked("%s was answered on the LAN %s after kubectl was started.", vip, short(took))
	d.text("From the client, which is no part of the cluster:")
	return d.connectFromClient(ctx)
}

// connectFromClient requests the VIP's page from the client, and checks that a pod of web answers.
func (d *demo) connectFromClient(ctx context.Context) error {
	url := "http://" + vip.String() + "/"
	d.command("curl " + url + "   # on the client, 10.77.0.100")
	var out string
	var err error
	if _, missing := exec.LookPath("curl"); missing == nil {
		out, err = d.lab.Run(ctx, "cl", "curl", "--silent", "--show-error", "--max-time", "5", url)
	} else {
		out, err = d.lab.Get(ctx, "cl", url)
	}
	if err != nil {
		return err
	}
	if !strings.HasPrefix(out, "web-") {
		return fmt.Errorf("the VIP was answered by %q, not by a pod of web", out)
	}
	d.output(out)
	pod, _, _ := strings.Cut(out, " ")
	d.checked("Pod %s answered.", pod)
	return nil
}

func (d *demo) showOwners(ctx context.Context) error {
	d.text("Two more Services, so that every node owns a VIP.")
	for _, name := range []string{"api", "mail"} {
		_, err := d.kubectl(ctx, "expose", "deployment", "web", "--name="+name, "--port=80", "--type=LoadBalancer", "--load-balancer-ip="+vips[name].String())
		if err != nil {
			return err
		}
	}
	owners := map[string]string{}
	err := d.until(ctx, 5*time.Second, "waiting for their VIPs", func() (err error) {
		owners, err = d.owners()
		if err == nil && len(owners) != len(vips) {
			err = fmt.Errorf("the nodes have %d of %d VIPs", len(owners), len(vips))
		}
		return err
	})
	if err != nil {
		return err
	}
	time.Sleep(300 * time.Millisecond) // statuses and Events are written a moment later
	d.text("Who announces which VIP, read from the cluster's own objects, on any machine with a kubeconfig:")
	if _, err := d.status(ctx); err != nil {
		return err
	}
	nodes := slices.Sorted(maps.Values(owners))
	if n := len(slices.Compact(nodes)); n != 3 {
		return fmt.Errorf("three VIPs are on %d nodes: %v", n, owners)
	}
	d.checked("Three VIPs, three nodes.")
	d.text("The same, seen on the LAN. Another host asks who has the address:")
	d.command("arping -c 1 -I eth0 " + vip.String())
	out, err := d.lab.Run(ctx, "pr", "arping", "-c", "1", "-I", "eth0", vip.String())
	if err != nil {
		return err
	}
	d.output(out)
	if mac := d.lab.MAC(owners["web"]); !strings.Contains(strings.ToLower(out), mac) {
		return fmt.Errorf("%s did not answer with %s's hardware address, %s", vip, owners["web"], mac)
	}
	d.checked("That is %s.", owners["web"])
	d.text("And the Events of the Service:")
	return d.events(ctx, "announces")
}

// owners returns the node whose kernel has the VIP, by Service; a Service whose VIP no node has
// is missing. Two nodes with one VIP are an error.
func (d *demo) owners() (map[string]string, error) {
	owners := map[string]string{}
	for _, n := range d.lab.Nodes() {
		have, err := d.bound(n)
		if err != nil {
			return nil, err
		}
		for name, a := range vips {
			if slices.Contains(have, a) {
				if owners[name] != "" {
					return nil, fmt.Errorf("%s is on %s and on %s", a, owners[name], n)
				}
				owners[name] = n
			}
		}
	}
	return owners, nil
}

// events waits until the Events of the Service web contain word, and shows them.
func (d *demo) events(ctx context.Context, word string) error {
	d.command("kubectl describe service web | sed -n '/^Events/,$p'")
	var tail string
	err := d.until(ctx, 5*time.Second, "waiting for the Event", func() error {
		out, err := d.lab.Kubectl(ctx, "describe", "service", "web")
		if err != nil {
			return err
		}
		_, tail, _ = strings.Cut(out, "\nEvents:")
		if !strings.Contains(tail, word) {
			return fmt.Errorf("no Event contains %q:%s", word, tail)
		}
		return nil
	})
	d.output("Events:" + tail)
	return err
}

// awaitOtherOwner waits until a node other than old answers for the VIP, and returns which and
// when. It is an error if none does before the end of ctx.
func awaitOtherOwner(ctx context.Context, who *lab.WhoHas, nodes []string, old string) (string, time.Time, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type answer struct {
		node string
		at   time.Time
		err  error
	}
	first := make(chan answer, len(nodes))
	n := 0
	for _, node := range nodes {
		if node != old {
			n++
			go func() {
				at, err := who.AwaitAnswer(ctx, vip, node)
				first <- answer{node, at, err}
			}()
		}
	}
	var err error
	for range n {
		a := <-first
		if a.err == nil {
			return a.node, a.at, nil
		}
		err = a.err
	}
	return "", time.Time{}, err
}

// owner is the node whose kernel has the VIP of web; none is an error.
func (d *demo) owner() (string, error) {
	owners, err := d.owners()
	if err == nil && owners["web"] == "" {
		err = fmt.Errorf("no node has %s", vip)
	}
	return owners["web"], err
}
