package kube

import (
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/heraldvip/herald/pkg/vip"
)

const (
	maxUnknownNamed   = 3  // unknown annotations of a Service that its user is told of
	maxUnknownChecked = 32 // unknown annotations of a Service that are compared with the known ones
)

// reportUnknown tells of the first three annotations that are probably mistyped.
func (r annotationReader) reportUnknown() {
	var unknown []string
	for key := range r.annotations {
		if strings.HasPrefix(key, "heraldvip.io/") || strings.HasPrefix(key, "kube-vip.io/") {
			if !slices.ContainsFunc(Annotations, func(a Annotation) bool { return a.Key == key }) {
				unknown = append(unknown, key)
			}
		}
	}
	slices.Sort(unknown)
	reported := 0
	for _, key := range unknown[:min(len(unknown), maxUnknownChecked)] {
		if len(validation.IsQualifiedName(key)) > 0 {
			continue // the API server takes no such key, and it could not be shown
		}
		text := vip.Truncate(key, 80)
		switch near := nearestAnnotation(key); {
		case near != "":
			text += " is not known; did you mean " + near + "? It has no effect."
		case strings.HasPrefix(key, "heraldvip.io/"):
			text += " is not known on a Service. It has no effect."
		default:
			continue
		}
		r.service.Invalid = append(r.service.Invalid, text)
		if reported++; reported == maxUnknownNamed {
			return
		}
	}
}

// nearestAnnotation returns the annotation within two letters of key, or "".
func nearestAnnotation(key string) (nearest string) {
	_, name, _ := strings.Cut(strings.ToLower(key), "/")
	least := 3
	for _, a := range Annotations {
		if a.Written || a.Unsupported {
			continue
		}
		_, known, _ := strings.Cut(strings.ToLower(a.Key), "/")
		if d := levenshtein.Distance(name, known, nil); d < least {
			nearest, least = a.Key, d
		}
	}
	return nearest
}
