package nodes

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
)

// TestUninstallAsDocumented: who pastes what docs/operations.md says about uninstalling has no command that fails, and nothing of Herald is left.
func TestUninstallAsDocumented(t *testing.T) {
	asDaemonSet(t, "herald", manifestText(t, append([]string{"daemonset"}, bothOptions...)...))
	withWeb(t)
	commands := documented(t, "operations.md", "## Uninstalling", "herald uninstall")
	ended := make(chan struct{})
	go func() { // kubelets reach the API servers by a VIP of Herald's: it goes elsewhere first, or here, where it would be in use, when it is free
		defer close(ended)
		for n := 1; n > 0 && t.Context().Err() == nil; time.Sleep(100 * time.Millisecond) {
			n = nodeLeases(t)
		}
		runOn(t, cluster.Nodes()[0], "ip", "addr", "add", cpVIP.String()+"/32", "dev", "eth0")
	}()
	paste(t, commands)
	<-ended
	installed = "nothing"
	t.Cleanup(func() {
		check.Value(cluster.RunOnNode(context.Background(), cluster.Nodes()[0], "ip", "addr", "del", cpVIP.String()+"/32", "dev", "eth0"))(t)
	})
	for _, what := range []string{"daemonsets", "leases", "secrets", "roles", "rolebindings", "clusterroles", "clusterrolebindings", "serviceaccounts", "pods"} {
		if all := kubectl(t, "get", what, "--all-namespaces", "-o", "name"); strings.Contains(all, "/herald") || strings.Contains(all, "/kubevip-") {
			t.Errorf("left: %s", all)
		}
	}
	if all := kubectl(t, "get", "services,nodes", "--all-namespaces", "-o", "yaml"); strings.Contains(all, "heraldvip.io/") || strings.Contains(all, "vipHost") {
		t.Errorf("left:\n%s", all)
	}
	if got := kubectl(t, "get", "service", "web", "-o", "jsonpath={.status}{.metadata.finalizers}"); got != `{"loadBalancer":{}}` {
		t.Errorf("the Service's status is %s", got)
	}
}

// documented returns the first commands of a section of docs, in which there must be what is known.
func documented(t *testing.T, page, heading, known string) string {
	t.Helper()
	_, section, _ := strings.Cut(readFile(t, "../../docs/"+page), "\n"+heading+"\n")
	_, commands, _ := strings.Cut(section, "```sh\n")
	commands, _, _ = strings.Cut(commands, "```")
	if !strings.Contains(commands, known) {
		t.Fatalf("%s, %s: no commands with %q:\n%s", page, heading, known, section)
	}
	return commands
}

// paste runs commands where an operator does; none may fail.
func paste(t *testing.T, commands string) {
	t.Helper()
	began := time.Now()
	parts := check.Value(filepath.Abs("../../bin/parts"))(t) // where kubectl is
	path := "PATH=" + filepath.Dir(herald) + ":" + parts + ":" + os.Getenv("PATH")
	out, err := cluster.Run(t.Context(), "cp", "env", "-C", t.TempDir(), path, "sh", "-exc", commands)
	t.Logf("%v:\n%s", time.Since(began).Round(100*time.Millisecond), out)
	check.OK(t, err)
}

// nodeLeases returns how many node leases Herald has; 1 if that can't be found out.
func nodeLeases(t *testing.T) (n int) {
	t.Helper()
	leases, err := cluster.Client().CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		return 1
	}
	for _, l := range leases.Items {
		if strings.HasPrefix(l.Name, "herald-node-") {
			n++
		}
	}
	return n
}
