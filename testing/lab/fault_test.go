package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
)

func carrier(t *testing.T, l *Lab, node string) bool {
	t.Helper()
	return strings.Contains(run(t, l, node, "ip link show eth0"), "LOWER_UP")
}

func TestLANFaults(t *testing.T) {
	l := sharedLab(t)
	n2, _ := l.Addrs("n2")
	w := whoHas(t, l, 20*time.Millisecond, n2)
	check.Value(w.AwaitAnswer(withTimeout(t), n2, "n2"))(t)
	for _, f := range []struct {
		name    string
		fault   func(string) error
		carrier bool
	}{{"unplug", l.Unplug, false}, {"cut", l.Cut, true}} {
		t.Run(f.name, func(t *testing.T) {
			check.OK(t, f.fault("n2"))
			defer l.Reconnect("n2")
			check.Value(w.AwaitSilence(withTimeout(t), n2))(t)
			// The kernel reports a lost carrier within a second (linkwatch).
			check.True(t, 3*time.Second, fmt.Sprintf("carrier is %v", f.carrier), func() bool { return carrier(t, l, "n2") == f.carrier })
			if err := apiReachable(t, l, "n2"); err != nil {
				t.Errorf("the API server can't be reached, either: %v", err)
			}
			check.OK(t, l.Reconnect("n2"))
			check.Value(w.AwaitAnswer(withTimeout(t), n2, "n2"))(t)
			if !carrier(t, l, "n2") {
				t.Error("no carrier after Reconnect")
			}
		})
	}
	if err := l.Cut("n9"); err == nil || !strings.Contains(err.Error(), "lan-n9") {
		t.Errorf("a host that is not there: got error %v", err)
	}
	if err := l.CutAPI("cl"); err == nil || !strings.Contains(err.Error(), "mgmt-cl") {
		t.Errorf("a host without management link: got error %v", err)
	}
}

// apiReachable dials the API server from a node.
func apiReachable(t *testing.T, l *Lab, node string) error {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	conn, err := l.DialFrom(node)(ctx, "tcp", l.apiAddr())
	if err == nil {
		conn.Close()
	}
	return err
}

func TestAPIFaults(t *testing.T) {
	l := sharedLab(t)
	n3, _ := l.Addrs("n3")
	w := whoHas(t, l, 20*time.Millisecond, n3)
	check.Value(w.AwaitAnswer(withTimeout(t), n3, "n3"))(t)
	check.OK(t, l.CutAPI("n3"))
	if err := apiReachable(t, l, "n3"); err == nil || !strings.Contains(err.Error(), "timeout") {
		t.Errorf("n3 is cut from the API server: got error %v, want a timeout", err)
	}
	if err := apiReachable(t, l, "n2"); err != nil {
		t.Errorf("n2 is not cut: %v", err)
	}
	check.Value(w.AwaitAnswer(withTimeout(t), n3, "n3"))(t) // and so n3 is not cut from the LAN
	check.OK(t, l.ConnectAPI("n3"))
	if err := apiReachable(t, l, "n3"); err != nil {
		t.Errorf("after ConnectAPI: %v", err)
	}
}

func TestAPIServerFaults(t *testing.T) {
	l := sharedLab(t)
	list := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		_, err := l.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	}
	check.OK(t, l.PauseAPI())
	if err := list(300 * time.Millisecond); err == nil {
		t.Error("a paused API server answers")
	}
	check.OK(t, l.ResumeAPI())
	if err := list(10 * time.Second); err != nil {
		t.Errorf("after ResumeAPI: %v", err)
	}
	addPod(t, l, Pod{Name: "kept", Node: "w1"})
	if err := l.StartAPI(withTimeout(t)); err == nil {
		t.Error("start an API server that runs: want an error")
	}
	check.OK(t, l.StopAPI())
	if err := list(time.Second); err == nil {
		t.Error("a stopped API server answers")
	}
	check.OK(t, l.StartAPI(withTimeout(t)))
	if _, err := l.Client().CoreV1().Pods("default").Get(withTimeout(t), "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("the API server forgot a pod: %v", err)
	}
}

// A node's kernel does duplicate address detection (RFC 4862) for addresses without nodad.
func TestDuplicateAddressDetection(t *testing.T) {
	l := sharedLab(t)
	vip := netip.MustParseAddr("fd77::1070")
	bindAddress(t, l, "n1", vip)
	run(t, l, "n2", "ip address add "+vip.String()+"/128 dev eth0")
	defer run(t, l, "n2", "ip address del "+vip.String()+"/128 dev eth0")
	check.Until(t, 5*time.Second, "n2's kernel finds the duplicate", func() error {
		s := run(t, l, "n2", "ip address show dev eth0 to "+vip.String())
		if strings.Contains(s, "dadfailed") {
			return nil
		}
		if !strings.Contains(s, "tentative") {
			t.Fatalf("n2 uses an address that n1 has:\n%s", s)
		}
		return fmt.Errorf("it is still tentative:\n%s", s)
	})
}
