package e2e

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// distributionEnv returns the settings by which a distribution installs kube-vip (pkg/config/testdata/distributions), with
// the address, the links and the kubeconfig of the lab, and whatever stands in for API servers asked whether they are ready.
func distributionEnv(t *testing.T, name, address string) map[string]string {
	t.Helper()
	env := map[string]string{}
	text := check.Value(os.ReadFile("../../pkg/config/testdata/distributions/" + name + ".env"))(t)
	for line := range strings.Lines(string(text)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(line, "#") {
			env[key] = value
		}
	}
	for _, ofMachine := range []string{"vip_interface", "vip_nodename", "k8s_config_file", "kubernetes_addr"} {
		delete(env, ofMachine)
	}
	env["address"], env["control_plane_health_check_address"] = address, "http://127.0.0.1:6444/readyz"
	return env
}

// TestDistributions: what Ansible roles set for k3s, Kubespray and Harvester serves the VIPs that they ask for. With Harvester's a VIP of a Service
// has no other port than that.
func TestDistributions(t *testing.T) {
	for _, n := range cluster.Nodes() {
		startReadyServer(t, n)
	}
	for _, tt := range []struct {
		name   string
		warned bool // that connections are not balanced
	}{{"k3s", false}, {"kubespray", true}, {"harvester", true}} {
		t.Run(tt.name, func(t *testing.T) {
			f := start(t, distributionEnv(t, tt.name, "10.77.0.90"))
			createService(t, webService("a", "10.77.0.91"))
			if f.env["cp_enable"] == "true" {
				awaitReachable(t, "http://10.77.0.90:6444/")
			}
			awaitReachable(t, "http://10.77.0.91/")
			// What stands in for the API server listens on all addresses of the node.
			if f.env["enable_service_security"] != "true" {
				awaitReachable(t, "http://10.77.0.91:6444/")
			} else if _, err := cluster.Get(withTimeout(t, time.Second), "cl", "http://10.77.0.91:6444/"); err == nil {
				t.Error("another port of the Service's VIP is answered")
			}
			if log := f.node["n1"].Log(); strings.Contains(log, "lb_enable") != tt.warned {
				t.Errorf("a warning of lb_enable: %v, want %v", !tt.warned, tt.warned)
			}
		})
	}
}

// TestKubeconfigWrittenLater: as with a hostPath of type FileOrCreate, the kubeconfig is empty when Herald starts, and is written
// while it waits.
func TestKubeconfigWrittenLater(t *testing.T) {
	text := check.Value(os.ReadFile(check.Value(cluster.Kubeconfig(t.Context(), "herald"))(t)))(t)
	file := filepath.Join(t.TempDir(), "admin.conf")
	check.OK(t, os.WriteFile(file, nil, 0o600))
	f := &heralds{t: t, env: env("k8s_config_file", file), node: make(map[string]*lab.Process)}
	t.Cleanup(f.end)
	f.startOn("n1")
	until(t, 10*time.Second, "Herald says that it waits", func(context.Context) error {
		if log := f.node["n1"].Log(); !strings.Contains(log, "waiting for a kubeconfig") || !strings.Contains(log, file) {
			return errors.New("the log does not have it")
		}
		return nil
	})
	check.OK(t, os.WriteFile(file, text, 0o600))
	f.awaitReady("n1")
	createService(t, webService("a", "10.77.0.91"))
	awaitReachable(t, "http://10.77.0.91/")
}
