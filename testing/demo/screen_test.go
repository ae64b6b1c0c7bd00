package main

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// newTestScreen is a screen that is no terminal, and what is written to it.
func newTestScreen() (*screen, *bytes.Buffer) {
	var b bytes.Buffer
	return &screen{out: &b, fast: true, skip: make(chan struct{})}, &b
}

func TestPlainScreen(t *testing.T) {
	s, b := newTestScreen()
	s.chapter(3, "A name")
	s.text("Some %s.", "words")
	s.command("kubectl get services   # a remark")
	s.output("NAME   AGE\nweb    1s\n")
	s.command("true")
	s.event(1500*time.Millisecond, red, "it happened")
	s.event(20*time.Millisecond, plain, "so did that")
	s.setMovingLine("spinning")
	if err := s.during("waiting", func() error { return nil }); err != nil {
		t.Error(err)
	}
	s.checked("All is %s.", "well")
	want := `
── 3  A name ───────────────────────────────────────────────────────────

  Some words.

  $ kubectl get services   # a remark
    NAME   AGE
    web    1s

  $ true
      1.5 s  it happened
      20 ms  so did that
  ✓ All is well.
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

// The moving line is erased before another line is written, and drawn again below it.
func TestMovingLine(t *testing.T) {
	s, b := newTestScreen()
	s.moving, s.colour = true, true
	s.setMovingLine("one")
	s.line("above")
	s.setMovingLine("")
	s.line("after")
	want := "one\r\x1b[Kabove\none\r\x1b[Kafter\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
	b.Reset()
	err := s.during("waiting", func() error { return os.ErrClosed })
	if err != os.ErrClosed {
		t.Errorf("got %v", err)
	}
	if got := b.String(); !strings.Contains(got, "waiting") || !strings.HasSuffix(got, "\r\x1b[K") {
		t.Errorf("got %q, want the line to appear and to be wiped", got)
	}
}

func TestNoColour(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	f, err := os.CreateTemp(t.TempDir(), "")
	check.OK(t, err)
	defer f.Close()
	s := newScreen(f, false)
	if s.colour || s.moving || !s.fast {
		t.Errorf("a file is taken for a terminal with colour %v, moving %v, time to read %v", s.colour, s.moving, !s.fast)
	}
	if got := s.paint(red, "x"); got != "x" {
		t.Errorf("got %q", got)
	}
}

// An interrupted demo skips its pauses.
func TestSkipPauses(t *testing.T) {
	s, _ := newTestScreen()
	s.fast = false
	began := time.Now()
	s.skipPauses()
	s.skipPauses()
	s.pause(time.Minute)
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a pause took %v", took)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A failed write calls onWriteError, which ends the demo.
func TestWriteError(t *testing.T) {
	n := 0
	s := &screen{out: brokenPipe{}, fast: true, onWriteError: func() { n++ }}
	s.line("x")
	if n != 1 {
		t.Errorf("called %d times after a failed write, want once", n)
	}
}

func TestWrap(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want []string
	}{
		{"", 10, []string{""}},
		{"one two three", 100, []string{"one two three"}},
		{"one two three", 7, []string{"one two", "three"}},
		{"one two three", 3, []string{"one", "two", "three"}},
		{"incomprehensibilities are long", 10, []string{"incomprehensibilities", "are long"}},
		{"takes 20" + nbsp + "ms", 9, []string{"takes", "20" + nbsp + "ms"}},
		{"ää öö üü", 5, []string{"ää öö", "üü"}},
	} {
		if d := cmp.Diff(c.want, wrap(c.text, c.n)); d != "" {
			t.Errorf("wrap(%q, %d): %s", c.text, c.n, d)
		}
	}
}

func TestFold(t *testing.T) {
	for _, c := range []struct {
		line string
		n    int
		want []string
	}{
		{"A  B  short", 20, []string{"A  B  short"}},
		{"Normal  Moved  one two three four", 22, []string{"Normal  Moved  one two", "               three", "               four"}},
		{"no columns but many words in it", 16, []string{"no columns but", "    many words", "    in it"}},
	} {
		got := fold(c.line, c.n)
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("fold(%q, %d): %s", c.line, c.n, d)
		}
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{0: "0 s", 23400 * time.Microsecond: "23 ms", time.Second: "1.0 s", 13750 * time.Millisecond: "13.8 s"} {
		if got := strings.ReplaceAll(short(d), nbsp, " "); got != want {
			t.Errorf("short(%v) = %q, want %q", d, got, want)
		}
	}
}

func spans(began time.Time, s string) []lab.Span {
	var list []lab.Span
	for i, r := range s {
		var hosts []string
		switch r {
		case '.':
		case '=':
			hosts = []string{"n1", "n2"}
		default:
			hosts = []string{"n" + string(r)}
		}
		from := began.Add(time.Duration(i) * time.Second)
		list = append(list, lab.Span{From: from, To: from.Add(time.Second), Hosts: hosts})
	}
	return list
}

func TestBar(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	after := func(d time.Duration) time.Time { return began.Add(d) }
	for _, c := range []struct {
		name        string
		spans       string
		from, until time.Time
		want        string
	}{
		{"halves", "12", began, after(2 * time.Second), strings.Repeat("1", 36) + strings.Repeat("2", 36)},
		{"a gap", "1.2", began, after(3 * time.Second), strings.Repeat("1", 24) + strings.Repeat("·", 24) + strings.Repeat("2", 24)},
		{"both at once", "1=2", began, after(3 * time.Second), strings.Repeat("1", 24) + strings.Repeat("=", 24) + strings.Repeat("2", 24)},
		{"before and after", "1", after(-time.Second), after(2 * time.Second), strings.Repeat(" ", 24) + strings.Repeat("1", 24) + strings.Repeat(" ", 24)},
		// However short, nobody and two at once are to be seen: a cell is 2 s here.
		{"what is rare wins", "1111.1111111=11111" + strings.Repeat("1", 126), began, after(144 * time.Second), "11·111=11" + strings.Repeat("1", 63)},
	} {
		if got := bar(spans(began, c.spans), c.from, c.until); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

func TestAxis(t *testing.T) {
	for _, c := range []struct {
		length time.Duration
		want   string
	}{
		{2 * time.Second, "│0 s              │0.5 s            │1 s              │1.5 s            │2 s"},
		{16 * time.Second, "│0 s     │2 s     │4 s     │6 s     │8 s     │10 s    │12 s    │14 s    │16 s"},
	} {
		if got := axis(c.length); got != c.want {
			t.Errorf("%v:\n got %q\nwant %q", c.length, got, c.want)
		}
	}
	for d := 100 * time.Millisecond; d < time.Minute; d += 130 * time.Millisecond {
		if n := utf8.RuneCountInString(axis(d)); n > width-4 {
			t.Errorf("the axis of %v is %d characters wide", d, n)
		}
	}
}

func TestTimeline(t *testing.T) {
	s, b := newTestScreen()
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s.timeline(lab.AddrReport{Addr: vip, Timeline: spans(began, "2.3")}, began, began.Add(3*time.Second))
	got := b.String()
	for _, want := range []string{"who has 10.77.0.50?", "2222····", "····3333", "answered by: 2 node n2, 3 node n3, · nobody\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	s.colour = true
	if got, want := s.colourBar("1·"), "\x1b[30;46m1\x1b[0m\x1b[31m·\x1b[0m"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What is reported of a hand-over depends on what the probers saw; broken limits are errors.
func TestCheckHandOver(t *testing.T) {
	moved := time.Now()
	began := moved.Add(-time.Second)
	reset := lab.Attempt{Began: moved.Add(-4 * time.Millisecond), Latency: 6 * time.Millisecond, Err: &os.SyscallError{Syscall: "read", Err: syscall.ECONNRESET}}
	good := func() (lab.ConnectReport, lab.WhoHasReport) {
		return lab.ConnectReport{Attempts: 100, Max: 3 * time.Millisecond},
			lab.WhoHasReport{Addrs: []lab.AddrReport{{Addr: vip, Rounds: 50, LongestDouble: 20 * time.Millisecond, Timeline: spans(began, "1=2")}}}
	}
	for _, c := range []struct {
		name   string
		change func(*lab.ConnectReport, *lab.WhoHasReport)
		want   string // in the words, or in the error
		fails  bool
	}{
		{"within all limits", func(*lab.ConnectReport, *lab.WhoHasReport) {}, "both nodes answered for 20 ms", false},
		{"a short overlap", func(_ *lab.ConnectReport, w *lab.WhoHasReport) { w.Addrs[0].LongestDouble = 0 }, "less than the 20 ms", false},
		{"a short silence", func(_ *lab.ConnectReport, w *lab.WhoHasReport) {
			w.Addrs[0].Unanswered, w.Addrs[0].LongestSilence = 2, 40*time.Millisecond
		}, "longest time without an answer was 40 ms", false},
		{"a long silence", func(_ *lab.ConnectReport, w *lab.WhoHasReport) { w.Addrs[0].LongestSilence = 101 * time.Millisecond }, "unanswered for 101ms", true},
		{"reset by the move", func(c *lab.ConnectReport, _ *lab.WhoHasReport) { c.Failures = []lab.Attempt{reset} }, "connections failed", true},
		{"no answer in the move", func(c *lab.ConnectReport, _ *lab.WhoHasReport) {
			c.Failures = []lab.Attempt{{Began: reset.Began, Latency: 2 * time.Second, Err: os.ErrDeadlineExceeded}}
		}, "connections failed", true},
		{"a broken prober", func(_ *lab.ConnectReport, w *lab.WhoHasReport) { w.Err = fmt.Errorf("broken") }, "broken", true},
	} {
		s, b := newTestScreen()
		connects, report := good()
		c.change(&connects, &report)
		err := (&demo{screen: s}).checkHandOver(connects, report)
		got := strings.Join(strings.Fields(b.String()), " ")
		if err != nil {
			got = err.Error()
		}
		if (err != nil) != c.fails || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q (failed: %v), want %q", c.name, got, err != nil, c.want)
		}
	}
}
