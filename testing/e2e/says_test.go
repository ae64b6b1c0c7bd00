package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
)

// neverLogged fails the test if a Herald that runs has logged words.
func neverLogged(t *testing.T, f *heralds, words string) {
	t.Helper()
	for node, p := range f.node {
		for line := range strings.Lines(p.Log()) {
			if strings.Contains(line, words) {
				t.Errorf("%s logged what does not hold: %s", node, line)
			}
		}
	}
}

// A Local Service whose only endpoint is on one node, whose Herald is restarted: the Service is announced again, by a new Event, and nothing
// goes on saying that its Herald stops. Then all Heralds are killed: status names what is so, and one that starts for a moment hands nothing
// to nodes that have been dead since before.
func TestSaidOfHeraldsThatAreAway(t *testing.T) {
	f := start(t, env("vip_leaseduration", "6", "vip_renewdeadline", "4", "vip_retryperiod", "1"))
	f.killed = true // of which the leases are left
	addPod(t, "only-1", "n2")
	createService(t, localService("only", "10.77.0.50"))
	if got := awaitOwner(t, "only"); got != "n2" {
		t.Fatalf("%s has the VIP, and the endpoint is on n2", got)
	}
	before := 0 // the first Event may be written after the owner is known
	until(t, 10*time.Second, "an Event says that it is announced", func(context.Context) error {
		if before = announcedEvents(t, "only"); before == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	f.node["n2"].Signal(syscall.SIGTERM)
	check.OK(t, f.node["n2"].Wait(withTimeout(t, 10*time.Second)))
	awaitEvent(t, "only", "NoEligibleNode", "there is one on n2, where no Herald runs")
	f.startOn("n2")
	until(t, 10*time.Second, "another Event says that it is announced", func(context.Context) error {
		if now := announcedEvents(t, "only"); now <= before {
			return fmt.Errorf("%d times, %d before", now, before)
		}
		return nil
	})
	out := runHerald(t, "status", "only")
	for line := range strings.Lines(out) {
		if strings.Contains(line, "default/only") && (strings.Contains(line, "NoEligibleNode") || !strings.Contains(line, " n2 ")) {
			t.Errorf("after a restart herald status says:\n%s", out)
		}
	}
	createService(t, webService("a", "10.77.0.51"))
	createService(t, webService("b", "10.77.0.52"))
	mine := "a" // of n1
	if awaitOwner(t, "a") != "n1" {
		mine = "b"
	}
	if got := awaitOwner(t, mine); got != "n1" {
		t.Fatalf("n1 has none of three Services: %s is on %s", mine, got)
	}
	for _, p := range f.node {
		p.Kill()
	}
	// The claim of n1 is its own as soon as it is back, and the node leases of the others are not old.
	f.startAgain("n1")
	f.node["n1"].Signal(syscall.SIGTERM)
	check.OK(t, f.node["n1"].Wait(withTimeout(t, 30*time.Second)))
	if out, _ := cluster.Owner(t.Context(), "default", "kubevip-"+mine); out == "n2" || out == "n3" {
		t.Errorf("n1 has handed its VIP to %q, which is dead", out)
	}
	until(t, 20*time.Second, "herald status says what is so", func(context.Context) error {
		out, lines := runHerald(t, "status"), 0
		for line := range strings.Lines(out) {
			switch fields := strings.Fields(line); {
			case len(fields) == 0:
			case strings.HasPrefix(fields[0], "default/"):
				lines++
				if !strings.Contains(line, "no node holds its lease") && !strings.Contains(line, "its owner ") && !strings.Contains(line, "no Herald runs") {
					return fmt.Errorf("nothing is wrong with %s:\n%s", fields[0], out)
				}
			case strings.HasPrefix(fields[0], "n"):
				lines++
				if !strings.Contains(line, "no Herald runs there") && !strings.Contains(line, "silent for") &&
					!strings.Contains(line, "fenced: its claims are over") { // by n1, if it took long to stop
					return fmt.Errorf("nothing is wrong with %s:\n%s", fields[0], out)
				}
			}
		}
		if lines != 6 {
			return fmt.Errorf("%d lines of Services and nodes, want 6:\n%s", lines, out)
		}
		return nil
	})
	t.Log("\n" + runHerald(t, "status"))
	file := check.Value(cluster.Kubeconfig(t.Context(), "admin"))(t)
	if _, err := cluster.Run(t.Context(), "cp", herald, "status", "--exit-status", "--kubeconfig", file); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("herald status --exit-status: %v, want 3", err)
	}
}

// A rememberedMove is a move as herald history shows it.
type rememberedMove struct {
	Service, From, To, Cause string
	Outage                   int64 // nanoseconds
}

// movesOf returns the moves of a Service, the oldest first.
func movesOf(t *testing.T, name string) []rememberedMove {
	t.Helper()
	var all struct{ Moves []rememberedMove }
	check.OK(t, json.Unmarshal([]byte(runHerald(t, "history", name, "-o", "json")), &all))
	return all.Moves
}

// announcedEvents returns how many times Events have said that a Service is announced.
func announcedEvents(t *testing.T, name string) (n int) {
	t.Helper()
	list := check.Value(cluster.Client().CoreV1().Events("default").List(t.Context(), metav1.ListOptions{}))(t)
	for _, e := range list.Items {
		if e.InvolvedObject.Name == name && (e.Reason == "VIPAnnounced" || e.Reason == "VIPMoved") {
			n += int(max(1, e.Count))
		}
	}
	return n
}
