package config

import (
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/heraldvip/herald/testing/check"
)

// TestReference: docs/reference/options.md follows from the table of options, and has a row for each that Herald has.
func TestReference(t *testing.T) {
	page := optionsPage(t)
	check.Golden(t, "../../docs/reference/options.md", page)
	for _, o := range Options {
		if got := strings.Count(page, "\n| `"+o.Env+"`"); o.Supported() != (got == 1) {
			t.Errorf("%s has %d rows", o.Env, got)
		}
	}
}

// groups are the headings of the reference, in its order.
var groups = []Group{
	groupGeneral, groupLinks, groupLeases, groupServices, groupClass, groupPools, groupARP, groupAPIServer, groupServing,
	groupControlPlane, groupBGP, groupRouting, groupDHCP, groupEgress, groupOthers, groupObsolete,
}

// optionsPage returns the reference page of all options.
func optionsPage(t *testing.T) string {
	t.Helper()
	cell := strings.NewReplacer("|", `\|`).Replace
	functions := template.FuncMap{"sections": sections, "names": names, "flags": flags, "code": code, "cell": cell}
	page := template.Must(template.New("options.md.tmpl").Funcs(functions).ParseFiles("testdata/options.md.tmpl"))
	var b strings.Builder
	check.OK(t, page.Execute(&b, nil))
	return b.String()
}

// A section is a heading of the reference with the options below it.
type section struct {
	Heading string
	Options []Option
}

// sections returns the groups that have options of Herald.
func sections() []section {
	var all []section
	for _, g := range groups {
		if rows := inGroup(g); len(rows) > 0 {
			all = append(all, section{string(g), rows})
		}
	}
	return all
}

func inGroup(g Group) []Option {
	return slices.DeleteFunc(slices.Clone(Options), func(o Option) bool { return o.Group != g || !o.Supported() })
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
