package upnp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// Bounds of a description, in bytes and in number.
const (
	maxDescription = 256 << 10
	maxServices    = 16
)

// A description is a gateway's device description document.
type description struct {
	name     string // what it calls itself, fit to be printed
	services []service
}

// A service is one of a gateway's that Herald can use.
type service struct {
	urn     string // its service type
	control string // the URL that takes its requests
}

func (c controlPoint) fetchDescription(ctx context.Context, location *url.URL) (description, error) {
	status, text, err := c.get(ctx, location.String(), maxDescription)
	switch {
	case err != nil:
		return description{}, fmt.Errorf("its description can't be had: %w", err)
	case status != http.StatusOK:
		return description{}, fmt.Errorf("its description can't be had: status %d", status)
	}
	return parseDescription(text, location, c.addr)
}

// parseDescription reads a description from location; without services that open ports, controlled at addr, it is an
// error. A URL that may mean several places is a service at each: at URLBase, of UPnP 1.0, often with a wrong port, or
// at the description's host; and there at the root, as most mean it, or beside the description, as the standard does.
func parseDescription(text []byte, location *url.URL, addr netip.Addr) (description, error) {
	document := readDocument(text)
	if !document.has("device") {
		return description{}, errors.New("its description is not to be understood")
	}
	d := description{name: printable(document.text("friendlyname"), 40)}
	bases := []*url.URL{location}
	if u, err := url.Parse(document.text("urlbase")); err == nil && parseAddr(u.Hostname()) == addr {
		bases = []*url.URL{u, location}
	}
	var elsewhere error
	add := func(urn, control string) {
		paths := []string{control}
		if !strings.Contains(control, "://") && !strings.HasPrefix(control, "/") {
			paths = []string{"/" + control, control}
		}
		for _, base := range bases {
			for _, p := range paths {
				u, err := base.Parse(p)
				switch {
				case err != nil || len(d.services) == maxServices:
				case parseAddr(u.Hostname()) != addr || u.Scheme != "http":
					elsewhere = fmt.Errorf("its description sends requests to another host, %s; that is refused", quote(u.Host))
				case !slices.Contains(d.services, service{urn, u.String()}):
					d.services = append(d.services, service{urn, u.String()})
				}
			}
		}
	}
	var urn, control string
	for _, x := range document {
		switch x.name {
		case "service":
			urn, control = "", ""
		case "servicetype":
			urn = x.text
		case "controlurl":
			control = x.text
		}
		if isKnownService(urn) && control != "" {
			add(urn, control)
			urn = ""
		}
	}
	if len(d.services) == 0 {
		return description{}, errors.Join(errors.New("its description names no service that opens ports"), elsewhere)
	}
	return d, nil
}

// printable is up to max printable ASCII characters: text from the network must not control users' terminals.
func printable(text string, max int) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text[:min(len(text), 4*max)])
	return strings.TrimSpace(clean[:min(len(clean), max)])
}

func quote(text string) string { return `"` + strings.ReplaceAll(printable(text, 60), `"`, "'") + `"` }
