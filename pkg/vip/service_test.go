package vip

import (
	"strings"
	"testing"
)

// TestVIPLeaseIn: each Lease of a Service has a name of its own in the announcers' namespace, which Kubernetes accepts, and
// which no node lease has.
func TestVIPLeaseIn(t *testing.T) {
	long := strings.Repeat("a.", 100)
	names := map[string]Key{}
	for _, tt := range []struct {
		key  Key
		want string // "": it is not compared
	}{
		{Key{"default", "kubevip-web"}, "kubevip-web.default"},
		{Key{"web", "kubevip-default"}, "kubevip-default.web"},
		{Key{"default", "kubevip-web.default"}, "kubevip-web.default.default"},
		{Key{"default", "web"}, "kubevip--web.default"},
		{Key{"default", "kubevip--web"}, "kubevip--kubevip--web.default"},
		{Key{"default", "kubevip-"}, "kubevip-.default"},
		{Key{"n1", "herald-node-n1"}, "kubevip--herald-node-n1.n1"},
		{Key{strings.Repeat("n", 63), long + "b"}, ""},
		{Key{strings.Repeat("n", 63), long + "c"}, ""},
		{Key{strings.Repeat("n", 63), "kubevip-" + strings.Repeat("-", 200) + "b"}, ""},
		{Key{strings.Repeat("n", 63), strings.Repeat("a", 253)}, ""},
	} {
		got := VIPLeaseIn("kube-system", tt.key)
		if got.Namespace != "kube-system" || tt.want != "" && got.Name != tt.want || len(got.Name) > 253 || strings.Contains(got.Name, "..") || strings.Contains(got.Name, ".-") {
			t.Errorf("%v: %v, want %s", tt.key, got, tt.want)
		}
		if other, taken := names[got.Name]; taken {
			t.Errorf("%v and %v: both have %s", tt.key, other, got.Name)
		}
		names[got.Name] = tt.key
	}
}
