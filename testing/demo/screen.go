package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/heraldvip/herald/testing/lab"
)

// A style is an SGR sequence (ECMA-48).
type style string

const (
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	title  style = "1;36"
)

// A screen is what the demo writes to: a terminal, with time to read and a bar that moves, or a file.
type screen struct {
	out    io.Writer
	moves  bool            // the last line may be written again
	colour bool            // styles are shown
	slow   bool            // there is time to read
	ctx    context.Context // ends the time to read
	end    func()          // is called when a write fails
	number int             // of the latest chapter
	gap    bool            // what was written last ends with an empty line
}

// newScreen knows whether f is a terminal. It has no colours if NO_COLOR is set (no-color.org).
func newScreen(ctx context.Context, f *os.File, fast bool, end func()) *screen {
	tty := term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
	return &screen{out: f, moves: tty, colour: tty && os.Getenv("NO_COLOR") == "", slow: tty && !fast, ctx: ctx, end: end}
}

func (s *screen) paint(st style, text string) string {
	if !s.colour || st == "" || text == "" {
		return text
	}
	return "\x1b[" + string(st) + "m" + text + "\x1b[0m"
}

// print writes text as it is, but for a second empty line.
func (s *screen) print(text string) {
	if text == "\n" && s.gap {
		return
	}
	s.gap = text == "\n" || strings.HasSuffix(text, "\n\n")
	if _, err := io.WriteString(s.out, text); err != nil {
		s.end()
	}
}

// lines writes each line of text in a style and indented, and leaves a second to read it.
func (s *screen) lines(st style, text string) {
	for line := range strings.Lines(strings.TrimRight(text, "\n ")) {
		s.print("  " + s.paint(st, strings.TrimRight(line, "\n ")) + "\n")
	}
	if s.slow {
		select {
		case <-time.After(time.Second):
		case <-s.ctx.Done():
		}
	}
}

// Write makes a screen take the progress of a lab.
func (s *screen) Write(p []byte) (int, error) {
	s.print("  " + s.paint(dim, strings.TrimRight(string(p), "\n")) + "\n")
	return len(p), nil
}

// chapter writes a heading.
func (s *screen) chapter(name string) {
	s.number++
	head := fmt.Sprintf("── %d  %s ", s.number, name)
	s.print("\n")
	s.print(s.paint(title, head+strings.Repeat("─", max(0, cells-len([]rune(head))))) + "\n\n")
}

// text writes a paragraph.
func (s *screen) text(format string, args ...any) { s.lines("", fmt.Sprintf(format, args...)) }

// command writes a command that is about to be run.
func (s *screen) command(text string) {
	s.print("\n")
	s.lines(bold, "$ "+text)
}

// output writes what a command has printed.
func (s *screen) output(text string) {
	s.lines("", text)
	s.print("\n")
}

// checked writes what has been found as it should be.
func (s *screen) checked(format string, args ...any) {
	s.text("%s %s", s.paint(green, "✓"), fmt.Sprintf(format, args...))
}

// short is a duration in ms, or from a second up in s with one decimal.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// cells is how many characters a timeline has.
const cells = 72

// sign is the character of a cell: the last digit of the only node that answered, = if several did, · if none did.
func sign(hosts ...string) string {
	switch {
	case len(hosts) > 1:
		return "="
	case len(hosts) == 0 || hosts[0] == "":
		return "·"
	}
	return hosts[0][len(hosts[0])-1:]
}

// bar draws who answered from began to ended. Of what happened within the time of one cell it shows several nodes
// rather than none, and none rather than a single one; a cell outside all spans is blank.
func bar(spans []lab.Span, began, ended time.Time) string {
	var b strings.Builder
	edge := func(i int) time.Time { return began.Add(ended.Sub(began) * time.Duration(i) / cells) }
	for i := range cells {
		cell := " "
		for _, s := range spans {
			if c := sign(s.Hosts...); s.From.Before(edge(i+1)) && s.To.After(edge(i)) && cell != "=" &&
				(c == "=" || c == "·" || cell == " ") {
				cell = c
			}
		}
		b.WriteString(cell)
	}
	return b.String()
}

// paintBar paints each cell by its sign.
func (s *screen) paintBar(bar string) string {
	styles := map[rune]style{'1': "30;46", '2': "30;43", '3': "30;45", '=': "30;42", '·': red}
	var b strings.Builder
	for _, r := range bar {
		b.WriteString(s.paint(styles[r], string(r)))
	}
	return b.String()
}

// live writes a bar in place of the one before. Without a terminal it does nothing.
func (s *screen) live(bar string) {
	if s.moves {
		s.print("\r\x1b[K    " + s.paintBar(bar))
	}
}

// timeline draws who answered, with a scale, in place of a bar that moves.
func (s *screen) timeline(r lab.AddrReport) {
	began, ended := r.Timeline[0].From, r.Timeline[len(r.Timeline)-1].To
	s.live("")
	s.print("\r    " + s.paintBar(bar(r.Timeline, began, ended)) + "\n")
	scale := strings.Builder{}
	for i := range 4 {
		fmt.Fprintf(&scale, "%-18s", "│"+short(ended.Sub(began)*time.Duration(i)/4))
	}
	s.print("    " + s.paint(dim, scale.String()+"│"+short(ended.Sub(began))) + "\n")
	s.lines(dim, fmt.Sprintf("  who has %s? 1 2 3: that node answers, =: two do, ·: nobody does\n", r.Addr))
	s.print("\n")
}
