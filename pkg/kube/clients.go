package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/metric"
)

// scheme knows the kinds that Herald uses: client-go's clientset knows all, and takes the memory for them.
var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	all := runtime.NewSchemeBuilder(corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme,
		coordinationv1.AddToScheme, authorizationv1.AddToScheme)
	utilruntime.Must(all.AddToScheme(scheme)) // it fails if two kinds have one name
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
}

// clients are a client for each API group, on one connection.
type clients struct {
	core, discovery, networking, coordination rest.Interface
}

// newClients makes clients with their own transport; with log, reachability is logged.
func newClients(cfg *rest.Config, m *metrics, log *slog.Logger) (*clients, error) {
	cfg = rest.CopyConfig(cfg)
	if cfg.Dial == nil {
		cfg.Dial = dial // client-go shares a transport among equal configurations, but never one that has a Dial function
	}
	cfg.WarningHandler = rest.NoWarnings{} // deprecation notices for the author, not the operator
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = codecs.WithoutConversion()
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &countingTransport{next: next, metrics: m, log: log}
	})
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("the credentials for the API server %s can't be used: %w", cfg.Host, err)
	}
	c := &clients{}
	for gv, to := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion:         &c.core,
		discoveryv1.SchemeGroupVersion:    &c.discovery,
		networkingv1.SchemeGroupVersion:   &c.networking,
		coordinationv1.SchemeGroupVersion: &c.coordination,
	} {
		of := rest.CopyConfig(cfg)
		of.GroupVersion, of.APIPath = &gv, "/apis"
		if gv.Group == "" {
			of.APIPath = "/api"
		}
		if *to, err = rest.RESTClientForConfigAndClient(of, client); err != nil {
			return nil, fmt.Errorf("the API server %s can't be used: %w", cfg.Host, err)
		}
	}
	return c, nil
}

type metrics struct {
	*metric.Set
	requests  *prometheus.CounterVec
	reachable prometheus.Gauge
	statuses  *prometheus.CounterVec
	events    *prometheus.CounterVec
}

func newMetrics() *metrics {
	s := &metric.Set{}
	return &metrics{
		Set: s,
		requests: metric.Counters(s, "herald_api_requests_total", "Requests that this process sent to the Kubernetes API "+
			"server, by verb, resource and HTTP status code; the code is \"error\" if no answer came. A watch counts once, "+
			"when it begins.", "verb", "resource", "code"),
		reachable: metric.Gauge(s, "herald_api_reachable", "1 if the last request to the Kubernetes API server was "+
			"answered, 0 if it could not be reached."),
		statuses: metric.Counters(s, "herald_status_writes_total", "Writes of the status of Services, and of addresses that "+
			"they are given, by result: written, conflict (the Service had changed meanwhile), not_found (it does not exist "+
			"any more), rejected (the API server does not accept it) or unavailable (it takes no writes, or cannot be "+
			"reached).", "result"),
		events: metric.Counters(s, "herald_events_total", "Events about Services, by result: created, already_exists, "+
			"dropped (the namespace is being deleted, or the API server does not accept it), error (it will be tried again) "+
			"or given_up (it ceased to hold before it could be written, since its Service had more than 25 at once, or for an "+
			"hour).", "result"),
	}
}

// A countingTransport counts requests, and logs when the API server can't be reached, and answers again.
type countingTransport struct {
	next    http.RoundTripper
	metrics *metrics
	log     *slog.Logger // nil: only count

	unreachableSince atomic.Pointer[time.Time] // nil: it can be reached
	answered         atomic.Pointer[time.Time] // when the last answer came; nil: none has
}

// RoundTrip implements http.RoundTripper.
func (t *countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(r)
	code := "error"
	if err == nil {
		code = strconv.Itoa(resp.StatusCode)
		t.answered.Store(new(time.Now()))
	}
	verb, resource := verbAndResource(r)
	t.metrics.requests.WithLabelValues(verb, resource, code).Inc()
	if t.log != nil && (err == nil || t.provesUnreachable(r.Context(), err)) {
		t.logReachability(r.URL.Host, err)
	}
	return resp, err
}

// hangsAfter is how long without any answer one time-out proves that the server hangs; node leases are sent each 2 s.
const hangsAfter = 4 * time.Second

// provesUnreachable reports whether an error says that the server is gone, or hangs.
func (t *countingTransport) provesUnreachable(ctx context.Context, err error) bool {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		last := t.answered.Load()
		return last == nil || time.Since(*last) > hangsAfter
	}
	return ctx.Err() == nil && !errors.Is(err, context.Canceled)
}

// logReachability logs the first of several errors, and the first answer after them.
func (t *countingTransport) logReachability(host string, err error) {
	if err != nil {
		if t.unreachableSince.CompareAndSwap(nil, new(time.Now())) {
			t.metrics.reachable.Set(0)
			t.log.Warn("the Kubernetes API server can't be reached; retrying", "server", host, "err", err)
		}
		return
	}
	if since := t.unreachableSince.Swap(nil); since != nil {
		t.log.Info("the Kubernetes API server answers again", "server", host, "after",
			time.Since(*since).Round(time.Millisecond))
	}
	t.metrics.reachable.Set(1)
}

// resourcePath matches a path below /api/<version> or /apis/<group>/<version>: resource, name, subresource.
var resourcePath = regexp.MustCompile(
	`/(?:api|apis/[^/]+)/v[^/]+/(?:namespaces/[^/]+/)?([^/]+)(?:/([^/]+))?(?:/([^/]+))?/?$`)

// verbAndResource describes a request as RBAC does, or is "other".
func verbAndResource(r *http.Request) (verb, resource string) {
	path := resourcePath.FindStringSubmatch(r.URL.Path)
	if path == nil {
		return strings.ToLower(r.Method), "other"
	}
	resource = path[1]
	if path[3] != "" {
		resource += "/" + path[3]
	}
	watch, _ := strconv.ParseBool(r.URL.Query().Get("watch"))
	switch {
	case r.Method == http.MethodPost:
		verb = "create"
	case r.Method == http.MethodPut:
		verb = "update"
	case r.Method != http.MethodGet:
		verb = strings.ToLower(r.Method)
	case watch:
		verb = "watch"
	case path[2] != "":
		verb = "get"
	default:
		verb = "list"
	}
	return verb, resource
}
