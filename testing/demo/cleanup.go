package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// vipLeasesRecord is the Lease that says where the Leases of VIPs are (lease.RecordName). It stays.
const vipLeasesRecord = "herald-vip-leases"

// removeAll withdraws the VIPs and stops Herald, and checks that no address, status or Lease is left.
func (d *demo) removeAll(ctx context.Context) error {
	d.text("One Service is annotated so that Herald ignores it, two are deleted:")
	if _, err := d.kubectl(ctx, "annotate", "service", "mail", "kube-vip.io/ignore=true"); err != nil {
		return err
	}
	if err := d.deleteServices(ctx); err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, "get", "services"); err != nil {
		return err
	}
	d.text("Then Herald is stopped on all nodes.")
	if err := d.stopAll(ctx); err != nil {
		return err
	}
	leases := []string{"get", "leases", "--all-namespaces", "--selector=app.kubernetes.io/managed-by=herald"}
	err := d.until(ctx, 3*time.Second, "looking for Leases", func() error {
		out, err := d.lab.Kubectl(ctx, append(leases, "--output=name")...)
		out = strings.Replace(out, "lease.coordination.k8s.io/"+vipLeasesRecord+"\n", "", 1)
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("these are left:\n%s", out)
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := d.kubectl(ctx, leases...); err != nil {
		return err
	}
	d.checked("No address, no Lease of a node or a VIP, no status is left. " + vipLeasesRecord + " says where the Leases of VIPs are, for Heralds that start later.")
	d.line("")
	return nil
}

// deleteServices deletes two Services and waits until nobody answers for their VIPs, no kernel
// has one, and the status of the ignored Service is cleared.
func (d *demo) deleteServices(ctx context.Context) error {
	// Measured on the LAN: by the time that kubectl has ended, all is over.
	who, err := d.lab.WhoHas(ctx, 10*time.Millisecond, vip)
	if err != nil {
		return err
	}
	defer who.Stop()
	if _, err := d.kubectl(ctx, "delete", "service", "web", "api"); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	last, err := who.AwaitSilence(soon, vip)
	if err != nil {
		return err
	}
	took := last.Sub(d.kubectlStarted)
	err = d.until(ctx, 3*time.Second, "waiting for the VIPs to go", func() error {
		owners, err := d.owners()
		if err == nil && len(owners) > 0 {
			err = fmt.Errorf("still on the nodes: %v", owners)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.checked("No node has a VIP any more. The last answer for %s came %s after kubectl was started.", vip, short(took))
	return d.until(ctx, 3*time.Second, "waiting for the status to be cleared", func() error {
		out, err := d.lab.Kubectl(ctx, "get", "service", "mail", "--output=jsonpath={.status.loadBalancer}{.metadata.annotations.kube-vip\\.io/vipHost}")
		if err == nil && strings.Trim(out, "{}") != "" {
			err = fmt.Errorf("it is %s", out)
		}
		return err
	})
}

func (d *demo) stopAll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 12*time.Second)
	defer cancel()
	var errs []error
	for _, n := range d.lab.Nodes() {
		errs = append(errs, d.heralds[n].Signal(syscall.SIGTERM))
	}
	for _, n := range d.lab.Nodes() {
		if err := d.heralds[n].Wait(ctx); err != nil {
			errs = append(errs, fmt.Errorf("herald on %s: %w", n, err))
		}
	}
	return errors.Join(errs...)
}
