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
	"net/url"
	"strings"

	"github.com/huin/goupnp"
	"golang.org/x/text/encoding/charmap"
)

// Bounds of a description, in bytes and in number.
const (
	maxDescription = 256 << 10
	maxServices    = 16
)

// A description is what a gateway's device description document says.
type description struct {
	name     string // what it calls itself, fit to be printed
	services []service
}

// A service is one of a gateway's that Herald knows how to use.
type service struct {
	urn     string // its service type
	control url.URL
}

// fetchDescription fetches the gateway's description from location and reads it.
func (c controlPoint) fetchDescription(ctx context.Context, location *url.URL) (description, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, location.String(), nil)
	if err != nil {
		return description{}, err
	}
	var failed error
	client := c.httpClient(netip.Addr{}, maxDescription, &failed)
	response, err := client.Do(request)
	if err != nil {
		return description{}, fmt.Errorf("its description can't be had: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return description{}, fmt.Errorf("its description can't be had: status %d", response.StatusCode)
	}
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return description{}, fmt.Errorf("its description can't be had: %w", err)
	}
	return parseDescription(text, location, c.addr)
}

// parseDescription reads a description that was found at location. A service that is
// controlled at another host than the gateway, addr, is left out; if no other is left, or
// it has none that opens ports, that is an error.
func parseDescription(text []byte, location *url.URL, addr netip.Addr) (description, error) {
	var root goupnp.RootDevice
	decoder := xml.NewDecoder(bytes.NewReader(text))
	decoder.DefaultSpace = goupnp.DeviceXMLNamespace
	decoder.CharsetReader = charset
	if err := decoder.Decode(&root); err != nil {
		return description{}, fmt.Errorf("its description is not to be understood: %w", err)
	}
	base := location
	if root.URLBaseStr != "" { // UPnP 1.0 only, and often wrong
		if u, err := url.Parse(strings.TrimSpace(root.URLBaseStr)); err == nil && u.Host != "" {
			base = u
		}
	}
	root.SetURLBase(base)
	d := description{name: printable(root.Device.FriendlyName, 40)}
	var elsewhere error
	root.Device.VisitServices(func(s *goupnp.Service) {
		if !isKnownService(s.ServiceType) || !s.ControlURL.Ok || len(d.services) == maxServices {
			return
		}
		u := s.ControlURL.URL
		if parseAddr(u.Hostname()) != addr || u.Scheme != "http" {
			elsewhere = fmt.Errorf("its description sends requests to another host, %s; that is refused", quote(u.Host))
			return
		}
		d.services = append(d.services, service{s.ServiceType, u})
	})
	if len(d.services) == 0 {
		return description{}, errors.Join(errors.New("its description names no service that opens ports"), elsewhere)
	}
	return d, nil
}

// charset reads the encodings that old devices declare besides UTF-8.
func charset(name string, input io.Reader) (io.Reader, error) {
	switch strings.ToLower(name) {
	case "iso-8859-1", "latin1", "us-ascii", "windows-1252": // the last contains the others
		return charmap.Windows1252.NewDecoder().Reader(input), nil
	}
	return nil, fmt.Errorf("encoding %s", quote(name))
}

// printable is the printable ASCII characters of text, max at most: what came from the
// network is shown to users, and must not control their terminal.
func printable(text string, max int) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, text[:min(len(text), 4*max)])
	return strings.TrimSpace(clean[:min(len(clean), max)])
}

// quote is printable text in quotation marks, 60 characters at most.
func quote(text string) string { return `"` + strings.ReplaceAll(printable(text, 60), `"`, "'") + `"` }
