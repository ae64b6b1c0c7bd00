package config

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

// Warnings that several distributions get.
const (
	warnLocal = `lb_enable="true" (environment): with lb_fwdmethod=local connections to the VIP are not balanced, by kube-vip neither: the API server of the node that owns the VIP answers them all`
	warnNoCP  = `lb_enable="true" (environment) has no effect without cp_enable=true`
)

// TestDistributions: the settings of every distribution and chart that installs kube-vip start Herald, which says what
// has no effect, and why.
func TestDistributions(t *testing.T) {
	tests := map[string]struct {
		asks     string // for what: the VIP of the control plane, by BGP, in a routing table, those of Services, an election for each, their ports only; the prefix length of IPv4 VIPs
		warnings []string
	}{
		"cluster-api-nutanix": {asks: "cp services election /32"},
		"cluster-api-proxmox": {asks: "cp /32"},
		"cluster-api-vsphere": {asks: "cp services election /32"},
		"eks-anywhere":        {asks: "cp /32"},
		"harvester":           {asks: "services ports /32", warnings: []string{warnNoCP}},
		"helm-chart":          {asks: "services /32", warnings: []string{warnNoCP}},
		"k3s":                 {asks: "cp services /24"},
		"kubespray":           {asks: "cp services election /32", warnings: []string{"enable_node_labeling (environment) has no effect: " + reasonOf("enable_node_labeling"), warnLocal}},
		"kubespray-bgp":       {asks: "cp bgp services /32"},
		"minikube":            {asks: "cp /32", warnings: []string{warnLocal}},
		"openshift":           {asks: "cp table /32"},
		"rke2":                {asks: "cp services election /24", warnings: []string{warnLocal}},
	}
	files := check.Value(filepath.Glob("testdata/distributions/*.env"))(t)
	check.Equal(t, len(files), len(tests), "how many files there are for these tests")
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
			check.OK(t, err)
			check.Equal(t, asked(c), tt.asks, "it asks for")
			same(t, "warnings", tt.warnings, warnings)
		})
	}
}

// asked returns what c asks Herald to announce, in short.
func asked(c Config) string {
	var words []string
	for _, o := range []struct {
		set  bool
		word string
	}{{c.ControlPlane.Enable, "cp"}, {c.BGP.Enable, "bgp"}, {c.RoutingTable.Enable, "table"}, {c.Services.Enable, "services"}, {c.Services.Election, "election"}, {c.Services.LimitPorts, "ports"}} {
		if o.set {
			words = append(words, o.word)
		}
	}
	return strings.Join(append(words, fmt.Sprintf("/%d", c.Link.Bits4)), " ")
}
