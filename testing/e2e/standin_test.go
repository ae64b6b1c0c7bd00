package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// The stand-in for kube-vip behaves on the Lease of each Service as kube-vip does: it runs client-go's elector with kube-vip's times,
// writes the status and binds the VIP while it leads, and repeats a gratuitous ARP. Asked to stop, it takes the VIPs down and releases the
// leases; killed, it leaves both. This test binary is it, started with these variables.
const (
	standInNode = "HERALD_STANDIN_NODE"
	standInVIPs = "HERALD_STANDIN_VIPS" // service=address, with commas between
)

// standIn runs as the stand-in until it is asked to stop.
func standIn() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for pair := range strings.SplitSeq(os.Getenv(standInVIPs), ",") {
		name, addr, _ := strings.Cut(pair, "=")
		vip, err := netip.ParseAddr(addr)
		if err != nil {
			return err
		}
		all.Go(func() {
			for ctx.Err() == nil { // who has lost a lease stands for election again
				takePartInElection(ctx, client, name, vip)
			}
		})
	}
	all.Wait()
	return nil
}

// takePartInElection takes part in one election.
func takePartInElection(ctx context.Context, client kubernetes.Interface, service string, vip netip.Addr) {
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubevip-" + service}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: os.Getenv(standInNode)},
		},
		LeaseDuration: 5 * time.Second, RenewDeadline: 3 * time.Second, RetryPeriod: time.Second, ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				writeStatus(ctx, client, service, vip)
				announce(ctx, vip)
			},
			OnStoppedLeading: func() {
				fmt.Println("down", vip, ip("addr", "del", vip.String()+"/32", "dev", "eth0"))
			},
		},
	})
}

// writeStatus writes a VIP to the status of its Service.
func writeStatus(ctx context.Context, client kubernetes.Interface, service string, vip netip.Addr) {
	patch := fmt.Sprintf(`{"status":{"loadBalancer":{"ingress":[{"ip":%q}]}}}`, vip)
	_, err := client.CoreV1().Services("default").Patch(ctx, service, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status")
	fmt.Println("status", vip, err)
}

// announce binds a VIP, and sends a gratuitous ARP each 3 s until ctx ends.
func announce(ctx context.Context, vip netip.Addr) {
	fmt.Println("up", vip, ip("addr", "add", vip.String()+"/32", "dev", "eth0"))
	for ctx.Err() == nil {
		exec.Command("arping", "-q", "-c", "1", "-U", "-I", "eth0", "-s", vip.String(), vip.String()).Run()
		select {
		case <-ctx.Done():
		case <-time.After(3 * time.Second):
		}
	}
}

func ip(args ...string) string {
	out, _ := exec.Command("ip", args...).CombinedOutput()
	return strings.TrimSpace(string(out))
}
