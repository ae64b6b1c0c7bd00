package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/heraldvip/herald/pkg/mailbox"
)

// Access says how to reach the API server.
type Access struct {
	File    string // a kubeconfig to try first (k8s_config_file), or ""
	Server  string // the URL to use instead of the one found (kubernetes_addr), or ""
	Context string // of the kubeconfig; "" is its current one
	Version string // Herald's version, for the User-Agent

	// Servers, if not nil, are the API servers to connect to first.
	Servers *Servers

	merge []string // kubeconfigs that are merged with File, as kubectl does with those that KUBECONFIG names
}

// Times after which a dead connection is noticed: the defaults' half minutes would leave watches stale.
const (
	dialTimeout = 4 * time.Second
	// userTimeout closes a connection that acknowledges nothing (TCP_USER_TIMEOUT in tcp(7), RFC 5482). It is shorter than
	// pingAfter: a ping in flight stops the kernel's probes, and restarts the time.
	userTimeout   = 4 * time.Second
	keepAliveIdle = 2 * time.Second // TCP keep-alive: silence before the first probe
	keepAliveNext = 1 * time.Second
	// A process that hangs answers no HTTP/2 pings (RFC 9113 section 6.7). Whole seconds; see enableHTTP2Pings.
	pingAfter   = "5"
	pingTimeout = "5"
)

// ConnectUser finds the API server by userFiles, else like Connect.
func ConnectUser(file, contextName, version string) (*rest.Config, error) {
	home, _ := os.UserHomeDir()
	files, err := userFiles(file, home)
	if err != nil {
		return nil, err
	}
	cfg, origin, err := Connect(Access{File: files[0], merge: files[1:], Context: contextName, Version: version})
	if none := (noFileError{}); errors.As(err, &none) {
		return nil, fmt.Errorf("%w; name a kubeconfig by --kubeconfig or KUBECONFIG. Tried:\n%w", errNoConfig, none.tried)
	} else if err != nil {
		return nil, err
	}
	if contextName != "" && origin.File == "" {
		return nil, fmt.Errorf("--context needs a kubeconfig, and %s is none: name one by --kubeconfig", origin.Text)
	}
	return cfg, nil
}

// userFiles returns a person's kubeconfigs by precedence: file, KUBECONFIG, k8s_config_file, or home's.
func userFiles(file, home string) ([]string, error) {
	if file != "" {
		// another one may be of another cluster
		if _, err := os.Stat(file); err != nil {
			return nil, fmt.Errorf("the kubeconfig that --kubeconfig names can't be read: %w", err)
		}
		return []string{file}, nil
	}
	missing := func(p string) bool { _, err := os.Stat(p); return err != nil }
	named, option := filepath.SplitList(os.Getenv("KUBECONFIG")), os.Getenv("k8s_config_file")
	if there := slices.DeleteFunc(slices.Clone(named), missing); len(there) > 0 {
		return there, nil
	}
	if !missing(option) {
		return []string{option}, nil
	}
	if len(named) > 0 {
		return nil, fmt.Errorf("KUBECONFIG names %s, and there is no such file", strings.Join(named, ", "))
	}
	own := filepath.Join(home, ".kube", "config")
	if home == "" || missing(own) {
		return []string{""}, nil
	}
	return []string{own}, nil
}

// An Origin is by what the API server was found.
type Origin struct {
	File string // the kubeconfig, the first of several; "": the Pod's account
	Text string // all of it, for people
}

// Connect finds the API server by a.File, admin.conf, the Pod's account, or .kube/config, and says which.
func Connect(a Access) (cfg *rest.Config, origin Origin, err error) {
	enableHTTP2Pings()
	home, _ := os.UserHomeDir()
	files := append([]string{a.File}, a.merge...)
	if len(a.merge) == 0 {
		cfg, origin, err = findConfig(a.File, "/etc/kubernetes/admin.conf", rest.InClusterConfig,
			filepath.Join(home, ".kube", "config"))
		if err != nil {
			return nil, origin, err
		}
		files[0] = origin.File
	} else {
		origin = Origin{files[0], "file " + strings.Join(files, ", ")}
	}
	if len(a.merge) > 0 || a.Context != "" && files[0] != "" {
		rules, chosen := &clientcmd.ClientConfigLoadingRules{Precedence: files},
			&clientcmd.ConfigOverrides{CurrentContext: a.Context}
		if cfg, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, chosen).ClientConfig(); err != nil {
			return nil, origin, fmt.Errorf("the context %s of the kubeconfig %s can't be used: %w",
				cmp.Or(a.Context, "that is the current one"), strings.Join(files, ", "), err)
		}
	}
	if a.Server != "" {
		cfg.Host = a.Server
		origin.Text += ", but at " + a.Server
	}
	u, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, origin, fmt.Errorf("the API server's address %q (from %s) can't be used: %w", cfg.Host, origin.Text, err)
	}
	cfg.QPS = -1
	cfg.UserAgent = "herald/" + a.Version
	cfg.Dial = dial
	if a.Servers != nil {
		first := ""
		if a.Server != "" { // the one that was named comes before all others
			first = net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))
		}
		a.Servers.configure(cfg, first)
		origin.Text += ", this node's own API server first"
	}
	return cfg, origin, nil
}

// How long AwaitConfig waits, and how often it looks. A mounted file that a rename replaces is seen by the next
// container only, so the process ends for kubelet to start it again.
const (
	configWait   = 2 * time.Minute
	configPeriod = 500 * time.Millisecond
)

// errNoConfig is within the errors of Connect that end once somebody writes a kubeconfig.
var errNoConfig = errors.New("no way to the API server found")

// AwaitConfig is Connect, tried for two minutes: a kubeconfig may be absent, or half written.
func AwaitConfig(ctx context.Context, a Access, log *slog.Logger) (*rest.Config, Origin, error) {
	began, failed := time.Now(), false
	for waited := false; ; waited = true {
		cfg, origin, err := Connect(a)
		missing := errors.Is(err, errNoConfig)
		switch {
		case err == nil:
			return cfg, origin, nil
		case !missing && failed:
			return nil, origin, err
		case missing && time.Since(began) >= configWait:
			return nil, origin, fmt.Errorf("waited %v: %w", configWait, err)
		case missing && !waited:
			log.Warn("waiting for a kubeconfig, such as kubeadm writes", "for", configWait, "err", err)
		}
		failed = !missing
		if !mailbox.Sleep(ctx, configPeriod) {
			return nil, origin, ctx.Err()
		}
	}
}

// findConfig returns the first configuration, and where that is.
func findConfig(explicit, admin string, inCluster func() (*rest.Config, error), home string) (
	cfg *rest.Config, origin Origin, err error) {
	const pod = "the Pod's service account"
	account, noAccount := inCluster()
	why, tried := "", []error(nil)
	for _, source := range []string{explicit, admin, pod, home} {
		if source == pod {
			if noAccount == nil {
				return account, Origin{Text: pod + why}, nil
			}
			tried = append(tried, fmt.Errorf("%s: %w", pod, noAccount))
			continue
		}
		about, err := os.Stat(source)
		switch {
		case source == "":
			continue
		case errors.Is(err, fs.ErrNotExist):
			tried = append(tried, fmt.Errorf("%s: no such file", source))
			continue
		case err == nil && source == admin && noAccount == nil && (about.Size() == 0 || about.IsDir()):
			why = ", since " + admin + " is empty" // kubelet has made it, for a mount of a file that the node lacks
			continue
		case err == nil && about.Size() == 0: // hostPath of type FileOrCreate makes it so
			return nil, origin, fmt.Errorf("%w: the kubeconfig %s is empty", errNoConfig, source)
		}
		// A file that is wrong is an error: the next one may be for another cluster.
		if cfg, err = clientcmd.BuildConfigFromFlags("", source); err != nil {
			return nil, origin, fmt.Errorf("the kubeconfig %s can't be used: %w", source, err)
		}
		if origin = (Origin{source, "file " + source}); source == admin && noAccount == nil {
			origin.Text += ", not by " + pod
		}
		return cfg, origin, nil
	}
	return nil, origin, noFileError{errors.Join(tried...)}
}

// A noFileError says that there is no kubeconfig, and which were tried, to who sets the manager's options.
type noFileError struct{ tried error }

func (e noFileError) Error() string {
	return fmt.Sprintf("%v; set k8s_config_file to a kubeconfig. A worker has none: there Herald runs in a DaemonSet, "+
		"by its ServiceAccount. Tried:\n%v", errNoConfig, e.tried)
}

func (e noFileError) Is(target error) bool { return target == errNoConfig }

// dial opens connections that notice a gone server within seconds.
func dial(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{
		Timeout:         dialTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: keepAliveIdle, Interval: keepAliveNext, Count: 3},
		Control: func(_, _ string, c syscall.RawConn) (err error) {
			controlErr := c.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(userTimeout.Milliseconds()))
			})
			return cmp.Or(controlErr, err)
		},
	}
	return d.DialContext(ctx, network, address)
}

// enableHTTP2Pings has HTTP/2 connections pinged; libraries read only the environment.
func enableHTTP2Pings() {
	for name, value := range map[string]string{
		"HTTP2_READ_IDLE_TIMEOUT_SECONDS": pingAfter,
		"HTTP2_PING_TIMEOUT_SECONDS":      pingTimeout,
	} {
		if _, set := os.LookupEnv(name); !set {
			os.Setenv(name, value)
		}
	}
}

// LogLibrary logs what Kubernetes libraries say at level Debug; for main alone.
func LogLibrary(log *slog.Logger) {
	klog.SetSlogLogger(slog.New(debugOnly{log.Handler()}))
}

type debugOnly struct{ slog.Handler }

// Enabled leaves out verbose levels, below Info.
func (d debugOnly) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelInfo && d.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle asks again for Debug: errors come without a call of Enabled.
func (d debugOnly) Handle(ctx context.Context, r slog.Record) error {
	if !d.Handler.Enabled(ctx, slog.LevelDebug) {
		return nil
	}
	r.Level = slog.LevelDebug
	return d.Handler.Handle(ctx, r)
}

func (d debugOnly) WithAttrs(a []slog.Attr) slog.Handler { return debugOnly{d.Handler.WithAttrs(a)} }
func (d debugOnly) WithGroup(name string) slog.Handler   { return debugOnly{d.Handler.WithGroup(name)} }
