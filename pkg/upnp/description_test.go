package upnp

import (
	"errors"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func TestReadDevice(t *testing.T) {
	real := check.Value(os.ReadFile("testdata/miniupnpd.xml"))(t)
	location := check.Value(url.Parse("http://10.0.0.1:5000/x/desc.xml"))(t)
	one := func(control string) string { return "WANIPConnection:1 http://10.0.0.1:5000" + control }
	tests := []struct {
		name, text string
		want       []string // or, if none, what is reported
		reported   string
	}{
		{"miniupnpd's", string(real), []string{"WANIPConnection:2 http://10.0.0.1:5000/ctl/IPConn", "WANIPv6FirewallControl:1 http://10.0.0.1:5000/ctl/IP6FCtl"}, ""},
		{"a path", descriptionXML("/ctl"), []string{one("/ctl")}, ""},
		{"a path without a slash", descriptionXML("ctl"), []string{one("/ctl"), one("/x/ctl")}, ""},
		{"a URL", descriptionXML("http://10.0.0.1:6000/ctl"), []string{"WANIPConnection:1 http://10.0.0.1:6000/ctl"}, ""},
		{"a base", based("http://10.0.0.1:6000"), []string{"WANIPConnection:1 http://10.0.0.1:6000/ctl", one("/ctl"), one("/x/ctl")}, ""},
		{"a broken base", based("::"), []string{one("/ctl"), one("/x/ctl")}, ""},
		{"an old encoding", strings.NewReplacer(`<?xml version="1.0"?>`, `<?xml version="1.0" encoding="ISO-8859-1"?>`, ">fake<", ">caf\xe9<").Replace(descriptionXML("/ctl")), []string{one("/ctl")}, ""},
		{"an unknown encoding", strings.Replace(descriptionXML("/ctl"), `<?xml version="1.0"?>`, `<?xml version="1.0" encoding="x-klingon"?>`, 1), []string{one("/ctl")}, ""},
		{"another host", descriptionXML("http://10.0.0.2/ctl"), nil, `another host, "10.0.0.2"`},
		{"no service", `<root xmlns="urn:schemas-upnp-org:device-1-0"><device/></root>`, nil, "no service that opens ports"},
		{"nothing", "", nil, "not to be understood"},
		{"a web page", "<html><body>Please log in<br></body></html>", nil, "not to be understood"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := parseDescription([]byte(tt.text), location, netip.MustParseAddr("10.0.0.1"))
			var got []string
			for _, s := range d.services {
				got = append(got, strings.TrimPrefix(s.urn, "urn:schemas-upnp-org:service:")+" "+s.control)
			}
			check.Same(t, tt.want, got, "services")
			if (err == nil) != (tt.reported == "") || err != nil && !strings.Contains(explain(err), tt.reported) {
				t.Errorf("reported %v, want %q", err, tt.reported)
			}
		})
	}
}

func TestCheckResponse(t *testing.T) {
	tests := []struct {
		location, from string
		want           string // the gateway's address, or part of why not
	}{
		{"http://10.0.0.1:5000/d", "10.0.0.1", "10.0.0.1"},
		{"http://10.0.0.1:5000/d", "::ffff:10.0.0.1", "10.0.0.1"},
		{"http://10.0.0.1/", "10.0.0.2", "at another host"},
		{"http://10.0.1.1/", "10.0.1.1", "no other host of the link"},
		{"http://10.0.0.10/", "10.0.0.10", "no other host of the link"}, // this node
		{"http://8.8.8.8/", "8.8.8.8", "no other host of the link"},
		{"http://127.0.0.1/", "127.0.0.1", "no other host of the link"},
		{"http://router.lan/", "10.0.0.1", "at a name"},
		{"http:///d", "10.0.0.1", "at a name"},
		{"https://10.0.0.1/", "10.0.0.1", "plain http"},
		{"http://me@10.0.0.1/", "10.0.0.1", "plain http"},
		{"http://[fd00::1]/", "10.0.0.1", "other family"},
		{"http://[fd00::1]/", "fd00::1", "fd00::1"},
		{"http://[fd00::1]/", "fe80::1%eth0", "fd00::1"},
		{"http://[fe80::1]/", "fe80::1%eth0", "fe80::1"},
		{"http://[fe80::1%25eth1]/", "fe80::1%eth0", "fe80::1"},
		{"http://[fd00::1]/", "fd00::2", "at another host"},
		{"http://[2001:db8::1]/", "fe80::1", "no other host of the link"},
		{"http://[fd00::10]/", "fe80::1", "no other host of the link"}, // this node
		{"http://[ff02::1]/", "fe80::1", "no other host of the link"},
	}
	for _, tt := range tests {
		t.Run(tt.location+" from "+tt.from, func(t *testing.T) {
			u := check.Value(url.Parse(tt.location))(t)
			a, from := response{location: u}, netip.MustParseAddr(tt.from)
			got := ""
			if err := checkResponse(&a, segment{"eth0", vip.FamilyOf(from.Unmap())}, from, ownFuzz); err != nil {
				got = err.Error()
			} else {
				got = a.addr.String()
			}
			if _, err := netip.ParseAddr(tt.want); err == nil && got != tt.want || !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Every code has an explanation of its own, and a refusal without one counts as a failure.
func TestExplain(t *testing.T) {
	reported := map[string]int{}
	for code := range faultMeanings {
		text := explain(refusal(code))
		check.Equal(t, reported[text], 0, "%d has the same explanation as", code)
		reported[text] = code
	}
	if _, err := readReply(500, []byte(envelope("<s:Fault/>"))); faultCode(err) != 501 {
		t.Errorf("without a code: %v", err)
	}
	check.Equal(t, explain(errors.Join(errors.New("a\x1b[2Jb"))), "a[2Jb", "printed")
}

func TestSourceAddrs(t *testing.T) {
	own := func(list ...string) (ps []netip.Prefix) {
		for _, p := range list {
			ps = append(ps, netip.MustParsePrefix(p))
		}
		return ps
	}
	tests := []struct {
		family vip.Family
		own    []netip.Prefix
		want   string
	}{
		{vip.IPv4, nil, ""},
		{vip.IPv4, own("fd00::10/64"), ""},
		{vip.IPv4, own("10.0.0.10/24", "10.0.0.11/24", "fd00::10/64", "192.168.1.2/16"), "10.0.0.10 192.168.1.2"},
		{vip.IPv4, own("10.0.0.1/24", "10.0.1.1/24", "10.0.2.1/24", "10.0.3.1/24", "10.0.4.1/24"), "10.0.0.1 10.0.1.1 10.0.2.1 10.0.3.1"},
		{vip.IPv6, own("10.0.0.10/24"), "::"},
	}
	for _, tt := range tests {
		var got []string
		for _, a := range sourceAddrs(segment{"eth0", tt.family}, tt.own) {
			got = append(got, a.String())
		}
		check.Equal(t, strings.Join(got, " "), tt.want, "%v of %v", tt.family, tt.own)
	}
}

// Routers bend what the UPnP Device Architecture says of a response; what can be understood is used.
func TestLenientResponses(t *testing.T) {
	const good = "HTTP/1.1 200 OK\r\nST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\nLOCATION: http://192.0.2.1:5000/desc.xml\r\nEXT:\r\n\r\n"
	for name, text := range map[string]string{
		"good":                  good,
		"no empty line":         strings.TrimSuffix(good, "\r\n"),
		"no end of line at all": strings.TrimSuffix(good, "\r\n\r\n"),
		"LF only":               strings.ReplaceAll(good, "\r", ""),
		"lower case":            strings.NewReplacer("ST:", "st:", "LOCATION:", "location:").Replace(good),
		"no space":              strings.ReplaceAll(good, ": ", ":"),
		"space before colons":   strings.ReplaceAll(good, ": ", " : "),
		"HTTP/1.0":              strings.ReplaceAll(good, "HTTP/1.1", "HTTP/1.0"),
		"no reason":             strings.ReplaceAll(good, " OK", ""),
		"a line that is none":   strings.ReplaceAll(good, "EXT:", "garbage"),
		"quotes":                strings.NewReplacer("http://192.0.2.1:5000/desc.xml", "<http://192.0.2.1:5000/desc.xml>").Replace(good),
		"a NUL at the end":      good + "\x00",
		"a body without length": good + "<xml/>",
	} {
		r, err := parseResponse([]byte(text))
		if err != nil || r.location.String() != "http://192.0.2.1:5000/desc.xml" || r.target != searchTargets[0] {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	for name, text := range map[string]string{
		"status 500":  strings.ReplaceAll(good, "200", "500"),
		"a request":   strings.ReplaceAll(good, "HTTP/1.1 200 OK", "NOTIFY * HTTP/1.1"),
		"no location": strings.ReplaceAll(good, "LOCATION", "X"),
		"nothing":     "",
	} {
		if _, err := parseResponse([]byte(text)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
