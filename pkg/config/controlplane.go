package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

var errAddress = errors.New("must be an IP address, or one of each family with a comma between; names are not supported")

// setAddress understands "192.0.2.10" and "192.0.2.10,2001:db8::10".
func setAddress(c *Config, v string) error {
	c.ControlPlane.Addresses = nil
	if v == "" {
		return nil
	}
	for part := range strings.SplitSeq(v, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(part))
		if err != nil || a.Zone() != "" {
			return errAddress
		}
		a = a.Unmap()
		for _, other := range c.ControlPlane.Addresses {
			if other.Is4() == a.Is4() {
				return errAddress
			}
		}
		if !a.IsGlobalUnicast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return errors.New("must be a unicast address, neither loopback nor link-local")
		}
		c.ControlPlane.Addresses = append(c.ControlPlane.Addresses, a)
	}
	return nil
}

func setAPIPort(c *Config, v string) error {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n == 0 {
		return errors.New("must be a port from 1 to 65535")
	}
	c.ControlPlane.Port = uint16(n)
	return nil
}

func setControlPlaneLease(c *Config, v string) (err error) {
	c.ControlPlane.LeaseNamespace, c.ControlPlane.LeaseName, err = leaseName(v)
	return err
}

func setHealthCheck(c *Config, v string) error {
	if v == "" {
		c.ControlPlane.CheckURL = ""
		return nil
	}
	u, err := url.Parse(v)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
		return errors.New("must be a URL such as https://127.0.0.1:6443/readyz")
	}
	c.ControlPlane.CheckURL = v
	return nil
}

const maxFailures = 100

func setFailures(c *Config, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 || n > maxFailures {
		return fmt.Errorf("must be a whole number from 1 to %d", maxFailures)
	}
	c.ControlPlane.CheckFailures = n
	return nil
}

// controlPlane is what the options of the control-plane VIP say with others.
func (p *parser) controlPlane(by func(string) Setting) {
	c := &p.config
	address := by("address")
	switch {
	case c.ControlPlane.Enable && len(c.ControlPlane.Addresses) == 0 && !p.bad["address"]:
		p.fail(address, errors.New("must name the VIP of the control plane, since cp_enable is true"))
	case !c.ControlPlane.Enable && address.From != FromDefault && !p.bad["cp_enable"]:
		p.warn("%v has no effect without cp_enable=true", address)
	}
	if c.ControlPlane.Enable && !c.ARP.Enable && !c.BGP.Enable && !p.bad["vip_arp"] && !p.bad["bgp_enable"] {
		p.fail(by("vip_arp"), errors.New("must be true with cp_enable, or bgp_enable must: nothing else announces its VIP"))
	}
	if c.ControlPlane.LeaseNamespace == "" {
		c.ControlPlane.LeaseNamespace = c.Node.Namespace
	}
	if c.ControlPlane.Enable && c.ControlPlane.LeaseName == c.Services.LeaseName && c.ControlPlane.LeaseNamespace == c.Services.LeaseNamespace && !p.bad["vip_leasename"] {
		p.fail(by("vip_leasename"), fmt.Errorf("must be another lease than %v", by("svc_leasename")))
	}
}
