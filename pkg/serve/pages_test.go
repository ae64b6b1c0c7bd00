package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// healthyPages is the pages of a node in good health.
func healthyPages() Pages {
	registry := prometheus.NewRegistry()
	held := prometheus.NewGauge(prometheus.GaugeOpts{Name: "herald_test_held", Help: "VIPs held by the test."})
	held.Set(3)
	registry.MustRegister(held)
	return Pages{
		Metrics:  registry,
		Healthy:  func() error { return nil },
		Ready:    func() error { return nil },
		Plan:     func() any { return map[string]int{"a": 1} },
		Explain:  func(service string) (any, bool) { return map[string]string{"service": service}, service == "shop/web" },
		Overview: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "overview "+r.URL.Path) }),
	}
}

// request asks over the loopback link.
func request(h http.Handler, method, path string) *httptest.ResponseRecorder {
	return requestFrom(h, "127.0.0.1", "127.0.0.1", httptest.NewRequest(method, path, nil))
}

func requestFrom(h http.Handler, from, to string, r *http.Request) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), 2112))
	if r.Host == "example.com" { // httptest's
		r.Host = local.String()
	}
	r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(from), 40000).String()
	h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, local)))
	return w
}

func TestPages(t *testing.T) {
	sick := healthyPages()
	sick.Healthy = func() error { return errors.New("no pass for 1m0s") }
	sick.Ready = func() error { return errors.New("eth0 is down\nsecond line") }
	tests := []struct {
		name   string
		pages  Pages
		method string
		path   string
		code   int
		kind   string
		body   string // the whole of it, or if it ends in ..., a part
	}{
		{"well", healthyPages(), "GET", "/healthz", 200, "text/plain; charset=utf-8", "ok\n"},
		{"well", healthyPages(), "GET", "/readyz", 200, "text/plain; charset=utf-8", "ok\n"},
		{"sick", sick, "GET", "/healthz", 503, "text/plain; charset=utf-8", "no pass for 1m0s\n"},
		{"sick", sick, "GET", "/readyz", 503, "text/plain; charset=utf-8", "eth0 is down\nsecond line\n"},
		{"well", healthyPages(), "HEAD", "/healthz", 200, "text/plain; charset=utf-8", "ok\n"},
		{"well", healthyPages(), "GET", "/metrics", 200, "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "\nherald_test_held 3\n..."},
		{"well", healthyPages(), "GET", "/debug/plan", 200, "application/json", "{\n  \"a\": 1\n}\n"},
		{"well", healthyPages(), "GET", "/", 200, "text/plain; charset=utf-8", "overview /"},
		{"well", healthyPages(), "GET", "/page.css", 200, "text/plain; charset=utf-8", "overview /page.css"},
		{"well", healthyPages(), "GET", "/debug/plan?service=shop/web", 200, "application/json", "{\n  \"service\": \"shop/web\"\n}\n"},
		{"well", healthyPages(), "GET", "/debug/plan?service=shop/none", 404, "text/plain; charset=utf-8", "there is no Service of type LoadBalancer of that name; write ?service=NAMESPACE/NAME\n"},
		{"well", healthyPages(), "GET", "/other", 404, "text/plain; charset=utf-8", "404 page not found\n"},
		{"well", healthyPages(), "POST", "/debug/plan", 405, "text/plain; charset=utf-8", "Method Not Allowed\n"},
		{"well", healthyPages(), "DELETE", "/", 405, "text/plain; charset=utf-8", "Method Not Allowed\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name+" "+tt.method+" "+tt.path, func(t *testing.T) {
			w := request(tt.pages.handler(slog.New(slog.DiscardHandler)), tt.method, tt.path)
			if w.Code != tt.code || w.Header().Get("Content-Type") != tt.kind {
				t.Errorf("got %d %q, want %d %q", w.Code, w.Header().Get("Content-Type"), tt.code, tt.kind)
			}
			part, cut := strings.CutSuffix(tt.body, "...")
			if got := w.Body.String(); got != tt.body && !(cut && strings.Contains(got, part)) {
				t.Errorf("got %q, want %q", got, tt.body)
			}
		})
	}
}

// TestPlanOverLoopbackOnly: these pages show the Services of all namespaces. Other hosts, and a site whose name resolves to
// 127.0.0.1 in a browser of the node, get what shows none.
func TestPlanOverLoopbackOnly(t *testing.T) {
	private := []string{"/debug/plan", "/debug/plan?service=shop/web", "/page.css", "/"}
	ask := func(path, from, to, host string) (code int, body string) {
		r := httptest.NewRequest("GET", path, nil)
		r.Host = host
		w := requestFrom(healthyPages().handler(slog.New(slog.DiscardHandler)), from, to, r)
		return w.Code, w.Body.String()
	}
	for _, path := range private {
		for host, open := range map[string]bool{
			"": true, "localhost": true, "localhost:2112": true, "127.0.0.1:2112": true, "127.9.9.9": true, "[::1]:2112": true, "[::1]": true,
			"rebound.example.net": false, "rebound.example.net:2112": false, "localhost.example.net": false, "10.0.0.1:2112": false, "[fd00::1]": false, "0.0.0.0": false,
		} {
			code, body := ask(path, "127.0.0.1", "127.0.0.1", host)
			switch {
			case open && (code != 200 || body == indexPage):
				t.Errorf("%s of host %q: %d, want the page", path, host, code)
			case !open && path == "/" && body != indexPage:
				t.Errorf("%s of host %q: %d %s, want the page for other hosts", path, host, code, body)
			case !open && path != "/" && code != 403:
				t.Errorf("%s of host %q: %d, want 403", path, host, code)
			}
		}
		if code, body := ask(path, otherHost, nodeAddress, nodeAddress); path == "/" && body != indexPage || path != "/" && (code != 403 || strings.Contains(body, "shop")) {
			t.Errorf("%s from another host: %d %s", path, code, body)
		}
	}
	for _, tt := range []struct {
		from, to string
		code     int
	}{
		{"127.0.0.1", "127.0.0.1", 200}, {"::1", "::1", 200}, {"::ffff:127.0.0.1", "::ffff:127.0.0.1", 200},
		{otherHost, nodeAddress, 403}, {otherHost, "127.0.0.1", 403}, {"127.0.0.1", nodeAddress, 403},
		{nodeAddress, nodeAddress, 403}, // perhaps the API server's proxy, for anybody
	} {
		w := requestFrom(healthyPages().handler(slog.New(slog.DiscardHandler)), tt.from, tt.to, httptest.NewRequest("GET", "/debug/plan", nil))
		if w.Code != tt.code || w.Code == 403 && w.Body.String() != "/debug/plan"+loopbackOnly+"\n" {
			t.Errorf("from %s to %s: %d %q, want %d", tt.from, tt.to, w.Code, w.Body, tt.code)
		}
	}
}

// TestPagesThatCost: one page is made at a time, and for other hosts one a second at most.
func TestPagesThatCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, atOnce, most := 0, 0, 0
		r := newRenderer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			made, atOnce = made+1, atOnce+1
			most = max(most, atOnce)
			time.Sleep(10 * time.Millisecond)
			atOnce--
			if len(req.Header) > 0 {
				t.Error("the page depends on what the client sends")
			}
			fmt.Fprint(w, made)
		}))
		get := func(from string) string {
			req := httptest.NewRequest("GET", "/metrics", nil)
			req.Header.Set("Accept-Encoding", "gzip")
			return requestFrom(r, from, nodeAddress, req).Body.String()
		}
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() { get(otherHost) })
		}
		all.Wait()
		if made != 1 {
			t.Errorf("made %d times for 100 requests at once, want once", made)
		}
		if got := request(r, "GET", "/metrics").Body.String(); got != "2" {
			t.Errorf("over the loopback link: page %s, want 2, a new one", got)
		}
		for range 10 {
			all.Go(func() { request(r, "GET", "/metrics") })
		}
		all.Wait()
		if most != 1 {
			t.Errorf("%d made at once, want one at a time", most)
		}
		time.Sleep(2 * pageAge)
		if got := get(otherHost); got != "13" {
			t.Errorf("after %v: page %s, want 13, a new one", 2*pageAge, got)
		}
	})
}

// TestPageThatPanics: the next request is answered.
func TestPageThatPanics(t *testing.T) {
	panics := true
	r := newRenderer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if panics {
			panic("no page")
		}
		fmt.Fprint(w, "page")
	}))
	func() {
		defer func() { recover() }()
		request(r, "GET", "/metrics")
	}()
	panics = false
	if got := request(r, "GET", "/metrics").Body.String(); got != "page" {
		t.Errorf("got %q", got)
	}
}

// TestHealthPagesOnly: the port for probes shows nothing of the cluster.
func TestHealthPagesOnly(t *testing.T) {
	for path, want := range map[string]int{"/healthz": 200, "/readyz": 200, "/metrics": 404, "/debug/plan": 404, "/": 404} {
		if w := request(healthyPages().healthHandler(), "GET", path); w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}

// TestIndex: every link of the index leads somewhere.
func TestIndex(t *testing.T) {
	h := healthyPages().handler(slog.New(slog.DiscardHandler))
	links := 0
	for part := range strings.SplitSeq(indexPage, `href="`) {
		path, _, ok := strings.Cut(part, `"`)
		if !ok || !strings.HasPrefix(path, "/") {
			continue
		}
		links++
		if w := request(h, "GET", path); w.Code != 200 {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	if links != 4 {
		t.Errorf("%d links, want 4", links)
	}
}

// TestPlan: addresses, times and names read as one writes them.
func TestPlan(t *testing.T) {
	key := vip.Key{Namespace: "web", Name: "http<1>"}
	pages := healthyPages()
	pages.Plan = func() any {
		return struct {
			World    vip.Address
			Families []vip.Family
			Claim    map[vip.Key]vip.Claim
			Heard    map[netip.Addr]vip.HeardAnnouncement
		}{
			vip.Address{Addr: netip.MustParseAddr("2001:db8::1"), Bits: 64, Link: "eth0", Lease: key},
			[]vip.Family{vip.IPv4, vip.IPv6},
			map[vip.Key]vip.Claim{key: {Holder: "n1", AcquiredAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}},
			map[netip.Addr]vip.HeardAnnouncement{netip.MustParseAddr("192.0.2.1"): {MAC: "02:00:00:00:00:01"}},
		}
	}
	want := `{
  "World": {
    "Addr": "2001:db8::1",
    "Bits": 64,
    "Link": "eth0",
    "Lease": "web/http<1>",
    "New": false,
    "LocalDelivery": false,
    "ResetTranslated": false
  },
  "Families": [
    "IPv4",
    "IPv6"
  ],
  "Claim": {
    "web/http<1>": {
      "Holder": "n1",
      "Valid": false,
      "Foreign": false,
      "Transitions": 0,
      "PreviousHolder": "",
      "Cause": "",
      "FormerHolders": null,
      "AcquiredAt": "2026-01-02T03:04:05Z"
    }
  },
  "Heard": {
    "192.0.2.1": {
      "MAC": "02:00:00:00:00:01",
      "Link": ""
    }
  }
}
`
	w := request(pages.handler(slog.New(slog.DiscardHandler)), "GET", "/debug/plan")
	if diff := cmp.Diff(want, w.Body.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestPlanThatDoesNotEncode: what can't be encoded is an error, not half a page.
func TestPlanThatDoesNotEncode(t *testing.T) {
	pages := healthyPages()
	pages.Plan = func() any { return []any{1, func() {}} }
	w := request(pages.handler(slog.New(slog.DiscardHandler)), "GET", "/debug/plan")
	const want = "the plan can't be written as JSON: json: unsupported type: func()\n"
	if w.Code != 500 || w.Body.String() != want {
		t.Errorf("got %d %q, want 500 %q", w.Code, w.Body, want)
	}
}

// TestBrokenCollector: the other metrics are still served.
func TestBrokenCollector(t *testing.T) {
	pages := healthyPages()
	pages.Metrics.(*prometheus.Registry).MustRegister(brokenCollector{})
	w := request(pages.handler(slog.New(slog.DiscardHandler)), "GET", "/metrics")
	if w.Code != 200 || !strings.Contains(w.Body.String(), "\nherald_test_held 3\n") {
		t.Errorf("got %d %q", w.Code, w.Body)
	}
}

type brokenCollector struct{}

var brokenDesc = prometheus.NewDesc("herald_test_broken", "A metric that can't be had.", nil, nil)

func (brokenCollector) Describe(c chan<- *prometheus.Desc) { c <- brokenDesc }
func (brokenCollector) Collect(c chan<- prometheus.Metric) {
	c <- prometheus.NewInvalidMetric(brokenDesc, errors.New("broken"))
}

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
