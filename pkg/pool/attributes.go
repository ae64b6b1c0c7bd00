package pool

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/heraldvip/herald/pkg/vip"
)

// poolName is a DNS label (RFC 1123), since a dot begins an attribute.
var poolName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// readPool reads pool-<name> or pool-<name>.<attribute>.
func (r *reader) readPool(rest string) {
	name, attribute, isAttribute := strings.Cut(rest, ".")
	key := poolPrefix + rest
	switch prefix, _ := splitKey(name); {
	case !poolName.MatchString(name):
		r.fail(key, "%s is no name of a pool; write lower case letters, digits and hyphens, at most 63", vip.Quote(name))
	case prefix != "":
		r.fail(key, "a pool can't be called %s, as the pools of other keys are; write another name", name)
	case isAttribute:
		r.readAttribute(key, name, attribute)
	default:
		p := &Pool{Name: name, Key: key, Auto: true}
		a, ok := readKey(r, key, "Until then nobody gets an address of it", parseAddresses)
		p.addresses, p.Broken = a, !ok
		r.pools.byName[name] = p
	}
}

const attributeNames = "namespaces, services, interface, nodes, prefer, auto, priority, announce"

func (r *reader) readAttribute(key, name, attribute string) {
	p := r.pools.byName[name]
	if p == nil {
		r.fail(key, "there is no pool %s; write its addresses to the key %s%s", name, poolPrefix, name)
		return
	}
	const consequence = "Until then nobody gets an address of the pool"
	const announced = consequence + ", and its VIPs are announced as if the key were absent"
	ok := true
	switch attribute {
	case "namespaces":
		p.Namespaces, ok = readKey(r, key, consequence, parseNamespaces)
	case "services":
		p.Services, ok = readKey(r, key, consequence, parseSelector)
	case "nodes":
		p.Nodes, ok = readKey(r, key, announced, parseSelector)
	case "prefer":
		p.Prefer, ok = readKey(r, key, announced, parsePreferences)
	case "interface":
		p.Interface, ok = readKey(r, key, announced, parseInterface)
	case "auto":
		p.Auto, ok = readKey(r, key, consequence, parseTrueFalse)
	case "priority":
		p.Priority, ok = readKey(r, key, consequence, parsePriority)
	case "announce":
		p.Announce, ok = readKey(r, key, announced, parseMethods)
	default:
		r.warn(key, "a pool has no attribute %s, so it is ignored; there are %s", vip.Quote(attribute), attributeNames)
	}
	p.Broken = p.Broken || !ok
}

// parseNamespaces reads names, separated by commas or spaces, or a label selector.
func parseNamespaces(text string) (out Namespaces, problem string) {
	if strings.ContainsAny(text, "=!()<>") { // no list of names has these
		out.Selector, problem = parseSelector(text)
		return out, problem
	}
	for name := range strings.FieldsFuncSeq(text,
		func(c rune) bool { return c == ',' || c == ' ' || c == '\n' || c == '\t' || c == '\r' }) {
		if !poolName.MatchString(name) { // a namespace is a DNS label, too
			return Namespaces{}, vip.Quote(name) + " is no name of a namespace; write names separated by commas, or a label " +
				"selector such as team=blue"
		}
		out.Names = append(out.Names, name)
	}
	if len(out.Names) == 0 {
		return Namespaces{}, "it names no namespace; write names separated by commas, or a label selector such as " +
			"team=blue, or leave out the key for all"
	}
	slices.Sort(out.Names)
	out.Names = slices.Compact(out.Names)
	return out, ""
}

func parseSelector(text string) (s labels.Selector, problem string) {
	s, err := labels.Parse(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Sprintf("%s is no label selector (%v); write one such as tier=gold,zone in (a,b)", vip.Quote(text),
			err)
	}
	if s.Empty() {
		return nil, "the selector is empty; write one such as tier=gold, or leave out the key for all"
	}
	return s, ""
}

// parsePreferences reads weights and selectors, by semicolons or lines.
func parsePreferences(text string) (out []Preference, problem string) {
	const example = "write a weight from 1 to 100 and a label selector, such as 100 zone=a; 20 zone=b"
	for item := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == ';' || c == '\n' || c == '\r' }) {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		number, rest, _ := strings.Cut(item, " ")
		weight, err := strconv.Atoi(number)
		if err != nil || weight < 1 || weight > 100 {
			return nil, vip.Quote(item) + " does not begin with a weight; " + example
		}
		s, problem := parseSelector(rest)
		if problem != "" {
			return nil, problem + "; " + example
		}
		out = append(out, Preference{s, weight})
	}
	if len(out) == 0 {
		return nil, "it is empty; " + example
	}
	return out, ""
}

func parsePriority(text string) (n int, problem string) {
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < -1000000 || n > 1000000 {
		return 0, vip.Quote(text) + " is no priority; write a whole number, such as 10: the pool with the highest comes " +
			"first, 0 is the default"
	}
	return n, ""
}

func parseMethods(text string) (out []vip.Method, problem string) {
	for item := range strings.SplitSeq(text, ",") {
		m := vip.Method(strings.TrimSpace(item))
		if m != vip.ByARP && m != vip.ByBGP {
			return nil, vip.Quote(item) + " is no way to announce; write arp, bgp, or arp,bgp"
		}
		out = vip.AppendUnique(out, m)
	}
	return out, ""
}
