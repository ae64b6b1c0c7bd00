package main

import (
	"cmp"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

type severity string

const (
	fine     severity = "ok"
	doubtful severity = "warning" // it works, but perhaps not as expected
	unfit    severity = "error"   // it can't work
)

type checkResult struct {
	Subject  string // what was checked, in a word or two
	Severity severity
	Message  string // what was found, and what to do about it
}

func unknownResult(subject string, err error) checkResult {
	return checkResult{subject, doubtful, "can't be checked: " + err.Error()}
}

// neededCapabilities are those Herald can't do without, by their bit in CapEff.
var neededCapabilities = []struct {
	bit  int
	what string
}{
	{unix.CAP_NET_ADMIN, "NET_ADMIN (to bind addresses)"},
	{unix.CAP_NET_RAW, "NET_RAW (to send and receive ARP and NDP)"},
}

// checkCapabilities checks this process's effective capabilities; files is the root file system.
func checkCapabilities(files fs.FS) checkResult {
	const subject = "capabilities"
	text, err := fs.ReadFile(files, "proc/self/status")
	var have uint64
	for line := range strings.Lines(string(text)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			have, err = strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	if err != nil {
		return unknownResult(subject, err)
	}
	var missing []string
	for _, c := range neededCapabilities {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, c.what)
		}
	}
	if len(missing) > 0 {
		return checkResult{subject, unfit, "the process lacks " + strings.Join(missing, " and ") +
			"; add them in securityContext.capabilities of the container, and run it as user 0, or from an image in which " +
			"the program has them as file capabilities"}
	}
	return checkResult{subject, fine, "NET_ADMIN and NET_RAW"}
}

// readIPv4Conf returns a setting of net/ipv4/conf in effect on a link: the greater of all and its own (ip-sysctl.rst).
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

// checkStrictARP checks whether this node answers ARP for VIPs of others, as with kube-proxy in ipvs mode.
func checkStrictARP(files fs.FS, link string) checkResult {
	const subject, ipvsLink = "strict ARP", "kube-ipvs0"
	if _, err := fs.Stat(files, "sys/class/net/"+ipvsLink); err != nil {
		return checkResult{subject, fine, "not needed: kube-proxy does not run in ipvs mode here"}
	}
	ignore, err := readIPv4Conf(files, link, "arp_ignore")
	announce, err2 := readIPv4Conf(files, link, "arp_announce")
	if err := cmp.Or(err, err2); err != nil {
		return unknownResult(subject, err)
	}
	if ignore == 0 || announce < 2 {
		return checkResult{subject, unfit, fmt.Sprintf("kube-proxy in ipvs mode has every VIP on %s, and this node "+
			"answers for all of them (arp_ignore %d, arp_announce %d on %s): "+
			"set ipvs.strictARP to true in kube-proxy's configuration", ipvsLink, ignore, announce, link)}
	}
	return checkResult{subject, fine, "set, as kube-proxy in ipvs mode needs it"}
}

// checkARPAnswers says who answers for VIPs where the kernel may not.
func checkARPAnswers(files fs.FS, link string) checkResult {
	const subject = "ARP replies"
	ignore, err := readIPv4Conf(files, link, "arp_ignore")
	filter, err2 := readIPv4Conf(files, link, "arp_filter")
	switch err := cmp.Or(err, err2); {
	case err != nil:
		return unknownResult(subject, err)
	case ignore < 2 && filter == 0:
		return checkResult{subject, fine, "the kernel answers for VIPs"}
	}
	return checkResult{subject, doubtful, fmt.Sprintf("arp_ignore is %d and arp_filter %d on %s: the kernel does not "+
		"answer every host for a VIP, so Herald itself does; "+
		"while its process is away for some seconds only clients that know the VIP reach it. With 0 or 1, and 0, the "+
		"kernel answers", ignore, filter, link)}
}

// checkReversePath checks whether the kernel drops packets of clients routed by another link.
func checkReversePath(files fs.FS, link string) checkResult {
	const subject = "reverse path filter"
	n, err := readIPv4Conf(files, link, "rp_filter")
	if err != nil {
		return unknownResult(subject, err)
	}
	if n == 1 {
		return checkResult{subject, doubtful, fmt.Sprintf("rp_filter is 1 (strict) on %s: if the node's route to a "+
			"client is by another link, the client's packets to the VIP are dropped; "+
			"with 2 (loose) they are not", link)}
	}
	return checkResult{subject, fine, fmt.Sprintf("rp_filter is %d on %s", n, link)}
}

// raiseCapabilities makes the permitted capabilities effective, on all threads. A file's capabilities are permitted
// only: were they effective at once, the kernel would not start the program where a container lacks one
// (capabilities(7), "Safety checking for capability-dumb binaries").
func raiseCapabilities() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var sets [2]unix.CapUserData // of capabilities 0 to 31, and 32 to 63
	if err := unix.Capget(&header, &sets[0]); err != nil {
		return fmt.Errorf("can't read the capabilities of this process: %w", err)
	}
	missing := false
	for i := range sets {
		missing = missing || sets[i].Effective != sets[i].Permitted
		sets[i].Effective = sets[i].Permitted
	}
	if !missing {
		return nil
	}
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&header)),
		uintptr(unsafe.Pointer(&sets[0])), 0); errno != 0 {
		return fmt.Errorf("can't make the permitted capabilities of this process effective: %w", errno)
	}
	return nil
}
