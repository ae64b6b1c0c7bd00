package kube

import (
	"strconv"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Keys of the annotations about gateways (UPnP).
const (
	forwardKey      = "kube-vip.io/forwardUPNP"
	forwardLeaseKey = "kube-vip.io/upnp-lease-duration"
	externalPortKey = "heraldvip.io/upnp-external-port"
)

// Bounds of a mapping's lease. A week is the longest that a gateway of version 2 gives.
const (
	forwardLease      = time.Hour
	forwardLeaseLeast = 30 * time.Second
	forwardLeaseMost  = 7 * 24 * time.Hour
)

// forward is what gateways are asked for, or nil. Where it can't be read nothing is
// asked: a port that nobody meant to open stays closed.
func (r reader) forward() *vip.Forward {
	if !r.truth(forwardKey) {
		return nil
	}
	f := &vip.Forward{Lease: forwardLease}
	if value := strings.TrimSpace(r.of[forwardLeaseKey]); value != "" {
		d, err := time.ParseDuration(value)
		if n, number := strconv.ParseUint(value, 10, 31); number == nil {
			d, err = time.Duration(n)*time.Second, nil
		}
		if err != nil || d != 0 && (d < forwardLeaseLeast || d > forwardLeaseMost) {
			r.wrong(forwardLeaseKey, "write a duration from %v to %v such as 1h, or 0 for ever. The default, %v, is used", forwardLeaseLeast, forwardLeaseMost, forwardLease)
		} else {
			f.Lease = d
		}
	}
	value := strings.TrimSpace(r.of[externalPortKey])
	switch {
	case value == "":
		return f
	case strings.EqualFold(value, "any"):
		f.Any = true
		return f
	}
	if f.External = r.external(value); f.External == nil {
		r.wrong(externalPortKey, "write the external port if the Service has one port, pairs such as 80=8080,443=8443 if it has several, or any. No gateway is asked for anything")
		return nil
	}
	return f
}

// external reads "8080", or "80=8080,443=8443", to external ports by Service port;
// nil if it is neither.
func (r reader) external(value string) map[uint16]uint16 {
	ports := make(map[uint16]bool)
	for _, p := range r.s.Ports {
		ports[p.Port] = true
	}
	list := make(map[uint16]uint16)
	for part := range strings.SplitSeq(value, ",") {
		from, to, pair := strings.Cut(strings.TrimSpace(part), "=")
		if !pair {
			from, to = "", from
		}
		external, err := strconv.ParseUint(strings.TrimSpace(to), 10, 16)
		if err != nil || external == 0 {
			return nil
		}
		if !pair {
			if len(ports) != 1 || len(list) > 0 || strings.Contains(value, ",") {
				return nil
			}
			for p := range ports {
				list[p] = uint16(external)
			}
			continue
		}
		port, err := strconv.ParseUint(strings.TrimSpace(from), 10, 16)
		if err != nil || !ports[uint16(port)] || list[uint16(port)] != 0 {
			return nil
		}
		list[uint16(port)] = uint16(external)
	}
	return list
}
