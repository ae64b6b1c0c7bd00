package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// expectedFailures are the tests that can't pass in a mode, by a part of their names, and why.
var expectedFailures = map[string]map[string]string{
	"arp": {
		"should be able to switch session affinity for LoadBalancer service with Local traffic policy": "one node " +
			"answers for a VIP, and with this policy sends to pods of its own only, so that no client reaches two pods of " +
			"different nodes",
	},
}

// expected is the reason for which a test can't pass in a mode, or "".
func expected(mode, spec string) string {
	for part, why := range expectedFailures[mode] {
		if strings.Contains(spec, part) {
			return why
		}
	}
	return ""
}

func verdict(r result) string {
	switch {
	case r.passed:
		return "passed"
	case expected(r.mode, r.spec) != "":
		return "failed as expected"
	}
	return "FAILED"
}

// unexpected is an error that names the tests which should have passed, and those that passed although they
// can't.
func unexpected(all []result) error {
	var wrong []string
	for _, r := range all {
		if why := expected(r.mode, r.spec); !r.passed && why == "" {
			wrong = append(wrong, fmt.Sprintf("%s: failed: %s", r.mode, short(r.spec)))
		} else if r.passed && why != "" {
			wrong = append(wrong, fmt.Sprintf("%s: passed, and is among the expected failures: %s", r.mode, short(r.spec)))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%d tests are not as expected:\n%s", len(wrong), strings.Join(wrong, "\n"))
	}
	return nil
}

var noise = regexp.MustCompile(`^\[sig-network\] | ?\[(Feature:LoadBalancer|Slow|LinuxOnly)\]`)

// short is a test's name without labels.
func short(spec string) string { return strings.TrimSpace(noise.ReplaceAllString(spec, "")) }

// table is a Markdown table of the results, a row for each test and a column for each mode.
func table(modes []mode, all []result) string {
	var b strings.Builder
	b.WriteString("\n| test |")
	for _, m := range modes {
		fmt.Fprintf(&b, " %s |", m.title)
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(modes)) + "\n")
	var specs []string
	for _, r := range all {
		if !slices.Contains(specs, r.spec) {
			specs = append(specs, r.spec)
		}
	}
	slices.Sort(specs)
	passed := make([]int, len(modes))
	for _, spec := range specs {
		fmt.Fprintf(&b, "| %s |", short(spec))
		for i, m := range modes {
			cell := "not run"
			for _, r := range all {
				if r.spec == spec && r.mode == m.name {
					cell = fmt.Sprintf("%s, %v", verdict(r), r.took.Round(time.Second))
					if r.passed {
						passed[i]++
					}
				}
			}
			fmt.Fprintf(&b, " %s |", cell)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "| passed, of %d |", len(specs))
	for i := range modes {
		fmt.Fprintf(&b, " %d |", passed[i])
	}
	b.WriteString("\n\n")
	return b.String()
}

// indent is the first lines of a text, each behind spaces.
func indent(text string) string {
	lines := strings.Split(text, "\n")
	return "  " + strings.Join(lines[:min(8, len(lines))], "\n           ")
}
