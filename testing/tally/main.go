// Command tally reads what "go test -json" prints and prints a summary: a line
// per package, the whole output of what failed, and, to files, what was skipped and
// why, and the end of what failed. Its exit status is 1 if anything failed.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

func main() {
	each := flag.Bool("each", false, "a line per test, too: for packages that take minutes")
	skips := flag.String("skips", "", "file to append a line to for every test that was skipped")
	failures := flag.String("failures", "", "file to append the last lines of every test that failed to")
	flag.Parse()
	t := newTally(os.Stdout, *each)
	err := t.read(os.Stdin)
	if err == nil && *skips != "" {
		err = appendLines(*skips, t.skipped)
	}
	if err == nil && *failures != "" {
		err = appendLines(*failures, t.failures)
	}
	switch {
	case err != nil:
		fmt.Fprintln(os.Stderr, "tally:", err)
		os.Exit(2)
	case !t.passed():
		os.Exit(1)
	}
}

// An event is a line of "go test -json" (see go doc test2json).
type event struct {
	Action     string
	Package    string
	ImportPath string // of a package that does not build
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

// A tally is what has been read so far.
type tally struct {
	out  io.Writer
	each bool

	output    map[string][]string // by package and test: its lines
	byPackage map[string]*count   // by package
	skipped   []string            // "package Test: reason"
	failures  []string            // lines: for each, "package Test:" and its last lines
	ended     int                 // packages with a result
	failed    bool
}

// A count is the number of tests of a package by result.
type count struct{ run, skipped int }

func newTally(out io.Writer, each bool) *tally {
	return &tally{out: out, each: each, output: map[string][]string{}, byPackage: map[string]*count{}}
}

// passed reports whether there were packages, and none failed.
func (t *tally) passed() bool { return t.ended > 0 && !t.failed }

func (t *tally) read(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if line := lines.Bytes(); !bytes.HasPrefix(line, []byte("{")) || json.Unmarshal(line, &e) != nil {
			fmt.Fprintf(t.out, "%s\n", line) // from the go command itself
			continue
		}
		t.handle(e)
	}
	return lines.Err()
}

// handle updates the tally by one event, and prints the result of a test or package that ended.
func (t *tally) handle(e event) {
	id := e.Package + "\x00" + e.Test
	switch e.Action {
	case "output":
		t.output[id] = append(t.output[id], e.Output)
	case "build-output":
		fmt.Fprint(t.out, e.Output)
	case "build-fail":
		t.failed = true
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.endPackage(e)
		} else {
			t.endTest(e)
		}
		delete(t.output, id)
	}
}

func (t *tally) endTest(e event) {
	c := t.counts(e.Package)
	c.run++
	if e.Action == "skip" {
		c.skipped++
		t.skipped = append(t.skipped, fmt.Sprintf("%s %s: %s", short(e.Package), e.Test, reason(t.output[e.Package+"\x00"+e.Test])))
	}
	if t.each && !strings.Contains(e.Test, "/") {
		fmt.Fprintf(t.out, "    %-4s %7.1fs  %s\n", resultText(e.Action), e.Elapsed, e.Test)
	}
	if e.Action == "fail" {
		t.fail(e.Package, e.Test)
	}
}

func (t *tally) endPackage(e event) {
	t.ended++
	c := t.counts(e.Package)
	if e.Action == "fail" {
		t.failed = true
		// Tests that ended with the process have no result of their own.
		for _, id := range t.withoutResult(e.Package) {
			t.fail(e.Package, strings.TrimPrefix(id, e.Package+"\x00"))
			delete(t.output, id)
		}
		t.fail(e.Package, "")
	}
	if c.run == 0 && e.Action != "fail" {
		return // no tests
	}
	about := fmt.Sprintf("%d tests", c.run)
	if c.skipped > 0 {
		about += fmt.Sprintf(", %d skipped", c.skipped)
	}
	fmt.Fprintf(t.out, "  %-4s %7.1fs  %s (%s)\n", resultText(e.Action), e.Elapsed, short(e.Package), about)
}

// withoutResult is the tests of a package that have output but no result, in order.
func (t *tally) withoutResult(pkg string) []string {
	var ids []string
	for id := range t.output {
		if strings.HasPrefix(id, pkg+"\x00") && id != pkg+"\x00" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (t *tally) counts(pkg string) *count {
	if t.byPackage[pkg] == nil {
		t.byPackage[pkg] = &count{}
	}
	return t.byPackage[pkg]
}

// lastLines is the number of lines of a failed test that are kept for the summary: what was
// printed when it failed is far up by then, or cut out where a log is shortened.
const lastLines = 30

// fail prints the output of what failed, without test2json's "=== " lines, and keeps the end of
// it: of a test, or of the package itself if test is empty.
func (t *tally) fail(pkg, test string) {
	var lines []string
	for _, l := range t.output[pkg+"\x00"+test] {
		if !strings.HasPrefix(l, "=== ") {
			fmt.Fprint(t.out, "      "+l)
			lines = append(lines, "  "+strings.TrimSuffix(l, "\n"))
		}
	}
	t.failures = append(t.failures, strings.TrimSpace(short(pkg)+" "+test)+":")
	t.failures = append(t.failures, lines[max(0, len(lines)-lastLines):]...)
}

// logLocation matches the file and line before a logged message.
var logLocation = regexp.MustCompile(`^\s*\w+\.go:\d+: `)

// reason is the last message that a test logged, or "no reason given".
func reason(lines []string) string {
	for _, l := range slices.Backward(lines) {
		if at := logLocation.FindString(l); at != "" {
			return strings.TrimSpace(l[len(at):])
		}
	}
	return "no reason given"
}

// resultText is the text for the result of a test or package, by action.
func resultText(action string) string {
	switch action {
	case "pass":
		return "ok"
	case "fail":
		return "FAIL"
	}
	return action
}

func short(pkg string) string { return strings.TrimPrefix(pkg, "github.com/heraldvip/herald/") }

func appendLines(file string, lines []string) error {
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	for _, l := range lines {
		if _, err := fmt.Fprintln(f, l); err != nil {
			_ = f.Close()
			return err
		}
	}
	return f.Close()
}
