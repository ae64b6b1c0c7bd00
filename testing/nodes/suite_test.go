package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/heraldvip/herald/testing/lab"
)

var (
	cluster      *lab.Kubelets
	herald       = "../../bin/herald"
	startupTimes = map[string]time.Duration{} // what bringing it up took
)

// startedAt is when the first node began to come up.
var startedAt time.Time

// cpVIP is the VIP of the control plane.
var cpVIP = netip.MustParseAddr("10.77.0.40")

// image is what the manifests name.
const image = "ghcr.io/heraldvip/herald:v0.2.0"

// TestMain brings three real nodes up, and a cluster of them whose control plane has
// its VIP from Herald.
func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	herald, _ = filepath.Abs(herald)
	err := lab.CheckKubelets(lab.Options{})
	if err == nil {
		_, err = os.Stat(herald)
	}
	if err != nil {
		if os.Getenv("HERALD_LAB") == "require" {
			fmt.Fprintln(os.Stderr, "the lab of real nodes can't come up:", err)
			return 1
		}
		fmt.Println("skipped: the lab of real nodes can't come up:", err)
		return 0
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := up(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		if cluster != nil {
			fmt.Fprintln(os.Stderr, cluster.Down())
		}
		return 1
	}
	defer func() {
		if err := cluster.Down(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	go func() {
		<-ctx.Done()
		cluster.Down() // Ctrl-C: the tests that run will fail, and nothing stays
	}()
	return m.Run()
}

// up brings the cluster up as an administrator would with kubeadm.
func up(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "herald-nodes-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "herald.oci.tar")
	build := exec.CommandContext(ctx, "go", "-C", "../../manifests/image", "run", ".", "-source", "../..", "-o", archive, "-platform", "linux/"+runtime.GOARCH, "-name", image+",ghcr.io/heraldvip/herald:latest")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("make image: %w: %s", err, text)
	}
	pod, err := manifest("pod", "--arp", "--controlplane", "--address="+cpVIP.String(), "--interface=eth0", "--services", "--servicesElection")
	if err != nil {
		return err
	}
	startedAt = time.Now()
	began := startedAt
	step := func(what string) {
		startupTimes[what] = time.Since(began).Round(100 * time.Millisecond)
		fmt.Printf("%6.1fs  %s\n", time.Since(began).Seconds(), what)
	}
	cluster, err = lab.UpKubelets(ctx, lab.KubeletOptions{
		Options: lab.Options{Herald: herald, Wait: 20 * time.Minute, ProxyMode: os.Getenv("HERALD_PROXY_MODE"), Log: os.Stdout, Dir: os.Getenv("HERALD_LAB_DIR")},
		VIP:     cpVIP, Images: []string{archive},
	})
	if err != nil {
		return err
	}
	step("nodes with containerd")
	for _, n := range cluster.Nodes() {
		if err := cluster.StaticPod(n, "herald", pod); err != nil {
			return err
		}
	}
	done := watchStartup(ctx)
	_, err = cluster.Init(ctx)
	done()
	if err != nil {
		return err
	}
	step("kubeadm init")
	var joining errgroup.Group // etcd takes one at a time; all the rest goes side by side
	for _, n := range cluster.Nodes()[1:] {
		joining.Go(func() error {
			_, err := cluster.Join(ctx, n)
			return err
		})
	}
	if err := joining.Wait(); err != nil {
		return err
	}
	step("kubeadm join on the others")
	if err := cluster.StartProxies(ctx); err != nil {
		return err
	}
	step("kube-proxies")
	return nil
}

// manifest is what "herald manifest" prints.
func manifest(args ...string) (string, error) {
	c := exec.Command(herald, append([]string{"manifest"}, args...)...)
	var errout strings.Builder
	c.Stderr = &errout
	text, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("herald manifest %s: %w: %s", strings.Join(args, " "), err, &errout)
	}
	return string(text), nil
}
