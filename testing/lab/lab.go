package lab

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Options of a lab. The zero value is three nodes with kube-proxy in nftables mode.
type Options struct {
	Nodes int // nodes Herald may run on, 1 to 60; 0 means 3
	// only w1 has a kube-proxy, others one rule for default/kubernetes (IPv4): for many nodes
	NoProxies bool
	ProxyMode string // kube-proxy's mode, "nftables" or "iptables"; "" means nftables
	IPv6Only  bool   // no host, Pod or Service has an IPv4 address, but for 127.0.0.1
	Dir       string // for logs, keys and etcd's data; "" means a temporary directory that Down removes
	Parts     string // where the built programs are; "" means bin/parts in the checkout
	Herald    string // the program under test; "" means bin/herald in the checkout
	RBAC      string // YAML that is applied before Up returns, such as `herald manifest rbac` prints
	// user whose requests are logged in logs/audit.log, one JSON object a line; "": none
	Audited string
	Log     io.Writer     // gets a line per step; nil means none
	Wait    time.Duration // how long Up waits for another lab on this machine to end; 0: it fails at once
}

func (o Options) withDefaults() (Options, error) {
	if o.Nodes == 0 {
		o.Nodes = 3
	}
	if o.Nodes < 1 || o.Nodes > 60 {
		return o, fmt.Errorf("a lab can have 1 to 60 nodes, not %d", o.Nodes)
	}
	if o.ProxyMode == "" {
		o.ProxyMode = "nftables"
	}
	if o.ProxyMode != "nftables" && o.ProxyMode != "iptables" {
		return o, fmt.Errorf("kube-proxy's mode can be nftables or iptables here, not %q", o.ProxyMode)
	}
	if o.Log == nil {
		o.Log = io.Discard
	}
	if o.Parts == "" || o.Herald == "" {
		root, err := repoRoot()
		if err != nil {
			return o, err
		}
		o.Parts = cmp.Or(o.Parts, filepath.Join(root, "bin", "parts"))
		o.Herald = cmp.Or(o.Herald, filepath.Join(root, "bin", "herald"))
	}
	// Programs of the lab run in other working directories.
	for _, path := range []*string{&o.Parts, &o.Herald, &o.Dir} {
		if *path == "" {
			continue
		}
		var err error
		if *path, err = filepath.Abs(*path); err != nil {
			return o, err
		}
	}
	return o, nil
}

// Check returns an error for each thing that keeps a lab from coming up: not root, programs not built, packages not
// installed. Herald may be missing.
func Check(o Options) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("the lab needs root, to make network namespaces")
	}
	var errs []error
	for _, p := range programs {
		if _, err := exec.LookPath(filepath.Join(o.Parts, p)); err != nil {
			errs = append(errs, fmt.Errorf("%w: run testing/lab/parts/build.sh", err))
		}
	}
	installed := []string{"ip", "nft"}
	if o.ProxyMode == "iptables" {
		installed = append(installed, "iptables", "ip6tables")
	}
	for _, p := range installed {
		if _, err := exec.LookPath(p); err != nil {
			errs = append(errs, fmt.Errorf("%w: run testing/lab/deps.sh", err))
		}
	}
	return errors.Join(errs...)
}

// A Lab is a cluster that is up.
type Lab struct {
	opts  Options
	dir   string
	temp  bool // dir is to be removed
	lock  *os.File
	hosts []host
	ca    []byte

	etcd   *Process
	api    *Process // the API server
	config *rest.Config
	client kubernetes.Interface
	idle   func() // closes the client's connections

	mu      sync.Mutex // guards pods, proxies and heralds
	pods    map[string]*backend
	heralds map[string]heraldProcess // by node
	proxies map[string]*Process      // the kube-proxies, by node

	controller *Process // of EndpointSlices

	began time.Time

	downOnce sync.Once // guards downErr
	downErr  error
}

// upTimeout is the limit for a lab to come up: 3 s on an idle machine of two cores.
const upTimeout = 2 * time.Minute

// Up brings a lab up, after it removed what a killed one left. On failure only logs are left, if Options.Dir is set.
func Up(ctx context.Context, opts Options) (*Lab, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := Check(opts); err != nil {
		return nil, err
	}
	lock, err := lockMachine(ctx, "as long as it runs:", opts.Wait)
	if err != nil {
		return nil, err
	}
	if err := sweep(); err != nil {
		lock.Close()
		return nil, err
	}
	l := &Lab{opts: opts, dir: opts.Dir, lock: lock, hosts: hosts(opts.Nodes, opts.IPv6Only), pods: map[string]*backend{},
		proxies: map[string]*Process{},
		heralds: map[string]heraldProcess{}, began: time.Now()}
	ctx, cancel := context.WithTimeoutCause(ctx, upTimeout, fmt.Errorf("not up after %v", upTimeout))
	defer cancel()
	if err := l.up(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: %w", err), l.Down())
	}
	return l, nil
}

func (l *Lab) up(ctx context.Context) error {
	if err := l.makeDir(); err != nil {
		return err
	}
	if err := l.writeSecrets(); err != nil {
		return err
	}
	if err := l.buildControlPlane(); err != nil {
		return err
	}
	if err := l.startAPI(); err != nil {
		return err
	}
	l.progress("etcd and API server started")
	// Meanwhile everything else can be plugged in.
	if err := l.buildOtherHosts(); err != nil {
		return err
	}
	l.progress("%d namespaces plugged into the switch", len(l.hosts)+1)
	if err := l.connect(); err != nil {
		return err
	}
	if err := l.awaitAPI(ctx); err != nil {
		return err
	}
	l.progress("API server ready")
	if err := l.startCluster(ctx); err != nil {
		return err
	}
	l.progress("up: nodes %v, kube-proxy in %s mode, logs in %s", l.Nodes(), l.opts.ProxyMode,
		filepath.Join(l.dir, "logs"))
	return nil
}

func (l *Lab) buildControlPlane() error {
	if err := buildSwitch(); err != nil {
		return err
	}
	return buildHost(l.host("cp"), l.hosts)
}

func (l *Lab) buildOtherHosts() error {
	for _, h := range l.hosts {
		if h.name == "cp" {
			continue
		}
		if err := buildHost(h, l.hosts); err != nil {
			return err
		}
	}
	return nil
}

// startCluster starts controller and kube-proxies, writes Nodes and Options.RBAC, and waits until all are ready.
func (l *Lab) startCluster(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.startController(ctx) })
	for _, h := range l.hosts {
		if h.node {
			g.Go(func() error {
				if err := l.writeNode(ctx, h); err != nil {
					return err
				}
				if l.opts.NoProxies && h.name != "w1" {
					return l.forwardAPIServer(ctx, h)
				}
				return l.startProxy(ctx, h)
			})
		}
	}
	if l.opts.RBAC != "" {
		g.Go(func() error { return l.Apply(ctx, l.opts.RBAC) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	l.progress("controller of EndpointSlices and kube-proxies ready")
	for _, h := range l.hosts {
		if h.node { // Herald runs with the kernel's default
			if err := inNamespace(h.name, func() error { return setSysctls("net/ipv6/conf/eth0/accept_dad=1") }); err != nil {
				return err
			}
		}
	}
	return nil
}

// Down ends every process of the lab and removes namespaces and links. Options.Dir keeps its logs. Only the first call
// does it, since the namespaces may be another lab's later; others wait and return the same error.
func (l *Lab) Down() error {
	l.downOnce.Do(func() { l.downErr = l.remove() })
	return l.downErr
}

func (l *Lab) remove() error {
	if l.idle != nil {
		l.idle()
	}
	err := clearNetns()
	if l.temp {
		err = errors.Join(err, os.RemoveAll(l.dir))
	} else {
		for _, name := range []string{"etcd", "pki", "conf"} {
			err = errors.Join(err, os.RemoveAll(filepath.Join(l.dir, name)))
		}
	}
	if err == nil {
		l.progress("down")
	}
	if l.lock != nil {
		err = errors.Join(err, l.lock.Close())
	}
	return err
}

func (l *Lab) makeDir() error {
	if l.dir == "" {
		dir, err := os.MkdirTemp("", tempPattern)
		if err != nil {
			return err
		}
		l.dir, l.temp = dir, true
	}
	// Old data would be read as this cluster's, and so would old logs.
	for _, sub := range []string{"etcd", "logs", "pki", "conf/home"} {
		if err := os.RemoveAll(filepath.Join(l.dir, sub)); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(l.dir, sub), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func (l *Lab) progress(format string, args ...any) {
	fmt.Fprintf(l.opts.Log, "%6.1fs  %s\n", time.Since(l.began).Seconds(), fmt.Sprintf(format, args...))
}

func (l *Lab) host(name string) host {
	for _, h := range l.hosts {
		if h.name == name {
			return h
		}
	}
	return host{}
}

// Dir is the lab's directory, with all logs in logs/.
func (l *Lab) Dir() string { return l.dir }

// Nodes names the nodes Herald may run on: n1, n2, ...
func (l *Lab) Nodes() []string {
	var names []string
	for _, h := range l.hosts {
		if h.node && h.name != "w1" {
			names = append(names, h.name)
		}
	}
	return names
}

// Addrs returns a host's addresses on the LAN ("n1", "w1", "cl", "rt", "pr"), with IPv6Only not the first.
func (l *Lab) Addrs(name string) (v4, v6 netip.Addr) {
	h := l.host(name)
	return h.lan4(), h.lan6()
}

// MAC is the hardware address of a host's eth0.
func (l *Lab) MAC(name string) string { return l.host(name).mac(0x77).String() }

// Since is when the lab was brought up.
func (l *Lab) Since() time.Time { return l.began }
