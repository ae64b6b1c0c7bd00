package testing_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/heraldvip/herald/testing/check"
)

// TestWidth: no line of the product, and of the tools of its tests, has more than 120 characters. A tab is one.
func TestWidth(t *testing.T) {
	const most = 120
	for _, dir := range []string{"cmd", "pkg", "testing"} {
		check.OK(t, filepath.WalkDir(filepath.Join(root, dir), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			number := 0
			for line := range strings.Lines(string(check.Value(os.ReadFile(file))(t))) {
				number++
				if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > most {
					t.Errorf("%s:%d has %d characters, more than %d", file, number, n, most)
				}
			}
			return nil
		}))
	}
}
