package e2e

import (
	"strings"
	"testing"
)

// neverLogged fails the test if a Herald that runs has logged words.
func neverLogged(t *testing.T, f *heralds, words string) {
	t.Helper()
	for node, p := range f.node {
		for line := range strings.Lines(p.Log()) {
			if strings.Contains(line, words) {
				t.Errorf("%s logged what does not hold: %s", node, line)
			}
		}
	}
}
