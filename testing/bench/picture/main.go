// Command picture draws docs/failover.svg: for how long nobody answers for a VIP after its owner is cut off.
//
// The seconds are the longest silence that one lab measured for each program (docs/benchmarks.md). Run it from the
// root.
package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"text/template"
)

//go:embed measured.json
var measured []byte

//go:embed failover.svg.tmpl
var drawing string

// A row is one program of the picture. Silent is in seconds.
type row struct {
	Name, Version string
	Silent        float64
	Ours          bool
}

// Scale of the picture: where the time axis begins, pixels of a second, and the height of a row.
const (
	left   = 190
	second = 48
	height = 44
)

func main() {
	if err := draw("docs/failover.svg"); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

// draw writes the picture to a file.
func draw(file string) error {
	var rows []row
	if err := json.Unmarshal(measured, &rows); err != nil {
		return err
	}
	functions := template.FuncMap{
		"y":    func(i int) int { return 64 + i*height },
		"x":    func(seconds float64) float64 { return left + (1+seconds)*second },
		"wide": func(seconds float64) float64 { return seconds * second },
		"rest": func(seconds float64) float64 { return (10 - seconds) * second },
		"seq":  func() []float64 { return []float64{0, 2, 4, 6, 8, 10} },
	}
	t, err := template.New("failover").Funcs(functions).Parse(drawing)
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := t.Execute(out, rows); err != nil {
		return err
	}
	return out.Close()
}
