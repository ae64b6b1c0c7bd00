package upnp

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/huin/goupnp"
)

// Bounds of what a gateway may send, and of how long it may take.
const (
	descriptionMost = 256 << 10
	replyMost       = 64 << 10
	servicesMost    = 16
	requestMost     = 4 * time.Second
	// fromVIP is how long a connection from the VIP may take; the answer may go astray
	// where the gateway still believes the VIP to be elsewhere.
	fromVIP = 1500 * time.Millisecond
)

var errRedirect = errors.New("the gateway sends the request elsewhere; that is refused")

// A line is how one gateway is reached: at its address on its link, and nowhere else.
type line struct {
	link string
	addr netip.Addr // of the gateway
}

// client makes HTTP requests to the gateway, from the address src if this node
// has it, else from its own. It follows nothing, keeps nothing, and reads no more
// than most bytes of an answer. If a request fails for want of an answer, failed is why.
func (l line) client(src netip.Addr, most int64, failed *error) http.Client {
	return http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { *failed = errRedirect; return errRedirect },
		Transport: bounded{most, failed, &http.Transport{
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 16 << 10,
			DialContext: func(ctx context.Context, _, address string) (net.Conn, error) { return l.dial(ctx, src, address) },
		}},
	}
}

// dial connects to the gateway, if address is there.
func (l line) dial(ctx context.Context, src netip.Addr, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if a, err := netip.ParseAddr(host); err != nil || a.Unmap().WithZone("") != l.addr {
		return nil, fmt.Errorf("the gateway at %s names %s, which is another host; that is refused", l.addr, quote(host))
	}
	to := l.addr
	if to.IsLinkLocalUnicast() {
		to = to.WithZone(l.link)
	}
	address = net.JoinHostPort(to.String(), port)
	var control func(string, string, syscall.RawConn) error = onLink(l.link)
	if src.IsValid() {
		d := net.Dialer{Timeout: fromVIP, Control: control, LocalAddr: &net.TCPAddr{IP: src.AsSlice()}}
		if conn, err := d.DialContext(ctx, "tcp", address); err == nil || ctx.Err() != nil {
			return conn, err
		}
	}
	d := net.Dialer{Control: control}
	return d.DialContext(ctx, "tcp", address)
}

// bounded cuts answers that are too long, and remembers why there was none: the
// SOAP library keeps only the words of it.
type bounded struct {
	most   int64
	failed *error
	next   http.RoundTripper
}

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err != nil {
		*b.failed = err
		return nil, err
	}
	body := response.Body
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, b.most), body}
	return response, nil
}

// A device is what a gateway's description says.
type device struct {
	name     string // what it calls itself, fit to be printed
	services []service
}

// A service is one of a gateway's that Herald knows how to use.
type service struct {
	kind    string // its URN
	control url.URL
}

// describe fetches and reads the gateway's description.
func (l line) describe(ctx context.Context, location *url.URL) (device, error) {
	ctx, cancel := context.WithTimeout(ctx, requestMost)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return device{}, err
	}
	var failed error
	client := l.client(netip.Addr{}, descriptionMost, &failed)
	response, err := client.Do(request)
	if err != nil {
		return device{}, fmt.Errorf("its description can't be had: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return device{}, fmt.Errorf("its description can't be had: status %d", response.StatusCode)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return device{}, fmt.Errorf("its description can't be had: %w", err)
	}
	return readDevice(text, location, l.addr)
}

// readDevice reads a description that was found at location.
func readDevice(text []byte, location *url.URL, addr netip.Addr) (device, error) {
	var root goupnp.RootDevice
	decoder := xml.NewDecoder(bytes.NewReader(text))
	decoder.DefaultSpace = goupnp.DeviceXMLNamespace
	decoder.CharsetReader = charset
	if err := decoder.Decode(&root); err != nil {
		return device{}, fmt.Errorf("its description is not to be understood: %w", err)
	}
	base := location
	if root.URLBaseStr != "" { // UPnP 1.0 only, and often wrong
		if u, err := url.Parse(strings.TrimSpace(root.URLBaseStr)); err == nil && u.Host != "" {
			base = u
		}
	}
	root.SetURLBase(base)
	d := device{name: printable(root.Device.FriendlyName, 40)}
	var elsewhere error
	root.Device.VisitServices(func(s *goupnp.Service) {
		if !known(s.ServiceType) || !s.ControlURL.Ok || len(d.services) == servicesMost {
			return
		}
		u := s.ControlURL.URL
		if host, err := netip.ParseAddr(u.Hostname()); err != nil || host.Unmap().WithZone("") != addr || u.Scheme != "http" {
			elsewhere = fmt.Errorf("its description sends requests to another host, %s; that is refused", quote(u.Host))
			return
		}
		d.services = append(d.services, service{s.ServiceType, u})
	})
	if len(d.services) == 0 {
		return device{}, errors.Join(errors.New("its description names no service that opens ports"), elsewhere)
	}
	return d, nil
}

// charset reads the encodings that old devices declare besides UTF-8.
func charset(name string, input io.Reader) (io.Reader, error) {
	switch strings.ToLower(name) {
	case "iso-8859-1", "latin1", "us-ascii", "windows-1252":
		text, err := io.ReadAll(input)
		runes := make([]rune, len(text))
		for i, b := range text {
			runes[i] = rune(b)
		}
		return strings.NewReader(string(runes)), err
	}
	return nil, fmt.Errorf("encoding %s", quote(name))
}

// printable is text of a stranger's, cut and without what a terminal might obey.
func printable(text string, most int) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text[:min(len(text), 4*most)])
	return strings.TrimSpace(clean[:min(len(clean), most)])
}

// quote shows text of a stranger's.
func quote(text string) string { return `"` + strings.ReplaceAll(printable(text, 60), `"`, "'") + `"` }
