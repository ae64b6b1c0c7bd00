package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// UPnP says what gateways may be asked for on behalf of Services.
type UPnP struct {
	Enable     bool         // enable_upnp
	Status     bool         // upnp_status: external addresses are written to the status
	Namespaces []string     // upnp_namespaces: of Services that may ask; nil is all
	Ports      []PortRange  // upnp_ports: external ports that may be asked for; nil is all
	Gateways   []netip.Addr // upnp_gateways: who is asked; nil is any gateway on the VIP's link
}

// A PortRange is the ports from First to Last, both included.
type PortRange struct{ First, Last uint16 }

// forwarding are the options of UPnP.
var forwarding = []Option{
	{
		Env: "enable_upnp", Aliases: []string{"enableUPNP"}, Flag: "enableUPNP", Type: Bool, Default: "false", Group: groupDHCP, Since: second,
		Meaning: "Have the UPnP gateways of a VIP's link forward the ports of those Services that ask for it (`kube-vip.io/forwardUPNP`). Who may annotate a Service may then open ports to the Internet.",
		set:     boolTo(func(c *Config) *bool { return &c.UPnP.Enable }),
	},
	{
		Env: "upnp_status", Flag: "upnpStatus", Type: Bool, Default: "true", Group: groupDHCP, Since: second,
		Meaning: "Write the gateways' external addresses to a Service's status, behind its VIPs, once its ports are open there.",
		set:     boolTo(func(c *Config) *bool { return &c.UPnP.Status }),
	},
	{
		Env: "upnp_namespaces", Flag: "upnpNamespaces", Type: List, Group: groupDHCP, Since: second,
		Meaning: "The namespaces whose Services may have ports opened, with commas between. All if not set.",
		set:     setForwardNamespaces,
	},
	{
		Env: "upnp_ports", Flag: "upnpPorts", Type: List, Group: groupDHCP, Since: second,
		Meaning: "The external ports that may be opened, such as `80,443,30000-32767`. All if not set.",
		set:     setForwardPorts,
	},
	{
		Env: "upnp_gateways", Flag: "upnpGateways", Type: List, Group: groupDHCP, Since: second,
		Meaning: "The addresses of the gateways that are asked, with commas between. Any gateway that answers on the VIP's link if not set.",
		set:     setGateways,
	},
}

func setForwardNamespaces(c *Config, v string) error {
	c.UPnP.Namespaces = nil
	for name := range fields(v) {
		if !isLabel(name) {
			return errors.New("must be namespaces with commas between: lower-case letters, digits and dashes, at most 63 of them")
		}
		c.UPnP.Namespaces = append(c.UPnP.Namespaces, name)
	}
	return nil
}

func setForwardPorts(c *Config, v string) error {
	c.UPnP.Ports = nil
	for text := range fields(v) {
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		low, err1 := strconv.ParseUint(first, 10, 16)
		high, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || low == 0 || low > high {
			return errors.New("must be ports and ranges of ports with commas between, such as 80,443,30000-32767")
		}
		c.UPnP.Ports = append(c.UPnP.Ports, PortRange{uint16(low), uint16(high)})
	}
	return nil
}

func setGateways(c *Config, v string) error {
	c.UPnP.Gateways = nil
	for text := range fields(v) {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return fmt.Errorf("must be IP addresses with commas between, such as 192.168.1.1,fd00::1")
		}
		c.UPnP.Gateways = append(c.UPnP.Gateways, a.Unmap())
	}
	return nil
}

// fields are the parts of a list, without the space around them.
func fields(v string) func(func(string) bool) {
	return func(yield func(string) bool) {
		if strings.TrimSpace(v) == "" {
			return
		}
		for part := range strings.SplitSeq(v, ",") {
			if !yield(strings.TrimSpace(part)) {
				return
			}
		}
	}
}
