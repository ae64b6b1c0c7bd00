package upnp

import (
	"strings"
	"testing"
)

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
