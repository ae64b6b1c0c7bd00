package serve

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// evil is what a user may write into a name, an annotation, or an Event.
const evil = `<img src=/evil onerror="document.title='evil'"><script>document.title='evil'</script>"'&{{.Node}}</td>`

// sample is a View with all that there may be.
func sample() View {
	v := View{
		Node: "n1", Version: "v1.2.3", Now: noon, ServiceCount: 4,
		Problems: []Problem{
			{"shop/web", "VIPUnanswered: node n2 owns 10.77.0.52, but did not answer node n1", "look at the link of the owner: cable, VLAN, port security or ARP inspection on the switch; herald drain n2 moves its VIPs meanwhile"},
			{"Node n3", "carries no VIP: its link eth0 is down", "herald explain --node n3"},
		},
		Services: []ServiceRow{
			{"shop/web", "10.77.0.52", "n2", noon.Add(-time.Hour), "-", "VIPUnanswered", "node n2 owns it, but does not answer", "bad"},
			{"shop/cart", "10.77.0.53", "-", time.Time{}, "-", "NoEndpoints", "none of its endpoints is ready, so no node announces it", "warn"},
			{"default/a", "10.77.0.50,fd77::50", "n1", noon.Add(-3 * time.Hour), "ARP/NDP here, routes here", "VIPAnnounced", "node n1 announces 10.77.0.50 on eth0, fd77::50 on eth0", ""},
		},
		MoreServices: 1,
		Nodes:        []NodeRow{{"n1", 2, "ok", ""}, {"n2", 1, "ok, but it gets no heartbeats from n3: is herald_peers_port open between them, UDP and TCP?", "warn"}, {"n3", 0, "carries no VIP: its link eth0 is down", "bad"}},
		Pools:        []PoolRow{{"default", "IPv4", "19", "20", "warn"}, {"internal", "IPv6", "3", "256", ""}},
	}
	for i := range 9 {
		v.Moves = append(v.Moves, MoveRow{At: noon.Add(-time.Duration(i*i) * 4 * time.Minute), Service: "default/a", VIPs: "10.77.0.50", From: "n2", To: "n1", Cause: "n2: its link eth0 is down", Outage: "unanswered for 480ms"})
	}
	v.Moves[2].Class, v.Moves[2].To, v.Moves[2].Outage, v.Moves[4].Class, v.Moves[4].Outage = "bad", "nobody", "", "warn", "unanswered for 2.1s"
	return v
}

// evilView has evil in every text of every row.
func evilView() View {
	return View{
		Node: evil, Version: evil, Now: noon, ServiceCount: 1,
		Problems: []Problem{{evil, evil, evil}}, Services: []ServiceRow{{evil, evil, evil, noon, evil, evil, evil, evil}},
		Nodes: []NodeRow{{evil, 1, evil, evil}}, Pools: []PoolRow{{evil, evil, evil, evil, evil}},
		Moves: []MoveRow{{noon, evil, evil, evil, evil, evil, evil, evil}},
	}
}

func newHandler(v func() View) *Handler { return NewHandler(v, slog.New(slog.DiscardHandler)) }

func get(h http.Handler, path string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w
}

// TestEscaped: nothing that a user can write becomes an element or an attribute.
func TestEscaped(t *testing.T) {
	text := string(check.Value(render(evilView()))(t))
	if strings.Contains(text, "<img") || strings.Contains(text, "<script>") || strings.Contains(text, `onerror="`) || strings.Count(text, "&lt;img") < 20 {
		t.Errorf("not escaped:\n%s", text)
	}
	if n := strings.Count(text, "</td>"); n != 5+2+3 {
		t.Errorf("%d cells", n)
	}
}

func TestPage(t *testing.T) {
	h := newHandler(sample)
	w := get(h, "/")
	for _, want := range []string{"What to do: look at the link", "And 1 more; <code>herald status</code> shows all", "n2: its link eth0 is down", `<time datetime="2026-01-01T11:00:00Z">`, `<circle class="bad"`, "19", "<code>herald history</code>"} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %s in\n%s", want, w.Body)
		}
	}
	if got := w.Header().Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'none';") || strings.Contains(got, "unsafe") {
		t.Errorf("policy %s", got)
	}
	// Nothing that the policy forbids, or is from elsewhere.
	if bad := regexp.MustCompile(`style=|onclick=|https?://|<style|<script>`).FindString(w.Body.String()); bad != "" {
		t.Errorf("the page has %s", bad)
	}
	for path, kind := range map[string]string{"/page.css": "text/css; charset=utf-8"} {
		if w := get(h, path); w.Code != 200 || w.Header().Get("Content-Type") != kind || w.Body.Len() < 100 {
			t.Errorf("%s: %d %s", path, w.Code, w.Header().Get("Content-Type"))
		}
	}
	if w := get(h, "/other"); w.Code != 404 {
		t.Errorf("%d", w.Code)
	}
	if empty := get(newHandler(func() View { return View{Now: noon} }), "/").Body.String(); !strings.Contains(empty, "Nothing, as far as") || !strings.Contains(empty, "No Service of type LoadBalancer") {
		t.Error(empty)
	}
}

// TestContrast: every color of text on every background, light and dark, has the contrast of WCAG 2.2 level AA
// (success criterion 1.4.3: 4.5 to 1).
func TestContrast(t *testing.T) {
	css := string(check.Value(assets.ReadFile("page.css"))(t))
	schemes := regexp.MustCompile(`:root \{([^}]*)\}`).FindAllStringSubmatch(css, -1)
	if len(schemes) != 2 {
		t.Fatalf("%d schemes, want light and dark", len(schemes))
	}
	for i, s := range schemes {
		colors := make(map[string]float64)
		for _, c := range regexp.MustCompile(`--(\w+): (#[0-9a-f]{6})`).FindAllStringSubmatch(s[1], -1) {
			colors[c[1]] = luminance(t, c[2])
		}
		for _, text := range []string{"text", "dim", "bad", "warn", "good", "link"} {
			for _, back := range []string{"back", "card"} {
				light, dark := max(colors[text], colors[back]), min(colors[text], colors[back])
				if ratio := (light + .05) / (dark + .05); ratio < 4.5 {
					t.Errorf("scheme %d: %s on %s has %.2f to 1", i, text, back, ratio)
				}
			}
		}
	}
}

// luminance is the relative luminance of #rrggbb (WCAG 2.2).
func luminance(t *testing.T, color string) float64 {
	sum := 0.0
	for i, weight := range []float64{.2126, .7152, .0722} {
		n := check.Value(strconv.ParseUint(color[1+2*i:3+2*i], 16, 8))(t)
		c := float64(n) / 255
		if c <= .04045 {
			c /= 12.92
		} else {
			c = math.Pow((c+.055)/1.055, 2.4)
		}
		sum += weight * c
	}
	return sum
}

// Dots that would cover each other are above each other, and no more than three; old ones are not on the timeline.
func TestTimeline(t *testing.T) {
	v := View{Now: noon}
	for range 5 {
		v.Moves = append(v.Moves, MoveRow{At: noon.Add(-time.Hour)})
	}
	v.Moves = append(v.Moves, MoveRow{At: noon.Add(-7 * time.Hour)})
	got := ""
	for _, d := range v.Dots() {
		got += fmt.Sprint(d.X, " ", d.Y, ", ")
	}
	if want := "833 40, 833 28, 833 16, "; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if n := len(v.Ticks()); n != 6 {
		t.Errorf("%d ticks", n)
	}
}
