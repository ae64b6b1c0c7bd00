package main

import (
	"encoding/json"
	"io"
	"os"

	"golang.org/x/term"
	"sigs.k8s.io/yaml"
)

// encode writes v as JSON or YAML.
func encode(w io.Writer, format string, v any) error {
	if format == "yaml" {
		text, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// isTerminal reports whether w is a terminal that wants colors (https://no-color.org).
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	return term.IsTerminal(int(f.Fd()))
}
