package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/heraldvip/herald/testing/lab"
)

// cells is how many characters a timeline has.
const cells = 72

// signOf is the character of a cell: the last digit of the only node that answered, a dot if none
// did, = if several did.
func signOf(hosts []string) string {
	switch len(hosts) {
	case 0:
		return "·"
	case 1:
		return hosts[0][len(hosts[0])-1:]
	}
	return "="
}

// bar draws who answered from began to ended. Of what happened within the time of one
// cell it shows several nodes rather than none, and none rather than a single one;
// a cell outside all spans is blank.
func bar(spans []lab.Span, began, ended time.Time) string {
	var b strings.Builder
	edge := func(i int) time.Time { return began.Add(ended.Sub(began) * time.Duration(i) / cells) }
	for i := range cells {
		from, to := edge(i), edge(i+1)
		sign := " "
		for _, s := range spans {
			if !s.From.Before(to) || !s.To.After(from) {
				continue
			}
			if c := signOf(s.Hosts); sign == " " || c == "=" || c == "·" && sign != "=" {
				sign = c
			}
		}
		b.WriteString(sign)
	}
	return b.String()
}

// axis is the scale under a bar: a mark with its time each unit.
func axis(length time.Duration) string {
	unit := time.Second
	for _, u := range []time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second} {
		unit = u
		if length/u <= 8 {
			break
		}
	}
	line := []rune(strings.Repeat(" ", cells+8))
	for t := time.Duration(0); t <= length; t += unit {
		at := int(int64(t) * cells / int64(length))
		for _, r := range fmt.Sprintf("│%g s", t.Seconds()) {
			if at < len(line) {
				line[at] = r
				at++
			}
		}
	}
	return strings.TrimRight(string(line), " ")
}

// colourBar colours each cell by its sign, if the screen has colours.
func (s *screen) colourBar(bar string) string {
	if !s.colour {
		return bar
	}
	styles := map[rune]style{'1': "30;46", '2': "30;43", '3': "30;45", '=': "30;42", '·': red}
	var b strings.Builder
	for _, r := range bar {
		b.WriteString(s.paint(styles[r], string(r)))
	}
	return b.String()
}

// timeline draws who answered from began to ended, with an axis and a key of the signs.
func (s *screen) timeline(r lab.AddrReport, began, ended time.Time) {
	b := bar(r.Timeline, began, ended)
	s.line("")
	s.line("    " + s.paint(dim, fmt.Sprintf("who has %s?", r.Addr)))
	s.line("    " + s.colourBar(b))
	s.line("    " + s.paint(dim, axis(ended.Sub(began))))
	var key []string
	for _, n := range []string{"1", "2", "3"} {
		if strings.Contains(b, n) {
			key = append(key, n+" node n"+n)
		}
	}
	if strings.Contains(b, "=") {
		key = append(key, "= two nodes")
	}
	if strings.Contains(b, "·") {
		key = append(key, "· nobody")
	}
	s.line("    " + s.paint(dim, "answered by: "+strings.Join(key, ", ")))
	s.line("")
}
