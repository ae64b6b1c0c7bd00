package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Pages is what is served. The functions are called for every request, from
// any goroutine, and must not block.
type Pages struct {
	Metrics prometheus.Gatherer
	Healthy func() error // nil if the process does its work; else why it should be restarted
	Ready   func() error // nil if this node can carry VIPs; else why it can't
	Plan    func() any   // what the agent last saw and wanted, as it should stand in JSON
}

// maxScrapes bounds how many scrapes are under way at once.
const maxScrapes = 4

const index = `<!DOCTYPE html>
<html lang="en">
<title>Herald</title>
<h1>Herald</h1>
<ul>
<li><a href="/metrics">/metrics</a>: for Prometheus
<li><a href="/healthz">/healthz</a>: whether the process does its work
<li><a href="/readyz">/readyz</a>: whether this node can hold claims on VIPs (its node lease is renewed, its caches are filled)
<li><a href="/debug/plan">/debug/plan</a>: what it sees and wants, and why a Service is not announced
</ul>
</html>
`

// all is the handler of every page.
func (p Pages) all(log *slog.Logger) http.Handler {
	mux := p.health()
	mux.Handle("GET /metrics", promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{
		ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling:       promhttp.ContinueOnError, // one broken collector must not hide the others
		MaxRequestsInFlight: maxScrapes,
	}))
	mux.HandleFunc("GET /debug/plan", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.Plan()) })
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, index) // a client that went away is nobody's concern
	})
	return mux
}

// health is the handler of the pages for probes.
func (p Pages) health() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", answer(p.Healthy))
	mux.HandleFunc("GET /readyz", answer(p.Ready))
	return mux
}

// answer says ok, or 503 and what ask says.
func answer(ask func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := ask(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	}
}

// writeJSON writes v for people to read. It is encoded first, so that a
// failure is one and not half a page.
func writeJSON(w http.ResponseWriter, v any) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		http.Error(w, fmt.Sprintf("the plan can't be written as JSON: %v", err), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = b.WriteTo(w)
}
