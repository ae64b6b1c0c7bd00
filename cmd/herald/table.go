package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode"
)

// row is a row of a table; unprintable characters, maybe users', become spaces.
func row(cells ...string) string {
	printable := func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}
	for i, c := range cells {
		cells[i] = strings.Map(printable, c)
	}
	return strings.Join(cells, "\t")
}

// writeTable writes rows of cells between tabs below a header, or nothing.
func writeTable(w io.Writer, header string, rows []string) error {
	if len(rows) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, header)
	for _, row := range rows {
		fmt.Fprintln(t, row)
	}
	return t.Flush()
}
