package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
)

// Warnings that several distributions get.
const (
	warnLocal = `lb_enable="true" (environment): with lb_fwdmethod=local connections to the VIP are not balanced, by kube-vip neither: the API server of the node that owns the VIP answers them all`
	warnNoCP  = `lb_enable="true" (environment) has no effect without cp_enable=true`
)

// TestDistributions: the settings of every distribution and chart that installs kube-vip start Herald, which says what
// has no effect, and why. Those that ask for what Herald does not have are refused, with the way out.
func TestDistributions(t *testing.T) {
	tests := map[string]struct {
		warnings []string
		err      string
	}{
		"cluster-api-nutanix": {},
		"cluster-api-proxmox": {},
		"cluster-api-vsphere": {},
		"eks-anywhere":        {},
		"harvester":           {warnings: []string{warnNoCP}, err: `enable_service_security="true" (environment): ` + reasonFilter},
		"helm-chart":          {warnings: []string{warnNoCP}},
		"k3s":                 {},
		"kubespray":           {warnings: []string{"enable_node_labeling (environment) has no effect: " + reasonLabels, warnLocal}},
		"minikube":            {warnings: []string{warnLocal}},
		"openshift": {err: `vip_routingtable="true" (environment): ` + reasonRoutes + "\n" +
			`vip_arp="false" (environment): must be true with cp_enable, or bgp_enable must: nothing else announces its VIP`},
		"rke2": {warnings: []string{warnLocal}},
	}
	files := check.Value(filepath.Glob("testdata/distributions/*.env"))(t)
	if len(files) != len(tests) {
		t.Errorf("%d files for %d tests", len(files), len(tests))
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			text := check.Value(os.ReadFile("testdata/distributions/" + name + ".env"))(t)
			var env []string
			for line := range strings.Lines(string(text)) {
				if !strings.HasPrefix(line, "#") {
					env = append(env, strings.TrimSpace(line))
				}
			}
			c, warnings, err := Parse(Sources{Env: env, Hostname: "n1"})
			if got := ""; err != nil {
				if got = err.Error(); got != tt.err {
					t.Fatalf("error %s\nwant  %s", got, tt.err)
				}
			} else if tt.err != "" {
				t.Fatalf("no error, want %s", tt.err)
			} else if !c.ControlPlane.Enable && !c.Services.Enable {
				t.Error("it announces nothing")
			}
			if diff := cmp.Diff(tt.warnings, warnings); diff != "" {
				t.Errorf("warnings, -want +got:\n%s", diff)
			}
		})
	}
}
