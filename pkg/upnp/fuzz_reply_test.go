package upnp

import (
	"fmt"
	"strings"
	"testing"
)

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
