package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/pkg/config"
)

// checkFormat returns an error if --output is neither "" nor known.
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
