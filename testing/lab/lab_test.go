package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// shared is the lab of most tests, brought up by the first that needs it.
var shared *Lab

func TestMain(m *testing.M) {
	code := m.Run()
	if shared != nil {
		if err := shared.Down(); err != nil {
			fmt.Fprintln(os.Stderr, "lab down:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// need skips the test where no lab can come up, unless HERALD_LAB=require.
func need(t *testing.T) {
	t.Helper()
	if err := Check(Options{}); err != nil {
		if os.Getenv("HERALD_LAB") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func theLab(t *testing.T) *Lab {
	t.Helper()
	need(t)
	if shared == nil {
		var err error
		if shared, err = Up(t.Context(), Options{Wait: 5 * time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	return shared
}

func within10s(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Second, errors.New("10 s are over"))
	t.Cleanup(cancel)
	return ctx
}

// bind puts an address on a node's eth0 for the length of the test, and
// announces it as a careful announcer would.
func bind(t *testing.T, l *Lab, node string, addr netip.Addr) (unbind func()) {
	t.Helper()
	bits := "/32"
	if addr.Is6() {
		bits = "/128"
	}
	if _, err := l.Run(t.Context(), node, "ip", "addr", "add", addr.String()+bits, "dev", "eth0", "nodad"); err != nil {
		t.Fatal(err)
	}
	unbind = func() {
		_, _ = l.Run(context.WithoutCancel(t.Context()), node, "ip", "addr", "del", addr.String()+bits, "dev", "eth0")
	}
	t.Cleanup(unbind)
	return unbind
}

// TestUndisturbed measures the noise: what the probers show of an address that nobody touches.
func TestUndisturbed(t *testing.T) {
	l := theLab(t)
	v4, v6 := netip.MustParseAddr("10.77.0.60"), netip.MustParseAddr("fd77::1060")
	bind(t, l, "n1", v4)
	bind(t, l, "n1", v6)
	p := Pod{Name: "quiet", Node: "w1", Labels: map[string]string{"app": "quiet"}}
	if err := l.AddPod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	defer l.RemovePod(context.WithoutCancel(t.Context()), p)
	svc := Service("default", "quiet", WithVIPs(v4, v6))
	svc.Spec.ExternalIPs = []string{v4.String(), v6.String()} // instead of a status: kube-proxy serves these, too
	if _, err := l.Client().CoreV1().Services("default").Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	w, err := l.WhoHas(t.Context(), 20*time.Millisecond, v4, v6)
	if err != nil {
		t.Fatal(err)
	}
	c, err := l.Connect(t.Context(), 10*time.Millisecond, netip.AddrPortFrom(v4, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	c6, err := l.Connect(t.Context(), 10*time.Millisecond, netip.AddrPortFrom(v6, 80).String())
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * time.Second)
	t.Log(w.Stop())
	t.Log(c.Stop())
	t.Log(c6.Stop())
}
