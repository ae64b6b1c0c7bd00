package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// width is the number of columns that the output fits in.
const width = 98

// A style is an SGR sequence (ECMA-48), without which text is plain.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
	title  style = "1;36"
)

// A screen is what the demo writes to: a terminal, with colours and a last line that
// moves while something is waited for, or a file, with plain lines.
type screen struct {
	colour       bool
	moving       bool          // the last line may be written again
	fast         bool          // no time to read
	skip         chan struct{} // closed: pauses are skipped from now on
	onWriteError func()        // called when a write fails; may be nil
	once         sync.Once

	mu         sync.Mutex // guards out, and that the moving line is its last
	out        io.Writer
	movingLine string // the moving line, or ""
	lastEmpty  bool   // the last line was an empty one
}

// newScreen has colours and a moving line if f is a terminal; no colours if NO_COLOR is set
// (no-color.org). fast leaves out the pauses for reading.
func newScreen(f *os.File, fast bool) *screen {
	tty := term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb"
	return &screen{out: f, moving: tty, colour: tty && os.Getenv("NO_COLOR") == "", fast: fast || !tty, skip: make(chan struct{})}
}

func (s *screen) paint(st style, text string) string {
	if !s.colour || st == plain || text == "" {
		return text
	}
	return "\x1b[" + string(st) + "m" + text + "\x1b[0m"
}

// line writes one line above the moving one.
func (s *screen) line(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text == "" && s.lastEmpty {
		return // one empty line is enough
	}
	s.lastEmpty = text == ""
	s.eraseMovingLine()
	if _, err := fmt.Fprintln(s.out, strings.ReplaceAll(text, nbsp, " ")); err != nil && s.onWriteError != nil {
		s.onWriteError()
	}
	s.drawMovingLine()
}

func (s *screen) eraseMovingLine() {
	if s.movingLine != "" {
		fmt.Fprint(s.out, "\r\x1b[K")
	}
}

func (s *screen) drawMovingLine() {
	if s.movingLine != "" {
		fmt.Fprint(s.out, s.movingLine)
	}
}

// setMovingLine replaces the moving line; "" removes it. Without a terminal it does nothing.
func (s *screen) setMovingLine(text string) {
	if !s.moving {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.eraseMovingLine()
	s.movingLine = text
	s.drawMovingLine()
}

// chapter writes a chapter's heading.
func (s *screen) chapter(n int, name string) {
	s.line("")
	head := fmt.Sprintf("── %d  %s ", n, name)
	s.line(s.paint(title, head+strings.Repeat("─", max(0, 72-utf8.RuneCountInString(head)))))
	s.line("")
}

// text writes a paragraph.
func (s *screen) text(format string, args ...any) {
	for _, l := range wrap(fmt.Sprintf(format, args...), 76) {
		s.line("  " + l)
	}
	s.pause(700 * time.Millisecond)
}

// command writes the command line that is about to be run, and a remark after "   #".
func (s *screen) command(text string) {
	s.line("")
	text, note, _ := strings.Cut(text, "   #") // a remark keeps its distance
	lines := wrap(text, width-8)
	if note != "" {
		lines[len(lines)-1] += "   #" + note
	}
	for i, l := range lines {
		mark := "    "
		if i == 0 {
			mark = "  $ "
		}
		if i < len(lines)-1 {
			l += ` \`
		}
		s.line(s.paint(dim, mark) + s.paint(bold, l))
	}
	s.pause(400 * time.Millisecond)
}

// output writes what a program has printed, indented.
func (s *screen) output(text string) {
	for l := range strings.Lines(strings.TrimRight(text, "\n ")) {
		for _, l := range fold(strings.TrimRight(l, "\n "), width-4) {
			s.line("    " + l)
		}
	}
	s.line("")
	s.pause(900 * time.Millisecond)
}

// checked writes a paragraph, with a check mark, of what has been found as expected.
func (s *screen) checked(format string, args ...any) {
	for i, l := range wrap(fmt.Sprintf(format, args...), 76) {
		mark := "    "
		if i == 0 {
			mark = "  " + s.paint(green, "✓") + " "
		}
		s.line(mark + l)
	}
	s.pause(700 * time.Millisecond)
}

// event writes what happened, behind the time since the beginning of the chapter's fault.
func (s *screen) event(since time.Duration, st style, format string, args ...any) {
	for i, l := range wrap(fmt.Sprintf(format, args...), 72) {
		mark := strings.Repeat(" ", 13)
		if i == 0 {
			mark = fmt.Sprintf("  %s  ", s.paint(st, fmt.Sprintf("%9s", short(since))))
		}
		s.line(mark + l)
	}
}

// nbsp keeps a number and its unit on one line. What is written has spaces.
const nbsp = "\u00a0"

// short is a duration in ms, or from a second up in s with one decimal.
func short(d time.Duration) string {
	switch {
	case d == 0:
		return "0" + nbsp + "s"
	case d < time.Second:
		return fmt.Sprintf("%.0f"+nbsp+"ms", float64(d)/float64(time.Millisecond))
	}
	return fmt.Sprintf("%.1f"+nbsp+"s", d.Seconds())
}

// pause gives time to read.
func (s *screen) pause(d time.Duration) {
	if s.fast {
		return
	}
	select {
	case <-time.After(d):
	case <-s.skip:
	}
}

// skipPauses ends the current pause and all later ones. It may be called again.
func (s *screen) skipPauses() { s.once.Do(func() { close(s.skip) }) }

// during runs fn and returns its error. Meanwhile the moving line shows what and for how long.
func (s *screen) during(what string, fn func() error) error {
	stop := s.spin(func(since time.Duration, mark string) string {
		return fmt.Sprintf("  %s %s %s", s.paint(yellow, mark), what, s.paint(dim, fmt.Sprintf("%.1f s", since.Seconds())))
	})
	defer stop()
	return fn()
}

var spinnerFrames = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// spin keeps the moving line moving until the function it returns is called.
func (s *screen) spin(text func(since time.Duration, mark string) string) (stop func()) {
	if !s.moving {
		return func() {}
	}
	began, over := time.Now(), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		tick := time.NewTicker(80 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			s.setMovingLine(text(time.Since(began), spinnerFrames[n%len(spinnerFrames)]))
			select {
			case <-over:
				s.setMovingLine("")
				return
			case <-tick.C:
			}
		}
	})
	return func() { close(over); done.Wait() }
}

// Write makes a screen take the lines of a program's log, with the last one moving.
func (s *screen) Write(p []byte) (int, error) {
	for l := range strings.Lines(string(p)) {
		s.line(s.paint(dim, "    "+strings.TrimRight(l, "\n")))
	}
	return len(p), nil
}

// wrap breaks text at spaces into lines of at most n characters.
func wrap(text string, n int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ' ' || r == '\n' }) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > n {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

// fold breaks a line of a table that is too wide; the rest stands under the
// beginning of the last column.
func fold(line string, n int) []string {
	if utf8.RuneCountInString(line) <= n {
		return []string{line}
	}
	column := 4
	if i := strings.LastIndex(line, "  "); i > 0 && i < n*2/3 {
		column = utf8.RuneCountInString(line[:i]) + 2
	}
	head, text := string([]rune(line)[:column]), string([]rune(line)[column:])
	lines := wrap(text, n-column)
	for i, l := range lines {
		if i == 0 {
			lines[i] = head + l
		} else {
			lines[i] = strings.Repeat(" ", column) + l
		}
	}
	return lines
}
