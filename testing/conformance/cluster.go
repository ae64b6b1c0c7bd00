package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heraldvip/herald/testing/lab"
)

// A mode is a way to announce VIPs.
type mode struct {
	name, title string
	pool        string   // the addresses that Services are given
	options     []string // of "herald manifest daemonset"
	router      string   // the configuration of FRR on the client's router; "" means it only forwards
}

var modes = []mode{
	{
		name: "arp", title: "ARP", pool: "10.77.0.128-10.77.0.191",
		options: []string{"--services", "--servicesElection", "--arp", "--interface=eth0"},
	},
	{
		name: "bgp", title: "BGP, ECMP per flow", pool: "203.0.113.0/26",
		options: []string{"--services", "--bgp", "--bgppeers=10.77.0.1:65001", "--bgpRouterInterface=eth0"},
		router: `router bgp 65001
 no bgp ebgp-requires-policy
 bgp router-id 10.77.0.1
 neighbor nodes peer-group
 neighbor nodes remote-as 65000
 bgp listen range 10.77.0.0/24 peer-group nodes
 address-family ipv4 unicast
  maximum-paths 8
 exit-address-family
`,
	},
}

// client is the namespace that tests run in: a host behind the router rt, outside of the nodes' /16.
const client = "far-rt"

// image is what Herald's manifests name.
const image = "ghcr.io/heraldvip/herald:v0.2.0"

// A cluster is three nodes, their router and the client.
type cluster struct {
	*lab.Kubelets
	setup
	dir        string // of this program's files
	kubeconfig string // for the client
	kubectl    string
	router     *lab.Router
	dns        io.Closer // nil until it serves
}

// up brings the cluster up. If it returns a cluster, that has to be taken down, also in case of an error.
func (s setup) up(ctx context.Context) (*cluster, error) {
	dir, err := os.MkdirTemp("", "herald-conformance-")
	if err != nil {
		return nil, err
	}
	c := &cluster{setup: s, dir: dir, kubeconfig: filepath.Join(dir, "kubeconfig"),
		kubectl: filepath.Join(s.parts, "kubectl")}
	herald, agnhost := filepath.Join(dir, "herald.oci.tar"), filepath.Join(dir, "agnhost.tar")
	build := exec.CommandContext(ctx, "go", "-C", "manifests/image", "run", ".", "-source", "../..", "-o", herald,
		"-platform", "linux/"+runtime.GOARCH, "-name", image)
	if text, err := build.CombinedOutput(); err != nil {
		return c, fmt.Errorf("make image: %w: %s", err, text)
	}
	if err := s.writeImage(ctx, agnhost); err != nil {
		return c, err
	}
	s.log("images of Herald and of agnhost written")
	c.Kubelets, err = lab.UpKubelets(ctx, lab.KubeletOptions{
		Options: lab.Options{Herald: s.herald, Wait: 20 * time.Minute, ProxyMode: os.Getenv("HERALD_PROXY_MODE"),
			Log: os.Stderr, Dir: s.dir},
		// kubeadm wants an address of the control plane; with one that no Herald has, Herald is here for Services only.
		VIP: netip.MustParseAddr("10.78.0.11"), Images: []string{herald, agnhost}, OnLAN: true,
	})
	if err != nil {
		return c, err
	}
	return c, errors.Join(c.join(ctx), c.connectClient(ctx))
}

// join makes a Kubernetes cluster of the nodes. They carry pods and VIPs as workers do.
func (c *cluster) join(ctx context.Context) error {
	first, others := c.Nodes()[0], c.Nodes()[1:]
	if _, err := c.Init(ctx); err != nil {
		return err
	}
	c.log("kubeadm init on %s", first)
	var joining errgroup.Group
	for _, n := range others {
		joining.Go(func() error {
			_, err := c.Join(ctx, n)
			return err
		})
	}
	if err := joining.Wait(); err != nil {
		return err
	}
	c.log("kubeadm join on %v", others)
	err := c.StartProxies(ctx)
	if err != nil {
		return err
	}
	if _, err := c.Kubelets.Kubectl(ctx, "label", "nodes", "--all", "node-role.kubernetes.io/control-plane-",
		"node.kubernetes.io/exclude-from-external-load-balancers-"); err != nil {
		return err
	}
	if _, err := c.Kubelets.Kubectl(ctx, "wait", "nodes", "--all", "--for=condition=Ready", "--timeout=2m"); err != nil {
		return err
	}
	c.dns, err = c.serveDNS(ctx, first)
	return err
}

// connectClient plugs the client into the router.
func (c *cluster) connectClient(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// It goes with the cluster, together with what an interrupted test has started there.
	if _, err := c.AddWAN("rt", netip.MustParsePrefix("198.51.100.1/24")); err != nil {
		return err
	}
	if _, err := c.Run(ctx, client, "ip", "route", "add", "default", "via", "198.51.100.1"); err != nil {
		return err
	}
	return c.WriteLANKubeconfig(c.Nodes()[0], c.kubeconfig)
}

func (c *cluster) down() error {
	var errs []error
	if c.dns != nil {
		errs = append(errs, c.dns.Close())
	}
	if c.Kubelets != nil {
		errs = append(errs, c.Down())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// install starts Herald on all nodes by its manifests, and the router if the mode needs one.
func (c *cluster) install(ctx context.Context, m mode) error {
	if m.router != "" {
		router, err := c.FRR(ctx, "rt", m.router)
		if c.router = router; err != nil {
			return err
		}
	}
	pools := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: kubevip, namespace: kube-system}\ndata: "+
		"{cidr-global: %q}\n", m.pool)
	if err := c.Apply(ctx, pools); err != nil {
		return err
	}
	for _, args := range [][]string{{"rbac"}, append([]string{"daemonset"}, m.options...)} {
		text, err := exec.CommandContext(ctx, c.herald, append([]string{"manifest"}, args...)...).Output()
		if err != nil {
			return fmt.Errorf("herald manifest %s: %w", strings.Join(args, " "), err)
		}
		if err := c.Apply(ctx, string(text)); err != nil {
			return err
		}
	}
	if _, err := c.Kubelets.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "daemonset/herald",
		"--timeout=2m"); err != nil {
		return err
	}
	c.log("Herald runs on %v", c.Nodes())
	return nil
}

// uninstall ends Herald on all nodes, and the router.
func (c *cluster) uninstall(ctx context.Context, m mode) error {
	_, err := c.Kubelets.Kubectl(ctx, "-n", "kube-system", "delete", "daemonset/herald", "--wait")
	if m.router != "" {
		err = errors.Join(err, c.router.Close())
	}
	return err
}
