package check

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files of the repository that follow from the code")

// Golden compares a file with the text that the code writes for it now. A difference fails the
// test, as does a missing file; with -update the text is written to the file instead.
func Golden(t testing.TB, file, now string) {
	t.Helper()
	if *update {
		OK(t, os.WriteFile(file, []byte(now), 0o644))
		return
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Errorf("%v (make docs manifests writes it)", err)
		return
	}
	if diff := cmp.Diff(string(have), now); diff != "" {
		t.Errorf("%s is not current (make docs manifests), -have +now:\n%s", file, diff)
	}
}
