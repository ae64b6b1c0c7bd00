// Package preflight checks whether Herald can work on a node, before it runs there: settings of the
// kernel and rights of the process. It reads, and changes nothing.
package preflight

import (
	"cmp"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A Severity says how bad a Result is.
type Severity string

const (
	OK      Severity = "ok"
	Warning Severity = "warning" // it works, but perhaps not as expected
	Error   Severity = "error"   // it can't work
)

// A Result is what one check found.
type Result struct {
	Subject  string // what was checked, in a word or two
	Severity Severity
	Message  string // what was found, and what to do about it
}

// unknown is the Result of a check that could not be made.
func unknown(subject string, err error) Result {
	return Result{subject, Warning, "can't be checked: " + err.Error()}
}

// neededCapabilities are those without which Herald can't work, by their bit in CapEff, and what for.
var neededCapabilities = []struct {
	bit  int
	what string
}{
	{unix.CAP_NET_ADMIN, "NET_ADMIN (to bind addresses)"},
	{unix.CAP_NET_RAW, "NET_RAW (to send and receive ARP and NDP)"},
}

// Capabilities checks the effective capabilities of this process. files is the root of the file system.
func Capabilities(files fs.FS) Result {
	const subject = "capabilities"
	text, err := fs.ReadFile(files, "proc/self/status")
	var have uint64
	for line := range strings.Lines(string(text)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			have, err = strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	if err != nil {
		return unknown(subject, err)
	}
	var missing []string
	for _, c := range neededCapabilities {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, c.what)
		}
	}
	if len(missing) > 0 {
		return Result{subject, Error, "the process lacks " + strings.Join(missing, " and ") +
			"; add them in securityContext.capabilities of the container, and run it as user 0, or from an image in which the program has them as file capabilities"}
	}
	return Result{subject, OK, "NET_ADMIN and NET_RAW"}
}

// readIPv4Conf returns a setting of net/ipv4/conf that is in effect on a link: the greater of the values
// for all links and for this one (ip-sysctl.rst).
func readIPv4Conf(files fs.FS, link, name string) (int, error) {
	greatest := 0
	for _, of := range []string{"all", link} {
		text, err := fs.ReadFile(files, "proc/sys/net/ipv4/conf/"+of+"/"+name)
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return 0, err
		}
		greatest = max(greatest, n)
	}
	return greatest, nil
}

// StrictARP checks whether this node answers ARP on link for VIPs that it does not own. It does where
// kube-proxy in ipvs mode has bound them all, unless arp_ignore and arp_announce prevent it.
func StrictARP(files fs.FS, link string) Result {
	const subject, ipvsLink = "strict ARP", "kube-ipvs0"
	if _, err := fs.Stat(files, "sys/class/net/"+ipvsLink); err != nil {
		return Result{subject, OK, "not needed: kube-proxy does not run in ipvs mode here"}
	}
	ignore, err := readIPv4Conf(files, link, "arp_ignore")
	announce, err2 := readIPv4Conf(files, link, "arp_announce")
	if err := cmp.Or(err, err2); err != nil {
		return unknown(subject, err)
	}
	if ignore == 0 || announce < 2 {
		return Result{subject, Error, fmt.Sprintf("kube-proxy in ipvs mode has every VIP on %s, and this node answers for all of them (arp_ignore %d, arp_announce %d on %s): "+
			"set ipvs.strictARP to true in kube-proxy's configuration", ipvsLink, ignore, announce, link)}
	}
	return Result{subject, OK, "set, as kube-proxy in ipvs mode needs it"}
}

// ReversePath checks whether the kernel drops packets that reach a VIP by link from clients to which the
// node has a route by another link.
func ReversePath(files fs.FS, link string) Result {
	const subject = "reverse path filter"
	n, err := readIPv4Conf(files, link, "rp_filter")
	if err != nil {
		return unknown(subject, err)
	}
	if n == 1 {
		return Result{subject, Warning, fmt.Sprintf("rp_filter is 1 (strict) on %s: if the node's route to a client is by another link, the client's packets to the VIP are dropped; "+
			"with 2 (loose) they are not", link)}
	}
	return Result{subject, OK, fmt.Sprintf("rp_filter is %d on %s", n, link)}
}
