package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/config"
)

// checkFormat returns an error if --output is neither "" nor one of those known.
func checkFormat(format string, known ...string) error {
	if format == "" || slices.Contains(known, format) {
		return nil
	}
	return config.NewError(fmt.Errorf("--output=%s is not known; write %s", format, strings.Join(known, ", ")))
}

// encode returns v as JSON or YAML.
func encode(format string, v any) (string, error) {
	if format == "yaml" {
		text, err := yaml.Marshal(v)
		return string(text), err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.String(), err
}

// isTerminal reports whether w is a terminal that wants colors (https://no-color.org).
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	return term.IsTerminal(int(f.Fd()))
}

// problems matches what colored shows in red: what keeps VIPs away.
var problems = regexp.MustCompile(`carries no VIP.*|takes a VIP only.*|not announced.*|silent for .*|fenced: .*|` + noHerald + `|no node holds its lease.*|its owner .*|No[A-Z][a-zA-Z]+: .*|[A-Z][a-z]+(?:[A-Z][a-zA-Z]+)+: .*`)

// colored returns a table with its headers in bold and what is wrong in red, as ECMA-48 (SGR) has it.
func colored(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		header := line != "" && line == strings.ToUpper(line) && !strings.ContainsAny(line, "0123456789(")
		switch at := problems.FindStringIndex(line); {
		case header:
			line = "\x1b[1m" + line + "\x1b[0m"
		case at != nil:
			line = line[:at[0]] + "\x1b[31m" + line[at[0]:at[1]] + "\x1b[0m" + line[at[1]:]
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}
