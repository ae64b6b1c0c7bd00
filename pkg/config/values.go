package config

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// The functions here make the set function of an Option: each checks a value
// and stores it where at points to.

func boolTo(at func(*Config) *bool) func(*Config, string) error {
	return func(c *Config, v string) error {
		b, err := strconv.ParseBool(v)
		if err != nil {
			return errors.New("must be true or false")
		}
		*at(c) = b
		return nil
	}
}

// maxSeconds bounds lease times: nobody waits longer than a day for a failover.
const maxSeconds = 24 * 60 * 60

func secondsTo(at func(*Config) *time.Duration) func(*Config, string) error {
	return func(c *Config, v string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || n > maxSeconds {
			return fmt.Errorf("must be a whole number of seconds from 1 to %d", maxSeconds)
		}
		*at(c) = time.Duration(n) * time.Second
		return nil
	}
}

func setLogLevel(c *Config, v string) error {
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return errors.New("must be a whole number: -4 is debug, 0 info, 4 warnings, 8 errors")
	}
	c.Log.Level = slog.Level(n)
	return nil
}

// An announcement more often than every minArpRate is what nobody meant:
// kube-vip takes defaultArpRate then, and so does Herald.
const (
	minArpRate     = 500
	defaultArpRate = 3000
	maxArpRate     = maxSeconds * 1000
)

func setArpRate(c *Config, v string) error {
	n, err := strconv.Atoi(v)
	if err != nil || n > maxArpRate {
		return fmt.Errorf("must be a whole number of milliseconds from %d to %d", minArpRate, maxArpRate)
	}
	if n < minArpRate {
		n = defaultArpRate
	}
	c.ARP.Period = time.Duration(n) * time.Millisecond
	return nil
}

// checkLink is the kernel's own rule for the name of a link (dev_valid_name in net/core/dev.c).
func checkLink(v string) error {
	if len(v) > 15 || v == "." || v == ".." || strings.ContainsAny(v, "/: \t\n\v\f\r\x00") {
		return errors.New("must be the name of a link: at most 15 bytes, without slash, colon or space")
	}
	return nil
}

func setInterface(c *Config, v string) error {
	if v == Auto {
		return errors.New("must be the name of a link, or empty for that of the default route; auto is a value of vip_servicesinterface")
	}
	c.Link.Interface = v
	return checkLink(v)
}

func setServicesInterface(c *Config, v string) error {
	c.Link.Services = v
	return checkLink(v)
}

var errSubnet = errors.New("must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto")

// setSubnet understands "32,128", "24", "/24", "24,64", "64" (only IPv6 has
// it), "auto" and "auto,64". A family that isn't named has a prefix of its own width.
func setSubnet(c *Config, v string) error {
	parts := strings.Split(v, ",")
	bits := make([]int, len(parts))
	for i, p := range parts {
		p = strings.TrimPrefix(strings.TrimSpace(p), "/")
		if p == Auto {
			bits[i] = AutoBits
			continue
		}
		n, err := strconv.ParseUint(p, 10, 8)
		if err != nil || n < 1 || n > 128 {
			return errSubnet
		}
		bits[i] = int(n)
	}
	b4, b6 := 32, 128
	switch {
	case len(bits) == 2:
		b4, b6 = bits[0], bits[1]
	case len(bits) > 2:
		return errSubnet
	case bits[0] == AutoBits:
		b4, b6 = AutoBits, AutoBits
	case bits[0] > 32:
		b6 = bits[0]
	default:
		b4 = bits[0]
	}
	if b4 > 32 {
		return errSubnet
	}
	c.Link.Bits4, c.Link.Bits6 = b4, b6
	return nil
}

// Names of Kubernetes objects: RFC 1123 labels and subdomains, and qualified
// names (an optional subdomain, a slash, and up to 63 characters).
var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	qualified = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
)

func isLabel(v string) bool     { return len(v) <= 63 && label.MatchString(v) }
func isSubdomain(v string) bool { return len(v) <= 253 && subdomain.MatchString(v) }

// maxNodeName leaves room for the prefix of the node's lease, herald-node-.
const maxNodeName = 253 - len("herald-node-")

func setNodeName(c *Config, v string) error {
	v = strings.ToLower(v)
	if !isSubdomain(v) || len(v) > maxNodeName {
		return fmt.Errorf("must be the node's name: letters, digits, dots and dashes (RFC 1123), at most %d of them", maxNodeName)
	}
	c.Node.Name = v
	return nil
}

func namespaceTo(at func(*Config) *string) func(*Config, string) error {
	return func(c *Config, v string) error {
		if v != "" && !isLabel(v) {
			return errors.New("must be one namespace: lower-case letters, digits and dashes, at most 63 of them")
		}
		*at(c) = v
		return nil
	}
}

func setServicesLease(c *Config, v string) (err error) {
	c.Services.LeaseNamespace, c.Services.LeaseName, err = leaseName(v)
	return err
}

func leaseName(v string) (namespace, name string, err error) {
	namespace, name, found := strings.Cut(v, "/")
	if !found {
		namespace, name = "", v
	}
	if found && !isLabel(namespace) || !isSubdomain(name) {
		return "", "", errors.New("must be the name of a Lease, or namespace/name")
	}
	return namespace, name, nil
}

func setIPMode(c *Config, v string) error {
	for _, mode := range []string{"VIP", "Proxy"} {
		if strings.EqualFold(v, mode) {
			c.Services.IPMode = mode
			return nil
		}
	}
	return errors.New("must be VIP or Proxy")
}

// setClass holds the class to what the API server accepts in spec.loadBalancerClass.
func setClass(c *Config, v string) error {
	prefix, name, found := strings.Cut(v, "/")
	if !found {
		prefix, name = "", v
	}
	if v != "" && (found && !isSubdomain(prefix) || len(name) > 63 || !qualified.MatchString(name)) {
		return errors.New("must be a load balancer class such as example.com/internal, or empty")
	}
	c.Class.Name = v
	return nil
}

func setKubeConfig(c *Config, v string) error {
	if strings.ContainsRune(v, 0) {
		return errors.New("must be the path of a kubeconfig file")
	}
	c.Kube.ConfigFile = v
	return nil
}

func setPeersKey(c *Config, v string) error {
	if strings.ContainsRune(v, 0) {
		return errors.New("must be the path of a file with a key")
	}
	c.Peers.KeyFile = v
	return nil
}

func setPeersPort(c *Config, v string) error {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return errors.New("must be a port from 1 to 65535, or 0 for none")
	}
	c.Peers.Port = uint16(n)
	return nil
}

func setServer(c *Config, v string) error {
	if v == "" {
		return nil
	}
	if !strings.Contains(v, "://") {
		v = "https://" + v
	}
	u, err := url.Parse(v)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("must be the URL of an API server, such as https://192.0.2.1:6443")
	}
	c.Kube.Server = v
	return nil
}

// off turns a listener off where an empty value means "not set".
const off = "off"

func setMetrics(c *Config, v string) error {
	if v == "" || v == off {
		c.Serve.Metrics = ""
		return nil
	}
	_, port, err := net.SplitHostPort(v)
	if err == nil {
		var n uint64
		if n, err = strconv.ParseUint(port, 10, 16); n == 0 {
			err = errors.New("no port")
		}
	}
	if err != nil {
		return errors.New("must be host:port, :port, or off")
	}
	c.Serve.Metrics = v
	return nil
}

func setHealthPort(c *Config, v string) error {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil {
		return errors.New("must be a port from 1 to 65535, or 0 for none")
	}
	c.Serve.HealthPort = uint16(n)
	return nil
}
