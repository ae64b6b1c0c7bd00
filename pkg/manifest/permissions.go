package manifest

import (
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/config"
)

// A Permission is one verb on one kind of object, as RBAC writes it for c.
type Permission struct {
	Namespace, Group, Resource, Subresource, Name, Verb string
}

// Permissions is all that RBAC grants.
func Permissions(c config.Config) []Permission {
	namespaces := map[place]string{withServices: c.Services.Namespace, withAnnouncer: c.Node.Namespace, onlyAnnouncer: c.Node.Namespace}
	var all []Permission
	for _, r := range rules {
		if r.when != nil && !r.when(c) || r.where == everywhere && c.Services.Namespace != "" {
			continue
		}
		resource, sub, _ := strings.Cut(r.resource, "/")
		names := r.names
		if names == nil {
			names = []string{""}
		}
		for _, name := range names {
			for _, verb := range r.verbs {
				p := Permission{namespaces[r.where], r.group, resource, sub, name, verb}
				if !slices.Contains(all, p) {
					all = append(all, p)
				}
			}
		}
	}
	return all
}
