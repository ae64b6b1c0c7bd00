package serve

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Pages are what is served. Any goroutine calls the functions, for every request: they must not block.
type Pages struct {
	Metrics prometheus.Gatherer
	Healthy func() error // nil if the process works; else why it should be restarted
	Ready   func() error // nil if this node can own VIPs; else why it can't
	Plan    func() any   // the agent's last World and Plan, in a form that encodes as JSON
	// Explain returns what is known of the Service namespace/name, for JSON, if there is one.
	Explain  func(service string) (explanation any, ok bool)
	Overview http.Handler // the page for people and its style sheet: / and /page.css
}

//go:embed index.html
var indexPage string

// loopbackOnly is for other hosts that ask for all namespaces' Services.
const loopbackOnly = " is served on the loopback address only: ask 127.0.0.1 on the node, or use kubectl " +
	"port-forward to the Pod"

func (p Pages) handler(log *slog.Logger) http.Handler {
	mux := p.healthHandler()
	mux.Handle("GET /metrics", newRenderer(promhttp.HandlerFor(p.Metrics, promhttp.HandlerOpts{
		ErrorLog:      slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		ErrorHandling: promhttp.ContinueOnError, // one broken collector must not hide the others
	})))
	plan := newRenderer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, p.Plan()) }))
	mux.Handle("GET /debug/plan", overLoopbackOnly(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		service := r.URL.Query().Get("service")
		if service == "" {
			plan.ServeHTTP(w, r)
		} else if e, ok := p.Explain(service); ok {
			writeJSON(w, e)
		} else {
			http.Error(w, "there is no Service of type LoadBalancer of that name; write ?service=NAMESPACE/NAME",
				http.StatusNotFound)
		}
	}), nil))
	mux.Handle("GET /{$}", overLoopbackOnly(p.Overview, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = io.WriteString(w, indexPage) // fails only if the client went away
	})))
	mux.Handle("GET /page.css", overLoopbackOnly(p.Overview, nil))
	return mux
}

// overLoopbackOnly serves page over loopback to who asks for a loopback address or localhost: a name on the internet
// that resolves to 127.0.0.1 makes its scripts same-origin (DNS rebinding). Others get otherwise, or 403 if nil.
func overLoopbackOnly(page, otherwise http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case overLoopback(r) && namesLoopback(r.Host):
			page.ServeHTTP(w, r)
		case otherwise != nil:
			otherwise.ServeHTTP(w, r)
		default:
			http.Error(w, r.URL.Path+loopbackOnly, http.StatusForbidden)
		}
	})
}

// namesLoopback reports whether the Host header names localhost or a loopback address, with any port. No browser sends
// an empty one (HTTP/1.0).
func namesLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	a, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return host == "" || host == "localhost" || err == nil && a.Unmap().IsLoopback()
}

func (p Pages) healthHandler() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", healthPage(p.Healthy))
	mux.HandleFunc("GET /readyz", healthPage(p.Ready))
	return mux
}

// overLoopback reports whether a request came over loopback. Equal ends are not enough: the API server, a proxy for who
// may write EndpointSlices, asks so on its own node (docs/why.md, "The key of the heartbeats").
func overLoopback(r *http.Request) bool {
	remote, err := netip.ParseAddrPort(r.RemoteAddr)
	local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return err == nil && local != nil && remote.Addr().Unmap().IsLoopback() && address(local).IsLoopback()
}

// healthPage answers ok, or 503 with the error of check.
func healthPage(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	}
}

// writeJSON writes v indented, all encoded first: failures are no half pages.
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
