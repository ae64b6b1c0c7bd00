// Package testing_test holds the tree to its plan (docs/architecture.md): which
// room may know which, and where the types of each outside world end.
package testing_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	module = "github.com/heraldvip/herald/"
	root   = ".."
)

// floors is the plan of the house. Imports go down, never up and never
// sideways, but for the exceptions of sideways. A room that is not built yet
// has its floor already.
var floors = map[string]int{
	"cmd/herald": 3,

	"pkg/agent":    2,
	"pkg/manifest": 2,
	"pkg/report":   2,

	"pkg/plan":     1,
	"pkg/pool":     1,
	"pkg/migrate":  1,
	"pkg/kube":     1,
	"pkg/lease":    1,
	"pkg/peers":    1,
	"pkg/netif":    1,
	"pkg/l2":       1,
	"pkg/bgp":      1,
	"pkg/bfd":      1,
	"pkg/rtable":   1,
	"pkg/egress":   1,
	"pkg/nft":      1,
	"pkg/dhcp":     1,
	"pkg/upnp":     1,
	"pkg/health":   1,
	"pkg/hostlock": 1,
	"pkg/quorum":   1,
	"pkg/serve":    1,
	"pkg/history":  1,
	"pkg/page":     1,

	"pkg/preflight": 1,

	"pkg/vip":    0,
	"pkg/config": 0,
	"pkg/rawio":  0,

	"pkg/mailbox": 0,
}

// sideways is what may be imported on the same floor.
var sideways = map[string]string{"pkg/plan": "pkg/pool", "pkg/config": "pkg/vip", "pkg/lease": "pkg/quorum", "pkg/bgp": "pkg/bfd"}

// worlds says which files may import what: where a type of the outside ends. A
// package that begins with several prefixes belongs to the longest. "pkg/x"
// stands for all files of the room.
var worlds = map[string][]string{
	"k8s.io/":                               {"pkg/kube"},
	"k8s.io/api/":                           {"pkg/kube", "pkg/manifest"},
	"k8s.io/apimachinery/":                  {"pkg/kube", "pkg/lease", "pkg/manifest"},
	"k8s.io/api/coordination/":              {"pkg/kube", "pkg/lease", "cmd/herald/status.go"},
	"k8s.io/apimachinery/pkg/util/duration": {"cmd/herald/status.go"},
	"k8s.io/client-go/rest":                 {"pkg/kube", "cmd/herald/access.go", "cmd/herald/statuscommand.go", "cmd/herald/explain.go", "cmd/herald/peers.go"},
	"k8s.io/apimachinery/pkg/labels":        {"pkg/pool"},
	"sigs.k8s.io/":                          {},
	"sigs.k8s.io/yaml":                      {"pkg/config", "pkg/manifest", "cmd/herald/output.go"},
	"github.com/vishvananda/":               {"pkg/netif", "pkg/rtable", "pkg/egress"},
	"github.com/mdlayher/":                  {"pkg/l2"},
	"github.com/google/nftables":            {"pkg/nft"},
	"github.com/huin/":                      {"pkg/upnp"},
	"github.com/mdlayher/netlink":           {"pkg/nft"}, // an option of google/nftables
	"github.com/mdlayher/ndp":               {"pkg/l2", "pkg/bgp"},
	"github.com/mdlayher/packet":            {"pkg/l2", "pkg/dhcp"},
	"github.com/insomniacslk/":              {"pkg/dhcp"},
	"github.com/osrg/gobgp/":                {"pkg/bgp"},
}

// outside is what a room that does no I/O does not import.
var outside = []string{"context", "io", "log", "log/slog", "net", "net/http", "os", "os/exec", "syscall", "golang.org/x/sys/unix"}

// A source is one Go file, by its path from the root.
type source struct {
	file    string
	imports []string
}

// room is where a file is. A package for the tests of others that is named after
// its room, such as pkg/lease/leasetest, is part of that room.
func (s source) room() string {
	dir := path.Dir(s.file)
	if parent := path.Dir(dir); path.Base(dir) == path.Base(parent)+"test" {
		return parent
	}
	return dir
}

// sources reads the imports of every Go file of the module that is no test.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, nested := os.Stat(filepath.Join(file, "go.mod"))
			if file != root && (nested == nil || strings.HasPrefix(d.Name(), ".") || d.Name() == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, file)
		s := source{file: filepath.ToSlash(rel)}
		for _, i := range parsed.Imports {
			name, unquote := strconv.Unquote(i.Path.Value)
			if unquote != nil {
				return unquote
			}
			s.imports = append(s.imports, name)
		}
		all = append(all, s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d files found: the walk is broken", len(all))
	}
	return all
}

// against says what is wrong with a file, according to all tables above.
func against(s source) []string {
	var wrong []string
	complain := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	room := s.room()
	above := strings.HasPrefix(room, "testing/") // it may look at everything
	floor, known := floors[room]
	if !known && !above {
		complain("%s has no floor: add it to the table", room)
	}
	for _, i := range s.imports {
		if in, ours := strings.CutPrefix(i, module); ours {
			below, known := floors[in]
			switch {
			case above:
			case !known: // as is a package for tests
				complain("imports %s, which no room may", in)
			case in == room && path.Dir(s.file) != room:
			case below < floor, below == floor && sideways[room] == in:
			default:
				complain("imports %s (floor %d) from floor %d", in, below, floor)
			}
			continue
		}
		switch {
		case above:
		case room == "pkg/vip" && strings.Contains(strings.Split(i, "/")[0], "."):
			complain("imports %s; the vocabulary knows the standard library only", i)
		case (room == "pkg/plan" || room == "pkg/pool" || room == "pkg/migrate" || room == "pkg/quorum" || room == "pkg/vip") && slices.Contains(outside, i):
			complain("imports %s; the room does no I/O", i)
		case !mayKnow(s, i):
			complain("imports %s, whose types end in another room", i)
		}
	}
	return wrong
}

// mayKnow reports whether a file may import a package of the outside.
func mayKnow(s source, name string) bool {
	longest := ""
	for prefix := range maps.Keys(worlds) {
		if strings.HasPrefix(name, prefix) && len(prefix) > len(longest) {
			longest = prefix
		}
	}
	return longest == "" || slices.Contains(worlds[longest], s.room()) || slices.Contains(worlds[longest], s.file)
}

func TestFloors(t *testing.T) {
	rooms := map[string]bool{}
	for _, s := range sources(t) {
		rooms[s.room()] = true
		for _, wrong := range against(s) {
			t.Errorf("%s %s", s.file, wrong)
		}
	}
	for _, room := range []string{"cmd/herald", "pkg/agent", "pkg/plan", "pkg/vip"} {
		if !rooms[room] {
			t.Errorf("%s was not looked at", room)
		}
	}
}

// maxClosures is how many function literals a file of cmd/herald may have, nested ones
// included. No import test sees what goes through a closure, so rooms are wired by methods
// and interfaces where they can be. The loop that decides who may hold VIPs gets by with ten:
// all of ownership.go and controlplane.go, and in manager.go poke, pokeBoth and tenure.
var maxClosures = map[string]int{
	"cmd/herald/ownership.go":    6,
	"cmd/herald/controlplane.go": 1,
	"cmd/herald/manager.go":      12,
}

func TestClosures(t *testing.T) {
	for file, limit := range maxClosures {
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		count := 0
		ast.Inspect(parsed, func(n ast.Node) bool {
			if _, ok := n.(*ast.FuncLit); ok {
				count++
			}
			return true
		})
		if count > limit {
			t.Errorf("%s has %d function literals, more than %d", file, count, limit)
		}
	}
}

// TestAgainst: the rules find what they are for.
func TestAgainst(t *testing.T) {
	const corev1, lease = "k8s.io/api/core/v1", "k8s.io/api/coordination/v1"
	tests := []struct {
		file, imports string
		want          string // part of the complaint, or "" for none
	}{
		{"cmd/herald/main.go", module + "pkg/agent", ""},
		{"pkg/agent/agent.go", module + "pkg/vip", ""},
		{"pkg/plan/plan.go", module + "pkg/pool", ""},
		{"pkg/pool/pool.go", module + "pkg/plan", "floor 1) from floor 1"},
		{"pkg/kube/api.go", module + "pkg/lease", "floor 1) from floor 1"},
		{"pkg/vip/plan.go", module + "pkg/config", "floor 0) from floor 0"},
		{"pkg/l2/l2.go", module + "pkg/agent", "floor 2) from floor 1"},
		{"pkg/agent/agent.go", module + "testing/lab", "which no room may"},
		{"cmd/herald/main.go", module + "testing/lab", "which no room may"},
		{"pkg/attic/attic.go", "fmt", "has no floor"},
		{"pkg/lease/leasetest/server.go", lease, ""},
		{"pkg/lease/leasetest/server.go", module + "pkg/vip", ""},
		{"pkg/lease/leasetest/server.go", module + "pkg/lease", ""},
		{"pkg/lease/leasetest/server.go", module + "pkg/kube", "floor 1) from floor 1"},
		{"pkg/lease/lease.go", module + "pkg/lease/leasetest", "which no room may"},
		{"pkg/lease/kubetest/server.go", "fmt", "has no floor"},
		{"testing/e2e/e2e.go", module + "cmd/herald", ""},
		{"testing/lab/lab.go", corev1, ""},

		{"pkg/kube/api.go", corev1, ""},
		{"pkg/kube/api.go", "k8s.io/client-go/rest", ""},
		{"pkg/manifest/rbac.go", "k8s.io/api/rbac/v1", ""},
		{"pkg/manifest/rbac.go", "k8s.io/client-go/rest", "types end in another room"},
		{"pkg/lease/lease.go", lease, ""},
		{"pkg/lease/lease.go", corev1, "types end in another room"},
		{"pkg/agent/agent.go", lease, "types end in another room"},
		{"cmd/herald/status.go", lease, ""},
		{"cmd/herald/manager.go", lease, "types end in another room"},
		{"pkg/netif/netlink.go", "github.com/vishvananda/netlink/nl", ""},
		{"pkg/l2/l2.go", "github.com/vishvananda/netlink/nl", "types end in another room"},
		{"pkg/netif/netlink.go", "github.com/mdlayher/arp", "types end in another room"},
		{"pkg/config/file.go", "sigs.k8s.io/yaml", ""},
		{"pkg/serve/serve.go", "sigs.k8s.io/yaml", "types end in another room"},
		{"pkg/vip/vip.go", "net/netip", ""},
		{"pkg/vip/vip.go", "golang.org/x/sync/errgroup", "standard library only"},
		{"pkg/vip/vip.go", "os", "does no I/O"},
		{"pkg/plan/plan.go", "net/netip", ""},
		{"pkg/plan/plan.go", "net", "does no I/O"},
	}
	for _, tt := range tests {
		got := strings.Join(against(source{tt.file, []string{tt.imports}}), "; ")
		if tt.want == "" && got != "" || !strings.Contains(got, tt.want) {
			t.Errorf("%s importing %s: got %q, want %q", tt.file, tt.imports, got, tt.want)
		}
	}
}

// maxMutexes is how many mutexes product code may have: state belongs to one goroutine,
// and values are handed over (pkg/mailbox, atomic.Pointer). Whoever needs one more says
// at the field what it guards, and raises this.
const maxMutexes = 12

var mutex = regexp.MustCompile(`(?m)^\s+(?:\w+\s+)?sync\.(?:RW)?Mutex\b`)

// TestMutexes counts the mutexes in pkg and cmd.
func TestMutexes(t *testing.T) {
	n := 0
	for _, s := range sources(t) {
		if !strings.HasPrefix(s.file, "testing/") {
			text, err := os.ReadFile(filepath.Join(root, s.file))
			if err != nil {
				t.Fatal(err)
			}
			n += len(mutex.FindAll(text, -1))
		}
	}
	if n == 0 || n > maxMutexes {
		t.Errorf("%d mutexes in pkg and cmd, want 1 to %d", n, maxMutexes)
	}
	t.Logf("%d mutexes", n)
}

// machine is a path that exists only where somebody wrote this. The classes of
// one letter keep this file from containing one.
var machine = regexp.MustCompile(`(^|[^\w.\-])/([w]ork|[t]mp/brief|[t]mp/bash_jobs)/|\.\./[s]hared\b|/[r]oot/go\b`)

// machineParts is what each such path contains one of: a hundred times faster to look for.
var machineParts = []string{"/" + "work/", "/tmp/" + "brief", "/tmp/" + "bash_jobs", "../" + "shared", "/" + "root/go"}

// eachFile calls look with every file of the checkout that is text somebody wrote, by
// its path.
func eachFile(t *testing.T, look func(file, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == ".git" || d.Name() == ".lab" || d.Name() == "bin" {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Name() == ".git" { // of a worktree: where its repository is
			return nil
		}
		if !d.Type().IsRegular() || slices.Contains([]string{".sum", ".test", ".prof"}, filepath.Ext(file)) {
			return nil
		}
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // some other test's
		}
		if err == nil {
			look(file, string(text))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoPathsOfAMachine: nothing here depends on, or tells of, a machine it was
// written on.
func TestNoPathsOfAMachine(t *testing.T) {
	looked := 0
	eachFile(t, func(file, text string) {
		looked++
		if !slices.ContainsFunc(machineParts, func(part string) bool { return strings.Contains(text, part) }) {
			return
		}
		for n, line := range strings.Split(text, "\n") {
			if found := machine.FindString(line); found != "" {
				t.Errorf("%s:%d names a path of somebody's machine: %q", file, n+1, strings.TrimSpace(found))
			}
		}
	})
	if looked < 100 {
		t.Errorf("only %d files were looked at", looked)
	}
}

func TestMachine(t *testing.T) {
	const w, s = "/wo" + "rk/", "../sha" + "red"
	for text, want := range map[string]bool{
		"cd " + w + "main":          true,
		`"` + w + `x"`:              true,
		"see " + s + "/tools":       true,
		"docs" + w + "x":            false,
		"a.b" + w:                   false,
		"https://example.com" + w:   false,
		"sharedDown ../sharedthing": false,
	} {
		if got := machine.MatchString(text); got != want {
			t.Errorf("%q: got %v, want %v", text, got, want)
		}
	}
}
