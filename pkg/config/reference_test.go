package config

import (
	"slices"
	"strings"
	"testing"
	"text/template"

	"github.com/heraldvip/herald/testing/check"
)

// TestReference: docs/reference/options.md follows from the table of options.
func TestReference(t *testing.T) { check.Golden(t, "../../docs/reference/options.md", optionsPage(t)) }

// TestReferenceIsComplete: the page has a row for every option that Herald has, and whole rows only.
func TestReferenceIsComplete(t *testing.T) {
	page := optionsPage(t)
	for _, o := range Options {
		if !o.Supported() {
			continue
		}
		if got := strings.Count(page, "\n| `"+o.Env+"`"); got != 1 {
			t.Errorf("%s has %d rows, want 1", o.Env, got)
		}
		if o.Flag != "" && !strings.Contains(page, "`--"+o.Flag+"`") {
			t.Errorf("--%s is not on the page", o.Flag)
		}
	}
	columns := 0
	for line := range strings.Lines(page) {
		switch got := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); {
		case strings.HasPrefix(line, "|--"):
			columns = got
		case strings.HasPrefix(line, "| `") && got != columns:
			t.Errorf("%d bars, want %d: %s", got, columns, line)
		}
	}
	for _, want := range []string{
		"\n## Interfaces and addresses\n",
		"\n| `lb_class_legacy_handling`, `LoadBalancerClassLegacyHandling` | `--lbClassNameLegacyHandling`, `--LoadBalancerClassLegacyHandling` | bool | `true` | ",
		"\n| `cp_namespace` | `--namespace`, `-n` | name | `kube-system` | ",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q on the page", want)
		}
	}
	if strings.Contains(page, "`egress_clean`") {
		t.Error("an option that Herald does not have is on the page")
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
