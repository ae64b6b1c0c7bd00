package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

func TestMarkdown(t *testing.T) {
	var b strings.Builder
	check.OK(t, Markdown(&b))
	page := b.String()
	for _, o := range Options {
		if got := strings.Count(page, "\n| `"+o.Env+"`"); got != 1 {
			t.Errorf("%s has %d rows, want 1", o.Env, got)
		}
		if o.Flag != "" && !strings.Contains(page, "`--"+o.Flag+"`") {
			t.Errorf("--%s is not on the page", o.Flag)
		}
	}
	columns := 0
	for line := range strings.Lines(page) {
		switch got := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|"); {
		case strings.HasPrefix(line, "|--"):
			columns = got
		case strings.HasPrefix(line, "| `") && got != columns:
			t.Errorf("%d bars, want %d: %s", got, columns, line)
		}
	}
	for _, want := range []string{
		"\n## Interfaces and addresses\n",
		"\n# Options of kube-vip that are not supported yet\n",
		"\n| `lb_class_legacy_handling`, `LoadBalancerClassLegacyHandling` | `--lbClassNameLegacyHandling`, `--LoadBalancerClassLegacyHandling` | bool | `true` | ",
		"\n| `zebra_enable` | `--zebra` | `false` | Hand routes to FRR's zebra. | warning |\n",
		"\n| `cp_namespace` | `--namespace`, `-n` | name | `kube-system` | ",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q on the page", want)
		}
	}
	if supported, missing, _ := strings.Cut(page, "not supported yet"); strings.Contains(supported, "`egress_") || strings.Contains(missing, "`vip_arp`") {
		t.Error("an option is on the wrong side of the page")
	}
}

// TestMarkdownReturnsWriteErrors: a page cut short must not seem complete.
func TestMarkdownReturnsWriteErrors(t *testing.T) {
	if err := Markdown(full{}); !errors.Is(err, errFull) {
		t.Errorf("Markdown: %v, want %v", err, errFull)
	}
}

var errFull = errors.New("disk full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }
