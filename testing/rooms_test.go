package testing_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/heraldvip/herald/pkg/vip"
)

// TestRoomsNameFields: what the table of rooms in docs/architecture.md says that a room observes and takes are fields of World and Plan.
func TestRoomsNameFields(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	columns := map[int]reflect.Type{3: reflect.TypeFor[vip.World](), 4: reflect.TypeFor[vip.Plan]()} // by their place between the bars
	quoted, found := regexp.MustCompile("`([^`]+)`"), 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, "|")
		if !strings.HasPrefix(line, "| `pkg/") || len(cells) != 6 {
			continue
		}
		for column, of := range columns {
			for _, m := range quoted.FindAllStringSubmatch(cells[column], -1) {
				name, in := m[1], of
				if field, ok := strings.CutPrefix(name, "NodeInfo."); ok { // what a node publishes of itself
					name, in = field, reflect.TypeFor[vip.NodeInfo]()
				}
				if _, ok := in.FieldByName(name); !ok {
					t.Errorf("docs/architecture.md, the row of%s: %s has no field %s", cells[1], in, name)
				}
				found++
			}
		}
	}
	if found < 40 {
		t.Errorf("only %d names were found", found)
	}
}
