package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	requests  *prometheus.CounterVec
	reachable prometheus.Gauge
	statuses  *prometheus.CounterVec
	events    *prometheus.CounterVec
}

func newMetrics() *metrics {
	return &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_api_requests_total",
			Help: "Requests that this process sent to the Kubernetes API server, by verb, resource and HTTP status code; the code is \"error\" if no answer came. A watch counts once, when it begins.",
		}, []string{"verb", "resource", "code"}),
		reachable: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "herald_api_reachable",
			Help: "1 if the last request to the Kubernetes API server was answered, 0 if it could not be reached.",
		}),
		statuses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_status_writes_total",
			Help: "Writes of the status of Services, by result: written, conflict (the Service had changed meanwhile), gone (it does not exist any more) or error.",
		}, []string{"result"}),
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "herald_events_total",
			Help: "Events about Services, by result: created, known (the API server has it already), error (it will be tried again) or dropped.",
		}, []string{"result"}),
	}
}

func (m *metrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.requests, m.reachable, m.statuses, m.events}
}

// A line is the way to the API server: every request passes through one. It
// counts them and tells the operator when the server goes away and comes back.
type line struct {
	next    http.RoundTripper
	metrics *metrics
	log     *slog.Logger // nil: only count

	mu   sync.Mutex
	down time.Time // since when the server can't be reached; zero if it can
}

// RoundTrip implements http.RoundTripper.
func (l *line) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := l.next.RoundTrip(r)
	code := "error"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
	}
	verb, resource := describe(r)
	l.metrics.requests.WithLabelValues(verb, resource, code).Inc()
	// A request that was called off proves nothing about the server.
	if l.log != nil && !(err != nil && (r.Context().Err() != nil || errors.Is(err, context.Canceled))) {
		l.tell(r.URL.Host, err)
	}
	return resp, err
}

// tell says once that the server is away, and once that it is back.
func (l *line) tell(host string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case err != nil && l.down.IsZero():
		l.down = time.Now()
		l.metrics.reachable.Set(0)
		l.log.Warn("the Kubernetes API server can't be reached; trying on", "server", host, "err", err)
	case err == nil && !l.down.IsZero():
		l.log.Info("the Kubernetes API server answers again", "server", host, "after", time.Since(l.down).Round(time.Millisecond))
		l.down = time.Time{}
		fallthrough
	case err == nil:
		l.metrics.reachable.Set(1)
	}
}

// describe names a request as RBAC does: the verb and the resource, with its
// subresource.
func describe(r *http.Request) (verb, resource string) {
	// ../api/<version>/... or ../apis/<group>/<version>/...
	path := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	at := slices.IndexFunc(path, func(s string) bool { return s == "api" || s == "apis" })
	if at < 0 {
		return strings.ToLower(r.Method), "other"
	}
	skip := at + 2
	if path[at] == "apis" {
		skip++
	}
	if skip >= len(path) {
		return strings.ToLower(r.Method), "other"
	}
	path = path[skip:]
	if len(path) > 2 && path[0] == "namespaces" {
		path = path[2:]
	}
	resource = path[0]
	named := len(path) > 1
	if len(path) > 2 {
		resource += "/" + path[2]
	}
	switch r.Method {
	case http.MethodPost:
		verb = "create"
	case http.MethodPut:
		verb = "update"
	case http.MethodGet:
		switch {
		case r.URL.Query().Get("watch") != "" && r.URL.Query().Get("watch") != "false":
			verb = "watch"
		case named:
			verb = "get"
		default:
			verb = "list"
		}
	default:
		verb = strings.ToLower(r.Method)
	}
	return verb, resource
}
