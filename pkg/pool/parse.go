package pool

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// Keys of the ConfigMap, or how they begin.
const (
	cidrPrefix      = "cidr-"
	rangePrefix     = "range-"
	interfacePrefix = "interface-"
	sharePrefix     = "allow-share-"
	poolPrefix      = "pool-"
	searchOrderKey  = "search-order"
	skipEndsKey     = "skip-end-ips-in-cidr"

	global = "global" // in place of a namespace: for those that have no key of their own
)

// Parse reads the ConfigMap; for an unreadable key previous (or nil) stays in force.
func Parse(previous *Pools, data map[string]string) (*Pools, []vip.PoolProblem) {
	r := &reader{data: data, pools: newPools()}
	if previous != nil {
		r.earlier = previous.good
	}
	for _, k := range slices.Sorted(maps.Keys(data)) { // so a pool comes before its attributes
		r.read(k)
	}
	r.pools.complete()
	r.findShadowed()
	r.findEmpty()
	r.findOpen()
	slices.SortStableFunc(r.problems, func(a, b vip.PoolProblem) int { return cmp.Compare(a.Key, b.Key) })
	return r.pools, r.problems
}

type reader struct {
	data     map[string]string
	earlier  map[string]string // texts that could be read before, by key
	pools    *Pools
	problems []vip.PoolProblem
}

func (r *reader) fail(key, format string, args ...any) {
	r.problems = append(r.problems, vip.PoolProblem{Key: key, Message: fmt.Sprintf(format, args...)})
}

func (r *reader) warn(key, format string, args ...any) {
	r.problems = append(r.problems, vip.PoolProblem{Key: key, Message: fmt.Sprintf(format, args...), Warning: true})
}

// readKey returns what parse makes of a key's text, or what was in force; false for neither.
func readKey[T any](r *reader, key, consequence string, parse func(text string) (v T, problem string)) (v T, ok bool) {
	text := r.data[key]
	v, problem := parse(text)
	if problem == "" {
		r.pools.good[key] = text
		return v, true
	}
	if before, had := r.earlier[key]; had {
		if v, again := parse(before); again == "" {
			r.fail(key, "%s. Until then the value before it stays in force where Herald has not been restarted since: %s",
				problem, vip.Quote(before))
			r.pools.good[key] = before
			return v, true
		}
	}
	r.fail(key, "%s. %s", problem, consequence)
	var zero T
	return zero, false
}

func (r *reader) read(key string) {
	p := r.pools
	switch prefix, name := splitKey(key); prefix {
	case searchOrderKey:
		p.descending, _ = readKey(r, key, "Until then the lowest address comes first", parseSearchOrder)
	case skipEndsKey:
		p.skipEnds, _ = readKey(r, key, "Until then it counts as false", parseTrueFalse)
	case cidrPrefix, rangePrefix:
		r.readProviderPool(key, name)
	case interfacePrefix:
		if link, ok := readKey(r, key, "Until then it counts as absent", parseInterface); ok {
			p.interfaces[name] = link
		}
	case sharePrefix:
		p.share[name], _ = readKey(r, key, "Until then it counts as false", parseShare)
	case poolPrefix:
		r.readPool(name)
	case "":
		if name, ok := strings.CutPrefix(key, "allow-shared-"); ok {
			r.warn(key, "no such key, so it is ignored; did you mean %s%s?", sharePrefix, name)
			return
		}
		r.warn(key, "no such key, so it is ignored; docs/pools.md lists all that there are")
	}
}

// splitKey returns a key's beginning, one of the constants, and the rest; or "".
func splitKey(key string) (prefix, name string) {
	if key == searchOrderKey || key == skipEndsKey {
		return key, ""
	}
	for _, p := range []string{cidrPrefix, rangePrefix, interfacePrefix, sharePrefix, poolPrefix} {
		if name, ok := strings.CutPrefix(key, p); ok && name != "" {
			return p, name
		}
	}
	return "", ""
}

// readProviderPool reads cidr-<namespace> or range-<namespace>: the text tells which.
func (r *reader) readProviderPool(key, namespace string) {
	p := &Pool{Name: key, Key: key, Auto: true, provider: true}
	if namespace != global {
		p.Namespaces = Namespaces{Names: []string{namespace}}
	}
	a, ok := readKey(r, key, "Until then Services that it is for get no address", parseAddresses)
	p.addresses, p.Broken = a, !ok
	r.pools.byName[key] = p
}

// findShadowed warns of the provider's pools that give nothing.
func (r *reader) findShadowed() {
	byName := r.pools.byName
	for key := range byName {
		namespace, isRange := strings.CutPrefix(key, rangePrefix)
		switch {
		case !isRange:
		case byName[cidrPrefix+namespace] != nil:
			r.warn(key, "no Service gets an address of it, since %s%s comes before it; put its addresses there", cidrPrefix,
				namespace)
		case byName[cidrPrefix+global] != nil:
			r.warn(key, "no Service gets an address of it, since %s%s comes before it; name it %s%s", cidrPrefix, global,
				cidrPrefix, namespace)
		}
	}
}

// findEmpty warns of pools that give nothing, and of interfaces and allow-share of nothing.
func (r *reader) findEmpty() {
	for _, p := range r.pools.byName {
		if !p.Broken && p.Auto && len(p.DHCP) == 0 && p.Size(4)+p.Size(6) == 0 {
			r.warn(p.Key, "it gives no address: those that end in .0 or .255, and those that no Service may have (loopback, "+
				"link-local, multicast), are left out")
		}
	}
}

// findOpen warns of pools for some namespaces that share addresses with one for all.
func (r *reader) findOpen() {
	for _, p := range r.pools.own {
		opens := func(x *Pool) bool {
			return x.Namespaces.All() && !x.Broken && !slices.Equal(subtract(p.Ranges, x.Ranges), p.Ranges)
		}
		if p.Namespaces.All() || p.Broken {
			continue
		}
		if i := slices.IndexFunc(r.pools.all, opens); i >= 0 {
			r.warn(p.Key+".namespaces", "other namespaces may have addresses of the pool all the same, since %s, which is for "+
				"all, has some of them, too; take them out of it", r.pools.all[i].Key)
		}
	}
}

func parseSearchOrder(text string) (descending bool, problem string) {
	order := strings.TrimSpace(text)
	if order != "desc" && order != "asc" && order != "" {
		return false, vip.Quote(text) + " is not an order; write desc for the highest address first, asc for the lowest"
	}
	return order == "desc", ""
}

func parseTrueFalse(text string) (on bool, problem string) {
	word := strings.TrimSpace(text)
	if word != "true" && word != "false" && word != "" {
		return false, vip.Quote(text) + " is neither true nor false; write one of them"
	}
	return word == "true", ""
}

// parseShare reads what the provider does: 1, t, T, TRUE, true, True and their opposites.
func parseShare(text string) (on bool, problem string) {
	on, err := strconv.ParseBool(strings.TrimSpace(text))
	if err != nil {
		return false, fmt.Sprintf("%s is neither true nor false; write one of them", vip.Quote(text))
	}
	return on, ""
}

// parseInterface reads the name of a link, auto, or nothing.
func parseInterface(text string) (name, problem string) {
	name = strings.TrimSpace(text)
	if name != "" && !vip.IsLinkName(name) {
		return "", fmt.Sprintf("%s is no name of a network interface; write one of at most 15 characters, or auto",
			vip.Quote(text))
	}
	return name, ""
}
