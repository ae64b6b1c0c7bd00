package config

import (
	"errors"
	"strconv"
)

// DHCP says how addresses are asked for by DHCP.
type DHCP struct {
	Attempts int    // dhcp_backoff_attempts: tries in a row before a rest; 0 is without one
	Mode     string // dhcp_mode: "ipv4", "ipv6" or "dual"
}

// leasing are the options of DHCP.
var leasing = []Option{
	{
		Env: "dhcp_backoff_attempts", Flag: "dhcpBackoffAttempts", Type: Int, Default: "3", Group: groupDHCP, Since: second,
		Meaning: "After how many tries in a row without an answer a DHCP client rests for half a minute. 0 is never: it asks ever more seldom instead, at last once a minute (IPv4) or every two (IPv6).",
		set:     setAttempts,
	},
	{
		Env: "dhcp_mode", Flag: "dhcpMode", Type: String, Default: "ipv4", Group: groupDHCP, Since: second,
		Meaning: "What a Service asks for that names `0.0.0.0` and nothing else. `ipv4`: an IPv4 address. `ipv6`: an IPv6 address. `dual`: both, as far as the Service has both families. A Service can always name `0.0.0.0,::` itself.",
		set:     setLeasingMode,
	},
}

func setAttempts(c *Config, v string) error {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return errors.New("must be a whole number of tries, or 0 for no end of them")
	}
	c.DHCP.Attempts = int(n)
	return nil
}

func setLeasingMode(c *Config, v string) error {
	switch v {
	case "ipv4", "ipv6", "dual":
		c.DHCP.Mode = v
		return nil
	}
	return errors.New("must be ipv4, ipv6 or dual")
}
