package lab

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func (l *Lab) connect() error {
	l.config = &rest.Config{
		Host:            "https://" + l.apiAddr(),
		BearerToken:     "admin-token",
		TLSClientConfig: rest.TLSClientConfig{CAData: l.ca},
		Dial:            l.DialFrom("cp"),
		QPS:             -1, // no limit in the client
		WarningHandler:  rest.NoWarnings{},
	}
	client, hc, err := newClient(l.config)
	if err != nil {
		return err
	}
	l.client, l.idle = client, hc
	return nil
}

func newClient(c *rest.Config) (kubernetes.Interface, func(), error) {
	c = rest.CopyConfig(c)
	c.ContentType = "application/vnd.kubernetes.protobuf"
	hc, err := rest.HTTPClientFor(c)
	if err != nil {
		return nil, nil, err
	}
	client, err := kubernetes.NewForConfigAndClient(c, hc)
	// client-go's wrappers do not implement it
	return client, func() { utilnet.CloseIdleConnectionsFor(hc.Transport) }, err
}

// Client is the admin's client into the lab, with no rate limit.
func (l *Lab) Client() kubernetes.Interface { return l.client }

// Config is for further clients of the admin, from anywhere in this process.
func (l *Lab) Config() *rest.Config { return rest.CopyConfig(l.config) }

// awaitAPI waits until the API server is ready and has made its namespaces.
func (l *Lab) awaitAPI(ctx context.Context) error {
	return l.await(ctx, l.api, func() error {
		if _, err := l.client.CoreV1().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
			return err
		}
		for _, ns := range []string{"default", "kube-system"} {
			if _, err := l.client.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
}

// Kubectl runs kubectl as admin and returns its standard output.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (string, error) {
	return l.Run(ctx, "cp", append([]string{l.programPath("kubectl")}, args...)...)
}

// Apply applies YAML with kubectl, as admin.
func (l *Lab) Apply(ctx context.Context, yaml string) error {
	_, err := l.run(ctx, "cp", yaml, l.programPath("kubectl"), "apply", "-f", "-")
	return err
}

// Kubeconfig returns the path of a kubeconfig for the lab's namespaces. user is "admin", "herald" (the ServiceAccount
// kube-system/herald), or a ServiceAccount "namespace/name", made if missing.
func (l *Lab) Kubeconfig(ctx context.Context, user string) (string, error) {
	ns, name, ok := strings.Cut(user, "/")
	if !ok {
		path := l.kubeconfig(user)
		_, err := os.Stat(path)
		return path, err
	}
	accounts := l.client.CoreV1().ServiceAccounts(ns)
	_, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("create ServiceAccount %s: %w", user, err)
	}
	t, err := accounts.CreateToken(ctx, name, &authv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token for ServiceAccount %s: %w", user, err)
	}
	file := ns + "." + name
	return l.kubeconfig(file), l.writeKubeconfig(file, t.Status.Token)
}

var metricLabel = regexp.MustCompile(`(\w+)="((?:[^"\\]|\\.)*)"`)

// APIRequests returns how many requests the API server has answered, by "VERB resource" ("PUT leases", "PATCH
// services/status", "GET /metrics"), without watches under way.
//
// Others than Herald ask, too, 0.3 a second in an idle lab: the API server for GET openapi/v3 every 5 s, its identity
// (PUT leases) every 10 s, and lists at times; the controller when pods or Services change; this call by GET /metrics.
// So take the difference of two calls, and look at the keys.
func (l *Lab) APIRequests(ctx context.Context) (map[string]float64, error) {
	raw, err := l.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the API server's metrics: %w", err)
	}
	return countRequests(raw)
}

func countRequests(metrics []byte) (map[string]float64, error) {
	sum := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(metrics))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		labels, ok := strings.CutPrefix(lines.Text(), "apiserver_request_total{")
		if !ok {
			continue
		}
		labels, value, ok := cutLast(labels, "} ")
		n, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("the API server's metrics have the line %q", lines.Text())
		}
		m := map[string]string{}
		for _, g := range metricLabel.FindAllStringSubmatch(labels, -1) {
			m[g[1]] = g[2]
		}
		resource := m["resource"]
		if sub := m["subresource"]; sub != "" && resource != "" {
			resource += "/" + sub
		} else if sub != "" {
			resource = sub
		}
		if m["verb"] != "WATCH" {
			sum[m["verb"]+" "+resource] += n
		}
	}
	return sum, lines.Err()
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// Since returns by how much counts of now exceed those of before, without equal ones.
func Since(now, before map[string]float64) map[string]float64 {
	d := maps.Clone(now)
	for k := range d {
		if d[k] -= before[k]; d[k] == 0 {
			delete(d, k)
		}
	}
	return d
}
