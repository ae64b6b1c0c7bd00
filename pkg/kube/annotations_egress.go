package kube

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// The annotations of egress. Their values are as kube-vip has them.
const (
	egressKey                 = "kube-vip.io/egress"
	egressDestinationPortsKey = "kube-vip.io/egress-destination-ports"
	egressSourcePortsKey      = "kube-vip.io/egress-source-ports"
	egressAllowedNetworksKey  = "kube-vip.io/egress-allowed-networks"
	egressDeniedNetworksKey   = "kube-vip.io/egress-denied-networks"
)

// maxEgressLimits is how many networks or ports an annotation has: each is an nftables element on every node.
const maxEgressLimits = 64

// maxSelector is how many bytes the selector of a Service with egress has: every node keeps and sends it.
const maxSelector = 2048

// egress reads a Service's egress; nil for none, or unreadable.
func (r annotationReader) egress(selector map[string]string) *vip.EgressRule {
	if !parseAnnotation(r, egressKey, parseBool) {
		return nil
	}
	before := len(r.service.Invalid)
	if len(selector) == 0 {
		r.invalid(egressKey, "the Service has no spec.selector, which says what its pods are. What they send keeps its "+
			"source")
	}
	text := labelSelector(selector)
	if len(text) > maxSelector {
		r.invalid(egressKey, fmt.Sprintf("spec.selector has %d labels, %d bytes as text; write one of at most %d. What "+
			"the Service's pods send keeps its source", len(selector), len(text), maxSelector))
	}
	e := vip.EgressRule{Selector: text, EgressLimits: vip.EgressLimits{
		AllowedNetworks:  parseAnnotation(r, egressAllowedNetworksKey, parseNetworks),
		DeniedNetworks:   parseAnnotation(r, egressDeniedNetworksKey, parseNetworks),
		DestinationPorts: parseAnnotation(r, egressDestinationPortsKey, parsePorts),
		SourcePorts:      parseAnnotation(r, egressSourcePortsKey, parsePorts),
	}}
	if len(r.service.Invalid) > before {
		return nil
	}
	return &e
}

func labelSelector(labels map[string]string) string {
	var all []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		all = append(all, k+"="+labels[k])
	}
	return strings.Join(all, ",")
}

// noEgress ends the sentence of an annotation that can't be read.
const noEgress = ". Until then what the Service's pods send keeps its source"

func parseNetworks(value string) (networks []netip.Prefix, problem string) {
	for text := range strings.SplitSeq(value, ",") {
		text = strings.TrimSpace(text)
		p, err := netip.ParsePrefix(text)
		if a, wrong := netip.ParseAddr(text); err != nil && wrong == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		switch {
		case err != nil || p.Addr().Is4In6():
			return nil, vip.Quote(text) + " is no network; write networks separated by commas, such as 192.168.0.0/16,fd00::/8" +
				noEgress
		case len(networks) == maxEgressLimits:
			return nil, "it has more than " + strconv.Itoa(maxEgressLimits) + " networks; write fewer, larger ones" + noEgress
		}
		networks = append(networks, p.Masked())
	}
	return networks, ""
}

// parsePorts reads ports separated by commas, of TCP by default.
func parsePorts(value string) (ports []vip.Port, problem string) {
	for text := range strings.SplitSeq(value, ",") {
		text = strings.TrimSpace(text)
		protocol, port, both := strings.Cut(text, ":")
		if !both {
			protocol, port = "TCP", text
		}
		protocol = strings.ToUpper(strings.TrimSpace(protocol))
		n, err := strconv.ParseUint(strings.TrimSpace(port), 10, 16)
		switch {
		case err != nil || n == 0 || protocol != "TCP" && protocol != "UDP" && protocol != "SCTP":
			return nil, vip.Quote(text) + " is no port; write ports separated by commas, such as tcp:443,udp:53" + noEgress
		case len(ports) == maxEgressLimits:
			return nil, "it has more than " + strconv.Itoa(maxEgressLimits) + " ports; write fewer" + noEgress
		}
		ports = append(ports, vip.Port{Protocol: protocol, Port: uint16(n)})
	}
	return ports, ""
}
