package kube

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// An apiServer is a real etcd and a real kube-apiserver on loopback.
type apiServer struct {
	bin, dir   string
	etcd, port int
	etcdRuns   *process
	runs       *process
	admin      *http.Client
}

// Tokens the API server knows. The token is the name of the user; admin may do everything, the others what RBAC lets
// them.
const tokens = `admin,admin,admin,"system:masters"
herald,herald,herald
nobody,nobody,nobody
narrow,narrow,narrow
`

// shared is the API server of all tests of this package: one, started by the first that needs it.
var shared struct {
	once   sync.Once
	server *apiServer
}

// libraryLog is what the Kubernetes libraries log.
var libraryLog = &logBuffer{}

func TestMain(m *testing.M) {
	LogLibrary(libraryLog.logger())
	code := m.Run()
	if shared.server != nil {
		shared.server.close()
	}
	os.Exit(code)
}

// startAPI is the API server, running. It skips the test if the server's binaries are missing, unless HERALD_LAB is "require".
func startAPI(t testing.TB) *apiServer {
	t.Helper()
	if testing.Short() {
		t.Skip("needs an API server; left out by -short")
	}
	bin := check.Value(filepath.Abs("../../bin/parts"))(t)
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(bin, name)); err != nil && os.Getenv("HERALD_LAB") != "require" {
			t.Skipf("%v; testing/lab/parts/build.sh builds it", err)
		}
	}
	shared.once.Do(func() { shared.server = newAPIServer(t, bin) })
	if shared.server == nil {
		t.Fatal("the API server has not started, as an earlier test says")
	}
	return shared.server
}

func newAPIServer(t testing.TB, bin string) *apiServer {
	s := &apiServer{bin: bin, dir: check.Value(os.MkdirTemp("", "herald-kube-"))(t)}
	key := check.Value(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	der := check.Value(x509.MarshalECPrivateKey(key))(t)
	check.OK(t, os.WriteFile(filepath.Join(s.dir, "tokens.csv"), []byte(tokens), 0o600))
	check.OK(t, os.WriteFile(filepath.Join(s.dir, "sa.key"), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
	ports := freePorts(t, 3)
	s.etcd, s.port = ports[0], ports[2]
	s.admin = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	at := fmt.Sprintf("http://127.0.0.1:%d", s.etcd)
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	s.etcdRuns = check.Value(start(s.dir, "etcd", filepath.Join(s.bin, "etcd"), "--data-dir", filepath.Join(s.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", at, "--advertise-client-urls", at,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer))(t)
	if err := s.start(); err != nil {
		s.close()
		t.Fatal(err)
	}
	return s
}

// start starts kube-apiserver and waits until it is ready.
func (s *apiServer) start() error {
	in := func(name string) string { return filepath.Join(s.dir, name) }
	p, err := start(s.dir, "kube-apiserver", filepath.Join(s.bin, "kube-apiserver"),
		"--etcd-servers", fmt.Sprintf("http://127.0.0.1:%d", s.etcd),
		"--bind-address", "127.0.0.1", "--secure-port", fmt.Sprint(s.port), "--cert-dir", in("certs"),
		"--token-auth-file", in("tokens.csv"), "--authorization-mode", "RBAC", "--disable-admission-plugins", "ServiceAccount",
		"--service-account-key-file", in("sa.key"), "--service-account-signing-key-file", in("sa.key"),
		"--service-account-issuer", "https://herald.test",
		"--service-cluster-ip-range", "10.112.0.0/16", "--endpoint-reconciler-type", "none")
	if err != nil {
		return err
	}
	s.runs = p
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		if code, _, err := s.do("GET", "/readyz", ""); err == nil && code == http.StatusOK {
			return nil
		} else if time.Now().After(end) || p.ended() {
			return fmt.Errorf("kube-apiserver did not become ready: %d %v; its log ends with:\n%s", code, err, p.tail())
		}
	}
}

// kill ends kube-apiserver at once.
func (s *apiServer) kill() {
	s.runs.kill()
}

func (s *apiServer) close() {
	for _, p := range []*process{s.runs, s.etcdRuns} {
		if p != nil {
			p.kill()
		}
	}
	os.RemoveAll(s.dir)
}

// as is the way to the server for a user.
func (s *apiServer) as(user string) *rest.Config {
	return &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", s.port), BearerToken: user,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1, Dial: dial,
	}
}

// send sends a request as a user; a ServiceAccount's groups are those that its token has.
func (s *apiServer) send(user, method, path, body string) (resp *http.Response, answer string, err error) {
	r, err := http.NewRequest(method, fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path), strings.NewReader(body))
	if err != nil {
		return nil, "", err
	}
	r.Header.Set("Authorization", "Bearer admin")
	if user != "admin" {
		r.Header.Set("Impersonate-User", user)
		r.Header.Add("Impersonate-Group", "system:authenticated")
	}
	if rest, ok := strings.CutPrefix(user, "system:serviceaccount:"); ok {
		namespace, _, _ := strings.Cut(rest, ":")
		r.Header.Add("Impersonate-Group", "system:serviceaccounts")
		r.Header.Add("Impersonate-Group", "system:serviceaccounts:"+namespace)
	}
	r.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	if resp, err = s.admin.Do(r); err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp, string(data), err
}

// do sends a request as the administrator.
func (s *apiServer) do(method, path, body string) (code int, answer string, err error) {
	resp, answer, err := s.send("admin", method, path, body)
	if err != nil {
		return 0, "", err
	}
	return resp.StatusCode, answer, nil
}

// must sends a request as the administrator that has to succeed.
func (s *apiServer) must(t testing.TB, method, path, body string) string {
	t.Helper()
	code, answer, err := s.do(method, path, body)
	if err != nil || code >= 300 {
		t.Fatalf("%s %s: %d %v %s", method, path, code, err, answer)
	}
	return answer
}

// namespace makes one for a test, and takes it away with what is in it.
func (s *apiServer) namespace(t testing.TB) string {
	t.Helper()
	name := "t-" + strings.ToLower(strings.Map(func(r rune) rune {
		if r == '/' || r == '_' {
			return '-'
		}
		return r
	}, t.Name()))
	name = fmt.Sprintf("%s-%d", name[:min(len(name), 40)], time.Now().UnixNano())
	s.must(t, "POST", "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`)
	t.Cleanup(func() {
		// Without a namespace controller nobody would empty it.
		for _, path := range []string{
			"/api/v1/namespaces/%s/services", "/api/v1/namespaces/%s/events",
			"/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices", "/apis/coordination.k8s.io/v1/namespaces/%s/leases",
		} {
			s.do("DELETE", fmt.Sprintf(path, name), "")
		}
	})
	return name
}

// allow gives a user the rules, in one namespace or, if that is "", everywhere.
func (s *apiServer) allow(t testing.TB, user, namespace, rules string) {
	t.Helper()
	kind, in := "ClusterRole", ""
	if namespace != "" {
		kind, in = "Role", "/namespaces/"+namespace
	}
	base := "/apis/rbac.authorization.k8s.io/v1" + in + "/" + strings.ToLower(kind)
	name := fmt.Sprintf("%s-%d", user, time.Now().UnixNano())
	s.must(t, "POST", base+"s", `{"metadata":{"name":"`+name+`"},"rules":`+rules+`}`)
	s.must(t, "POST", base+"bindings", `{"metadata":{"name":"`+name+`"},
		"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"`+kind+`","name":"`+name+`"},
		"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"`+user+`"}]}`)
	t.Cleanup(func() {
		s.do("DELETE", base+"bindings/"+name, "")
		s.do("DELETE", base+"s/"+name, "")
	})
}

// A process is a server under test. It dies with this one.
type process struct {
	cmd  *exec.Cmd
	log  string
	done chan struct{}
}

func start(dir, name, path string, args ...string) (*process, error) {
	log, err := os.OpenFile(filepath.Join(dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{cmd: exec.Command(path, args...), log: log.Name(), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) tail() string {
	data, _ := os.ReadFile(p.log)
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// freePorts finds ports below those that the kernel gives to clients (32768 and up), or one could be taken while the
// server that has it is being restarted.
func freePorts(t testing.TB, n int) (ports []int) {
	for try := 0; len(ports) < n; try++ {
		port := 20000 + mathrand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err == nil {
			defer l.Close()
			ports = append(ports, port)
		} else if try > 100 {
			t.Fatal(err)
		}
	}
	return ports
}

// A pokeSignal is a Poke that a test can wait for.
type pokeSignal chan struct{}

func (b pokeSignal) send() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// until waits for rings until ok.
func (b pokeSignal) until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-b:
		case <-late:
			t.Fatalf("waited too long for: %s", what)
		}
	}
}

// A logBuffer is a log that a test can read.
type logBuffer struct {
	mu    sync.Mutex
	lines bytes.Buffer
}

func (j *logBuffer) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines.Write(p)
}

func (j *logBuffer) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.lines.String()
}

func (j *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(j, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// count is how many lines have all the words.
func (j *logBuffer) count(words ...string) int {
	n := 0
next:
	for line := range strings.Lines(j.String()) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue next
			}
		}
		n++
	}
	return n
}

// rules are all that Herald needs, cluster-wide.
const clusterPermissions = `[
	{"apiGroups":[""],"resources":["services","nodes"],"verbs":["list","watch"]},
	{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]},
	{"apiGroups":[""],"resources":["events"],"verbs":["create"]},
	{"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list","watch"]},
	{"apiGroups":["networking.k8s.io"],"resources":["servicecidrs"],"verbs":["list","watch"]},
	{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","list","watch","create","update","delete"]}]`

// narrowRules are all that it needs in the namespace of the Services.
const namespacePermissions = `[
	{"apiGroups":[""],"resources":["services"],"verbs":["list","watch"]},
	{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]},
	{"apiGroups":[""],"resources":["events"],"verbs":["create"]},
	{"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list","watch"]},
	{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","list","watch","create","update","delete"]}]`

// leaseRules are all that it needs in the announcer's.
const leasePermissions = `[{"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["get","list","watch","create","update","delete"]}]`

// A clusterTest is a Cluster at work on a real API server.
type clusterTest struct {
	*Cluster
	api         *apiServer
	poked       pokeSignal // sent by Poke
	leasesPoked pokeSignal // sent by PokeLeases
	log         *logBuffer
}

func newClusterTest(t testing.TB, user string, o Options) *clusterTest {
	t.Helper()
	r := &clusterTest{api: startAPI(t), poked: make(pokeSignal, 1), leasesPoked: make(pokeSignal, 1), log: &logBuffer{}}
	o.Log, o.Poke, o.PokeLeases = r.log.logger(), r.poked.send, r.leasesPoked.send
	if o.Node == "" {
		o.Node = "n1"
	}
	if o.NodeLeaseNamespace == "" {
		o.NodeLeaseNamespace = "kube-system"
	}
	c := check.Value(New(r.api.as(user), o))(t)
	r.Cluster = c
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", r.log)
		}
	})
	return r
}

// runCluster has a Cluster and its Statuses run as the administrator, and makes a namespace.
func runCluster(t testing.TB, o Options) (r *clusterTest, ns string) {
	t.Helper()
	ns = startAPI(t).namespace(t)
	r = newClusterTest(t, "admin", o)
	check.Run(t, r)
	check.Run(t, r.Statuses)
	return r, ns
}

// web makes the Service web, and waits until it is in the cache.
func (r *clusterTest) web(t testing.TB, namespace, address string) vip.Key {
	t.Helper()
	r.create(t, namespace, "web", address)
	key := vip.Key{Namespace: namespace, Name: "web"}
	r.poked.until(t, "the Service", func() bool { return r.service(key) != nil })
	return key
}

// service is a Service of the World, or nil.
func (r *clusterTest) service(k vip.Key) *vip.Service {
	var w vip.World
	r.Observe(&w)
	for i := range w.Services {
		if w.Services[i].Key == k {
			return &w.Services[i]
		}
	}
	return nil
}

// create makes a Service of type LoadBalancer.
func (r *clusterTest) create(t testing.TB, namespace, name, address string) {
	t.Helper()
	r.api.must(t, "POST", "/api/v1/namespaces/"+namespace+"/services", `{"metadata":{"name":"`+name+`","annotations":{"kube-vip.io/loadbalancerIPs":"`+address+`"}},
		"spec":{"type":"LoadBalancer","ports":[{"port":80}]}}`)
}

func TestExactPermissions(t *testing.T) {
	api := startAPI(t)
	api.allow(t, "herald", "", clusterPermissions)
	ns := api.namespace(t)
	api.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"kube-node-lease"}}`)
	api.must(t, "POST", "/api/v1/nodes", `{"metadata":{"name":"n1"},"spec":{"podCIDRs":["10.200.1.0/24"]}}`)
	t.Cleanup(func() { api.do("DELETE", "/api/v1/nodes/n1", "") })
	api.must(t, "PATCH", "/api/v1/nodes/n1/status",
		`{"status":{"addresses":[{"type":"InternalIP","address":"192.168.7.1"},{"type":"Hostname","address":"n1"}]}}`)

	r := newClusterTest(t, "herald", Options{})
	if r.Synced() || r.Leases.Synced() {
		t.Fatal("synced before Run")
	}
	check.Run(t, r)
	check.Run(t, r.Statuses)
	check.Run(t, r.Events)
	r.poked.until(t, "Synced", r.Synced)

	key := vip.Key{Namespace: ns, Name: "web"}
	r.create(t, ns, "web", "192.168.7.100")
	api.must(t, "POST", "/apis/discovery.k8s.io/v1/namespaces/"+ns+"/endpointslices", `{"metadata":{"name":"web-1","labels":{"kubernetes.io/service-name":"web"}},
		"addressType":"IPv4","endpoints":[{"addresses":["10.200.1.5"],"nodeName":"n1","conditions":{"ready":true}}]}`)
	r.poked.until(t, "the Service with an endpoint", func() bool {
		s := r.service(key)
		return s != nil && s.Endpoints.Any()
	})

	var w vip.World
	r.Observe(&w)
	if diff := cmp.Diff([]vip.Node{{Name: "n1", Addresses: addrs("192.168.7.1"),
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.200.1.0/24")}}},
		w.Nodes, check.Addresses, cmpopts.IgnoreFields(vip.Node{}, "UID")); diff != "" {
		t.Errorf("nodes (-want +got):\n%s", diff)
	}
	wantReserved := []vip.ReservedRange{
		{Prefix: netip.MustParsePrefix("10.112.0.0/16"), Description: "the cluster's Service range"},
		{Prefix: netip.MustParsePrefix("127.0.0.1/32"), Description: "the address of the API server"},
	}
	check.Same(t, wantReserved, w.Reserved, "reserved")

	r.haveStatus(t, vip.Status{Service: key, VIPHost: "n1",
		Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.100"), IPMode: vip.ModeVIP,
			Ports: []vip.Port{{Protocol: "TCP", Port: 80}}}}})
	r.haveStatus(t, vip.Status{Service: key})
	if s := r.service(key); s.VIPHost != "" || s.Ingress != nil {
		t.Errorf("after clearing: host %q, ingress %v", s.VIPHost, s.Ingress)
	}

	r.useLeases(t, ns, "kubevip-web")
	check.Equal(t, r.log.count("level=WARN"), 0, "warnings:\n%s", r.log)
}

// useLeases does with Leases what package lease does.
func (r *clusterTest) useLeases(t testing.TB, ns, name string) {
	t.Helper()
	ctx := t.Context()
	l := r.Leases
	r.leasesPoked.until(t, "the leases", l.Synced)
	node := "n1"
	created, err := l.Write(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &node}})
	check.OK(t, err)
	if _, err := l.Write(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: ns,
		Name: name}}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("a second Write without a version: %v, want AlreadyExists", err)
	}
	var have *coordinationv1.Lease
	find := func() *coordinationv1.Lease {
		changed, dropped := l.TakeChanges()
		is := func(o *coordinationv1.Lease) bool { return o.Namespace == ns && o.Name == name }
		if slices.ContainsFunc(dropped, is) {
			have = nil
		}
		if i := slices.IndexFunc(changed, is); i >= 0 {
			have = changed[i]
		}
		return have
	}
	r.leasesPoked.until(t, "the Lease in the cache", func() bool { return find() != nil })

	change := created.DeepCopy()
	other := "n2"
	change.Spec.HolderIdentity = &other
	updated := check.Value(l.Write(ctx, change))(t)
	if _, err := l.Write(ctx, change); !apierrors.IsConflict(err) {
		t.Errorf("a Write of an old version: %v, want Conflict", err)
	}
	r.leasesPoked.until(t, "the new holder", func() bool { return *find().Spec.HolderIdentity == "n2" })
	if got, err := l.Get(ctx, ns, name); err != nil || got.ResourceVersion != updated.ResourceVersion {
		t.Errorf("Get: %v, %v", got, err)
	}
	if err := l.Delete(ctx, ns, name, created.ResourceVersion); !apierrors.IsConflict(err) {
		t.Errorf("a Delete of an old version: %v, want Conflict", err)
	}
	if err := l.Delete(ctx, ns, name, updated.ResourceVersion); err != nil {
		t.Error(err)
	}
	r.leasesPoked.until(t, "the Lease to go", func() bool { return find() == nil })
	if _, err := l.Get(ctx, ns, name); !apierrors.IsNotFound(err) {
		t.Errorf("Get of a deleted Lease: %v, want NotFound", err)
	}
}

// TestKubeletLeasesAreIgnored: the field selector works.
func TestKubeletLeasesAreIgnored(t *testing.T) {
	api := startAPI(t)
	ns := api.namespace(t)
	api.do("POST", "/api/v1/namespaces", `{"metadata":{"name":"kube-node-lease"}}`)
	beat := "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	api.must(t, "POST", beat, `{"metadata":{"name":"before"}}`)
	t.Cleanup(func() { api.do("DELETE", beat, "") })
	r := newClusterTest(t, "admin", Options{Leases: []vip.Key{{Namespace: ns, Name: "last"}}})
	check.Run(t, r)
	r.leasesPoked.until(t, "the leases", r.Leases.Synced)
	r.poked.until(t, "Synced", r.Synced)
	select {
	case <-r.poked:
	default:
	}
	api.must(t, "POST", beat, `{"metadata":{"name":"after"}}`)
	api.must(t, "POST", "/apis/coordination.k8s.io/v1/namespaces/"+ns+"/leases", `{"metadata":{"name":"last"}}`)
	r.leasesPoked.until(t, "the last Lease", func() bool {
		changed, _ := r.Leases.TakeChanges()
		for _, l := range changed {
			if l.Namespace == "kube-node-lease" {
				t.Fatalf("Lease %s/%s is in the cache", l.Namespace, l.Name)
			}
			if l.Name == "last" && l.Namespace == ns {
				return true
			}
		}
		return false
	})
	select {
	case <-r.poked:
		t.Error("a Lease poked the agent")
	default:
	}
}

// TestNamespacedPermissions: a Role in each of the namespaces named is enough.
func TestNamespacedPermissions(t *testing.T) {
	api := startAPI(t)
	ns, own, locks, foreign := api.namespace(t), api.namespace(t), api.namespace(t), api.namespace(t)
	api.allow(t, "narrow", ns, namespacePermissions)
	api.allow(t, "narrow", own, leasePermissions)
	api.allow(t, "narrow", locks, leasePermissions)
	r := newClusterTest(t, "narrow", Options{Namespace: ns, NodeLeaseNamespace: own,
		Leases: []vip.Key{{Namespace: locks, Name: "kubevip-web"}}})
	r.create(t, ns, "web", "192.168.7.101")
	r.create(t, foreign, "web", "192.168.7.102")
	check.Run(t, r)
	check.Run(t, r.Statuses)
	check.Run(t, r.Events)
	key := vip.Key{Namespace: ns, Name: "web"}
	r.poked.until(t, "the Service", func() bool { return r.Synced() && r.service(key) != nil })
	if r.service(vip.Key{Namespace: foreign, Name: "web"}) != nil {
		t.Error("it sees a Service of another namespace")
	}
	r.haveStatus(t, vip.Status{Service: key, VIPHost: "n1",
		Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.101"), IPMode: vip.ModeVIP}}})
	r.useLeases(t, ns, "kubevip-web")
	r.useLeases(t, own, vip.NodeLeasePrefix+"n1")
	r.useLeases(t, locks, "kubevip-web")
	event := vip.Event{Service: key, UID: r.service(key).UID, Reason: vip.VIPAnnounced, Message: "node n1 announces 192.168.7.101 on eth0"}
	r.putEvents(t, event)
	check.Equal(t, r.log.count("level=WARN"), 0, "warnings:\n%s", r.log)
}

// TestWithoutPermissions: what is missing is named once each, and what can be done without is done without.
func TestWithoutPermissions(t *testing.T) {
	api := startAPI(t)
	api.allow(t, "nobody", "", `[{"apiGroups":[""],"resources":["services"],"verbs":["list","watch"]},
		{"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list","watch"]}]`)
	ns := api.namespace(t)
	r := newClusterTest(t, "nobody", Options{})
	check.Run(t, r)
	check.Run(t, r.Statuses)
	check.Run(t, r.Events)
	r.create(t, ns, "web", "192.168.7.103")
	key := vip.Key{Namespace: ns, Name: "web"}
	r.poked.until(t, "Synced without Nodes and ServiceCIDRs", func() bool { return r.Synced() && r.service(key) != nil })
	for _, resource := range []string{"nodes", "servicecidrs"} {
		check.Equal(t, r.log.count("level=WARN", "not allowed to watch "+resource, "herald manifest rbac"), 1, "how often %s is logged", resource)
	}
	status := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.103")}}}
	event := vip.Event{Service: key, Reason: vip.VIPAnnounced, Message: "hello"}
	check.True(t, 20*time.Second, "warnings about missing permissions to write", func() bool {
		if n := r.pending(status); n != 1 {
			t.Fatalf("statuses: %d pending", n)
		}
		if have := putWritten(r.Events, event); len(have) != 0 {
			t.Fatalf("events: %v", have)
		}
		return r.log.count("level=WARN", "status of Services", "herald manifest rbac") > 0 &&
			r.log.count("level=WARN", "create Events", "herald manifest rbac") > 0
	})
	// The permission comes late.
	api.allow(t, "nobody", "", `[{"apiGroups":[""],"resources":["services/status"],"verbs":["patch"]}]`)
	r.haveStatus(t, status)
}

func TestServerGoesAndComesBack(t *testing.T) {
	r, ns := runCluster(t, Options{})
	api := r.api
	r.poked.until(t, "Synced", r.Synced)
	key := r.web(t, ns, "192.168.7.104")

	api.kill()
	late := newClusterTest(t, "admin", Options{}) // begins without a server, and waits for it
	check.Run(t, late)
	for _, c := range []*clusterTest{r, late} {
		check.True(t, 20*time.Second, "a warning that the server can't be reached",
			func() bool { return c.log.count("level=WARN", "can't be reached") > 0 })
	}
	if !r.Synced() || r.service(key) == nil || late.Synced() {
		t.Error("the caches are lost, or filled with nothing")
	}
	status := vip.Status{Service: key, VIPHost: "n1", Ingress: []vip.Ingress{{Addr: netip.MustParseAddr("192.168.7.104"),
		IPMode: vip.ModeVIP}}}
	check.Equal(t, r.pending(status), 1, "pending with no server")
	began := time.Now()
	check.OK(t, api.start())
	ready := time.Now()
	api.must(t, "PATCH", "/api/v1/namespaces/"+ns+"/services/web",
		`{"metadata":{"annotations":{"kube-vip.io/loadbalancerIPs":"192.168.7.105"}}}`)
	r.poked.until(t, "the change", func() bool {
		return slices.Equal(r.service(key).Addresses, addrs("192.168.7.105"))
	})
	t.Logf("server ready after %v, change seen after another %v", ready.Sub(began), time.Since(ready))
	r.poked.until(t, "the status wanted while it could not be reached", func() bool { return r.service(key).VIPHost == "n1" })
	check.Equal(t, r.log.count("can't be reached"), 1, "how often it is logged that the server can't be reached")
	check.Equal(t, r.log.count("answers again"), 1, "that it answers")
	late.poked.until(t, "Synced", late.Synced)
	late.leasesPoked.until(t, "the leases", late.Leases.Synced)
}

// TestRunEnds: with a server, without one, and in the middle of a back-off.
func TestRunEnds(t *testing.T) {
	api := startAPI(t)
	for _, unreachable := range []bool{false, true} {
		r := newClusterTest(t, "admin", Options{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.Run(ctx)
		}()
		if unreachable {
			api.kill()
			check.True(t, time.Minute, "the back-off has grown", func() bool {
				return check.Metric(t, "herald_api_requests_total error", r.Collectors()...) >= 15
			})
		} else {
			r.poked.until(t, "Synced", r.Synced)
		}
		began := time.Now()
		cancel()
		select {
		case <-ended:
			if took := time.Since(began); took > time.Second {
				t.Errorf("server unreachable %v: Run ended after %v", unreachable, took)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("server unreachable %v: Run does not end", unreachable)
		}
	}
	check.OK(t, api.start())
}
