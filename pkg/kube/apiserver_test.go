package kube

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
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
	err    error
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

// errNoParts: the binaries have not been built.
var errNoParts = errors.New("bin/parts/etcd or bin/parts/kube-apiserver is missing; testing/lab/parts/build.sh " + "builds them")

// startAPI is the API server, running. It skips the test if the server's binaries are missing, unless HERALD_LAB is "require".
func startAPI(t testing.TB) *apiServer {
	t.Helper()
	if testing.Short() {
		t.Skip("needs an API server; left out by -short")
	}
	shared.once.Do(func() { shared.server, shared.err = newAPIServer() })
	switch {
	case errors.Is(shared.err, errNoParts) && os.Getenv("HERALD_LAB") != "require":
		t.Skip(shared.err)
	case shared.err != nil:
		t.Fatal(shared.err)
	}
	return shared.server
}

func newAPIServer() (*apiServer, error) {
	wd, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	s := &apiServer{bin: filepath.Join(wd, "..", "..", "bin", "parts")}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if _, err := os.Stat(filepath.Join(s.bin, name)); err != nil {
			return nil, errNoParts
		}
	}
	if s.dir, err = os.MkdirTemp("", "herald-kube-"); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{
		"tokens.csv": []byte(tokens),
		"sa.key":     pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}),
	} {
		if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, err
	}
	s.etcd, s.port = ports[0], ports[2]
	s.admin = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	at := fmt.Sprintf("http://127.0.0.1:%d", s.etcd)
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	s.etcdRuns, err = start(s.dir, "etcd", filepath.Join(s.bin, "etcd"), "--data-dir", filepath.Join(s.dir, "etcd"), "--unsafe-no-fsync",
		"--listen-client-urls", at, "--advertise-client-urls", at,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer)
	if err == nil {
		err = s.start()
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
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

// do sends a request as the administrator.
func (s *apiServer) do(method, path, body string) (code int, answer string, err error) {
	r, err := http.NewRequest(method, fmt.Sprintf("https://127.0.0.1:%d%s", s.port, path), strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer admin")
	r.Header.Set("Content-Type", "application/json")
	if method == "PATCH" {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	resp, err := s.admin.Do(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(data), err
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
func freePorts(n int) (ports []int, err error) {
	for try := 0; len(ports) < n; try++ {
		port := 20000 + mathrand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			if try > 100 {
				return nil, err
			}
			continue
		}
		defer l.Close()
		ports = append(ports, port)
	}
	return ports, nil
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
