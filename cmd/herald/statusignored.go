package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/heraldvip/herald/pkg/lease"
	"github.com/heraldvip/herald/pkg/vip"
)

// ignoredLeases is what a namespace has of Leases that look like Herald's and that Herald does not act on: node
// leases in another namespace than the announcers', and claims that no Service names. Another installation of Herald
// has written them, one that has ended, or a user who forges them.
type ignoredLeases struct {
	Namespace string   `json:"namespace"`
	Count     int      `json:"count"`
	Examples  []string `json:"examples"` // up to maxIgnoredExamples names, sorted
}

const maxIgnoredExamples = 3

// An ignoredFinder finds ignoredLeases.
type ignoredFinder struct {
	announcers  string
	named       map[vip.Key]bool // by Services
	byNamespace map[string][]string
}

func newIgnored(services []vip.Service, announcers string) ignoredFinder {
	f := ignoredFinder{announcers, make(map[vip.Key]bool, len(services)), make(map[string][]string)}
	for i := range services {
		for _, k := range services[i].LeaseKeys() {
			f.named[k] = true
		}
	}
	return f
}

// add adds the Lease k, with that claim ("": none), if Herald does not act on it. Those in the announcers' namespace,
// where users may not write, are never added.
func (f ignoredFinder) add(k vip.Key, claim string) {
	if k.Namespace != f.announcers && (strings.HasPrefix(k.Name, lease.NodePrefix) || claim != "" && !f.named[k]) {
		f.byNamespace[k.Namespace] = append(f.byNamespace[k.Namespace], k.Name)
	}
}

// list returns what was added, sorted by namespace.
func (f ignoredFinder) list() (all []ignoredLeases) {
	for namespace, names := range f.byNamespace {
		slices.Sort(names)
		all = append(all, ignoredLeases{namespace, len(names), names[:min(len(names), maxIgnoredExamples)]})
	}
	slices.SortFunc(all, func(a, b ignoredLeases) int { return strings.Compare(a.Namespace, b.Namespace) })
	return all
}

// ignoredRows returns the rows of a table of them, and what to do.
func ignoredRows(all []ignoredLeases) (rows []string) {
	for _, x := range all {
		names := strings.Join(x.Examples, ", ")
		if more := x.Count - len(x.Examples); more > 0 {
			names += fmt.Sprintf(" and %d more", more)
		}
		rows = append(rows, row(x.Namespace, strconv.Itoa(x.Count), names, fmt.Sprintf(
			"if they are not of another installation: kubectl -n %[1]s get lease %[2]s -o yaml --show-managed-fields says "+
				"who wrote it; kubectl -n %[1]s delete lease %[2]s; a ResourceQuota (count/leases.coordination.k8s.io) limits "+
				"their number",
			x.Namespace, x.Examples[0])))
	}
	return rows
}
