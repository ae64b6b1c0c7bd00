package kube

import (
	"fmt"
	"log/slog"
	"net/http"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// scheme knows the few kinds that Herald speaks of. The full client of client-go
// knows them all, and costs every node the memory for it.
var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err) // two kinds of one name: a mistake in the lines above
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
}

// An api is a connection to the API server, with a client for each API group.
type api struct {
	core, discovery, networking, coordination rest.Interface
}

// newAPI makes an api of its own transport. log, if not nil, is told when the
// server goes away and comes back.
func newAPI(cfg *rest.Config, m *metrics, log *slog.Logger) (*api, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = rest.NoWarnings{} // deprecation notices for the author, not the operator
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	cfg.NegotiatedSerializer = codecs.WithoutConversion()
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &line{next: next, metrics: m, log: log} })
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("the credentials for the API server %s can't be used: %w", cfg.Host, err)
	}
	a := &api{}
	for gv, to := range map[schema.GroupVersion]*rest.Interface{
		corev1.SchemeGroupVersion:         &a.core,
		discoveryv1.SchemeGroupVersion:    &a.discovery,
		networkingv1.SchemeGroupVersion:   &a.networking,
		coordinationv1.SchemeGroupVersion: &a.coordination,
	} {
		c := rest.CopyConfig(cfg)
		c.GroupVersion, c.APIPath = &gv, "/apis"
		if gv.Group == "" {
			c.APIPath = "/api"
		}
		if *to, err = rest.RESTClientForConfigAndClient(c, client); err != nil {
			return nil, fmt.Errorf("the API server %s can't be used: %w", cfg.Host, err)
		}
	}
	return a, nil
}
