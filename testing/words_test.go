package testing_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// banned is the words that code and documents used to have for things that have a name
// in an RFC, in Kubernetes, in Linux or in plain English, and what to say instead. The
// glossary in docs/architecture.md has the names of what Herald alone knows.
var banned = map[string]string{
	"anew":      "again",
	"askers":    "nodes that probe",
	"bereft":    "orphaned",
	"bide":      "hold on, the quorum's state",
	"biding":    "holding on without the API server",
	"bulletin":  "summary",
	"cargo":     "progress",
	"crew":      "voters",
	"deaf":      "isolated, or heartbeats are off",
	"enlist":    "add to the voters",
	"foresee":   "probe early",
	"heaps":     "batches",
	"heed":      "filter, accept",
	"heeded":    "followed",
	"heeds":     "accepts",
	"hire":      "DHCP request",
	"hired":     "DHCP state",
	"hires":     "DHCP requests",
	"hitch":     "pause",
	"hubbub":    "batch threshold",
	"indulge":   "grace period",
	"inquest":   "conflict check",
	"inquiries": "address checks",
	"inquiry":   "address check",
	"lapse":     "pause",
	"lest":      "so that ... not",
	"lodge":     "assign the leased address",
	"lull":      "batch window",
	"meters":    "metrics",
	"mouth":     "sender",
	"mute":      "suspect",
	"nudge":     "wake, poke",
	"outdone":   "superseded by",
	"patience":  "timeout, grace",
	"peruse":    "read, parse",
	"rival":     "conflicting host",
	"rivals":    "conflicting hosts",
	"rouse":     "wake",
	"seeker":    "discovery",
	"shelf":     "cache",
	"sieve":     "BPF filter",
	"sift":      "filter",
	"speech":    "announcement",
	"stake":     "lease intent",
	"stakes":    "lease intents",
	"starved":   "paused",
	"stranger":  "another announcer, another host",
	"strangers": "other announcers, other hosts",
	"stray":     "unmanaged",
	"strays":    "unmanaged addresses",
	"topic":     "target",
}

// phrases are banned, too: they make a reader guess.
var phrases = regexp.MustCompile(`(?i)\bis (how (?:to|the|a|an|one|it|they)|for how long)\b|\bof late\b`)

// camel matches the words of a name.
var camel = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// inWord is the banned words in a name, by name: most are met a thousand times.
var inWord = map[string][]string{}

// found is the banned words and phrases in a line of text.
func found(line string) (all []string) {
	for w := range strings.FieldsFuncSeq(line, func(r rune) bool { return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') }) {
		bad, known := inWord[w]
		if !known {
			for _, part := range camel.FindAllString(w, -1) {
				if instead, isBanned := banned[strings.ToLower(part)]; isBanned {
					bad = append(bad, part+" (say: "+instead+")")
				}
			}
			inWord[w] = bad
		}
		all = append(all, bad...)
	}
	if lower := strings.ToLower(line); strings.Contains(lower, "is ") || strings.Contains(lower, "of late") {
		all = append(all, phrases.FindAllString(line, -1)...)
	}
	return all
}

// TestWords: no file has a banned word, but this one.
func TestWords(t *testing.T) {
	looked := 0
	eachFile(t, func(file, text string) {
		switch {
		case strings.HasSuffix(file, "testing/words_test.go"):
			return
		case strings.HasSuffix(file, ".go"), strings.HasSuffix(file, ".md"), strings.HasSuffix(file, ".sh"):
		default:
			return
		}
		looked++
		for n, line := range strings.Split(text, "\n") {
			for _, bad := range found(line) {
				t.Errorf("%s:%d: %s", file, n+1, bad)
			}
		}
	})
	if looked < 100 {
		t.Errorf("only %d files were looked at", looked)
	}
}

func TestFound(t *testing.T) {
	for line, want := range map[string]int{
		"func (l *Leases) rouseAll() {": 1, "httpHire": 1, "lestAnybody, HIRE": 2, "This is how it works": 1, "x is how long y takes": 0,
		"higher closest requires muted": 0, "a.Stake": 1, "x := peruseAll(shelf)": 2, "of Late night": 1,
	} {
		if got := found(line); len(got) != want {
			t.Errorf("%q: got %q, want %d", line, got, want)
		}
	}
	if _, err := os.Stat("words_test.go"); err != nil {
		t.Error("this file, which has the words, is looked for by another name")
	}
}
