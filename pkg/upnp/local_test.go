package upnp

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

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
	g := newGateway(m, segment{"lo", vip.IPv4}, response{addr: netip.MustParseAddr("127.0.0.1")})
	g.service = service{wanConnectionURNs[1], server.URL}
	g.want = m.want.Get()
	return g
}

// searchResponses plays datagrams that were received, and then the deadline.
type searchResponses []string

func (r *searchResponses) ReadFromUDPAddrPort(b []byte) (int, netip.AddrPort, error) {
	if len(*r) == 0 {
		return 0, netip.AddrPort{}, os.ErrDeadlineExceeded
	}
	n := copy(b, (*r)[0])
	*r = (*r)[1:]
	return n, netip.MustParseAddrPort("[fe80::1%eth0]:1900"), nil
}

// A router may be two devices at one address, of version 1 and of version 2, with a description each, as a FRITZ!Box is. For IPv6 that of version 2 is taken, whichever
// responds first: only there is a firewall to be opened. One of version 1 that is alone is taken, too.
func TestIPv6GatewayOfTwoVersions(t *testing.T) {
	ofVersion := func(version int) string {
		return fmt.Sprintf("HTTP/1.1 200 OK\r\nST: %s\r\nLOCATION: http://[fe80::1]:49000/igd%d.xml\r\n\r\n", searchTargets[version-1], version)
	}
	for _, tt := range []struct {
		name      string
		responses searchResponses
		want      string
	}{
		{"version 1 first", searchResponses{ofVersion(1), ofVersion(2), ofVersion(1)}, "/igd2.xml"},
		{"version 2 first", searchResponses{ofVersion(2), ofVersion(1), ofVersion(2)}, "/igd2.xml"},
		{"version 1 alone", searchResponses{ofVersion(1), ofVersion(1)}, "/igd1.xml"},
		{"none", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var found []string
			for _, r := range readResponses(&tt.responses, segment{"eth0", vip.IPv6}, ownFuzz, nil) {
				found = append(found, r.location.Path)
			}
			check.Equal(t, strings.Join(found, " "), tt.want, "found")
		})
	}
}

// Some gateways cut descriptions short, or say of each lease that it is 0: that is no reason to ask for the mapping again each time that it is looked at. It is once a
// change is wanted, or half of the lease is over.
func TestGatewayKeepsWhatItLikes(t *testing.T) {
	f := &fake{t: t, mapped: make(map[string]string)}
	f.control = func(action, _ string) (int, string) {
		if text := f.mapped["TCP 80"]; action == "GetSpecificPortMappingEntry" && text != "" {
			text = regexp.MustCompile(`(<NewPortMappingDescription>.{10})[^<]*`).ReplaceAllString(text, "$1")
			text = regexp.MustCompile(`<NewLeaseDuration>\d+`).ReplaceAllString(text, "<NewLeaseDuration>0")
			return 200, envelope(`<u:GetSpecificPortMappingEntryResponse xmlns:u="x">` + text + "</u:GetSpecificPortMappingEntryResponse>")
		}
		return 0, ""
	}
	g := localGateway(t, f)
	e := &entry{MappingState: vip.MappingState{Mapping: want("TCP", 80)}}
	for i, tt := range []struct {
		change func()
		asked  int
	}{
		{func() {}, 1},
		{func() {}, 1},
		{func() { e.UID = "c0c0c0c0-2222" }, 2},
		{func() {}, 2},
		{func() { e.renewAt = time.Now() }, 3},
		{func() {}, 3},
	} {
		tt.change()
		check.OK(t, g.ensurePortMapping(t.Context(), e))
		if got := f.count("AddPortMapping"); got != tt.asked || !e.Confirmed || e.Until.IsZero() {
			t.Errorf("%d: asked for it %d times, want %d: %+v", i, got, tt.asked, e)
		}
	}
}

// A refused lease says nothing of the next: another mapping is asked for with one, and the one that was made for ever is, too, after half of what its lease was to be.
func TestLeaseRefusedOnce(t *testing.T) {
	for _, code := range []int{codeInvalidArgs, codeActionFailed, codeOnlyPermanentLease} {
		f := &fake{t: t, mapped: make(map[string]string)}
		refuseLeases(code)(f)
		g := localGateway(t, f)
		first, second := &entry{MappingState: vip.MappingState{Mapping: want("TCP", 80)}}, &entry{MappingState: vip.MappingState{Mapping: want("TCP", 81)}}
		check.OK(t, g.ensurePortMapping(t.Context(), first))
		if left := time.Until(first.renewAt); !first.Confirmed || !first.Until.IsZero() || left < first.Lease/2-time.Minute || left > first.Lease/2 {
			t.Errorf("%d: made: %+v", code, first)
		}
		f.set(func() { f.control = nil })
		for i, e := range []*entry{second, first, first} {
			if i == 2 {
				e.renewAt = time.Now()
			}
			check.OK(t, g.ensurePortMapping(t.Context(), e))
			check.Equal(t, !e.Until.IsZero(), i != 1, "%d: with a lease, after %d more looks: %+v", code, i, e)
		}
	}
}

// UniqueID 0 is one like any other: the pinhole is looked at, renewed and closed by it, and not asked for again each time.
func TestPinholeZero(t *testing.T) {
	f := &fake{t: t, mapped: make(map[string]string)}
	f.control = func(action, body string) (int, string) {
		switch {
		case action == "AddPinhole":
			return 200, envelope(`<u:AddPinholeResponse xmlns:u="x"><UniqueID>0</UniqueID></u:AddPinholeResponse>`)
		case !strings.Contains(body, "<UniqueID>0</UniqueID>"):
			return 500, fault(codeNoPinhole)
		}
		return 200, envelope(`<u:` + action + `Response xmlns:u="x"><PinholePackets>0</PinholePackets></u:` + action + `Response>`)
	}
	g := localGateway(t, f)
	g.service.urn = urnFirewall
	e := &entry{MappingState: vip.MappingState{Mapping: want("TCP", 80)}}
	e.Addr = netip.MustParseAddr(vip6)
	check.OK(t, g.ensurePinhole(t.Context(), e))
	check.OK(t, g.ensurePinhole(t.Context(), e))
	e.renewAt = time.Now()
	check.OK(t, g.ensurePinhole(t.Context(), e))
	check.OK(t, g.deletePinhole(t.Context(), e))
	check.Equal(t, strings.Join(f.asked, " "), "AddPinhole GetPinholePackets UpdatePinhole DeletePinhole", "asked")
}

// TestPinholeNotRenewed: a gateway that does not know UpdatePinhole is asked for the pinhole again, or it would close.
func TestPinholeNotRenewed(t *testing.T) {
	f := &fake{t: t, mapped: make(map[string]string)}
	f.control = func(action, body string) (int, string) {
		if action == "UpdatePinhole" {
			return 500, fault(codeNotImplemented)
		}
		return 200, envelope(`<u:AddPinholeResponse xmlns:u="x"><UniqueID>7</UniqueID></u:AddPinholeResponse>`)
	}
	g := localGateway(t, f)
	g.service.urn = urnFirewall
	e := &entry{MappingState: vip.MappingState{Mapping: want("TCP", 80)}}
	e.Addr = netip.MustParseAddr(vip6)
	check.OK(t, g.ensurePinhole(t.Context(), e))
	e.renewAt = time.Now()
	check.OK(t, g.ensurePinhole(t.Context(), e))
	check.Equal(t, strings.Join(f.asked, " "), "AddPinhole UpdatePinhole AddPinhole", "asked")
}

// TestPinholesAfterRestart: a restarted gateway counts UniqueIDs from 1 again, so one that an entry has may be another's.
func TestPinholesAfterRestart(t *testing.T) {
	var open []string // ports of pinholes; the first has UniqueID 1
	f := &fake{t: t, mapped: make(map[string]string)}
	number := regexp.MustCompile(`<(?:InternalPort|UniqueID)>(\d+)<`)
	f.control = func(action, body string) (int, string) {
		n := number.FindStringSubmatch(body)[1]
		if action == "AddPinhole" {
			open = append(open, n)
			return 200, envelope(fmt.Sprintf(`<u:AddPinholeResponse xmlns:u="x"><UniqueID>%d</UniqueID></u:AddPinholeResponse>`, len(open)))
		}
		if check.Value(strconv.Atoi(n))(t) > len(open) {
			return 500, fault(codeNoPinhole)
		}
		return 200, envelope(`<u:` + action + `Response xmlns:u="x"></u:` + action + `Response>`)
	}
	g := localGateway(t, f)
	g.service.urn = urnFirewall
	for _, ports := range [][]uint16{{80, 81}, {81, 80}, {82, 81, 80}} { // 82 is new
		open = nil
		for _, port := range append(ports, ports...) {
			w := want("TCP", port)
			w.Addr = netip.MustParseAddr(vip6)
			k := keyOf(w)
			if g.entries[k] == nil {
				g.entries[k] = &entry{MappingState: vip.MappingState{Mapping: w}}
			}
			check.OK(t, g.ensurePinhole(t.Context(), g.entries[k]))
		}
		check.Equal(t, strings.Join(open, " "), strings.Trim(fmt.Sprint(ports), "[]"), "open")
	}
}

// Some gateways have another error than 714 for a port for which they have no mapping.
func TestNoMappingByOtherErrors(t *testing.T) {
	for _, code := range []int{402, 713, 714} {
		f := &fake{t: t, mapped: make(map[string]string)}
		f.control = func(action, body string) (int, string) {
			if action == "GetSpecificPortMappingEntry" && len(f.mapped) == 0 {
				return 500, fault(code)
			}
			return 0, ""
		}
		g := localGateway(t, f)
		e := &entry{MappingState: vip.MappingState{Mapping: want("TCP", 80)}}
		for range 2 {
			if err := g.ensurePortMapping(t.Context(), e); err != nil || !e.Confirmed || f.count("AddPortMapping") != 1 {
				t.Errorf("%d: %v, asked %v", code, err, f.asked)
			}
		}
		if err := g.deletePortMapping(t.Context(), e); err != nil || f.count("DeletePortMapping") != 1 {
			t.Errorf("%d: %v, asked %v", code, err, f.asked)
		}
	}
}

// That no gateway answers is counted at each search, so that HeraldPortNotMapped fires: for IPv4, since most routers
// that map IPv4 ports do nothing of the kind for IPv6.
func TestNoGatewayIsCounted(t *testing.T) {
	for family, want := range map[vip.Family]float64{vip.IPv4: 2, vip.IPv6: 0} {
		m := New(Options{Log: slog.New(slog.DiscardHandler), Poke: func() {}})
		s := segment{"eth0", family}
		m.segments[s] = &searched{}
		m.record(found{segment: s})
		m.record(found{segment: s, err: errNoAddress})
		check.Equal(t, check.Metric(t, "", m.metrics.failures.WithLabelValues(failNoGateway)), want, "%v: how often it is counted", family)
	}
}
