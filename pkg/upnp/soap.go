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
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/huin/goupnp/soap"
)

// An element is an XML element: its name, without prefix and in lower case, and its first text.
type element struct{ name, text string }

// A document is the elements of an XML document in order.
type document []element

// readDocument reads what is printable ASCII of XML as routers write it, up to the first mistake.
func readDocument(text []byte) (all document) {
	text = bytes.TrimSpace(bytes.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\r', r == '\t':
			return ' '
		case r < ' ' || r > '~':
			return -1
		}
		return r
	}, text))
	if bytes.HasPrefix(text, []byte("<?xml")) { // the decoder refuses versions and encodings
		_, text, _ = bytes.Cut(text, []byte("?>"))
	}
	d := xml.NewDecoder(bytes.NewReader(text))
	d.Strict = false
	var last element
	for {
		token, err := d.RawToken()
		if err != nil { // or the end; a text that nothing ends is not complete
			return all
		}
		next := ""
		switch x := token.(type) {
		case xml.CharData:
			if last.text == "" {
				last.text = strings.TrimSpace(string(x))
			}
			continue
		case xml.StartElement:
			next = strings.ToLower(x.Name.Local)
		case xml.EndElement:
		default:
			continue
		}
		if last.name != "" {
			all = append(all, last)
		}
		last = element{name: next}
	}
}

func (d document) has(name string) bool {
	return slices.ContainsFunc(d, func(x element) bool { return x.name == name })
}

func (d document) text(name string) string {
	for _, x := range d {
		if x.name == name {
			return x.text
		}
	}
	return ""
}

// number returns the text of the first element of a name as a number of so many bits.
func (d document) number(name string, bits int) (uint64, error) {
	n, err := strconv.ParseUint(d.text(name), 10, bits)
	if err != nil {
		return 0, fmt.Errorf("%w: no %s", errUnreadable, name)
	}
	return n, nil
}

// errUnreadable: a reply is no SOAP, or not the one expected.
var errUnreadable = errors.New("its answer is not to be understood")

// invoke has a service carry out an action, from src if this node has it, within requestTimeout; args are names and
// values in turn. It returns a refusal, errUnreadable, or why there was no reply. The library writes the request; its
// strict reading of the reply does not count.
func (c controlPoint) invoke(ctx context.Context, s service, src netip.Addr, action string, args ...string) (document,
	error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	to, err := url.Parse(s.control)
	if err != nil {
		return nil, err
	}
	client := soap.SOAPClient{EndpointURL: *to, HTTPClient: c.httpClient(src)}
	r := &recorder{next: client.HTTPClient.Transport}
	client.HTTPClient.Transport = r
	client.HTTPClient.CheckRedirect = func(*http.Request, []*http.Request) error {
		r.err = errRedirect
		return errRedirect
	}
	err = client.PerformActionCtx(ctx, s.urn, action, arguments(args), nil)
	switch {
	case r.err != nil:
		return nil, r.err
	case r.status == 0: // nothing was sent
		return nil, err
	}
	return readReply(r.status, r.text)
}

// arguments returns names and values in turn as the library's struct.
func arguments(args []string) any {
	var fields []reflect.StructField
	for pair := range slices.Chunk(args, 2) {
		fields = append(fields, reflect.StructField{Name: pair[0], Type: reflect.TypeFor[string]()})
	}
	all := reflect.New(reflect.StructOf(fields)).Elem()
	for i := range fields {
		all.Field(i).SetString(args[2*i+1])
	}
	return all.Interface()
}

// A recorder keeps status and first maxReply bytes of a response, or why there is none.
type recorder struct {
	next   http.RoundTripper
	status int
	text   []byte
	err    error
}

func (r *recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := r.next.RoundTrip(request)
	if err != nil {
		r.err = err
		return nil, err
	}
	defer response.Body.Close()
	r.status = response.StatusCode
	r.text, r.err = readBody(response, maxReply)
	response.Body = http.NoBody
	return response, nil
}

// readReply reads a reply. A refusal counts at any status: some send it with 200.
func readReply(status int, text []byte) (document, error) {
	d := readDocument(text)
	code, _ := strconv.Atoi(d.text("errorcode"))
	switch {
	case code > 0:
		return nil, refusal(code)
	case d.has("fault"):
		return nil, refusal(codeActionFailed)
	case status != http.StatusOK:
		return nil, fmt.Errorf("%w: status %d", errUnreadable, status)
	case len(bytes.TrimSpace(text)) > 0 && !d.has("envelope"):
		return nil, fmt.Errorf("%w: no SOAP", errUnreadable)
	}
	return d, nil
}

// get fetches max bytes at most, even if fewer than announced, and the status, within requestTimeout.
func (c controlPoint) get(ctx context.Context, location string, max int64) (status int, text []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location, nil)
	if err != nil {
		return 0, nil, err
	}
	client := c.httpClient(netip.Addr{})
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, errors.Unwrap(err) // of the *url.Error
	}
	defer response.Body.Close()
	text, err = readBody(response, max)
	return response.StatusCode, text, err
}

// readBody reads max bytes at most, even if fewer than announced; an error if time ends.
func readBody(response *http.Response, max int64) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(response.Body, max))
	if response.Request.Context().Err() == nil {
		err = nil
	}
	return text, err
}

// Error codes of WANIPConnection (version 2, section 2.5.24) and WANIPv6FirewallControl that Herald acts on.
const (
	codeNotAuthorized      = 606
	codeInvalidAction      = 401
	codeNotImplemented     = 602
	codeInvalidArgs        = 402
	codeActionFailed       = 501
	codeNoPinhole          = 704
	codeNoSuchIndex        = 713
	codeNoMapping          = 714
	codeOnlyPermanentLease = 725
)

// faultMeanings is what refusals mean, and what to change.
var faultMeanings = map[int]string{
	401: "it does not know the request; UPnP on the router may be incomplete or out of date",
	402: "it does not accept the values of the request; another " + leaseKey + ", such as 0, may help",
	403: "it refuses; allow UPnP, and mappings below port 1024, on the router",
	501: "it failed to do it; restart UPnP on the router, or look into its log",
	602: "it has not implemented the request",
	605: "it does not accept a description of that length",
	606: "it refuses (not authorized): turn secure mode off on the router, or allow this port and host there; many " +
		"routers open no port below 1024 for other than themselves",
	701: "the pinhole's table is full",
	702: "its IPv6 firewall is off, so there is nothing to open",
	703: "it does not allow pinholes in its IPv6 firewall; allow UPnP for IPv6 on the router",
	705: "it does not accept the protocol",
	706: "it does not accept the internal port; it wants one above 1024",
	708: "it needs the internal address; this is a fault of Herald's",
	713: "it has no such entry",
	716: "it does not accept an external port of 0",
	718: "it refuses because of a conflict: another host has the port, or the router is in secure mode, in which a " +
		"host may open ports for its own address only; turn secure mode off on the router",
	724: "it wants the external port to be equal to the Service's port; remove " + portKey,
	726: "it wants no remote host; this is a fault of Herald's",
	727: "it opens all ports of an address, or none",
	728: "it has no room for more mappings; remove some on the router",
	729: "the port is in use by the router itself, or by another way to open ports; choose another by " + portKey,
	732: "it does not accept an internal port of 0",
}

// The annotations that messages name.
const (
	leaseKey = "kube-vip.io/upnp-lease-duration"
	portKey  = "heraldvip.io/upnp-external-port"
)

// A refusal is the error code of a SOAP fault.
type refusal int

func (r refusal) Error() string { return fmt.Sprintf("UPnP error %d", int(r)) }

// faultCode is the error code of a refusal, else 0.
func faultCode(err error) int {
	code, _ := errors.AsType[refusal](err)
	return int(code)
}

// explain is why a request failed, stable while the reason is, some 300 printable characters.
func explain(err error) string {
	if c := faultCode(err); c != 0 {
		if m := faultMeanings[c]; m != "" {
			return fmt.Sprintf("%s (UPnP error %d)", m, c)
		}
		return fmt.Sprintf("it refuses with UPnP error %d", c)
	}
	var timeout net.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Sprintf("it does not answer within %v", requestTimeout)
	case errors.Is(err, errRedirect):
		return errRedirect.Error()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		return "it can't be reached: " + op.Err.Error()
	}
	return printable(err.Error(), 300)
}
