// Package testing_test holds the tree to its plan (docs/architecture.md): which room may know which, where the types of
// each outside world end, and how large a room may be.
package testing_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

const module, root = "github.com/heraldvip/herald/", ".."

// A room has a floor, and a ceiling of lines without tests. Imports go down, never up and never sideways, but for the
// exceptions of sideways. Ceilings are of 2026-12-01: they are lowered when a room has shrunk.
type room struct{ floor, ceiling int }

var rooms = map[string]room{
	"cmd/herald":   {3, 4276},
	"pkg/agent":    {2, 859},
	"pkg/manifest": {2, 924},
	"pkg/plan":     {1, 6022},
	"pkg/pool":     {1, 1941},
	"pkg/migrate":  {1, 875},
	"pkg/kube":     {1, 5358},
	"pkg/lease":    {1, 3187},
	"pkg/peers":    {1, 1926},
	"pkg/netif":    {1, 2678},
	"pkg/l2":       {1, 2055},
	"pkg/bgp":      {1, 1954},
	"pkg/bfd":      {1, 684},
	"pkg/routes":   {1, 649},
	"pkg/nft":      {1, 1251},
	"pkg/dhcp":     {1, 1639},
	"pkg/upnp":     {1, 1776},
	"pkg/health":   {1, 571},
	"pkg/quorum":   {1, 1024},
	"pkg/serve":    {1, 668},
	"pkg/vip":      {0, 1994},
	"pkg/config":   {0, 2420},
	"pkg/mailbox":  {0, 85},
	"pkg/metric":   {0, 46},
}

// sideways is what may be imported on the same floor.
var sideways = map[string]string{"pkg/plan": "pkg/pool", "pkg/config": "pkg/vip", "pkg/lease": "pkg/quorum", "pkg/bgp": "pkg/bfd"}

// worlds says which rooms may import what: where a type of the outside ends. A package that begins with several prefixes
// belongs to the longest.
var worlds = map[string]string{
	"k8s.io/":                               "pkg/kube",
	"k8s.io/api/":                           "pkg/kube pkg/manifest",
	"k8s.io/apimachinery/":                  "pkg/kube pkg/lease pkg/manifest pkg/migrate",
	"k8s.io/api/coordination/":              "pkg/kube pkg/lease cmd/herald",
	"k8s.io/apimachinery/pkg/util/duration": "cmd/herald",
	"k8s.io/client-go/rest":                 "pkg/kube cmd/herald",
	"k8s.io/apimachinery/pkg/labels":        "pkg/pool pkg/migrate",
	"sigs.k8s.io/":                          "",
	"sigs.k8s.io/yaml":                      "pkg/config pkg/manifest cmd/herald",
	"github.com/vishvananda/":               "pkg/netif pkg/routes",
	"github.com/mdlayher/":                  "pkg/l2",
	"github.com/google/nftables":            "pkg/nft",
	"github.com/mdlayher/netlink":           "pkg/nft", // an option of google/nftables
	"github.com/huin/":                      "pkg/upnp",
	"github.com/mdlayher/ndp":               "pkg/l2 pkg/bgp",
	"github.com/mdlayher/packet":            "pkg/l2 pkg/dhcp",
	"github.com/insomniacslk/":              "pkg/dhcp",
	"github.com/osrg/gobgp/":                "pkg/bgp",
}

// pure is the rooms that do no I/O, and outside what they do not import.
var pure = []string{"pkg/plan", "pkg/pool", "pkg/migrate", "pkg/quorum", "pkg/vip"}
var outside = []string{"context", "io", "log", "log/slog", "net", "net/http", "os", "os/exec", "syscall", "golang.org/x/sys/unix"}

// against says what is wrong with an import of a package, both by their paths within the module or outside of it. A package
// for the tests of others that is named after its room, such as pkg/lease/leasetest, is part of that room.
func against(dir, imported string) string {
	name := dir
	if parent := path.Dir(dir); path.Base(dir) == path.Base(parent)+"test" {
		name = parent
	}
	in, ours := strings.CutPrefix(imported, module)
	below, known := rooms[in]
	longest := ""
	for prefix := range worlds {
		if strings.HasPrefix(imported, prefix) {
			longest = max(longest, prefix) // of prefixes of one text the longest is the greatest
		}
	}
	switch of, ok := rooms[name]; {
	case strings.HasPrefix(dir, "testing/"), ours && in == name && dir != name: // may look at it
	case !ok:
		return "has no floor: add it to the table"
	case ours && !known: // as is a package for tests
		return "no room may import it"
	case ours && (below.floor > of.floor || below.floor == of.floor && sideways[name] != in):
		return fmt.Sprintf("floor %d is not below floor %d", below.floor, of.floor)
	case name == "pkg/vip" && !ours && strings.Contains(strings.Split(imported, "/")[0], "."):
		return "the vocabulary knows the standard library only"
	case slices.Contains(pure, name) && slices.Contains(outside, imported):
		return "the room does no I/O"
	case !ours && longest != "" && !slices.Contains(strings.Fields(worlds[longest]), name):
		return "its types end in another room"
	}
	return ""
}

func TestFloors(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "-C", root, "list", "-f", `{{$p := .ImportPath}}{{range .Imports}}{{$p}} {{.}}{{"\n"}}{{end}}`, "./...")
	lines := slices.Collect(strings.Lines(string(check.Value(list.Output())(t))))
	if len(lines) < 300 {
		t.Errorf("only %d imports were looked at", len(lines))
	}
	for _, line := range lines {
		dir, imported, _ := strings.Cut(strings.TrimSpace(line), " ")
		if wrong := against(strings.TrimPrefix(dir, module), imported); dir != "" && wrong != "" {
			t.Errorf("%s imports %s: %s", dir, imported, wrong)
		}
	}
	for _, bad := range []string{
		"pkg/pool ~pkg/plan", "pkg/l2 ~pkg/agent", "cmd/herald ~testing/lab", "pkg/attic ~pkg/vip", "pkg/lease/leasetest ~pkg/kube",
		"pkg/lease ~pkg/lease/leasetest", "pkg/lease k8s.io/api/core/v1", "pkg/vip golang.org/x/sync/errgroup", "pkg/plan net",
	} {
		if from, to, _ := strings.Cut(strings.Replace(bad, "~", module, 1), " "); against(from, to) == "" {
			t.Errorf("nothing is said against %s", bad)
		}
	}
}

// TestCeilings: no room has more lines without tests than its ceiling.
func TestCeilings(t *testing.T) {
	for name, r := range rooms {
		lines := 0
		for _, file := range check.Value(filepath.Glob(filepath.Join(root, name, "*.go")))(t) {
			if !strings.HasSuffix(file, "_test.go") {
				lines += bytes.Count(check.Value(os.ReadFile(file))(t), []byte("\n"))
			}
		}
		if lines > r.ceiling {
			t.Errorf("%s has %d lines, more than %d: take some away, or say here why not", name, lines, r.ceiling)
		}
	}
}
