package testing_test

import (
	"regexp"
	"strings"
	"testing"
)

// Limits of the documentation: words in all of it, and words of a sentence.
const (
	maxWords    = 36_000
	maxSentence = 30
	meanWords   = 12
)

var (
	target   = regexp.MustCompile(`\]\([^)]*\)|<!--.*?-->|https?://\S+`)
	quoted   = regexp.MustCompile("`[^`]*`")
	boundary = regexp.MustCompile(`[.!?:](?:\*\*)?(?:\s|$)|[|\n]\s*(?:[-|#]|\d+\.|$)|\||\n\n`)
	// turns make a reader look for what a word stands for.
	turns = regexp.MustCompile(`(?i)\b(that of|those of which|so does|so do|be it|but for|other than|of which|one that|the like|of late|lest|anew)\b`)
)

// TestPlainEnglish: the documentation is short, and so are its sentences.
func TestPlainEnglish(t *testing.T) {
	words, counted, sentences := 0, 0, 0
	for name, text := range pages(t) {
		words += len(strings.Fields(text))
		if strings.HasPrefix(name, "docs/reference/") {
			continue
		}
		text = quoted.ReplaceAllString(target.ReplaceAllString(fence.ReplaceAllString(text, "\n\n"), "] "), "x")
		for _, s := range boundary.Split(text, -1) {
			n := len(strings.Fields(s))
			if n > maxSentence {
				t.Errorf("%s: %d words: %s", name, n, strings.TrimSpace(s))
			}
			if n > 2 {
				counted, sentences = counted+n, sentences+1
			}
			if turn := turns.FindString(s); turn != "" {
				t.Errorf("%s: %q: %s", name, turn, strings.TrimSpace(s))
			}
		}
	}
	if mean := float64(counted) / float64(sentences); mean > meanWords {
		t.Errorf("a sentence has %.1f words, want at most %d", mean, meanWords)
	}
	if words > maxWords {
		t.Errorf("the documentation has %d words, want at most %d", words, maxWords)
	}
}
