package upnp

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
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

// invoke has a service carry out an action, from src if this node has it; args are names and values in turn. It returns
// a refusal, errUnreadable, or why there was no reply.
func (c controlPoint) invoke(ctx context.Context, s service, src netip.Addr, action string, args ...string) (document,
	error) {
	r, err := http.NewRequest(http.MethodPost, s.control, strings.NewReader(soapRequest(s.urn, action, args)))
	if err != nil {
		return nil, err
	}
	// in this case, as routers know it from other control points
	r.Header = http.Header{"SOAPACTION": {`"` + s.urn + "#" + action + `"`},
		"CONTENT-TYPE": {`text/xml; charset="utf-8"`}}
	status, text, err := c.ask(ctx, src, r, maxReply)
	if err != nil {
		return nil, err
	}
	return readReply(status, text)
}

const soap = "http://schemas.xmlsoap.org/soap/"

// escape leaves quotes alone: some routers can't read them escaped.
var escape = strings.NewReplacer("<", "&lt;", ">", "&gt;", "&", "&amp;")

// soapRequest returns the SOAP of an action. Some routers refuse another choice of prefixes.
func soapRequest(urn, action string, args []string) string {
	var b strings.Builder
	b.WriteString(xml.Header + `<s:Envelope xmlns:s="` + soap + `envelope/" s:encodingStyle="` + soap + `encoding/">`)
	fmt.Fprintf(&b, `<s:Body><u:%s xmlns:u="%s">`, action, urn)
	for pair := range slices.Chunk(args, 2) {
		fmt.Fprintf(&b, "<%[1]s>%[2]s</%[1]s>", pair[0], escape.Replace(pair[1]))
	}
	fmt.Fprintf(&b, "</u:%s></s:Body></s:Envelope>", action)
	return b.String()
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

// ask sends a request from src if this node has it, and returns the status and max bytes of the answer at most, even if
// fewer than announced, within requestTimeout.
func (c controlPoint) ask(ctx context.Context, src netip.Addr, r *http.Request, max int64) (status int, text []byte,
	err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	client := c.httpClient(src)
	response, err := client.Do(r.WithContext(ctx))
	if err != nil {
		return 0, nil, errors.Unwrap(err) // of the *url.Error
	}
	defer response.Body.Close()
	if text, err = io.ReadAll(io.LimitReader(response.Body, max)); ctx.Err() == nil {
		err = nil
	}
	return response.StatusCode, text, err
}
