// Package migrate turns what other load balancers are configured by into Herald's pools: the custom resources of
// MetalLB and of Cilium's LB IPAM, and the ConfigMap of kube-vip's cloud provider. It also finds the Services that
// need an annotation to keep the addresses that they have. It is pure: objects in, a Result out.
package migrate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// Sources are the load balancers that From knows.
var Sources = []string{"metallb", "cilium", "kube-vip"}

// A Collection is where the API server has the objects of a kind.
type Collection struct{ Kind, Path string }

// Collections returns what From reads of a source, Services included.
func Collections(source string) []Collection {
	services := Collection{"Service", "/api/v1/services"}
	switch source {
	case "metallb":
		const api = "/apis/metallb.io/v1beta1/"
		return []Collection{services, {"ConfigMap", "/api/v1/namespaces/metallb-system/configmaps"},
			{"AddressPool", api + "addresspools"}, {"IPAddressPool", api + "ipaddresspools"},
			{"L2Advertisement", api + "l2advertisements"}, {"BGPAdvertisement", api + "bgpadvertisements"},
			{"BGPPeer", "/apis/metallb.io/v1beta2/bgppeers"}, {"BFDProfile", api + "bfdprofiles"},
			{"Community", api + "communities"}}
	case "cilium":
		const v2, alpha = "/apis/cilium.io/v2/", "/apis/cilium.io/v2alpha1/"
		return []Collection{services, {"CiliumLoadBalancerIPPool", v2 + "ciliumloadbalancerippools"},
			{"CiliumLoadBalancerIPPool", alpha + "ciliumloadbalancerippools"},
			{"CiliumL2AnnouncementPolicy", alpha + "ciliuml2announcementpolicies"},
			{"CiliumBGPClusterConfig", v2 + "ciliumbgpclusterconfigs"},
			{"CiliumBGPClusterConfig", alpha + "ciliumbgpclusterconfigs"},
			{"CiliumBGPPeeringPolicy", alpha + "ciliumbgppeeringpolicies"}}
	}
	return []Collection{services}
}

// A Result is what makes Herald serve what the source served.
type Result struct {
	Data  map[string]string // of the ConfigMap of pools
	Pins  []Pin             // sorted by Service
	Notes []string          // what is not carried over, and what to do about it, each a sentence
}

// A Pin is the annotations that a Service needs to keep what it has.
type Pin struct {
	Service     vip.Key
	Annotations map[string]string
}

// From reads the objects of a source, as JSON; those of other kinds are ignored. It is an error if an object can't be
// read, or nothing is there that has pools.
func From(source string, objects []json.RawMessage) (Result, error) {
	m := &migration{source: source, read: make(map[string]bool), ranges: make(map[string][]span),
		names: make(map[string]string), made: make(map[string][]string), Result: Result{Data: make(map[string]string)}}
	for _, text := range objects {
		if err := m.load(text); err != nil {
			return Result{}, err
		}
	}
	slices.SortStableFunc(m.objects, func(a, b object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Metadata.Namespace, b.Metadata.Namespace),
			cmp.Compare(a.Metadata.Name, b.Metadata.Name))
	})
	m.objects = slices.CompactFunc(m.objects, func(a, b object) bool { // served in two versions
		return a.Kind == b.Kind && a.Metadata.Name == b.Metadata.Name && a.Metadata.Namespace == b.Metadata.Namespace
	})
	var err error
	switch source {
	case "metallb":
		err = m.fromMetalLB()
	case "cilium":
		err = m.fromCilium()
	case "kube-vip":
		err = m.fromKubeVIP()
	default:
		err = fmt.Errorf("%q is none of %s", source, strings.Join(Sources, ", "))
	}
	if err != nil {
		return Result{}, err
	}
	if len(m.Data) == 0 {
		return Result{}, fmt.Errorf("there is no %s; %s", poolKinds[source], m.whatIsThere())
	}
	m.noteUnread()
	m.pinServices()
	slices.SortFunc(m.Pins, func(a, b Pin) int { return a.Service.Compare(b.Service) })
	return m.Result, nil
}

// A migration is one call of From.
type migration struct {
	source  string
	objects []object            // sorted by kind, namespace and name
	names   map[string]string   // of pools here, by their name there
	ranges  map[string][]span   // addresses of pools, by their name here
	made    map[string][]string // of MetalLB: the pools that one has become, by its name there
	about   int                 // how many notes are about single Services
	read    map[string]bool     // kinds that specs has read
	unread  []string            // documents without a kind
	Result
}

// An object is what is read of any object.
type object struct {
	Kind     string `json:"kind"`
	Metadata struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
	Spec   json.RawMessage `json:"spec"`
	Status json.RawMessage `json:"status"`
	Data   json.RawMessage `json:"data"`
}

// note adds a sentence, unless it is there already.
func (m *migration) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(m.Notes, text) {
		m.Notes = append(m.Notes, text)
	}
}

// maxServiceNotes is how many notes there are about single Services.
const maxServiceNotes = 50

// noteService is note about a Service: there may be thousands of them.
func (m *migration) noteService(format string, args ...any) {
	switch m.about++; {
	case m.about <= maxServiceNotes:
		m.note(format, args...)
	case m.about == maxServiceNotes+1:
		m.note("There are more Services of that kind.")
	}
}

// specs returns the objects of a kind, and their specs.
func specs[S any](m *migration, kind string) (all []object, parsed []S, err error) {
	m.read[kind] = true
	for _, o := range m.objects {
		if o.Kind != kind {
			continue
		}
		var s S
		if len(o.Spec) > 0 {
			if err := json.Unmarshal(o.Spec, &s); err != nil {
				return nil, nil, fmt.Errorf("%s %s can't be read: %w", kind, o.Metadata.Name, err)
			}
		}
		all, parsed = append(all, o), append(parsed, s)
	}
	return all, parsed, nil
}

// poolName is what a pool of Herald may be called.
var poolName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// reservedName matches names that Herald gives to the pools of kube-vip's provider.
var reservedName = regexp.MustCompile(`^(cidr|range|interface|allow-share|pool)-`)

// nameOf returns the name that a pool has with Herald: the same if it may have that.
func (m *migration) nameOf(name string) string {
	to := name
	if !poolName.MatchString(to) {
		to = strings.Trim(regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(to), "-"), "-")
	}
	if to == "" || reservedName.MatchString(to) {
		to = m.source + "-" + to
	}
	if to != name {
		to = cut(to, maxNewName)
	}
	to = m.unused(to)
	m.names[name] = to
	if to != name {
		m.note("The pool %s is called %s with Herald, since a name there has lower case letters, digits and hyphens "+
			"only, and begins with no key of the ConfigMap. Services that ask for it by name are pinned to the new one.", name,
			to)
	}
	return to
}

// maxPoolName is how many bytes a name of a pool may have, and maxNewName those of one that is made here, before
// unused.
const maxPoolName, maxNewName = 63, 60

// unused returns name, or, while a pool has it, name with one more x at the end.
func (m *migration) unused(name string) string {
	to, taken := name, slices.Collect(maps.Values(m.names))
	for n := 1; slices.Contains(taken, to); n++ {
		to = cut(name, maxPoolName-n) + strings.Repeat("x", n)
	}
	return to
}

// cut returns at most n bytes of a name, and no hyphens at the end.
func cut(name string, n int) string { return strings.TrimRight(name[:min(len(name), max(n, 0))], "-") }

// set sets an attribute of a pool; "" sets nothing.
func (m *migration) set(pool, attribute, value string) {
	if value != "" {
		m.Data["pool-"+pool+"."+attribute] = value
	}
}

// A span is the addresses from the first to the last.
type span struct{ first, last netip.Addr }

// contains reports whether a is one of them.
func (s span) contains(a netip.Addr) bool { return s.first.Compare(a) <= 0 && a.Compare(s.last) <= 0 }

// parseSpan reads a CIDR, two addresses with a hyphen between, or one address. text is it as Herald writes it.
func parseSpan(given string) (s span, text string, err error) {
	if a, err := netip.ParseAddr(strings.TrimSpace(given)); err == nil {
		return span{a, a}, a.String(), nil
	}
	if from, to, isRange := strings.Cut(given, "-"); isRange {
		first, err := netip.ParseAddr(strings.TrimSpace(from))
		if err != nil {
			return s, "", err
		}
		last, err := netip.ParseAddr(strings.TrimSpace(to))
		if err != nil || first.Is4() != last.Is4() || last.Less(first) {
			return s, "", fmt.Errorf("%q is no range of addresses", given)
		}
		if first == last {
			return span{first, last}, first.String(), nil
		}
		return span{first, last}, first.String() + "-" + last.String(), nil
	}
	p, err := netip.ParsePrefix(strings.TrimSpace(given))
	if err != nil {
		return s, "", err
	}
	return span{p.Masked().Addr(), vip.LastAddr(p)}, p.Masked().String(), nil
}

// poolOf returns the pool that has a; "" if none has.
func (m *migration) poolOf(a netip.Addr) string {
	for _, name := range slices.Sorted(maps.Keys(m.ranges)) {
		if slices.ContainsFunc(m.ranges[name], func(s span) bool { return s.contains(a) }) {
			return name
		}
	}
	return ""
}

// sortedUnique sorts texts and drops repetitions.
func sortedUnique(texts []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(texts)))
}
