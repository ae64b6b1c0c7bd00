package kube

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Annotations about port mappings of gateways (UPnP).
const (
	upnpKey         = "kube-vip.io/forwardUPNP"
	upnpLeaseKey    = "kube-vip.io/upnp-lease-duration"
	externalPortKey = "heraldvip.io/upnp-external-port"
)

// Bounds of a mapping's lease. A gateway of version 2 gives a week at most.
const (
	upnpLeaseDefault = time.Hour
	upnpLeaseMin     = 30 * time.Second
	upnpLeaseMax     = 7 * 24 * time.Hour
)

// forward returns what gateways are asked for; nil for nothing, or unreadable ports.
func (r annotationReader) forward() *vip.Forward {
	if !parseAnnotation(r, upnpKey, parseBool) {
		return nil
	}
	f := &vip.Forward{Lease: upnpLeaseDefault}
	if r.value(upnpLeaseKey) != "" {
		f.Lease = parseAnnotation(r, upnpLeaseKey, parseUPnPLease)
	}
	if value := r.value(externalPortKey); value != "" {
		if f.External = r.externalPorts(value); f.External == nil {
			r.invalid(externalPortKey, "write the external port if the Service has one port, or pairs such as "+
				"80=8080,443=8443 if it has several, each external port once. No gateway is asked for anything")
			return nil
		}
	}
	return f
}

// parseUPnPLease reads a duration or seconds; 0 is for ever.
func parseUPnPLease(value string) (lease time.Duration, problem string) {
	d, err := time.ParseDuration(value)
	if n, number := strconv.ParseUint(value, 10, 31); number == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d != 0 && (d < upnpLeaseMin || d > upnpLeaseMax) {
		return upnpLeaseDefault, fmt.Sprintf("write a duration from %v to %v such as 1h, or 0 for ever. The default, %v, "+
			"is used", upnpLeaseMin, upnpLeaseMax, upnpLeaseDefault)
	}
	return d, ""
}

// externalPorts reads "8080", or "80=8080,443=8443", to external ports by Service port.
func (r annotationReader) externalPorts(value string) map[uint16]uint16 {
	ports := make(map[uint16]bool)
	for _, p := range r.service.Ports {
		ports[p.Port] = true
	}
	if !strings.Contains(value, "=") && len(ports) == 1 {
		value = fmt.Sprintf("%d=%s", r.service.Ports[0].Port, value)
	}
	external := make(map[uint16]uint16)
	for pair := range strings.SplitSeq(value, ",") {
		from, to, _ := strings.Cut(pair, "=")
		port, err := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
		target, targetErr := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
		if err != nil || targetErr != nil || target == 0 || !ports[uint16(port)] || external[uint16(port)] != 0 {
			return nil
		}
		external[uint16(port)] = uint16(target)
	}
	taken := make(map[vip.Port]bool)
	for _, p := range r.service.Ports {
		if p.Port = cmp.Or(external[p.Port], p.Port); taken[p] {
			return nil
		}
		taken[p] = true
	}
	return external
}
