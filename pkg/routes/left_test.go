package routes

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
)

// A process without vip_routingtable warns of what one with it left when it was killed, and leaves it: it may be
// kube-vip's.
func TestWarnOfRoutes(t *testing.T) {
	warned := func() string {
		var b bytes.Buffer
		WarnOfRoutes(slog.New(slog.NewTextHandler(&b, nil)))
		return b.String()
	}
	table, _ := newTable(t, nil)
	ip(t, "route add 10.79.0.9 dev eth1 proto static table 198")
	if got := warned(); got != "" {
		t.Errorf("without routes of Herald's: %s", got)
	}
	set(t, table, routesTo("10.79.0.1/32", "fd79::1/128")) // and killed
	if got := warned(); !strings.Contains(got, "ip route flush table 198 proto 248") || !strings.Contains(got, "routes=2") {
		t.Errorf("logged %q", got)
	}
	ip(t, "route flush table 198 proto 248")
	ip(t, "-6 route flush table 198 proto 248")
	if got := warned(); got != "" {
		t.Errorf("as it says: %s", got)
	}
	wantTable(t, "10.79.0.9 dev eth1 proto static scope link")
	ip(t, "route flush table 198")
}
