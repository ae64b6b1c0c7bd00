package upnp

import (
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

var ownFuzz = []netip.Prefix{netip.MustParsePrefix("10.0.0.10/24"), netip.MustParsePrefix("fd00::10/64")}

// FuzzResponse: what is let pass is the answer of another host on the link, for itself.
func FuzzResponse(f *testing.F) {
	for _, location := range []string{
		"http://10.0.0.1:5000/desc.xml", "http://[fd00::1]:5000/desc.xml", "http://[fe80::1%25eth0]/", "http://[::ffff:10.0.0.1]/",
		"http://user@10.0.0.1/", "http://169.254.169.254/latest/meta-data", "http://10.0.0.10:2112/", "http://10.0.0.255/", "http://0x0a000001/",
		"http://127.0.0.1/", "HTTP://10.0.0.1", "//10.0.0.1/", "http:10.0.0.1",
	} {
		f.Add("HTTP/1.1 200 OK\r\nST: "+searchTargets[0]+"\r\nLOCATION: "+location+"\r\n\r\n", "10.0.0.1", true)
		f.Add("HTTP/1.1 200 OK\r\nST: "+searchTargets[1]+"\r\nLOCATION: "+location+"\r\n\r\n", "fe80::1", false)
	}
	f.Add("NOTIFY * HTTP/1.1\r\nHOST: 239.255.255.250:1900\r\nNT: "+searchTargets[0]+"\r\n\r\n", "10.0.0.1", true)
	f.Fuzz(func(t *testing.T, datagram, from string, four bool) {
		a, err := parseResponse([]byte(datagram))
		source, bad := netip.ParseAddr(from)
		if err != nil || bad != nil {
			return
		}
		s := segment{"eth0", vip.IPv6}
		if four {
			s.family = vip.IPv4
		}
		if checkResponse(&a, s, source, ownFuzz) != nil {
			return
		}
		if !isNeighbor(a.addr, ownFuzz) || vip.FamilyOf(a.addr) != s.family || a.location.Scheme != "http" {
			t.Errorf("%v passes", a)
		}
		if four && a.addr != source.Unmap() {
			t.Errorf("%s speaks for %s", source, a.addr)
		}
		if a.addr.IsLoopback() || a.addr.IsMulticast() || a.addr.IsUnspecified() || a.addr == ownFuzz[0].Addr() {
			t.Errorf("%s is no gateway", a.addr)
		}
	})
}

// FuzzDescription: whatever a description says, requests go to the gateway only, and what is printed is fit to be.
func FuzzDescription(f *testing.F) {
	f.Add([]byte(descriptionXML("/ctl")))
	f.Add([]byte(descriptionXML("http://10.0.0.1:1/ctl")))
	f.Add([]byte(descriptionXML("http://11.22.33.44/ctl")))
	f.Add([]byte(descriptionXML("//11.22.33.44/ctl")))
	f.Add([]byte(based("http://10.0.0.1:5000/x/")))
	f.Add([]byte(based("http://evil.example/")))
	f.Add([]byte(strings.Replace(descriptionXML("ctl"), `<?xml version="1.0"?>`, `<?xml version="1.0" encoding="iso-8859-1"?>`, 1)))
	f.Add([]byte(strings.Repeat("<device>", 3000)))
	real, _ := filepath.Glob(filepath.Join("testdata", "*.xml"))
	for _, name := range real {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	location, _ := url.Parse("http://10.0.0.1:5000/desc.xml")
	gateway := netip.MustParseAddr("10.0.0.1")
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := parseDescription(text, location, gateway)
		if err != nil {
			if why := explain(err); len(why) > 300 || strings.ContainsFunc(why, unprintable) {
				t.Errorf("problem: %q", why)
			}
			return
		}
		if len(d.services) == 0 || len(d.services) > maxServices || len(d.name) > 40 || strings.ContainsFunc(d.name, unprintable) {
			t.Errorf("%+v", d)
		}
		for _, s := range d.services {
			u, err := url.Parse(s.control)
			if err != nil || parseAddr(u.Hostname()) != gateway || u.Scheme != "http" {
				t.Errorf("requests go to %s", s.control)
			}
		}
	})
}

func unprintable(r rune) bool { return r < ' ' || r > '~' }

// FuzzPrintable: no text from the network is longer than it may be, or more than text.
func FuzzPrintable(f *testing.F) {
	f.Add("a\x00b\x1b[2J", 3)
	f.Fuzz(func(t *testing.T, text string, max int) {
		if max < 0 || max > 1000 {
			return
		}
		if got := printable(text, max); len(got) > max || strings.ContainsFunc(got, unprintable) {
			t.Errorf("%q", got)
		}
	})
}

// FuzzReply: whatever a gateway replies to a request, it is an address, a mapping, or an error that can be shown; a fault has a code.
func FuzzReply(f *testing.F) {
	envelope := func(body string) []byte {
		return fmt.Appendf(nil, `<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>%s</s:Body></s:Envelope>`, body)
	}
	mapping := `<u:GetSpecificPortMappingEntryResponse xmlns:u="urn:x"><NewInternalPort>80</NewInternalPort><NewInternalClient>10.0.0.50</NewInternalClient>` +
		`<NewEnabled>1</NewEnabled><NewPortMappingDescription>herald</NewPortMappingDescription><NewLeaseDuration>3600</NewLeaseDuration></u:GetSpecificPortMappingEntryResponse>`
	fault := `<s:Fault><faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring><detail><UPnPError xmlns="urn:schemas-upnp-org:control-1-0"><errorCode>%s</errorCode><errorDescription>x</errorDescription></UPnPError></detail></s:Fault>`
	for _, body := range []string{mapping, strings.Replace(mapping, "80", "65536", 1), strings.Replace(mapping, "3600", "-1", 1), fmt.Sprintf(fault, "718"), fmt.Sprintf(fault, "0"),
		fmt.Sprintf(fault, "99999999999"), `<u:GetExternalIPAddressResponse xmlns:u="urn:x"><NewExternalIPAddress>11.22.33.44</NewExternalIPAddress></u:GetExternalIPAddressResponse>`,
		`<u:AddPinholeResponse xmlns:u="urn:x"><UniqueID>7</UniqueID></u:AddPinholeResponse>`, strings.Repeat("<a>", 5000)} {
		f.Add(envelope(body), 200)
		f.Add(envelope(body), 500)
	}
	f.Add([]byte("\x1b[2J not found"), 404)
	f.Fuzz(func(t *testing.T, reply []byte, status int) {
		d, err := readReply(status, reply)
		if a := parseAddr(d.text("newexternalipaddress")); a.Zone() != "" || a.Is4In6() {
			t.Errorf("read as %s", a)
		}
		_, port := d.number("newinternalport", 16)
		for _, err := range []error{err, port} {
			if err == nil {
				continue
			}
			if why := explain(err); len(why) > 300 || why == "" || strings.ContainsFunc(why, unprintable) {
				t.Errorf("%q", why)
			}
		}
		for _, x := range d {
			if x.name == "" || strings.ContainsFunc(x.text, unprintable) {
				t.Errorf("%q", x)
			}
		}
	})
}
