package testing_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/heraldvip/herald/testing/check"
)

// TestAlerts: each alert asks for metrics that exist, says what to do, and names a heading of the documentation.
func TestAlerts(t *testing.T) {
	var rule struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr string
					Annotations map[string]string
				}
			}
		}
	}
	check.OK(t, yaml.Unmarshal(check.Value(os.ReadFile("../manifests/components/alerts/alerts.yaml"))(t), &rule))
	metrics := string(check.Value(os.ReadFile("../docs/reference/metrics.md"))(t))
	n := 0
	for _, g := range rule.Spec.Groups {
		for _, r := range g.Rules {
			n++
			names := regexp.MustCompile(`herald_[a-z_]+`).FindAllString(r.Expr, -1)
			if len(names) == 0 {
				t.Errorf("%s asks for nothing: %s", r.Alert, r.Expr)
			}
			for _, name := range names {
				if !strings.Contains(metrics, "| `"+name+"` |") {
					t.Errorf("%s: there is no metric %s", r.Alert, name)
				}
			}
			for _, key := range []string{"summary", "description", "runbook_url"} {
				if r.Annotations[key] == "" {
					t.Errorf("%s has no %s", r.Alert, key)
				}
			}
			page, ok := strings.CutPrefix(r.Annotations["runbook_url"], "https://github.com/heraldvip/herald/blob/main/")
			file, anchor, _ := strings.Cut(page, "#")
			if text, err := os.ReadFile("../" + file); !ok || err != nil || !slices.Contains(anchors(string(text)), anchor) {
				t.Errorf("%s: there is no %s", r.Alert, r.Annotations["runbook_url"])
			}
		}
	}
	if n == 0 {
		t.Error("there are no alerts")
	}
}
