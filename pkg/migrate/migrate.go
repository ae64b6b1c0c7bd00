// Package migrate turns the configuration of other load balancers into Herald's pools: custom resources of MetalLB and
// Cilium's LB IPAM, and the ConfigMap of kube-vip's cloud provider. It finds the Services that need an annotation to
// keep their addresses. It is pure: objects in, a Result out.
package migrate

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// Sources are the load balancers that From knows.
var Sources = []string{"metallb", "cilium", "kube-vip"}

var poolKinds = map[string]string{
	"metallb": "IPAddressPool", "cilium": "CiliumLoadBalancerIPPool", "kube-vip": "ConfigMap with pools",
}

// A Collection is where the API server has the objects of a kind.
type Collection struct{ Kind, Path string }

// Collections returns what From reads of a source, Services included.
func Collections(source string) []Collection {
	services := Collection{"Service", "/api/v1/services"}
	switch source {
	case "metallb":
		const api = "/apis/metallb.io/v1beta1/"
		return []Collection{services, {"IPAddressPool", api + "ipaddresspools"},
			{"L2Advertisement", api + "l2advertisements"}, {"BGPAdvertisement", api + "bgpadvertisements"},
			{"BGPPeer", "/apis/metallb.io/v1beta2/bgppeers"}, {"BFDProfile", api + "bfdprofiles"}}
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
	Data map[string]string // of the ConfigMap of pools
	// Pins are the annotations that Services need to keep what they have.
	Pins  map[vip.Key]map[string]string
	Notes []string // what is not carried over, and what to do about it, each a sentence
}

// From reads a source's objects, as JSON, and ignores other kinds; unreadable ones, or none with pools, are an error.
func From(source string, objects []json.RawMessage) (Result, error) {
	m := &migration{source: source, read: map[string]bool{"Service": true, "ConfigMap": true, "": true},
		ranges: make(map[string][]vip.Range), names: make(map[string]string), hand: make(map[string][]string),
		Result: Result{Data: make(map[string]string), Pins: make(map[vip.Key]map[string]string)}}
	for _, text := range objects {
		var o object
		if err := json.Unmarshal(text, &o); err != nil {
			return Result{}, fmt.Errorf("an object can't be read: %w", err)
		}
		m.objects = append(m.objects, o)
	}
	slices.SortStableFunc(m.objects, func(a, b object) int { return cmp.Compare(a.String(), b.String()) })
	m.objects = slices.CompactFunc(m.objects, func(a, b object) bool { // served in two versions
		return a.Kind != "" && a.String() == b.String()
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
	var other []string
	for _, o := range m.objects {
		if !m.read[o.Kind] {
			m.byHand(o, "all of it")
		}
		other = append(other, o.String())
	}
	switch {
	case err != nil:
		return Result{}, err
	case len(m.Data) == 0 && len(other) == 0:
		return Result{}, fmt.Errorf("there is no %s; nothing is there at all", poolKinds[source])
	case len(m.Data) == 0 && source == "metallb" && slices.ContainsFunc(objects, isOldMetalLB):
		return Result{}, fmt.Errorf("there is no IPAddressPool; there is %s, of MetalLB before 0.13%s", few(other),
			convertOld)
	case len(m.Data) == 0:
		return Result{}, fmt.Errorf("there is no %s; there is %s", poolKinds[source], few(other))
	}
	for _, of := range slices.Sorted(maps.Keys(m.hand)) {
		m.note("%s, by hand: %s.", of, strings.Join(slices.Compact(m.hand[of]), "; "))
	}
	m.pinServices()
	return m.Result, nil
}

type migration struct {
	source  string
	objects []object               // sorted
	names   map[string]string      // of pools here, by their name there
	ranges  map[string][]vip.Range // addresses of pools, by their name here
	about   int                    // how many notes are about single Services
	read    map[string]bool        // kinds that need no note
	hand    map[string][]string    // what has to be written by hand, by the object
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

func (o object) String() string {
	name := strings.TrimPrefix(o.Metadata.Namespace+"/"+o.Metadata.Name, "/")
	return strings.TrimSpace(cmp.Or(o.Kind, "a document without a kind") + " " + name)
}

// isOldMetalLB reports whether a document has pools of MetalLB before 0.13: its ConfigMap, Helm values or AddressPool.
func isOldMetalLB(text json.RawMessage) bool {
	var o object
	_ = json.Unmarshal(text, &o) // one that can't be read is no AddressPool
	return o.Kind == "AddressPool" || bytes.Contains(text, []byte("address-pools"))
}

const convertOld = `. MetalLB's own converter makes today's objects of its ConfigMap, saved as config.yaml:
  docker run --rm -v "$PWD:/var/input" quay.io/metallb/configmaptocrs
  kubectl get services --all-namespaces -o yaml > services.yaml
  herald import metallb resources.yaml services.yaml
Write any other as an IPAddressPool with the same addresses, and an L2Advertisement or BGPAdvertisement by its protocol`

// few joins at most ten of all, and says how many more there are.
func few(all []string) string { return strings.Join(vip.AtMost(all, 10), "; ") }

func (m *migration) note(format string, args ...any) {
	m.Notes = append(m.Notes, fmt.Sprintf(format, args...))
}

// byHand notes what of an object has no counterpart.
func (m *migration) byHand(o object, format string, args ...any) {
	of := o.Kind + " " + o.Metadata.Name
	m.hand[of] = append(m.hand[of], fmt.Sprintf(format, args...))
}

const maxServiceNotes = 50

// noteService is note about a Service: there may be thousands.
func (m *migration) noteService(format string, args ...any) {
	switch m.about++; {
	case m.about <= maxServiceNotes:
		m.note(format, args...)
	case m.about == maxServiceNotes+1:
		m.note("There are more Services of that kind.")
	}
}

// specs returns the objects of a kind, and their specs; fields that S lacks are to be written by hand.
func specs[S any](m *migration, kind string) (all []object, parsed []S, err error) {
	m.read[kind] = true
	known := make(map[string]bool)
	for i := range reflect.TypeFor[S]().NumField() {
		known[reflect.TypeFor[S]().Field(i).Tag.Get("json")] = true
	}
	for _, o := range m.objects {
		if o.Kind != kind {
			continue
		}
		var s S
		var fields map[string]json.RawMessage
		if len(o.Spec) > 0 {
			if err := cmp.Or(json.Unmarshal(o.Spec, &s), json.Unmarshal(o.Spec, &fields)); err != nil {
				return nil, nil, fmt.Errorf("%s %s can't be read: %w", kind, o.Metadata.Name, err)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			empty := slices.Contains([]string{`""`, "null", "false", "0", "{}", "[]"}, string(fields[name]))
			if !known[name] && !empty {
				m.byHand(o, "%s", name)
			}
		}
		all, parsed = append(all, o), append(parsed, s)
	}
	return all, parsed, nil
}

const namespaceLabel = "kubernetes.io/metadata.name"

// NoNamespace is a value of .namespaces that selects none.
const NoNamespace = namespaceLabel + "="

const whoMayAsk = "who may ask for an address by name is limited by .namespaces only, not by labels of Services"

// selectorText writes a selector as kubectl takes it; "" selects all; an error if it can't.
func selectorText(s metav1.LabelSelector) (string, error) {
	selector, err := metav1.LabelSelectorAsSelector(&s)
	if err != nil {
		return "", err
	}
	return selector.String(), nil
}

// forNamespaces returns a selector for .namespaces. Required labels alone would be read as names, so what every
// namespace has is added.
func forNamespaces(selector string) string {
	if selector != "" && !strings.ContainsAny(selector, "=!()<>") {
		selector += "," + namespaceLabel + "!="
	}
	return selector
}

var poolName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// reservedName matches names that Herald gives to pools of kube-vip's provider.
var reservedName = regexp.MustCompile(`^(cidr|range|interface|allow-share|pool)-`)

var notInName = regexp.MustCompile(`[^a-z0-9]+`)

// nameOf returns a pool's name with Herald: the same if possible.
func (m *migration) nameOf(name string) string {
	base := name
	if !poolName.MatchString(name) || reservedName.MatchString(name) {
		base = m.source + "-" + strings.Trim(notInName.ReplaceAllString(strings.ToLower(name), "-"), "-")
		base = strings.TrimRight(base[:min(len(base), 55)], "-")
	}
	to, taken := base, slices.Collect(maps.Values(m.names))
	for n := 2; slices.Contains(taken, to); n++ {
		to = fmt.Sprintf("%.55s-%d", base, n)
	}
	m.names[name] = to
	if to != name {
		m.note("The pool %s is called %s with Herald: a name has lower case letters, digits and hyphens only, and begins "+
			"with no key of the ConfigMap. Services that ask for it by name are pinned to the new one.", name, to)
	}
	return to
}

func (m *migration) set(pool, attribute, value string) {
	if value != "" {
		m.Data["pool-"+pool+"."+attribute] = value
	}
}

// setAddresses sets a pool's readable addresses; edges is whether ends of CIDRs count.
func (m *migration) setAddresses(o object, pool string, given []string, edges bool) {
	var texts []string
	for _, text := range given {
		r, _, ok := vip.ParseRange(text)
		if !ok || !r.IsValid() || r.From.IsUnspecified() {
			m.byHand(o, "the addresses %q, which can't be read", text)
			continue
		}
		m.ranges[pool] = append(m.ranges[pool], r) // what Services have may be at the ends
		if p, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil && p.Addr().BitLen()-p.Bits() > 1 && !edges {
			r = vip.Range{From: r.From.Next(), To: r.To.Prev()}
		} else if err == nil {
			texts = append(texts, p.Masked().String())
			continue
		}
		texts = append(texts, r.String())
	}
	m.Data["pool-"+pool] = strings.Join(texts, ",")
}

func (m *migration) poolOf(a netip.Addr) string {
	for _, name := range slices.Sorted(maps.Keys(m.ranges)) {
		if slices.ContainsFunc(m.ranges[name], func(r vip.Range) bool { return r.Contains(a) }) {
			return name
		}
	}
	return ""
}

func sortedUnique(texts []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(texts)))
}
