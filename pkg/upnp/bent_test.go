package upnp

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/heraldvip/herald/testing/check"
)

// httpResponse is the response of an HTTP server that does as it should.
func httpResponse(status int, body string) string {
	return fmt.Sprintf("HTTP/1.1 %d x\r\nContent-Type: text/xml; charset=\"utf-8\"\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", status, len(body), body)
}

// Routers bend HTTP, XML, SOAP and the names of their own ports in many ways; with each of these a mapping is made, and removed.
func TestBentGateways(t *testing.T) {
	xmlns := regexp.MustCompile(` (xmlns(:\w)?|s:encodingStyle)="[^"]*"`)
	prefix := regexp.MustCompile(`(</?)\w:`)
	tags := regexp.MustCompile(`</?[^>?]+>`)
	bend := func(change func(status int, body string) (int, string)) func(*fake) {
		return func(f *fake) {
			f.bend = func(status int, body string) string { return httpResponse(change(status, body)) }
		}
	}
	text := func(change func(string) string) func(*fake) {
		return bend(func(status int, body string) (int, string) { return status, change(body) })
	}
	header := func(change func(string) string) func(*fake) {
		return func(f *fake) {
			f.bend = func(status int, body string) string {
				head, body, _ := strings.Cut(httpResponse(status, body), "\r\n\r\n")
				return change(head+"\r\n") + "\r\n" + body
			}
		}
	}
	replace := func(old, new string) func(*fake) {
		return text(func(s string) string { return strings.ReplaceAll(s, old, new) })
	}
	described := func(change func(f *fake, text string) string) func(*fake) {
		return func(f *fake) {
			f.describe = func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, change(f, descriptionXML("/ctl"))) }
		}
	}
	base := func(url string) func(*fake) {
		return described(func(_ *fake, s string) string {
			return strings.Replace(s, "<specVersion>", "<URLBase>"+url+"</URLBase><specVersion>", 1)
		})
	}
	empty := func(action string) func(*fake) {
		return text(func(s string) string {
			if strings.Contains(s, action+"Response") {
				return ""
			}
			return s
		})
	}
	const declaration = `<?xml version="1.0"?>`
	for name, change := range map[string]func(*fake){
		"HTTP/1.0 without a length": header(func(h string) string {
			return regexp.MustCompile(`Content-Length.*\r\n`).ReplaceAllString(strings.Replace(h, "1.1", "1.0", 1), "")
		}),
		"too long a length": header(func(h string) string { return regexp.MustCompile(`Length: (\d+)`).ReplaceAllString(h, "Length: 1$1") }),
		"lower case":        header(func(h string) string { return strings.Replace(strings.ToLower(h), "http/", "HTTP/", 1) }),
		"upper case":        header(strings.ToUpper),
		"LF only":           header(func(h string) string { return strings.ReplaceAll(h, "\r", "") }),
		"no reason":         header(func(h string) string { return strings.Replace(h, " x\r", "\r", 1) }),
		"no content type":   header(func(h string) string { return regexp.MustCompile(`Content-Type.*\r\n`).ReplaceAllString(h, "") }),
		"chunked": func(f *fake) {
			f.bend = func(status int, body string) string {
				return fmt.Sprintf("HTTP/1.1 %d x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n%X; x=y\r\n%s\r\n0\r\n\r\n", status, 40, body[:40], len(body)-40, body[40:])
			}
		},

		"BOM":                      text(func(s string) string { return "\ufeff" + s }),
		"an empty line first":      text(func(s string) string { return "\r\n" + s }),
		"no declaration":           replace(declaration, ""),
		"XML 1.1":                  replace(`version="1.0"`, `version="1.1"`),
		"an unknown encoding":      replace(`version="1.0"`, `version="1.0" encoding="gb2312"`),
		"an encoding by its alias": replace(`version="1.0"`, `version="1.0" encoding="utf8"`),
		"Latin 1 called UTF-8": text(func(s string) string {
			return strings.NewReplacer(`version="1.0"`, `version="1.0" encoding="UTF-8"`, ">fake<", ">caf\xe9<", ">x<", ">\xe9<").Replace(s)
		}),
		"UTF-16": text(func(s string) string {
			var out []byte
			for _, u := range utf16.Encode([]rune("\ufeff" + strings.Replace(s, `version="1.0"`, `version="1.0" encoding="UTF-16"`, 1))) {
				out = append(out, byte(u), byte(u>>8))
			}
			return string(out)
		}),
		"characters that are none": replace(">fake<", ">fa\x01ke<"),
		"NUL at the end":           text(func(s string) string { return s + "\x00\x00" }),
		"garbage at the end":       text(func(s string) string { return s + "\r\n<!-- x --></x>&" }),
		"an ampersand":             replace(">fake<", ">AT&T & co<"),
		"no namespace":             text(func(s string) string { return prefix.ReplaceAllString(xmlns.ReplaceAllString(s, ""), "$1") }),
		"other namespaces": text(func(s string) string {
			return strings.NewReplacer("urn:schemas-upnp-org:device-1-0", "urn:x", "http://schemas.xmlsoap.org/soap/envelope/", "http://www.w3.org/2003/05/soap-envelope").Replace(s)
		}),
		"other prefixes": text(func(s string) string {
			return strings.NewReplacer("<s:", "<SOAP-ENV:", "</s:", "</SOAP-ENV:", "<u:", "<m:", "</u:", "</m:").Replace(s)
		}),
		"tags in upper case": text(func(s string) string {
			return tags.ReplaceAllStringFunc(prefix.ReplaceAllString(xmlns.ReplaceAllString(s, ""), "$1"), strings.ToUpper)
		}),
		"end tags left out": text(func(s string) string {
			return regexp.MustCompile(`</(device|deviceList|root|s:\w+)>`).ReplaceAllString(s, "")
		}),
		"lines and spaces around values": text(func(s string) string {
			return regexp.MustCompile(`>([^<>]+)</`).ReplaceAllString(s, ">\r\n  $1\r\n</")
		}),
		"CDATA": text(func(s string) string {
			return regexp.MustCompile(`>([^<>]+)</`).ReplaceAllString(s, "><![CDATA[$1]]></")
		}),

		"faults with status 200": bend(func(_ int, body string) (int, string) { return 200, body }),
		"faults with status 402": bend(func(status int, body string) (int, string) {
			if status != 200 {
				status = 402
			}
			return status, body
		}),
		"nothing in answer to AddPortMapping":    empty("AddPortMapping"),
		"nothing in answer to DeletePortMapping": empty("DeletePortMapping"),
		"a word for a boolean":                   replace("<NewEnabled>1<", "<NewEnabled>Enabled<"),
		"no lease": text(func(s string) string {
			return regexp.MustCompile(`<NewLeaseDuration>.*</NewLeaseDuration>`).ReplaceAllString(s, "")
		}),
		"an empty lease": text(func(s string) string {
			return regexp.MustCompile(`<NewLeaseDuration>.*</`).ReplaceAllString(s, "<NewLeaseDuration></")
		}),
		"a negative lease": text(func(s string) string {
			return regexp.MustCompile(`<NewLeaseDuration>.*</`).ReplaceAllString(s, "<NewLeaseDuration>-1</")
		}),

		"a base with another port": base("http://" + routerAddr + ":1/"),
		"a base at another host":   base("http://192.168.1.1/"),
		"a base at a name":         base("http://router.lan:5431/"),
		"a base that is a path":    base("/upnp/"),
		"a base that is none":      base("::x"),
		"an empty base":            base(""),
		"the host alone":           func(f *fake) { base(fmt.Sprintf("http://%s:%d", routerAddr, f.port))(f) },
		"no slash":                 described(func(_ *fake, s string) string { return strings.Replace(s, "/ctl", "ctl", 1) }),
		"a URL": described(func(f *fake, s string) string {
			return strings.Replace(s, "/ctl", fmt.Sprintf("http://%s:%d/ctl", routerAddr, f.port), 1)
		}),
		"in the description's directory": func(f *fake) {
			f.location = fmt.Sprintf("http://%s:%d/dir/desc.xml", routerAddr, f.port)
			described(func(_ *fake, s string) string { return strings.Replace(s, "/ctl", "sub", 1) })(f)
		},
		"the type after the URL": described(func(_ *fake, s string) string {
			return regexp.MustCompile(`(<serviceType>.*</serviceType>)(.*)(<controlURL>.*</controlURL>)`).ReplaceAllString(s, "$3$2$1")
		}),
		"two locations, of which one is dead": func(f *fake) {
			f.dead = fmt.Sprintf("http://%s:1/desc.xml", routerAddr)
		},

		"leases refused as 402": refuseLeases(402),
		"leases refused as 501": refuseLeases(501),
		"leases refused as 725": refuseLeases(725),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, newRouter(t), routerAddr)
			f.set(func() { change(f) })
			n := newAsker(t)
			if x := n.mapped("made", made); !strings.HasPrefix(x.Gateway, routerAddr+" (") {
				t.Errorf("the gateway is called %q", x.Gateway)
			}
			n.put()
			check.True(t, 10*time.Second, "the mapping to be removed", func() bool { return f.count("DeletePortMapping") > 0 })
		})
	}
}

// refuseLeases has it take mappings for ever only, and say so by an error code.
func refuseLeases(code int) func(*fake) {
	return func(f *fake) {
		f.control = func(action, body string) (int, string) {
			if action == "AddPortMapping" && !strings.Contains(body, "<NewLeaseDuration>0<") {
				return 500, fault(code)
			}
			return 0, ""
		}
	}
}
