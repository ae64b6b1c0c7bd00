package config

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// groups are the headings of the reference, in its order.
var groups = []Group{
	groupGeneral, groupLinks, groupLeases, groupServices, groupClass, groupARP, groupAPIServer, groupServing,
	groupControlPlane, groupBGP, groupRouting, groupDHCP, groupEgress, groupOthers, groupObsolete,
}

const optionsHead = `# Options

<!-- Written by "herald docs" from the table in pkg/config. Do not edit. -->

An option is a flag, a key of the YAML file that ` + "`herald_config`" + ` names, or an
environment variable. The file wins over flags, the environment over both. An
empty value means "not set", unless the option says otherwise.

Booleans are what Go's strconv.ParseBool takes: ` + "`true`, `false`, `1`, `0`, `t`, `f`" + ` and
their capitals. Everything that is wrong is told at once, each part with the
option, the value, where it is from and what would be right; the exit status is then 2.
A variable that looks like one of these but is none is a warning with the nearest
name; an unknown flag or key of the file is an error.
`

const optionsMissing = `
# Options of kube-vip that are not supported yet

They are understood, so that nothing is ignored in silence. "Error": a value other than
the default would change what is announced, or whose traffic passes, so Herald does not start with
it. "Warning": it is told once, and has no effect. "No effect": Herald does the same whatever it says.
A name that ends in ` + "`*`" + ` stands for all that begin so.
`

// Markdown writes the reference page of all options.
func Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString(optionsHead)
	for _, supported := range []bool{true, false} {
		if !supported {
			b.WriteString(optionsMissing)
		}
		for _, g := range groups {
			rows := slices.DeleteFunc(inGroup(g), func(o Option) bool { return o.Supported() != supported })
			if len(rows) == 0 {
				continue
			}
			fmt.Fprintf(&b, "\n## %s\n\n", heading(g, supported))
			if supported {
				b.WriteString("| variable | flag | type | default | meaning | since |\n|---|---|---|---|---|---|\n")
			} else {
				b.WriteString("| variable | flag | default | meaning | if set |\n|---|---|---|---|---|\n")
			}
			for _, o := range rows {
				b.WriteString(row(o))
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// heading tells the two halves of a group apart.
func heading(g Group, supported bool) string {
	if !supported && slices.ContainsFunc(inGroup(g), Option.Supported) {
		return string(g) + " (missing)"
	}
	return string(g)
}

func inGroup(g Group) []Option {
	return slices.DeleteFunc(slices.Clone(Options), func(o Option) bool { return o.Group != g })
}

// row is one line of a table of the reference.
func row(o Option) string {
	cells := []string{code(append([]string{o.Env}, o.Aliases...)...), flags(o)}
	if o.Supported() {
		cells = append(cells, string(o.Type), code(o.Default), o.Meaning, o.Since)
	} else {
		cells = append(cells, code(o.Default), o.Meaning, string(o.Effect))
	}
	for i, c := range cells {
		cells[i] = strings.ReplaceAll(c, "|", `\|`)
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// flags are the flags of an option as one would type them.
func flags(o Option) string {
	var names []string
	for _, name := range flagNames(o) {
		names = append(names, "--"+name)
	}
	if o.Short != "" {
		names = append(names, "-"+o.Short)
	}
	return code(names...)
}

// code sets each of words as code, and nothing for nothing.
func code(words ...string) string {
	var set []string
	for _, w := range words {
		if w != "" {
			set = append(set, "`"+w+"`")
		}
	}
	return strings.Join(set, ", ")
}
