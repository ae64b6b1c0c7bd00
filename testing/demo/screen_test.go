package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// newTestScreen is a screen that is no terminal, and what is written to it.
func newTestScreen(t *testing.T) (*screen, *bytes.Buffer) {
	var b bytes.Buffer
	return &screen{out: &b, ctx: t.Context()}, &b
}

func TestPlainScreen(t *testing.T) {
	s, b := newTestScreen(t)
	s.chapter("A name")
	s.text("Some %s\nof text.", "words")
	s.command("kubectl get services")
	s.output("NAME   AGE\nweb    1s\n")
	s.live("112")
	s.checked("All is %s.", "well")
	want := `
── 1  A name ───────────────────────────────────────────────────────────

  Some words
  of text.

  $ kubectl get services
  NAME   AGE
  web    1s

  ✓ All is well.
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
}

// A bar that moves is written over the one before, and the timeline over the last.
func TestLiveBar(t *testing.T) {
	s, b := newTestScreen(t)
	s.moves, s.colour = true, true
	s.live("1·")
	if got, want := b.String(), "\r\x1b[K    \x1b[30;46m1\x1b[0m\x1b[31m·\x1b[0m"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNoColour(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	f := check.Value(os.CreateTemp(t.TempDir(), ""))(t)
	defer f.Close()
	s := newScreen(t.Context(), f, false, nil)
	if s.colour || s.moves || s.slow || s.paint(red, "x") != "x" {
		t.Errorf("a file is taken for a terminal: colour %v, moves %v, time to read %v", s.colour, s.moves, s.slow)
	}
}

// An interrupted demo leaves no more time to read.
func TestInterrupted(t *testing.T) {
	s, _ := newTestScreen(t)
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(t.Context())
	s.slow = true
	cancel()
	began := time.Now()
	for range 20 {
		s.text("x")
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("20 lines took %v", took)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// A failed write ends the demo.
func TestWriteError(t *testing.T) {
	ended := false
	s := &screen{out: brokenPipe{}, ctx: t.Context(), end: func() { ended = true }}
	s.text("x")
	if !ended {
		t.Error("a failed write did not end the demo")
	}
}

func spans(began time.Time, s string) []lab.Span {
	var list []lab.Span
	for i, r := range s {
		hosts := map[rune][]string{'.': nil, '=': {"n1", "n2"}, '1': {"n1"}, '2': {"n2"}}[r]
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
		{"before and after", "1", after(-time.Second), after(2 * time.Second), strings.Repeat(" ", 24) + strings.Repeat("1", 24) + strings.Repeat(" ", 24)},
		// However short, nobody and two at once are to be seen: a cell is 2 s here.
		{"what is rare wins", "1111.1111111=11111" + strings.Repeat("1", 126), began, after(144 * time.Second), "11·111=11" + strings.Repeat("1", 63)},
	} {
		if got := bar(spans(began, c.spans), c.from, c.until); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

// What is reported of a fault depends on what was seen; broken limits are errors.
func TestReport(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f := fault{keeps: true, silence: 100 * time.Millisecond, double: time.Second}
	for _, c := range []struct {
		name   string
		change func(*seen, *lab.AddrReport)
		want   string // in the words, or in the error
	}{
		{"within all limits", func(*seen, *lab.AddrReport) {}, "n2 answers after 500 ms. Nobody answered for 40 ms, two nodes for 20 ms."},
		{"nobody else", func(_ *seen, r *lab.AddrReport) { r.Timeline = spans(began, "1.") }, "no other node answered"},
		{"a long silence", func(_ *seen, r *lab.AddrReport) { r.LongestSilence = 101 * time.Millisecond }, "nobody answered for 101ms"},
		{"two owners", func(_ *seen, r *lab.AddrReport) { r.LongestDouble = 2 * time.Second }, "two nodes answered for 2s"},
		{"a reset", func(s *seen, _ *lab.AddrReport) { s.client.Failures = []lab.Attempt{{Err: syscall.ECONNRESET}} }, "connections failed"},
		{"the open one broke", func(s *seen, _ *lab.AddrReport) { s.broken = syscall.EPIPE }, "broken pipe"},
		{"a broken prober", func(s *seen, _ *lab.AddrReport) { s.who.Err = errors.New("no socket") }, "no socket"},
	} {
		screen, b := newTestScreen(t)
		r := lab.AddrReport{Addr: vip, LongestSilence: 40 * time.Millisecond, LongestDouble: 20 * time.Millisecond, Timeline: spans(began, "1=2")}
		s := seen{began: began.Add(500 * time.Millisecond), client: lab.ConnectReport{Attempts: 100}, who: lab.WhoHasReport{Began: began, Ended: began.Add(3 * time.Second)}}
		c.change(&s, &r)
		s.who.Addrs = []lab.AddrReport{r}
		got := ""
		if err := (&demo{screen: screen}).report(f, "n1", s); err != nil {
			got = err.Error()
		} else {
			got = b.String()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
