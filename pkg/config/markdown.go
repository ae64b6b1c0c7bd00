package config

import (
	_ "embed"
	"io"
	"slices"
	"strings"
	"text/template"
)

// groups are the headings of the reference, in its order.
var groups = []Group{
	groupGeneral, groupLinks, groupLeases, groupServices, groupClass, groupARP, groupAPIServer, groupServing,
	groupControlPlane, groupBGP, groupRouting, groupDHCP, groupEgress, groupOthers, groupObsolete,
}

//go:embed options.md.tmpl
var referencePage string

// Markdown writes the reference page of all options.
func Markdown(w io.Writer) error {
	cell := strings.NewReplacer("|", `\|`).Replace
	page, err := template.New("").Funcs(template.FuncMap{"sections": sections, "names": names, "flags": flags, "code": code, "cell": cell}).Parse(referencePage)
	if err != nil {
		return err
	}
	return page.Execute(w, nil)
}

// A section is a heading of the reference with the options below it.
type section struct {
	Heading string
	Options []Option
}

// sections returns the groups that have options of which this version supports all, or none.
func sections(supported bool) []section {
	var all []section
	for _, g := range groups {
		rows, others := inGroup(g, supported), inGroup(g, !supported)
		heading := string(g)
		if !supported && len(others) > 0 {
			heading += " (missing)" // tells the two halves of a group apart
		}
		if len(rows) > 0 {
			all = append(all, section{heading, rows})
		}
	}
	return all
}

func inGroup(g Group, supported bool) []Option {
	return slices.DeleteFunc(slices.Clone(Options), func(o Option) bool { return o.Group != g || o.Supported() != supported })
}

// names returns the names of an option as Markdown.
func names(o Option) string { return code(append([]string{o.Env}, o.Aliases...)...) }

// flags returns the flags of an option as Markdown, as one would type them.
func flags(o Option) string {
	var all []string
	for _, name := range flagNames(o) {
		all = append(all, "--"+name)
	}
	if o.Short != "" {
		all = append(all, "-"+o.Short)
	}
	return code(all...)
}

// code returns words set as code, with commas between, without those that are empty.
func code(words ...string) string {
	var all []string
	for _, w := range words {
		if w != "" {
			all = append(all, "`"+w+"`")
		}
	}
	return strings.Join(all, ", ")
}
