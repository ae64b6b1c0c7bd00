package migrate

import (
	"maps"
	"slices"
	"strings"
)

// A selector is a LabelSelector.
type selector struct {
	MatchLabels      map[string]string `json:"matchLabels"`
	MatchExpressions []requirement     `json:"matchExpressions"`
}

// A requirement is one of a LabelSelector.
type requirement struct {
	Key      string   `json:"key"`
	Operator string   `json:"operator"`
	Values   []string `json:"values"`
}

// empty reports whether s selects everything.
func (s selector) empty() bool { return len(s.MatchLabels)+len(s.MatchExpressions) == 0 }

// requirements returns all of s, matchLabels as In, sorted by key.
func (s selector) requirements() (all []requirement) {
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		all = append(all, requirement{k, "In", []string{s.MatchLabels[k]}})
	}
	return append(all, s.MatchExpressions...)
}

// String writes s as kubectl takes it.
func (s selector) String() string {
	var parts []string
	for _, r := range s.requirements() {
		parts = append(parts, r.String())
	}
	return strings.Join(parts, ",")
}

// namespaceLabel is on every namespace: its name.
const namespaceLabel = "kubernetes.io/metadata.name"

// namespacesText writes s for .namespaces. Labels that have to be there, and nothing else, would be read as names of
// namespaces, so what is true of every namespace is added to them.
func (s selector) namespacesText() string {
	text := s.String()
	if !strings.ContainsAny(text, "=!()<>") {
		text += "," + namespaceLabel + "!="
	}
	return text
}

// String writes r as kubectl takes it.
func (r requirement) String() string {
	switch r.Operator {
	case "Exists":
		return r.Key
	case "DoesNotExist":
		return "!" + r.Key
	case "NotIn":
		return r.Key + " notin (" + strings.Join(sortedUnique(r.Values), ",") + ")"
	}
	if len(r.Values) == 1 {
		return r.Key + "=" + r.Values[0]
	}
	return r.Key + " in (" + strings.Join(sortedUnique(r.Values), ",") + ")"
}

// matches reports whether s selects an object with these labels.
func (s selector) matches(labels map[string]string) bool {
	return !slices.ContainsFunc(s.requirements(), func(r requirement) bool {
		v, has := labels[r.Key]
		switch r.Operator {
		case "Exists":
			return !has
		case "DoesNotExist":
			return has
		case "NotIn":
			return has && slices.Contains(r.Values, v)
		}
		return !has || !slices.Contains(r.Values, v)
	})
}

// union returns a selector that selects what any of all selects; ok is false if there is none: it can be written only
// if each has one requirement, that a label has one of some values, and all name the same label.
func union(all []selector) (u selector, ok bool) {
	if len(all) == 1 {
		return all[0], true
	}
	var one requirement
	for i, s := range all {
		r := s.requirements()
		if len(r) != 1 || r[0].Operator != "In" || i > 0 && r[0].Key != one.Key {
			return selector{}, false
		}
		one = requirement{r[0].Key, "In", sortedUnique(slices.Concat(one.Values, r[0].Values))}
	}
	return selector{MatchExpressions: []requirement{one}}, len(all) > 0
}
