package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// It removes nothing while a node lease is renewed, and does not wait for leases that are over.
func TestUninstall(t *testing.T) {
	began := time.Time{}
	fenced := nodeLease("n1", 0, "{}")
	fenced.Annotations["heraldvip.io/fenced"] = "7"
	elsewhere := nodeLease("n9", 0, "{}")
	elsewhere.Namespace = "edge"
	tenants := nodeLease("x", time.Hour, "{}")
	tenants.Namespace = "tenant"
	renewed := func(node string) *coordinationv1.Lease {
		l := nodeLease(node, 0, "{}")
		l.ResourceVersion = strconv.Itoa(int(time.Since(began)/(2*time.Second)) + 1)
		return l
	}
	these := func(all ...*coordinationv1.Lease) func() []*coordinationv1.Lease {
		return func() []*coordinationv1.Lease { return all }
	}
	running := func() []*coordinationv1.Lease {
		return []*coordinationv1.Lease{renewed("n2"), nodeLease("n1", 0, "{}")}
	}
	service := kube.Trace{Kind: "Service", Object: vip.Key{Namespace: "default", Name: "web"}, What: "the status"}
	left := kube.Trace{Kind: "Service", Object: vip.Key{Namespace: "default", Name: "x"}, Left: "annotation y"}
	const removed = "Service default/web: the status\nleft as it is: Service default/x: annotation y\n1 removed. On nodes whose Herald was killed: herald uninstall node\n"
	const looking = "looking for 15s whether a Herald renews the node leases of "
	const still = "Herald still runs on n1, n2, and would write all of this again: end it first (kubectl -n kube-system delete daemonset herald --cascade=foreground, or take the static Pod's file away on each node)"
	const otherNamespace = "nothing was removed, since it is not known where Herald ran: kube-system has no node leases, others have some (%s), which their users may have written. If it ran in kube-system: --namespace kube-system. If it ran in another: --namespace NAMESPACE"
	for _, tt := range []struct {
		name   string
		leases func() []*coordinationv1.Lease
		dryRun bool
		took   time.Duration
		out    string
		err    string
	}{
		{"no node leases", these(), false, 0, removed, ""},
		{"fenced, or of another installation", these(fenced, elsewhere), false, 0, removed, ""},
		{"only of another installation", these(elsewhere), false, 0, "", fmt.Sprintf(otherNamespace, "edge")},
		{"of another installation, and one that a tenant wrote", these(tenants, elsewhere), false, 0, "", fmt.Sprintf(otherNamespace, "edge, tenant")},
		{"only of another installation, and named", these(elsewhere), false, 0, removed, ""},
		{"only of another installation, dry", these(elsewhere), true, 0, "", fmt.Sprintf(otherNamespace, "edge")},
		{"killed", these(nodeLease("n1", 0, "{}")), false, 15 * time.Second, looking + "n1\n" + removed, ""},
		{"running", running, false, 2 * time.Second, looking + "n1, n2\n", still},
		{"running, dry", running, true, 2 * time.Second,
			looking + "n1, n2\nService default/web: the status\nleft as it is: Service default/x: annotation y\n1 to be removed; but " + still + "\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began = time.Now()
				var out strings.Builder
				u := &uninstall{
					namespace: "kube-system", named: tt.name == "only of another installation, and named", dryRun: tt.dryRun,
					printf: func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) },
					read:   func(context.Context) (kube.Snapshot, error) { return kube.Snapshot{Leases: tt.leases()}, nil },
					traces: func(context.Context) ([]kube.Trace, error) { return []kube.Trace{service, left}, nil },
				}
				err := u.run(t.Context())
				check.Equal(t, out.String(), tt.out, "what is printed")
				check.Equal(t, text(err), tt.err, "the error")
				check.Equal(t, time.Since(began), tt.took, "it took")
			})
		})
	}
}

// The routes of the kernel, of boot and of ip(8) have protocol numbers that vip_routingprotocol can't be: a slip must not take them for Herald's.
func TestUninstallNodeOfOthersRoutes(t *testing.T) {
	for _, protocol := range []string{"0", "2", "4", "256", "-1"} {
		_, _, err := run(t, root(), "uninstall", "node", "--routing-protocol="+protocol)
		check.Equal(t, text(err), "--routing-protocol="+protocol+" must be a whole number from 5 to 255, as vip_routingprotocol", "the error")
		check.Equal(t, status(err), 2, "the status")
	}
}
