// Package preflight looks at a node before Herald runs on it: what the kernel, its
// settings and the process's rights say. It reads, and changes nothing.
package preflight

import (
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// A Grade says how bad a Finding is.
type Grade string

// The grades.
const (
	Good  Grade = "ok"
	Doubt Grade = "warning" // it works, but perhaps not as hoped
	Fault Grade = "error"   // it can't work
)

// A Finding is one thing that was looked at.
type Finding struct {
	Subject string // in a word or two
	Grade   Grade
	Message string // what is, and what to do about it
}

// Capabilities that Herald needs, by their number in linux/capability.h.
var needed = []struct {
	bit  int
	name string
	why  string
}{
	{12, "NET_ADMIN", "bind addresses"},
	{13, "NET_RAW", "send and hear ARP and NDP"},
}

// Capabilities looks at what this process may do. files is the root of the file system.
func Capabilities(files fs.FS) Finding {
	f := Finding{Subject: "capabilities", Grade: Good, Message: "NET_ADMIN and NET_RAW"}
	text, err := fs.ReadFile(files, "proc/self/status")
	if err != nil {
		return Finding{f.Subject, Doubt, "can't be told: " + err.Error()}
	}
	var have uint64
	for line := range strings.Lines(string(text)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			have, err = strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	if err != nil {
		return Finding{f.Subject, Doubt, "can't be told: " + err.Error()}
	}
	var missing []string
	for _, c := range needed {
		if have&(1<<c.bit) == 0 {
			missing = append(missing, c.name+" (to "+c.why+")")
		}
	}
	if len(missing) > 0 {
		return Finding{f.Subject, Fault, "the process lacks " + strings.Join(missing, " and ") +
			"; add them in securityContext.capabilities of the container, and run it as user 0, whom alone they reach"}
	}
	return f
}

// setting reads a number of net/ipv4/conf; the kernel takes the greater of that for
// all links and that of the link (ip-sysctl.rst).
func setting(files fs.FS, link, name string) (int, error) {
	most := 0
	for _, of := range []string{"all", link} {
		text, err := fs.ReadFile(files, "proc/sys/net/ipv4/conf/"+of+"/"+name)
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			return 0, err
		}
		most = max(most, n)
	}
	return most, nil
}

// ipvs is the link on which kube-proxy in ipvs mode binds every address of every Service.
const ipvs = "kube-ipvs0"

// StrictARP looks whether this node answers for VIPs that it does not carry: where
// kube-proxy in ipvs mode has bound them all.
func StrictARP(files fs.FS, link string) Finding {
	f := Finding{Subject: "strict ARP", Grade: Good}
	if _, err := fs.Stat(files, "sys/class/net/"+ipvs); err != nil {
		f.Message = "not needed: kube-proxy does not run in ipvs mode here"
		return f
	}
	ignore, err := setting(files, link, "arp_ignore")
	announce, err2 := setting(files, link, "arp_announce")
	switch {
	case err != nil || err2 != nil:
		return Finding{f.Subject, Doubt, fmt.Sprintf("can't be told: %v %v", err, err2)}
	case ignore == 0 || announce < 2:
		return Finding{f.Subject, Fault, fmt.Sprintf("kube-proxy in ipvs mode has every VIP on %s, and this node answers for all of them (arp_ignore %d, arp_announce %d on %s): "+
			"set ipvs.strictARP to true in kube-proxy's configuration", ipvs, ignore, announce, link)}
	}
	f.Message = "set, as kube-proxy in ipvs mode needs it"
	return f
}

// ReversePath looks whether packets to a VIP that come in by its link, from clients that
// the node would answer by another, are dropped.
func ReversePath(files fs.FS, link string) Finding {
	f := Finding{Subject: "reverse path filter", Grade: Good}
	n, err := setting(files, link, "rp_filter")
	switch {
	case err != nil:
		return Finding{f.Subject, Doubt, "can't be told: " + err.Error()}
	case n == 1:
		return Finding{f.Subject, Doubt, fmt.Sprintf("rp_filter is 1 (strict) on %s: if the node's way to a client is by another link, its packets to the VIP are dropped; "+
			"2 (loose) does without that", link)}
	}
	f.Message = fmt.Sprintf("rp_filter is %d on %s", n, link)
	return f
}
