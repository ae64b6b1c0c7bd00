package config

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// store makes an Option's set function: parse, and store in a field. An empty value changes nothing.
func store[T any](parse func(string) (T, error), field func(*Config) *T) func(*Config, string) error {
	return func(c *Config, v string) error { return parseInto(field(c), v, parse) }
}

// parseInto parses v into to, unless it is empty or wrong.
func parseInto[T any](to *T, v string, parse func(string) (T, error)) error {
	if v == "" {
		return nil
	}
	t, err := parse(v)
	if err == nil {
		*to = t
	}
	return err
}

// where makes a set function whose value may be wrong without effect, as earlier options decide.
func where(effective func(*Config) bool, set func(*Config, string) error) func(*Config, string) error {
	return func(c *Config, v string) error {
		if err := set(c, v); effective(c) {
			return err
		}
		return nil
	}
}

// list makes a parser of values between commas; its error is the first.
func list[T any](parse func(string) (T, error)) func(string) ([]T, error) {
	return func(v string) ([]T, error) {
		var all []T
		for text := range strings.SplitSeq(v, ",") {
			t, err := parse(strings.TrimSpace(text))
			if err != nil {
				return nil, err
			}
			all = append(all, t)
		}
		return all, nil
	}
}

// oneOf makes a parser of words in any case, returned as written here.
func oneOf(words ...string) func(string) (string, error) {
	return func(v string) (string, error) {
		for _, w := range words {
			if strings.EqualFold(v, w) {
				return w, nil
			}
		}
		last := len(words) - 1
		return "", fmt.Errorf("must be %s or %s", strings.Join(words[:last], ", "), words[last])
	}
}

func number[N ~int | ~uint8 | ~uint16](low, high N) func(string) (N, error) {
	return func(v string) (N, error) {
		n, err := strconv.Atoi(v)
		if err != nil || n < int(low) || n > int(high) {
			return 0, fmt.Errorf("must be a whole number from %d to %d", low, high)
		}
		return N(n), nil
	}
}

// saying makes a parser with an error of its own.
func saying[T any](wrong string, parse func(string) (T, error)) func(string) (T, error) {
	return func(v string) (t T, err error) {
		if t, err = parse(v); err != nil {
			err = errors.New(wrong)
		}
		return t, err
	}
}

// text makes a parser of texts that are right; else wrong is the error.
func text(wrong string, right func(string) bool) func(string) (string, error) {
	return func(v string) (string, error) {
		if !right(v) {
			return "", errors.New(wrong)
		}
		return v, nil
	}
}

// maxSeconds bounds lease times: nobody waits longer than a day for a failover.
const maxSeconds = 24 * 60 * 60

func seconds(low, high int) func(string) (time.Duration, error) {
	return func(v string) (time.Duration, error) {
		n, err := number(low, high)(v)
		if err != nil {
			return 0, fmt.Errorf("must be a whole number of seconds from %d to %d", low, high)
		}
		return time.Duration(n) * time.Second, nil
	}
}

var (
	parseBool     = saying("must be true or false", strconv.ParseBool)
	parseAttempts = saying("must be a whole number of tries, or 0 for no end of them", number(0, math.MaxUint16))
	parseLogLevel = saying("must be a whole number: -4 is debug, 0 info, 4 warnings, 8 errors",
		number[slog.Level](math.MinInt32, math.MaxInt32))
	parsePort       = saying("must be a port from 1 to 65535", number[uint16](1, math.MaxUint16))
	parsePortOrNone = saying("must be a port from 1 to 65535, or 0 for none", number[uint16](0, math.MaxUint16))
)

// Below minARPPeriod ms kube-vip uses defaultARPPeriod ms: nobody wants more announcements.
const (
	minARPPeriod     = 500
	defaultARPPeriod = 3000
	maxARPPeriod     = maxSeconds * 1000
)

func parseARPPeriod(v string) (time.Duration, error) {
	n, err := strconv.Atoi(v)
	if err != nil || n > maxARPPeriod {
		return 0, fmt.Errorf("must be a whole number of milliseconds from %d to %d", minARPPeriod, maxARPPeriod)
	}
	if n < minARPPeriod {
		n = defaultARPPeriod
	}
	return time.Duration(n) * time.Millisecond, nil
}

// parsePortRange parses "80" and "30000-32767".
func parsePortRange(v string) ([2]uint16, error) {
	low, high, isRange := strings.Cut(v, "-")
	if !isRange {
		high = low
	}
	first, err1 := parsePort(low)
	last, err2 := parsePort(high)
	if err1 != nil || err2 != nil || first > last {
		return [2]uint16{}, errors.New("must be ports and ranges of ports with commas between, such as 80,443,30000-32767")
	}
	return [2]uint16{first, last}, nil
}

var parseLinkName = text("must be the name of a link: at most 15 bytes, without slash, colon or space",
	func(v string) bool { return v == "" || vip.IsLinkName(v) })

var parseLinkPrefix = text("must be the beginnings of names of interfaces, of at most 14 characters, with commas "+
	"between", func(v string) bool { return vip.IsLinkName(v) && len(v) <= 14 && !strings.Contains(v, "%") })

func parseInterface(v string) (string, error) {
	if v == Auto {
		return "", errors.New("must be the name of a link, or empty for that of the default route; auto is a value of " +
			"vip_servicesinterface")
	}
	return parseLinkName(v)
}

var errPrefixLengths = errors.New("must be the prefix lengths for IPv4 and IPv6 (32,128), one of them (24), or auto")

// parsePrefixLengths parses "32,128", "24", "/24", "24,64", "64" (only IPv6's), "auto" and "auto,64". An unnamed family
// gets 32 or 128.
func parsePrefixLengths(v string) (bits4, bits6 int, err error) {
	bits, err := list(func(v string) (int, error) {
		if v = strings.TrimPrefix(v, "/"); v == Auto {
			return AutoBits, nil
		}
		return number(1, 128)(v)
	})(v)
	if err != nil || len(bits) > 2 {
		return 0, 0, errPrefixLengths
	}
	bits4, bits6 = 32, 128
	switch {
	case len(bits) == 2:
		bits4, bits6 = bits[0], bits[1]
	case bits[0] == AutoBits:
		bits4, bits6 = AutoBits, AutoBits
	case bits[0] > 32:
		bits6 = bits[0]
	default:
		bits4 = bits[0]
	}
	if bits4 > 32 {
		return 0, 0, errPrefixLengths
	}
	return bits4, bits6, nil
}

// Names of Kubernetes objects: RFC 1123 labels and subdomains, and qualified names (maybe a subdomain and a slash, then
// up to 63 characters).
var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	qualified = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`)
)

func isLabel(v string) bool     { return len(v) <= 63 && label.MatchString(v) }
func isSubdomain(v string) bool { return len(v) <= 253 && subdomain.MatchString(v) }

// maxNodeName leaves room for the node lease's prefix.
const maxNodeName = 253 - len(vip.NodeLeasePrefix)

func parseNodeName(v string) (string, error) {
	v = strings.ToLower(v)
	if !isSubdomain(v) || len(v) > maxNodeName {
		return "", fmt.Errorf("must be the node's name: letters, digits, dots and dashes (RFC 1123), at most %d of them",
			maxNodeName)
	}
	return v, nil
}

const oneNamespace = "lower-case letters, digits and dashes, at most 63 of them"

var (
	parseNamespace       = text("must be one namespace: "+oneNamespace, isLabel)
	parseListedNamespace = text("must be namespaces with commas between: "+oneNamespace, isLabel)
	parseConfigMap       = text("must be the name of a ConfigMap, or empty", isSubdomain)
)

// parseLease parses "name" and "namespace/name"; the namespace may be "".
func parseLease(v string) (vip.Key, error) {
	namespace, name, found := strings.Cut(v, "/")
	if !found {
		namespace, name = "", v
	}
	if found && !isLabel(namespace) || !isSubdomain(name) {
		return vip.Key{}, errors.New("must be the name of a Lease, or namespace/name")
	}
	return vip.Key{Namespace: namespace, Name: name}, nil
}

// parseClass accepts what the API server accepts in spec.loadBalancerClass.
var parseClass = text("must be a load balancer class such as example.com/internal, or empty", func(v string) bool {
	prefix, name, found := strings.Cut(v, "/")
	if !found {
		prefix, name = "", v
	}
	return (!found || isSubdomain(prefix)) && len(name) <= 63 && qualified.MatchString(name)
})

func pathOf(what string) func(string) (string, error) {
	return text("must be the path of "+what, func(v string) bool { return !strings.ContainsRune(v, 0) })
}

// parseHTTPURL parses a host's HTTP or HTTPS URL without credentials; else nil.
func parseHTTPURL(v string) *url.URL {
	u, err := url.Parse(v)
	if err != nil || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" || u.User != nil {
		return nil
	}
	return u
}

// parseServer parses an API server's URL; the default scheme is https.
func parseServer(v string) (string, error) {
	if !strings.Contains(v, "://") {
		v = "https://" + v
	}
	if u := parseHTTPURL(v); u == nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New("must be the URL of an API server, such as https://192.0.2.1:6443")
	}
	return v, nil
}

var parseCheckURL = text("must be a URL such as https://127.0.0.1:6443/readyz",
	func(v string) bool { return parseHTTPURL(v) != nil })

// off turns a listener off where an empty value means "not set".
const off = "off"

// parseListenAddress parses "host:port" and ":port"; "off", to YAML false, is "".
func parseListenAddress(v string) (string, error) {
	if v == off || v == "false" {
		return "", nil
	}
	_, port, err := net.SplitHostPort(v)
	if err == nil {
		_, err = parsePort(port)
	}
	if err != nil {
		return "", errors.New("must be host:port, :port, or off")
	}
	return v, nil
}

// parseAddr parses an address without a zone, and unmaps it.
func parseAddr(v string) (netip.Addr, error) {
	a, err := netip.ParseAddr(v)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, errors.New("must be an IP address")
	}
	return a.Unmap(), nil
}

// hostAddr makes a parser of addresses of one host, of a family unless that is 0.
func hostAddr(family vip.Family) func(string) (netip.Addr, error) {
	return func(v string) (netip.Addr, error) {
		a, err := parseAddr(v)
		switch {
		case err != nil:
			return a, err
		case family != 0 && vip.FamilyOf(a) != family:
			return a, fmt.Errorf("must be an %s address", family)
		case a.IsUnspecified() || a.IsMulticast():
			return a, errors.New("must be an address of one host")
		}
		return a, nil
	}
}

// parsePrefix parses a prefix, or an address as one.
func parsePrefix(v string) (netip.Prefix, error) {
	if a, err := parseAddr(v); err == nil {
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(v)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, errors.New("must be IP addresses or prefixes with commas between, such as " +
			"10.244.0.0/16,192.168.0.1")
	}
	return p.Masked(), nil
}

var parseGateway = saying("must be IP addresses with commas between, such as 192.168.1.1,fd00::1", parseAddr)

// docs/why.md, "The control plane's VIP"
var errVIPs = errors.New("must be an IP address, or one of each family with a comma between; names are not looked " +
	"up: write what the name resolves to")

// parseVIPs parses "192.0.2.10" and "192.0.2.10,2001:db8::10".
func parseVIPs(v string) ([]netip.Addr, error) {
	vips, err := list(parseAddr)(v)
	if err != nil || len(vips) > 2 || len(vips) == 2 && vips[0].Is4() == vips[1].Is4() {
		return nil, errVIPs
	}
	for _, a := range vips {
		if !a.IsGlobalUnicast() || a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
			return nil, errors.New("must be a unicast address, neither loopback nor link-local")
		}
	}
	return vips, nil
}
