package upnp

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"github.com/huin/goupnp/dcps/internetgateway2"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// localGateway is the gateway that f plays on the loopback link. No goroutine runs it.
func localGateway(t *testing.T, f *fake) *gateway {
	t.Helper()
	check.OK(t, exec.Command("ip", "link", "set", "lo", "up").Run())
	server := httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(server.Close)
	m := New(Options{Log: slog.New(slog.DiscardHandler), Poke: func() {}})
	g := newGateway(newDiscovery(m, segment{"lo", vip.IPv4}), &response{addr: netip.MustParseAddr("127.0.0.1")})
	g.state.service = service{internetgateway2.URN_WANIPConnection_1, *check.Value(url.Parse(server.URL))(t)}
	g.want = m.want.Get()
	return g
}

// A router may have a port in use itself, and not list it: it says so when it is asked to open it. Where any port will do another one is asked for then.
func TestAnyPortWhereTheFirstIsRefused(t *testing.T) {
	for _, tt := range []struct {
		name    string
		code    int
		any     bool
		refused string // in requests that are refused
		want    string // in the problem; "" for none
		asked   int
	}{
		{"another one has it", 718, true, "<NewExternalPort>80<", "", 2},
		{"the router has it", 729, true, "<NewExternalPort>80<", "", 2},
		{"no other will do", 718, false, "<NewExternalPort>80<", "718", 1},
		{"it refuses all", 718, true, "", "718", 8},
		{"it has no room", 728, true, "", "728", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := &fake{t: t, mapped: make(map[string]string)}
			f.control = func(action, body string) (int, string) {
				if action == "AddPortMapping" && strings.Contains(body, tt.refused) {
					return 500, fault(tt.code)
				}
				return 0, ""
			}
			g := localGateway(t, f)
			w := want("TCP", 80)
			w.Any = tt.any
			e := &entry{want: w}
			err := g.ensurePortMapping(t.Context(), e)
			if tt.want == "" && (err != nil || !e.confirmed || e.external == 80 || e.external == 0) {
				t.Errorf("%v: %+v", err, e)
			}
			if tt.want != "" && (err == nil || !strings.Contains(explain(err), tt.want) || e.confirmed || e.requested) {
				t.Errorf("%v: %+v, want %s", err, e, tt.want)
			}
			if got := f.count("AddPortMapping"); got != tt.asked {
				t.Errorf("%d ports were asked for, want %d", got, tt.asked)
			}
		})
	}
}
