package kube

import (
	"fmt"
	"log/slog"
	"net/http"

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
)

// scheme knows the few kinds that Herald uses. The clientset of client-go knows all
// kinds, and costs every node the memory for them.
var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, coordinationv1.AddToScheme, authorizationv1.AddToScheme} {
		utilruntime.Must(add(scheme)) // it fails if two kinds have one name
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
}

// clients are a client for each API group, which share a connection to the API server.
type clients struct {
	core, discovery, networking, coordination rest.Interface
}

// newClients makes clients that share no transport with others. If log is not nil it
// is logged, and shown by the metric herald_api_reachable, when the server can't be
// reached and when it answers again.
func newClients(cfg *rest.Config, m *metrics, log *slog.Logger) (*clients, error) {
	cfg = rest.CopyConfig(cfg)
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
