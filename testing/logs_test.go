package testing_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

// loggedKeys returns the keys of attributes in all calls that log at Info, Warn or Error, with a place that uses each.
func loggedKeys(t *testing.T) map[string]string {
	t.Helper()
	keys := make(map[string]string)
	eachFile(t, func(file, text string) {
		relative, _ := filepath.Rel(root, file)
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || !strings.HasPrefix(relative, "pkg/") && !strings.HasPrefix(relative, "cmd/") {
			return
		}
		parsed := check.Value(parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution))(t)
		ast.Inspect(parsed, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			method, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Info", "Warn", "Error", "With", "Log"}, method.Sel.Name) || !isLog(method.X) {
				return true
			}
			args := call.Args[map[string]int{"With": 0, "Log": 3}[method.Sel.Name]:]
			if method.Sel.Name != "With" && method.Sel.Name != "Log" {
				args = args[1:] // the message
			}
			for i := 0; i < len(args); i += 2 {
				if literal, ok := args[i].(*ast.BasicLit); ok && literal.Kind == token.STRING {
					key, _ := strconv.Unquote(literal.Value)
					keys[key] = relative
				}
			}
			return true
		})
	})
	return keys
}

// isLog reports whether an expression is a logger, by its name: log, x.log, x.o.Log.
func isLog(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return strings.EqualFold(x.Name, "log")
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	}
	return false
}

// TestLogKeys: docs/logs.md lists the keys of what is logged, no more and no fewer, so that whoever parses logs can rely on them.
func TestLogKeys(t *testing.T) {
	text := string(check.Value(os.ReadFile(filepath.Join(root, "docs/logs.md")))(t))
	documented := make(map[string]bool)
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(text, -1) {
		documented[row[1]] = true
	}
	keys := loggedKeys(t)
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if !documented[key] {
			t.Errorf("%s logs the key %q, which docs/logs.md does not have", keys[key], key)
		}
		delete(documented, key)
	}
	for _, key := range []string{"time", "level", "msg", "service", "vips", "from", "to", "why", "outage"} { // slog's, and those of pkg/history, which has them in a slice
		delete(documented, key)
	}
	for key := range documented {
		t.Errorf("docs/logs.md has the key %q, which nothing logs", key)
	}
	if len(keys) < 20 {
		t.Errorf("only %d keys were found: %v", len(keys), keys)
	}
}
