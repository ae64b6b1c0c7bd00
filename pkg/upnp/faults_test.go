package upnp

import (
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// fastTiming shortens testTiming for gateways of the test itself.
func fastTiming(m *Mapper) {
	m.timing.responses, m.timing.period = 300*time.Millisecond, 100*time.Millisecond
}

// awaitNone waits until the World has no mapping.
func (n *node) awaitNone() {
	n.t.Helper()
	check.True(n.t, 10*time.Second, "no mapping to be left", func() bool {
		var w vip.World
		n.Observe(&w)
		return len(w.MappingStates) == 0
	})
}

// addAddress gives the router another address on the LAN.
func (r *router) addAddress(t testing.TB, text string) {
	t.Helper()
	lan := check.Value(r.nl.LinkByName("lan"))(t)
	check.OK(t, r.nl.AddrAdd(lan, addr(t, text)))
}

// newAsker is a node that wants TCP port 80.
func newAsker(t testing.TB) *node {
	t.Helper()
	n := newNode(t, fastTiming)
	n.put(want("TCP", 80))
	return n
}

func problem(contains string) func(vip.MappingState) bool {
	return func(x vip.MappingState) bool { return strings.Contains(x.Problem, contains) }
}

// The problem of each refusal says what to change, and ends when the gateway refuses no more.
func TestRefusals(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	n := newAsker(t)
	n.mapped("made", made)
	tests := []struct {
		name     string
		control  func(action, body string) (int, string)
		contains []string
	}{
		{"secure mode", refuse("AddPortMapping", 718), []string{"718", "secure mode"}},
		{"not authorized", refuse("AddPortMapping", 606), []string{"606", "secure mode", "1024"}},
		{"invalid arguments", refuse("AddPortMapping", 402), []string{"402", leaseKey}},
		{"only equal ports", refuse("AddPortMapping", 724), []string{"724", portKey}},
		{"full", refuse("AddPortMapping", 728), []string{"728", "no room"}},
		{"in use by the router", refuse("AddPortMapping", 729), []string{"729", portKey}},
		{"an unknown code", refuse("AddPortMapping", 9999), []string{"UPnP error 9999"}},
		{"a fault without a code", func(a, _ string) (int, string) {
			return 500, envelope("<s:Fault><faultcode>x</faultcode></s:Fault>")
		}, []string{"501"}},
		{"malformed XML", func(a, _ string) (int, string) { return 200, "<s:Envelope><s:Body><u:Add" }, []string{"not to be understood"}},
		{"no XML", func(a, _ string) (int, string) { return 200, "\x00\xff\x1b[2Jhello" }, []string{"not to be understood"}},
		{"another document", func(a, _ string) (int, string) { return 200, "<html><body/></html>" }, []string{"not to be understood"}},
		{"a web page", func(a, _ string) (int, string) { return 404, "" }, []string{"not to be understood"}},
		{"a huge answer", func(a, _ string) (int, string) { return 200, envelope(strings.Repeat("<x>", maxReply)) }, []string{"not to be understood"}},
		{"it forgets at once", func(a, _ string) (int, string) {
			if a == "GetSpecificPortMappingEntry" {
				return 500, fault(codeNoMapping)
			}
			return 0, ""
		}, []string{"does not have it", leaseKey}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.set(func() { f.control = tt.control; clear(f.mapped) })
			for _, w := range tt.contains {
				n.mapped("with "+w, problem(w))
			}
			x := n.mapped("with a problem", problem(tt.contains[0]))
			if i := strings.IndexFunc(x.Problem, func(r rune) bool { return r < ' ' || r > '~' }); i >= 0 || len(x.Problem) > 400 {
				t.Errorf("text of the gateway is shown unfiltered: %q", x.Problem)
			}
			f.set(func() { f.control = nil })
			n.mapped("made", made)
		})
	}
}

// TestRefusedMappingsWait: a gateway refuses the 200 mappings of one namespace. Another namespace's new one, and a removal, do not wait
// until it was asked for each of them.
func TestRefusedMappingsWait(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	f.set(func() {
		f.control = func(action, body string) (int, string) {
			if action != "AddPortMapping" || !strings.Contains(body, "herald greedy/") {
				return 0, ""
			}
			return 500, fault(718)
		}
	})
	n := newNode(t, fastTiming)
	var greedy []vip.Mapping
	for i := range 200 {
		w := want("TCP", uint16(1000+i))
		w.Service.Namespace = "greedy"
		greedy = append(greedy, w)
	}
	all := append(slices.Clone(greedy), want("TCP", 80))
	n.put(all...)
	n.mapped("of default", made)
	check.Between(t, f.count("AddPortMapping")-1, 0, 2*maxOfAKind, "refusals of another namespace's before it was made")
	check.True(t, 20*time.Second, "every mapping to be refused once", func() bool { return f.count("AddPortMapping") > len(greedy) })
	before := f.count("AddPortMapping")
	n.put(append(slices.Clone(greedy), want("TCP", 81))...)
	check.True(t, 10*time.Second, "the mapping to be removed, and another made", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.mapped["TCP 80"] == "" && f.mapped["TCP 81"] != ""
	})
	check.Between(t, f.count("AddPortMapping")-1-before, 0, 4*maxOfAKind, "refusals of another namespace's meanwhile")
}

// A gateway that takes no leases is given mappings for ever, which are removed all the same.
func TestOnlyPermanentLeases(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	f.set(func() { refuseLeases(codeOnlyPermanentLease)(f) })
	n := newAsker(t)
	check.Equal(t, n.mapped("made", made).Until, time.Time{}, "it ends at")
	time.Sleep(3 * testTiming.period) // nothing must be made again
	check.Equal(t, f.count("AddPortMapping"), 2, "requests")
	n.put()
	check.True(t, 10*time.Second, "the mapping to be removed", func() bool { return f.count("DeletePortMapping") == 1 })
}

// Leases are renewed at half of their time, and not earlier.
func TestRenewal(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	n := newNode(t, fastTiming)
	short := want("TCP", 80)
	short.Lease = 8 * time.Second
	n.put(short)
	n.mapped("made", made)
	began := time.Now()
	check.True(t, 20*time.Second, "a renewal", func() bool { return f.count("AddPortMapping") == 2 })
	check.Between(t, time.Since(began), 3900*time.Millisecond, 7900*time.Millisecond, "renewed, at half of %v, or soon after on a busy machine, after", short.Lease)
	short.Lease = time.Hour
	n.put(short)
	check.True(t, 10*time.Second, "the new lease to be asked for", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return strings.Contains(f.mapped["TCP 80"], ">3600<")
	})
}

// One gateway hangs; the other is not disturbed, nor is Set.
func TestOneGatewayHangs(t *testing.T) {
	r := newRouter(t)
	r.addAddress(t, "10.0.0.2/24")
	gate := make(chan struct{})
	bad, good := newFake(t, r, routerAddr), newFake(t, r, "10.0.0.2")
	t.Cleanup(func() { close(gate) })
	bad.set(func() {
		bad.control = func(string, string) (int, string) { <-gate; return 500, "" }
	})
	n := newAsker(t)
	n.mapped("made by the other", func(x vip.MappingState) bool { return made(x) && x.Gateway == "10.0.0.2 (fake)" })
	began := time.Now()
	n.put(want("TCP", 80), want("TCP", 443))
	check.Between(t, time.Since(began), 0, requestTimeout/8, "Set took")
	n.mapped("the second", func(x vip.MappingState) bool { return made(x) && x.Port == 443 })
	check.Between(t, time.Since(began), 0, requestTimeout*3/2, "the good gateway took")
	n.mapped("that hangs", func(x vip.MappingState) bool {
		return x.Gateway == "10.0.0.1 (fake)" && strings.Contains(x.Problem, "does not answer within")
	})
	check.Equal(t, good.count("AddPortMapping"), 2, "mappings")
	// Stopping does not wait for it for long.
	n.put()
	began = time.Now()
	n.stop()
	check.Between(t, time.Since(began), 0, testTiming.stopTimeout+time.Second, "stopping took")
}

// Whatever a gateway says, no request goes anywhere but to the gateway.
func TestRequestsGoToTheGatewayOnly(t *testing.T) {
	r := newRouter(t)
	r.addAddress(t, "10.0.0.2/24")
	check.OK(t, netlink.RouteAdd(&netlink.Route{Gw: netip.MustParseAddr(routerAddr).AsSlice()})) // there is a way
	outside, inside := trap(t, r, publicAddr), trap(t, r, "10.0.0.2")
	for name, change := range map[string]func(*fake){
		"a location outside":  func(f *fake) { f.location = "http://" + outside + "/desc.xml" },
		"another host's":      func(f *fake) { f.location = "http://" + inside + "/desc.xml" },
		"loopback":            func(f *fake) { f.location = "http://127.0.0.1:6443/" },
		"a name":              func(f *fake) { f.location = "http://localhost:6443/" },
		"https":               func(f *fake) { f.location = "https://" + routerAddr + ":1/" },
		"a file":              func(f *fake) { f.location = "file:///etc/passwd" },
		"redirected outside":  func(f *fake) { f.describe = redirect("http://" + outside + "/") },
		"redirected inside":   func(f *fake) { f.describe = redirect("http://" + inside + "/") },
		"control outside":     func(f *fake) { f.describe = serveText(descriptionXML("http://" + outside + "/ctl")) },
		"control inside":      func(f *fake) { f.describe = serveText(descriptionXML("http://" + inside + "/ctl")) },
		"control with a user": func(f *fake) { f.describe = serveText(descriptionXML("http://x@" + outside + "/ctl")) },
		"an endless description": func(f *fake) {
			f.describe = func(w http.ResponseWriter, _ *http.Request) {
				io.WriteString(w, "<?xml version='1.0'?><root>")
				for range 2 * maxDescription / 10 {
					if _, err := io.WriteString(w, "<a></a><b>"); err != nil {
						return
					}
				}
			}
		},
		"an entity": func(f *fake) {
			f.describe = serveText(`<?xml version="1.0"?><!DOCTYPE root [<!ENTITY x SYSTEM "http://` + outside + `/">]>` + descriptionXML("&x;"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t, r, routerAddr)
			f.set(func() { change(f) })
			n := newAsker(t)
			n.mapped("with a problem", func(x vip.MappingState) bool { return x.Problem != "" })
			time.Sleep(unwantedWait)
			check.Equal(t, f.count("AddPortMapping"), 0, "requests")
		})
	}
	// One request later.
	f := newFake(t, r, routerAddr)
	f.elsewhere = outside
	f.set(func() { f.describe = serveText(descriptionXML("/redirect")) })
	n := newAsker(t)
	n.mapped("refused", problem("that is refused"))
	// A URLBase elsewhere is passed over.
	f = newFake(t, r, routerAddr)
	f.set(func() { f.describe = serveText(based("http://" + outside + "/")) })
	n = newAsker(t)
	n.mapped("made", made)
}

// A gateway that is not asked, because of where it says that its description is, is named, with the reason.
func TestGatewayElsewhere(t *testing.T) {
	r := newRouter(t)
	for location, why := range map[string]string{
		"http://router.lan:5000/d": `at a name, "router.lan"`,
		"http://10.0.0.9/d":        "at another host, 10.0.0.9",
		"https://" + routerAddr:    "not to be had by plain http",
	} {
		t.Run(location, func(t *testing.T) {
			f := newFake(t, r, routerAddr)
			f.set(func() { f.location = location })
			n := newAsker(t)
			n.mapped("with the reason", problem("the gateway "+routerAddr+" answers on eth0 (IPv4), but is not asked: its description is "+why))
			f.set(func() { f.location = "" })
			n.mapped("made", made)
		})
	}
	f := newFake(t, r, routerAddr)
	f.set(func() { f.location = "http://router.lan/d" })
	n := newNode(t, fastTiming, func(m *Mapper) { m.o.Gateways = []netip.Addr{netip.MustParseAddr("10.0.0.7")} })
	n.put(want("TCP", 80))
	n.mapped("refused", problem("upnp_gateways"))
}

func redirect(to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusTemporaryRedirect) }
}

func serveText(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, text) }
}

func based(url string) string {
	return strings.Replace(descriptionXML("ctl"), "<specVersion>", "<URLBase>"+url+"</URLBase><specVersion>", 1)
}

// Only the gateways that were named are asked.
func TestNamedGateways(t *testing.T) {
	r := newRouter(t)
	r.addAddress(t, "10.0.0.2/24")
	bad, good := newFake(t, r, routerAddr), newFake(t, r, "10.0.0.2")
	n := newNode(t, fastTiming, func(m *Mapper) { m.o.Gateways = []netip.Addr{netip.MustParseAddr("10.0.0.2")} })
	n.put(want("TCP", 80))
	n.mapped("made", made)
	time.Sleep(unwantedWait)
	bad.mu.Lock()
	defer bad.mu.Unlock()
	if len(bad.asked) > 0 || good.count("AddPortMapping") != 1 {
		t.Errorf("the other gateway was asked: %v", bad.asked)
	}
}

// Nothing is sent unless something is wanted here, or is still to be removed.
func TestNoRequestsWithoutMappings(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	n := newNode(t, fastTiming)
	n.put(here(want("TCP", 80), false))
	time.Sleep(unwantedWait)
	check.Equal(t, len(n.gateways()), 0, "gateways, searched for what is another node's to ask")
	n.put(want("TCP", 80))
	n.mapped("made", made)
	n.put()
	check.True(t, 10*time.Second, "the mapping to be removed", func() bool { return f.count("DeletePortMapping") == 1 })
	check.True(t, 10*time.Second, "the end of requests", func() bool {
		f.mu.Lock()
		before := len(f.asked)
		f.mu.Unlock()
		time.Sleep(3 * testTiming.period)
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.asked) == before
	})
}

// A gateway of which a mapping can't be removed is tried again, and let go of when the lease is over.
func TestMappingCannotBeRemoved(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	n := newNode(t, fastTiming)
	short := want("TCP", 80)
	short.Lease = 2 * time.Second
	n.put(short)
	n.mapped("made", made)
	f.set(func() {
		f.control = func(action, _ string) (int, string) {
			if action == "DeletePortMapping" { // and says that it did
				return 200, envelope(`<u:DeletePortMappingResponse xmlns:u="urn:schemas-upnp-org:service:WANIPConnection:1"/>`)
			}
			return 0, ""
		}
	})
	n.put()
	x := n.mapped("that stays", problem("still has it"))
	check.Equal(t, x.RemovalSince.IsZero(), false, "RemovalSince is zero")
	check.True(t, 10*time.Second, "more tries", func() bool { return f.count("DeletePortMapping") > 2 })
	n.awaitNone()
}

// The description that another host gave a mapping is shown, without what a terminal obeys.
func TestDescriptionOfOthersIsPrintable(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	f.set(func() {
		f.mapped["TCP 80"] = "<NewInternalPort>80</NewInternalPort><NewInternalClient>not an address</NewInternalClient><NewEnabled>1</NewEnabled><NewPortMappingDescription>&#xe9;\"\t" + strings.Repeat("long ", 100) + "</NewPortMappingDescription><NewLeaseDuration>0</NewLeaseDuration>"
	})
	n := newAsker(t)
	x := n.mapped("refused", problem("belongs to another host"))
	if strings.ContainsFunc(x.Problem, func(r rune) bool { return r < ' ' || r > '~' }) || len(x.Problem) > 300 {
		t.Errorf("%q", x.Problem)
	}
	check.Equal(t, f.count("AddPortMapping"), 0, "requests to overwrite it")
}

// A gateway that forgets mappings before their time is reported: some can't do with leases.
func TestGatewayLosesMappings(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	asked := 0
	f.set(func() {
		f.control = func(action, _ string) (int, string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			switch action {
			case "AddPortMapping":
				asked = 0
			case "GetSpecificPortMappingEntry":
				if asked++; asked == 2 { // the first one is to see whether it is there
					clear(f.mapped)
				}
			}
			return 0, ""
		}
	})
	n := newAsker(t)
	n.mapped("that is forgotten", func(x vip.MappingState) bool { return x.Confirmed && strings.Contains(x.Problem, leaseKey) })
	f.set(func() { f.control = nil })
	n.mapped("that stays", made)
}

// A box with two descriptions is not restarted each time the other one answers first;
// one that is out of reach where it was, is asked where it says to be now.
func TestLocationChanges(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	n := newAsker(t)
	n.mapped("made", made)
	f.set(func() { f.location = "http://" + routerAddr + ":1/desc.xml" })
	time.Sleep(unwantedWait)
	check.Equal(t, f.count("AddPortMapping"), 1, "requests")
	n.mapped("made", made)
	f.set(func() { f.location = "" })
	n.mapped("made", made)
}

// What was given away is removed by nobody: not by who had it, when that one stops.
func TestHandedOver(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	n1, n2 := newNode(t, fastTiming), newNode(t, fastTiming)
	n1.put(want("TCP", 80))
	n1.mapped("made", made)
	n2.put(want("TCP", 80))
	n1.put(here(want("TCP", 80), false))
	n2.mapped("taken over", made)
	n1.put()
	n1.stop()
	check.Equal(t, f.count("DeletePortMapping"), 0, "requests to remove it")
	// Given back, it is this one's again.
	n2.put()
	n2.stop()
	check.Equal(t, f.count("DeletePortMapping"), 1, "requests to remove it")
}

// Old gateways, and those behind a modem, have other services for the same.
func TestServiceTypes(t *testing.T) {
	r := newRouter(t)
	for _, kind := range []string{"WANIPConnection:1", "WANIPConnection:2", "WANPPPConnection:1"} {
		t.Run(kind, func(t *testing.T) {
			f := newFake(t, r, routerAddr)
			f.set(func() {
				f.describe = serveText(strings.Replace(descriptionXML("/ctl"), "WANIPConnection:1", kind, 1))
			})
			n := newAsker(t)
			n.mapped("made", made)
			n.put()
			began := time.Now()
			n.stop()
			check.Between(t, time.Since(began), 0, testTiming.stopTimeout/2, "stopping took")
			check.Equal(t, f.count("DeletePortMapping"), 1, "requests to remove it")
		})
	}
	t.Run("two, one of them connected", func(t *testing.T) {
		f := newFake(t, r, routerAddr)
		f.set(func() {
			one := descriptionXML("/ctl")
			i, j := strings.Index(one, "<service>"), strings.Index(one, "</serviceList>")
			two := strings.NewReplacer("WANIPConnection:1", "WANPPPConnection:1", "/ctl", "/ppp").Replace(one[i:j])
			f.describe = serveText(one[:j] + two + one[j:])
			f.control = func(action, _ string) (int, string) {
				if action == "GetStatusInfo" {
					return 200, envelope(`<u:GetStatusInfoResponse xmlns:u="x"><NewConnectionStatus>Disconnected</NewConnectionStatus><NewLastConnectionError>x</NewLastConnectionError><NewUptime>1</NewUptime></u:GetStatusInfoResponse>`)
				}
				return 0, ""
			}
			f.ppp = `<u:GetStatusInfoResponse xmlns:u="x"><NewConnectionStatus>Connected</NewConnectionStatus><NewLastConnectionError>x</NewLastConnectionError><NewUptime>1</NewUptime></u:GetStatusInfoResponse>`
		})
		n := newAsker(t)
		x := n.mapped("made by the one that is connected", made)
		check.Equal(t, x.External.Addr().String(), "11.22.33.77", "at")
	})
}

// Gateways come and go.
func TestGatewayComesAndGoes(t *testing.T) {
	r := newRouter(t)
	n := newAsker(t)
	for range 2 {
		n.mapped("without a gateway", problem("no UPnP gateway answers on eth0"))
		t.Run("while there is one", func(t *testing.T) {
			newFake(t, r, routerAddr)
			n.mapped("made", made)
		})
		n.mapped("that can't be asked for", problem("can't be reached"))
	}
	n.mapped("without a gateway", problem("no UPnP gateway answers on eth0"))
}

// A gateway that is restarted, without a boot id, is found at its new port well before the next check.
func TestRestartAtAnotherPort(t *testing.T) {
	r := newRouter(t)
	newAsker(t)
	for range 3 {
		t.Run("a life", func(t *testing.T) {
			f := newFake(t, r, routerAddr)
			check.True(t, 10*time.Second, "the mapping to be made", func() bool { return f.count("AddPortMapping") == 1 })
		})
	}
}

// What bears the name of this Service is another cluster's, unless it bears its UID
// as well: then it was made when the Service had another VIP, or another port.
func TestMappingsWithTheSameName(t *testing.T) {
	r := newRouter(t)
	tests := []struct {
		description, client, port string
		want                      bool
	}{
		{"herald default/web (ffffffff)", "10.0.0.60", "80", false},
		{"herald default/web", "10.0.0.60", "80", false},
		{mappingDescription(want("TCP", 80)), "10.0.0.60", "80", true},
		{"herald default/web (ffffffff)", vip4, "81", false},
		{mappingDescription(want("TCP", 80)), vip4, "81", true},
	}
	for _, tt := range tests {
		t.Run(tt.description+" of "+tt.client, func(t *testing.T) {
			f := newFake(t, r, routerAddr)
			f.set(func() {
				f.mapped["TCP 80"] = "<NewInternalPort>" + tt.port + "</NewInternalPort><NewInternalClient>" + tt.client + "</NewInternalClient><NewEnabled>1</NewEnabled><NewPortMappingDescription>" + tt.description + "</NewPortMappingDescription><NewLeaseDuration>100</NewLeaseDuration>"
			})
			n := newAsker(t)
			if tt.want {
				n.mapped("made", made)
				return
			}
			n.mapped("refused", problem("belongs to "+tt.client+" port "+tt.port))
			check.Equal(t, f.count("AddPortMapping")+f.count("DeletePortMapping"), 0, "requests that touch it")
		})
	}
}

func TestMappingDescription(t *testing.T) {
	w := want("TCP", 80)
	check.Equal(t, mappingDescription(w), "herald default/web (0a1b2c3d)", "description")
	w.Service.Namespace, w.Service.Name = strings.Repeat("n", 63), strings.Repeat("s", 63)
	if got := mappingDescription(w); len(got) != maxDescriptionLength || !strings.HasSuffix(got, " (0a1b2c3d)") {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	w.UID = "1"
	if got := mappingDescription(w); !strings.HasSuffix(got, " (1)") {
		t.Error(got)
	}
}

// A gateway may have a mapping before its answer is read. That is known before it is asked, so that
// the VIP stays until the mapping is removed: in secure mode only the VIP may remove it.
func TestRequestedBeforeTheAnswer(t *testing.T) {
	f := newFake(t, newRouter(t), routerAddr)
	n := newNode(t, fastTiming)
	asked, answer := make(chan bool), make(chan bool)
	f.set(func() {
		f.control = func(action, _ string) (int, string) {
			if action == "AddPortMapping" {
				asked <- true
				<-answer
			}
			return 0, ""
		}
	})
	n.put(want("TCP", 80))
	<-asked
	n.mapped("requested", func(x vip.MappingState) bool { return x.Requested && !x.Confirmed })
	n.put()
	answer <- true
	n.awaitNone()
	f.set(func() { f.control = refuse("AddPortMapping", 718) })
	n.put(want("TCP", 80))
	check.Equal(t, n.mapped("refused", problem("718")).Requested, false, "a gateway that refuses a mapping may have it")
}
