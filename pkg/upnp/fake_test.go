package upnp

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// A fake is a gateway on the router that does what real ones don't do on request.
type fake struct {
	t    testing.TB
	r    *router
	addr string
	port int

	elsewhere string // where /redirect leads
	ppp       string // the answer of a second service, at /ppp, to GetStatusInfo

	mu       sync.Mutex
	location string // what it answers to searches; "" is the truth
	dead     string // a location that it answers before that, if not ""
	describe http.HandlerFunc
	control  func(action, body string) (status int, answer string) // nil does as it should
	asked    []string                                              // the actions, in order
	mapped   map[string]string                                     // "TCP 80" to the request that made it
	silent   bool
	bend     func(status int, body string) string // nil, or makes the whole HTTP response
}

// newFake starts a gateway at an address of the router.
func newFake(t testing.TB, r *router, at string) *fake {
	t.Helper()
	f := &fake{t: t, r: r, addr: at, mapped: make(map[string]string)}
	var ln net.Listener
	var conn *net.UDPConn
	var err error
	r.do(func() {
		if ln, err = net.Listen("tcp", net.JoinHostPort(at, "0")); err != nil {
			return
		}
		var lan *net.Interface
		if lan, err = net.InterfaceByName("lan"); err != nil {
			return
		}
		_, group := segment{"lan", vip.IPv4}.group()
		conn, err = net.ListenMulticastUDP("udp4", lan, net.UDPAddrFromAddrPort(group))
	})
	check.OK(t, err)
	var reply net.PacketConn
	r.do(func() { reply, err = net.ListenPacket("udp4", net.JoinHostPort(at, "0")) })
	check.OK(t, err)
	f.port = ln.Addr().(*net.TCPAddr).Port
	mux := http.NewServeMux()
	describe := func(w http.ResponseWriter, r *http.Request) {
		if h := f.describer(); h != nil {
			h(w, r)
			return
		}
		f.write(w, 200, descriptionXML("/ctl"))
	}
	mux.HandleFunc("/desc.xml", describe)
	mux.HandleFunc("/dir/desc.xml", describe)
	mux.HandleFunc("/ctl", f.serve)
	mux.HandleFunc("/dir/sub", f.serve)
	mux.HandleFunc("/ppp", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.Header.Get("SOAPAction"), `#GetStatusInfo"`):
			io.WriteString(w, envelope(f.ppp))
		case strings.HasSuffix(r.Header.Get("SOAPAction"), `#GetExternalIPAddress"`):
			io.WriteString(w, envelope(`<u:x xmlns:u="x"><NewExternalIPAddress>11.22.33.77</NewExternalIPAddress></u:x>`))
		default:
			f.serve(w, r)
		}
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://"+f.elsewhere+"/", http.StatusFound)
	})
	server := &http.Server{Handler: mux}
	done := make(chan struct{}, 2)
	go func() { _ = server.Serve(ln); done <- struct{}{} }()
	go func() { f.answer(conn, reply); done <- struct{}{} }()
	t.Cleanup(func() {
		_ = server.Close()
		_ = conn.Close()
		_ = reply.Close()
		<-done
		<-done
	})
	return f
}

// descriptionXML is that of a gateway with one service, at a URL.
func descriptionXML(control string) string {
	return `<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0"><specVersion><major>1</major><minor>0</minor></specVersion>
<device><deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType><friendlyName>fake</friendlyName><deviceList><device><deviceList><device>
<serviceList><service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType><serviceId>x</serviceId><controlURL>` + control + `</controlURL></service></serviceList>
</device></deviceList></device></deviceList></device></root>`
}

func (f *fake) describer() http.HandlerFunc {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.describe
}

// set changes what it does.
func (f *fake) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// answer answers searches.
func (f *fake) answer(conn *net.UDPConn, reply net.PacketConn) {
	buf := make([]byte, 2048)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		f.mu.Lock()
		location, dead, silent := f.location, f.dead, f.silent
		f.mu.Unlock()
		if location == "" {
			location = fmt.Sprintf("http://%s:%d/desc.xml", f.addr, f.port)
		}
		if silent || !strings.HasPrefix(string(buf[:n]), "M-SEARCH") || !strings.Contains(string(buf[:n]), searchTargets[0]) {
			continue
		}
		for _, text := range []string{"HTTP/1.1 200 OK\r\nST:", "garbage", // what else comes from the wire
			fmt.Sprintf("HTTP/1.1 200 OK\r\nST: %s\r\nLOCATION: %s\r\n\r\n", searchTargets[0], dead),
			fmt.Sprintf("HTTP/1.1 200 OK\r\nST: %s\r\nUSN: uuid:x\r\nLOCATION: %s\r\n\r\n", searchTargets[0], location)} {
			_, _ = reply.WriteTo([]byte(text), from)
		}
	}
}

var field = regexp.MustCompile(`<(New\w+)>([^<]*)</`)

// write sends a response.
func (f *fake) write(w http.ResponseWriter, status int, body string) {
	if f.bend == nil {
		w.WriteHeader(status)
		io.WriteString(w, body)
		return
	}
	if conn, out, err := http.NewResponseController(w).Hijack(); err == nil {
		out.WriteString(f.bend(status, body))
		out.Flush()
		conn.Close()
	}
}

// serve does what a request says.
func (f *fake) serve(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, action, _ := strings.Cut(strings.Trim(r.Header.Get("SOAPAction"), `"`), "#")
	args := map[string]string{}
	for _, m := range field.FindAllStringSubmatch(string(body), -1) {
		args[m[1]] = m[2]
	}
	f.mu.Lock()
	f.asked = append(f.asked, action)
	control := f.control
	f.mu.Unlock()
	if control != nil {
		if status, answer := control(action, string(body)); status != 0 {
			f.write(w, status, answer)
			return
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key, out := args["NewProtocol"]+" "+args["NewExternalPort"], ""
	switch action {
	case "GetStatusInfo":
		out = "<NewConnectionStatus>Connected</NewConnectionStatus><NewLastConnectionError>x</NewLastConnectionError><NewUptime>1</NewUptime>"
	case "GetExternalIPAddress":
		out = "<NewExternalIPAddress>" + publicAddr + "</NewExternalIPAddress>"
	case "GetSpecificPortMappingEntry":
		if out = f.mapped[key]; out == "" {
			f.write(w, 500, fault(codeNoMapping))
			return
		}
	case "AddPortMapping":
		f.mapped[key] = fmt.Sprintf("<NewInternalPort>%s</NewInternalPort><NewInternalClient>%s</NewInternalClient><NewEnabled>1</NewEnabled><NewPortMappingDescription>%s</NewPortMappingDescription><NewLeaseDuration>%s</NewLeaseDuration>",
			args["NewInternalPort"], args["NewInternalClient"], args["NewPortMappingDescription"], args["NewLeaseDuration"])
	case "DeletePortMapping":
		delete(f.mapped, key)
	}
	f.write(w, 200, envelope("<u:"+action+`Response xmlns:u="urn:schemas-upnp-org:service:WANIPConnection:1">`+out+"</u:"+action+"Response>"))
}

func envelope(body string) string {
	return `<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/" s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>` + body + `</s:Body></s:Envelope>`
}

func fault(code int) string {
	return envelope(fmt.Sprintf(`<s:Fault><faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring><detail><UPnPError xmlns="urn:schemas-upnp-org:control-1-0"><errorCode>%d</errorCode><errorDescription>x</errorDescription></UPnPError></detail></s:Fault>`, code))
}

// refuse has it answer an action with an error code.
func refuse(action string, code int) func(string, string) (int, string) {
	return func(a, _ string) (int, string) {
		if a != action {
			return 0, ""
		}
		return 500, fault(code)
	}
}

// count is how often an action was asked for.
func (f *fake) count(action string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.asked {
		if a == action {
			n++
		}
	}
	return n
}

// trap listens on a host that no gateway may send a request to, and fails the test if one comes.
func trap(t testing.TB, r *router, at string) string {
	t.Helper()
	var ln net.Listener
	var err error
	r.do(func() { ln, err = net.Listen("tcp", net.JoinHostPort(at, "0")) })
	check.OK(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := ln.Accept()
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				t.Errorf("%s was connected to from %s", ln.Addr(), c.RemoteAddr())
				c.Close()
			}
		}
	}()
	t.Cleanup(func() { cancel(); ln.Close(); <-done })
	return ln.Addr().String()
}

// unwantedWait is how long tests wait for something that must not happen.
const unwantedWait = 500 * time.Millisecond
