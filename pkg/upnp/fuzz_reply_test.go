package upnp

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/huin/goupnp"
	"github.com/huin/goupnp/dcps/internetgateway2"
	"github.com/huin/goupnp/soap"
)

// roundTripper has a function answer HTTP requests.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// FuzzReply: whatever a gateway replies to a request, it is an address, a mapping, or an error that can
// be shown; a fault has a code.
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
		endpoint := &url.URL{Scheme: "http", Host: "10.0.0.1", Path: "/"}
		client := goupnp.ServiceClient{Location: endpoint, RootDevice: &goupnp.RootDevice{}, Service: &goupnp.Service{},
			SOAPClient: &soap.SOAPClient{EndpointURL: *endpoint, HTTPClient: http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				return &http.Response{StatusCode: status, Status: fmt.Sprint(status), Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(reply)), Request: r}, nil
			})}}}
		wan, firewall := internetgateway2.WANIPConnection2{ServiceClient: client}, internetgateway2.WANIPv6FirewallControl1{ServiceClient: client}
		_, inside, _, _, _, first := wan.GetSpecificPortMappingEntryCtx(t.Context(), "", 80, "TCP")
		outside, second := wan.GetExternalIPAddressCtx(t.Context())
		_, third := firewall.AddPinholeCtx(t.Context(), "", 0, "fd00::1", 80, 6, 60)
		for _, text := range []string{inside, outside} {
			if a := parseAddr(text); a.Zone() != "" || a.Is4In6() || a == (netip.Addr{}) && a.IsValid() {
				t.Errorf("%q is read as %s", text, a)
			}
		}
		for _, err := range []error{first, second, third} {
			if err == nil {
				continue
			}
			if why := explain(err); len(why) > 300 || why == "" || strings.ContainsFunc(why, unprintable) {
				t.Errorf("%q", why)
			}
		}
	})
}
