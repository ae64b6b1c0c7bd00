package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/heraldvip/herald/testing/check"
)

const kubeconfig = `apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.7:6443", insecure-skip-tls-verify: true}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`

func TestFindConfig(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"good": kubeconfig, "other": strings.ReplaceAll(kubeconfig, "192.0.2.7",
		"192.0.2.8"), "broken": "clusters: [", "empty": ""} {
		check.OK(t, os.WriteFile(at(name), []byte(text), 0o600))
	}
	inside := func() (*rest.Config, error) { return &rest.Config{Host: "https://10.96.0.1"}, nil }
	outside := func() (*rest.Config, error) { return nil, rest.ErrNotInCluster }
	const pod = "the Pod's service account"
	check.OK(t, os.Mkdir(at("directory"), 0o700))
	tests := []struct {
		name      string
		explicit  string
		admin     string
		inCluster func() (*rest.Config, error)
		home      string
		host      string
		where     string
		errors    []string
	}{
		{name: "explicit file", explicit: at("good"), admin: at("other"), inCluster: inside, host: "https://192.0.2.7:6443",
			where: "file " + at("good")},
		{name: "explicit file that is missing", explicit: at("missing"), inCluster: inside, host: "https://10.96.0.1", where: pod},
		{name: "in a Pod", admin: at("missing"), inCluster: inside, home: at("good"), host: "https://10.96.0.1", where: pod},
		{name: "in a Pod with the node's file", admin: at("good"), inCluster: inside, host: "https://192.0.2.7:6443",
			where: "file " + at("good") + ", not by " + pod},
		{name: "in a Pod with an empty file", admin: at("empty"), inCluster: inside, host: "https://10.96.0.1", where: pod +
			", since " + at("empty") + " is empty"},
		{name: "in a Pod with a directory in the file's place", admin: at("directory"), inCluster: inside,
			host: "https://10.96.0.1", where: pod + ", since " + at("directory") + " is empty"},
		{name: "in a Pod with a broken file", admin: at("broken"), inCluster: inside, errors: []string{at("broken")}},
		{name: "the node's file", admin: at("good"), inCluster: outside, home: at("other"), host: "https://192.0.2.7:6443",
			where: "file " + at("good")},
		{name: "that of the home directory", admin: at("missing"), inCluster: outside, home: at("other"),
			host: "https://192.0.2.8:6443", where: "file " + at("other")},
		{name: "explicit file that is broken", explicit: at("broken"), inCluster: inside, errors: []string{at("broken")}},
		{name: "explicit file that is empty", explicit: at("empty"), inCluster: inside, errors: []string{at("empty") + " is empty"}},
		{name: "a broken file is not passed over", admin: at("broken"), inCluster: outside, home: at("good"),
			errors: []string{at("broken")}},
		{name: "an empty file is not passed over", admin: at("empty"), inCluster: outside, home: at("good"),
			errors: []string{at("empty") + " is empty"}},
		{name: "nothing", explicit: at("missing"), admin: at("a"), inCluster: outside, home: at("b"),
			errors: []string{"k8s_config_file", at("missing") + ": no such file", "service account", at("a") + ": no such file",
				at("b") + ": no such file"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, where, err := findConfig(tt.explicit, tt.admin, tt.inCluster, tt.home)
			if (err != nil) != (tt.errors != nil) {
				t.Fatalf("error %v", err)
			}
			check.Contains(t, fmt.Sprint(err), tt.errors...)
			if err == nil && (cfg.Host != tt.host || where.Text != tt.where) {
				t.Errorf("%s from %v, want %s from %s", cfg.Host, where, tt.host, tt.where)
			}
		})
	}
}

// TestConnectUserMergesFiles: the files that KUBECONFIG names are merged, as by kubectl: contexts and clusters of all
// are known, what is in several is that of the first, and files that are empty or not there do not count.
func TestConnectUserMergesFiles(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		check.OK(t, os.WriteFile(file, []byte(text), 0o600))
		return file
	}
	config := func(name, server, current string) string {
		return `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"` + name + `","cluster":{"server":"` + server +
			`"}}],"contexts":[{"name":"` + name + `","context":{"cluster":"` + name + `"}}]` + current + `}`
	}
	a, b := write("a", config("a", "https://192.0.2.1", `,"current-context":"a"`)),
		write("b", config("b", "https://192.0.2.2", `,"current-context":"b"`))
	only := write("only", `{"apiVersion":"v1","kind":"Config","current-context":"b"}`)
	empty := write("empty", "")
	for _, tt := range []struct{ kubeconfig, context, want string }{
		{a + ":" + b, "", "https://192.0.2.1"},
		{a + ":" + b, "b", "https://192.0.2.2"},
		{b + ":" + a, "", "https://192.0.2.2"},
		{filepath.Join(dir, "typo") + ":" + a + ":" + b, "b", "https://192.0.2.2"},
		{empty + ":" + b, "", "https://192.0.2.2"},
		{only + ":" + a + ":" + b, "", "https://192.0.2.2"},
		{a + ":" + b, "c", ""},
	} {
		t.Setenv("KUBECONFIG", tt.kubeconfig)
		cfg, err := ConnectUser("", tt.context, "test")
		if tt.want == "" {
			check.Contains(t, fmt.Sprint(err), a, b)
			continue
		}
		if err != nil || cfg.Host != tt.want {
			t.Errorf("%+v: %+v, %v", tt, cfg, err)
		}
	}
}

// TestUserFile: a person's own kubeconfig comes before /etc/kubernetes/admin.conf, which Connect would find first,
// and which only root can read.
func TestUserFile(t *testing.T) {
	dir := t.TempDir()
	own, other := filepath.Join(dir, ".kube", "config"), filepath.Join(dir, "other")
	check.OK(t, os.Mkdir(filepath.Join(dir, ".kube"), 0o700))
	check.OK(t, os.WriteFile(own, nil, 0o600))
	check.OK(t, os.WriteFile(other, nil, 0o600))
	for _, tt := range []struct{ file, kubeconfig, option, home, want string }{
		{"", "", "", dir, own},
		{"", "", "", t.TempDir(), ""},
		{"", "", "", "", ""},
		{other, "", "", dir, other},
		{filepath.Join(dir, "typo"), "", "", dir, "no such file"}, // and not a command to another cluster
		{"", filepath.Join(dir, "typo") + ":" + other, own, dir, other},
		{"", other + ":" + own, "", dir, other + " " + own},
		{"", "", other, dir, other},
	} {
		t.Setenv("KUBECONFIG", tt.kubeconfig)
		t.Setenv("k8s_config_file", tt.option)
		got, err := userFiles(tt.file, tt.home)
		if text := strings.Join(got, " "); text != tt.want && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

// TestConnectUserNoFile: a person is told the flag and the variable of a command, and not an option of the manager.
func TestConnectUserNoFile(t *testing.T) {
	if _, err := os.Stat("/etc/kubernetes/admin.conf"); err == nil {
		t.Skip("this machine has /etc/kubernetes/admin.conf")
	}
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBECONFIG", "")
	_, err := ConnectUser("typo", "", "test")
	check.Contains(t, fmt.Sprint(err), "typo: no such file")
	_, err = ConnectUser("", "", "test")
	if err == nil || !strings.HasPrefix(err.Error(),
		"no way to the API server found; name a kubeconfig by --kubeconfig or KUBECONFIG. Tried:\n") ||
		strings.Contains(err.Error(), "k8s_config_file") {
		t.Errorf("without any kubeconfig: %v", err)
	}
}

// TestAwaitConfig: a kubeconfig that is missing, empty or half written is waited for, and one that stays wrong is not.
func TestAwaitConfig(t *testing.T) {
	const empty, none = "", "none"
	half := kubeconfig[:len(kubeconfig)/2]
	tests := []struct {
		name   string
		first  string // what the file contains at first; none: there is no file
		then   string // what it contains after 5 s
		err    string // a part of it
		after  time.Duration
		logged int // lines
	}{
		{name: "there", first: kubeconfig, then: kubeconfig},
		{name: "empty at first", first: empty, then: kubeconfig, after: 5 * time.Second, logged: 1},
		{name: "missing at first", first: none, then: kubeconfig, after: 5 * time.Second, logged: 1},
		{name: "empty, then wrong", first: empty, then: "clusters: [", err: "can't be used", after: 5*time.Second +
			configPeriod, logged: 1},
		{name: "half written for long", first: half, then: kubeconfig, err: "can't be used", after: configPeriod},
		{name: "empty for ever", first: empty, then: empty, err: "is empty", after: configWait, logged: 1},
		{name: "missing for ever", first: none, then: none, err: "k8s_config_file", after: configWait, logged: 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("HOME", t.TempDir())
			file := filepath.Join(t.TempDir(), "admin.conf")
			write := func(text string) {
				if text != none {
					check.OK(t, os.WriteFile(file, []byte(text), 0o600))
				}
			}
			write(tt.first)
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				time.AfterFunc(5*time.Second-time.Millisecond, func() { write(tt.then) })
				var lines strings.Builder
				cfg, where, err := AwaitConfig(t.Context(), Access{File: file}, slog.New(slog.NewTextHandler(&lines, nil)))
				check.Equal(t, time.Since(began), tt.after, "it took")
				if got := strings.Count(lines.String(), "\n"); got != tt.logged || tt.logged > 0 &&
					!strings.Contains(lines.String(), file) {
					t.Errorf("logged, want %d lines that name the file:\n%s", tt.logged, &lines)
				}
				if tt.err != "" {
					check.Contains(t, fmt.Sprint(err), tt.err)
					return
				}
				check.OK(t, err)
				check.Equal(t, cfg.Host, "https://192.0.2.7:6443", "the host")
				check.Equal(t, where.Text, "file "+file, "where from")
			})
		})
	}
}

// TestAwaitConfigStops: a process that is told to stop does not wait any longer.
func TestAwaitConfigStops(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		if _, _, err := AwaitConfig(ctx, Access{}, slog.New(slog.DiscardHandler)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

func TestConnect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config")
	check.OK(t, os.WriteFile(file, []byte(kubeconfig), 0o600))
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "") // set: the user's business, even if empty
	cfg, where, err := Connect(Access{File: file, Server: "https://192.0.2.9:6443", Version: "v1.2.3"})
	check.OK(t, err)
	if cfg.Host != "https://192.0.2.9:6443" || cfg.QPS >= 0 || cfg.UserAgent != "herald/v1.2.3" ||
		cfg.BearerToken != "t" || cfg.Dial == nil {
		t.Errorf("%+v", cfg)
	}
	check.Equal(t, where.Text, "file "+file+", but at https://192.0.2.9:6443", "where from")
	check.Equal(t, os.Getenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS"), pingAfter, "HTTP2_READ_IDLE_TIMEOUT_SECONDS")
	check.Equal(t, os.Getenv("HTTP2_PING_TIMEOUT_SECONDS"), "", "HTTP2_PING_TIMEOUT_SECONDS, which was set")
	_, _, err = Connect(Access{File: file, Server: "https://bad host"})
	check.Contains(t, fmt.Sprint(err), "bad host")
}

// countingServer starts a server with TLS and HTTP/2, which counts the connections that were opened to it.
func countingServer(t *testing.T, h http.Handler) (*httptest.Server, *atomic.Int32) {
	opened := new(atomic.Int32)
	s := httptest.NewUnstartedServer(h)
	s.EnableHTTP2 = true
	s.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			opened.Add(1)
		}
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s, opened
}

// TestClientsShareNoConnection: two Clusters' worth of requests share a connection each, never both one.
func TestClientsShareNoConnection(t *testing.T) {
	s, open := countingServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }))
	cfg := &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1}
	for i, c := range []*rest.Config{cfg, cfg} {
		a := check.Value(newClients(c, newMetrics(), nil))(t)
		for range 5 {
			for _, client := range []rest.Interface{a.core, a.coordination} {
				check.OK(t, client.Get().AbsPath("/version").Do(t.Context()).Error())
			}
		}
		check.Equal(t, open.Load(), int32(i+1), "connections after api %d", i+1)
	}
}

func TestDialOptions(t *testing.T) {
	l := check.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	c := check.Value(dial(t.Context(), "tcp", l.Addr().String()))(t)
	defer c.Close()
	raw := check.Value(c.(*net.TCPConn).SyscallConn())(t)
	for name, o := range map[string]struct{ level, option, want int }{
		"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, 4000},
		"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"TCP_KEEPIDLE":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 2},
		"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 1},
	} {
		raw.Control(func(fd uintptr) {
			if got, err := unix.GetsockoptInt(int(fd), o.level, o.option); err != nil || got != o.want {
				t.Errorf("%s is %d (%v), want %d", name, got, err, o.want)
			}
		})
	}
}

// TestDeadConnection: a watch over a connection that swallows everything ends within seconds. It runs in a network
// namespace of its own, whose loopback device is taken down.
func TestDeadConnection(t *testing.T) {
	const inside = "HERALD_TEST_DEAD_CONNECTION"
	if os.Getenv(inside) == "" {
		if testing.Short() {
			t.Skip("takes seconds; left out by -short")
		}
		cmd := exec.Command(os.Args[0], "-test.run=^TestDeadConnection$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) {
			t.Skipf("no user namespaces here: %v", err)
		}
		t.Logf("%s", out)
		check.OK(t, err)
		return
	}
	setLoopback(t, true)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	enableHTTP2Pings()
	cfg := &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}, QPS: -1, Dial: dial}
	a := check.Value(newClients(cfg, newMetrics(), nil))(t)
	w := check.Value(a.core.Get().Resource("services").Watch(t.Context()))(t)
	defer w.Stop()
	began := time.Now()
	setLoopback(t, false)
	select {
	case <-w.ResultChan():
		t.Logf("the watch ended after %v", time.Since(began))
	case <-time.After(userTimeout + 4*time.Second):
		t.Errorf("a watch over a dead connection goes on after %v", time.Since(began))
	}
}

// setLoopback takes the loopback device of the namespace up or down.
func setLoopback(t *testing.T, up bool) {
	t.Helper()
	fd := check.Value(unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0))(t)
	defer unix.Close(fd)
	r := check.Value(unix.NewIfreq("lo"))(t)
	if up {
		r.SetUint16(unix.IFF_UP)
	}
	check.OK(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r))
}

// TestLogLibrary: what the libraries log is for debugging. (TestMain has called LogLibrary: it must not be called
// while the libraries are at work.)
func TestLogLibrary(t *testing.T) {
	klog.Background().WithName("x").WithValues("k", "v").Info("Warning: something odd", "test", t.Name())
	klog.Background().Error(errors.New("oops"), "something bad")
	klog.Background().V(4).Info("chatter")
	if libraryLog.count("level=DEBUG", "something odd", "k=v", "test=TestLogLibrary") == 0 ||
		libraryLog.count("level=DEBUG", "something bad", "oops") == 0 ||
		libraryLog.count("chatter") != 0 || libraryLog.count() != libraryLog.count("level=DEBUG") {
		t.Errorf("log:\n%s", libraryLog)
	}
	j := &logBuffer{}
	quiet := debugOnly{slog.NewTextHandler(j, nil).WithGroup("g")} // for an operator who sees Info and up
	slog.New(quiet).Error("oops")
	logr.FromSlogHandler(quiet).Error(errors.New("oops"), "bad")
	check.Equal(t, j.count(), 0, "what is logged")
}

func TestCountingTransport(t *testing.T) {
	j, m := &logBuffer{}, newMetrics()
	l := &countingTransport{metrics: m, log: j.logger()}
	ask := func(ctx context.Context, resp *http.Response, err error) {
		l.next = roundTripper(func(*http.Request) (*http.Response, error) { return resp, err })
		r, _ := http.NewRequestWithContext(ctx, "GET", "https://192.0.2.1:6443/api/v1/services", nil)
		got, gotErr := l.RoundTrip(r)
		if got != resp || gotErr != err {
			t.Fatalf("%v, %v were changed to %v, %v", resp, err, got, gotErr)
		}
	}
	logged := func(when string, warns, infos int) {
		t.Helper()
		check.Equal(t, j.count("level=WARN", "can't be reached"), warns, "%s: warnings", when)
		check.Equal(t, j.count("level=INFO", "answers again"), infos, "%s: infos", when)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ask(ctx, nil, context.Canceled)
	logged("a request was called off", 0, 0)
	ask(t.Context(), &http.Response{StatusCode: 200}, nil)
	logged("all is well", 0, 0)
	ask(t.Context(), nil, errors.New("connection refused"))
	ask(t.Context(), nil, errors.New("connection refused"))
	ask(ctx, nil, context.Canceled)
	logged("unreachable", 1, 0)
	ask(t.Context(), &http.Response{StatusCode: 503}, nil)
	ask(t.Context(), &http.Response{StatusCode: 200}, nil)
	logged("back", 1, 1)
	ask(t.Context(), nil, errors.New("connection refused"))
	logged("unreachable again", 2, 1)
	for code, want := range map[string]float64{"200": 2, "503": 1, "error": 5} {
		check.Equal(t, check.Metric(t, "herald_api_requests_total "+code, m.requests), want, "herald_api_requests_total of %s", code)
	}
}

func TestVerbAndResource(t *testing.T) {
	for request, want := range map[string]string{
		"GET /api/v1/services":                                             "list services",
		"GET /api/v1/services?watch=true&resourceVersion=7":                "watch services",
		"GET /api/v1/services?watch=false":                                 "list services",
		"GET /api/v1/namespaces/default/services":                          "list services",
		"PATCH /api/v1/namespaces/default/services/web/status":             "patch services/status",
		"POST /api/v1/namespaces/default/events":                           "create events",
		"GET /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a": "get leases",
		"PUT /apis/coordination.k8s.io/v1/namespaces/kube-system/leases/a": "update leases",
		"DELETE /apis/coordination.k8s.io/v1/namespaces/default/leases/a":  "delete leases",
		"GET /k8s/clusters/c-1/apis/discovery.k8s.io/v1/endpointslices":    "list endpointslices",
		"GET /api/v1/namespaces/api":                                       "get namespaces",
		"GET /version":                                                     "get other",
		"GET /apis":                                                        "get other",
		"GET /api/v1":                                                      "get other",
	} {
		method, url, _ := strings.Cut(request, " ")
		r := httptest.NewRequest(method, url, nil)
		if verb, resource := verbAndResource(r); verb+" "+resource != want {
			t.Errorf("%s: %s %s, want %s", request, verb, resource, want)
		}
	}
}

// TestPatchBody: what is sent for a status, word for word.
func TestPatchBody(t *testing.T) {
	r := &cachedService{version: "17", hasHostAnnotation: true}
	r.Announcer = "old"
	for _, tt := range []struct {
		want string
		host string
		n    int
	}{
		{`{"metadata":{"annotations":{"heraldvip.io/announcer":"kube-system","kube-vip.io/vipHost":"n1"},"resourceVersion":"17"},"status":{"loadBalancer":{"ingress":[{"ip":"10.0.0.0","ipMode":"VIP","ports":[{"port":80,"protocol":"TCP"}]}]}}}`, "n1", 1},
		{`{"metadata":{"annotations":{"heraldvip.io/announcer":null,"kube-vip.io/vipHost":null},"resourceVersion":"17"},"status":{"loadBalancer":{"ingress":null}}}`, "", 0},
	} {
		w := statusOf(0)
		w.VIPHost, w.Ingress = tt.host, w.Ingress[:tt.n]
		if tt.host != "" {
			w.Announcer = "kube-system"
		}
		var got, want any
		check.OK(t, json.Unmarshal(check.Value(patchBody(r, w))(t), &got))
		check.OK(t, json.Unmarshal([]byte(tt.want), &want))
		check.Same(t, want, got, "the patch")
	}
}

// TestHungAPIServer: herald_api_reachable is 0 some seconds after the last answer of a server that accepts requests
// and answers none, and not for one slow answer.
func TestHungAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, hangs := newMetrics(), false
		next := roundTripper(func(r *http.Request) (*http.Response, error) {
			if !hangs {
				return &http.Response{StatusCode: 200}, nil
			}
			<-r.Context().Done()
			return nil, r.Context().Err()
		})
		l := &countingTransport{next: next, metrics: m, log: slog.New(slog.DiscardHandler)}
		ask := func() {
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			r, _ := http.NewRequestWithContext(ctx, "PUT",
				"https://192.0.2.1:6443/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/herald-node-n1", nil)
			_, _ = l.RoundTrip(r)
		}
		want := func(when string, value float64) {
			t.Helper()
			check.Equal(t, check.Metric(t, "", m.reachable), value, "%s: herald_api_reachable", when)
		}
		ask()
		want("answered", 1)
		hangs = true
		ask()
		want("one request was slow", 1)
		ask()
		ask()
		want("no answer for 6 s", 0)
		hangs = false
		ask()
		want("answered again", 1)
	})
}
