package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
)

// Kubelets is a lab of real nodes: each is containerd, kubelet and what they start,
// in namespaces that look like a machine. kubeadm makes a cluster of them,
// with a control plane on every node (docs/why.md, "The lab"):
//
//	            switch: bridge "lan" 10.77.0.0/24: VIPs, pods, clients
//	 ┌─────┬───┴─┬─────┬─────┬─────┐
//	n1    n2    n3    rt    cl    pr
//	 └─────┴─────┴─────┬───── cp (kubectl)
//	            switch: bridge "mgmt" 10.78.0.0/24: etcd and API servers
//
// Beside what Lab needs, it takes the programs that
// testing/lab/nodes/parts/build.sh builds, and containerd, runc and the CNI plugins, which
// testing/lab/deps.sh installs.
type Kubelets struct {
	*Lab
	vip      netip.Addr
	onLAN    bool
	starters map[string]*Process // by node: what started its PID 1
	avoided  atomic.Value        // a node whose API server is asked last

	downOnce sync.Once
	downErr  error
}

// KubeletOptions say what a lab of real nodes is made of.
type KubeletOptions struct {
	Options
	VIP    netip.Addr // of the control plane
	Images []string   // image archives that every node gets, beside those of Kubernetes
	OnLAN  bool       // the InternalIP of a Node is its address on the LAN, not that on the management network
}

const (
	ToolImage = "lab.local/tool:1" // pause, web
	token     = "herald.0123456789abcdef"
	// certificateKey encrypts the keys that kubeadm hands to other nodes.
	certificateKey = "0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796a5b4c3d2e1f0"
)

// podImages are the images of kubeadm's static Pods, by program.
func podImages(version string) map[string]string {
	images := map[string]string{"etcd": "registry.k8s.io/etcd:3.6.8-0"}
	for _, p := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		images[p] = "registry.k8s.io/" + p + ":" + version
	}
	return images
}

// CheckKubelets returns an error for each thing that keeps a lab of real nodes from coming up.
func CheckKubelets(o Options) error {
	err := Check(o)
	o, e := o.withDefaults()
	if e != nil {
		return e
	}
	errs := []error{err}
	for _, p := range []string{"kubelet", "kubeadm", "kube-scheduler", "kube-controller-manager"} {
		if _, err := exec.LookPath(filepath.Join(o.Parts, p)); err != nil {
			errs = append(errs, fmt.Errorf("%w: run testing/lab/nodes/parts/build.sh", err))
		}
	}
	for _, p := range []string{"containerd", "ctr", "runc", "unshare", "nsenter", "/usr/lib/cni/bridge"} {
		if _, err := exec.LookPath(p); err != nil {
			errs = append(errs, fmt.Errorf("%w: run testing/lab/deps.sh", err))
		}
	}
	return errors.Join(errs...)
}

// UpKubelets brings up real nodes that run containerd, and no cluster yet.
func UpKubelets(ctx context.Context, o KubeletOptions) (*Kubelets, error) {
	var err error
	if o.Options, err = o.Options.withDefaults(); err != nil {
		return nil, err
	}
	if err := CheckKubelets(o.Options); err != nil {
		return nil, err
	}
	lock, err := lockMachine(ctx, "as long as it runs:", o.Wait)
	if err != nil {
		return nil, err
	}
	if err := sweep(); err != nil {
		lock.Close()
		return nil, err
	}
	all := slices.DeleteFunc(hosts(o.Nodes, false), func(h host) bool { return h.name == "w1" })
	k := &Kubelets{
		Lab: &Lab{opts: o.Options, dir: o.Dir, lock: lock, hosts: all, pods: map[string]*backend{},
			heralds: map[string]heraldProcess{}, began: time.Now()},
		vip: o.VIP, onLAN: o.OnLAN, starters: map[string]*Process{},
	}
	if err := k.up(ctx, o); err != nil {
		return nil, errors.Join(fmt.Errorf("lab: %w", err), k.Down())
	}
	return k, nil
}

func (k *Kubelets) up(ctx context.Context, o KubeletOptions) error {
	if err := errors.Join(k.makeDir(), os.RemoveAll(filepath.Join(k.dir, "nodes"))); err != nil {
		return err
	}
	if err := buildSwitch(); err != nil {
		return err
	}
	for _, h := range k.hosts {
		if err := buildHost(h, k.hosts); err != nil {
			return err
		}
	}
	k.progress("%d namespaces plugged into the switch", len(k.hosts)+1)
	if err := k.writeImages(ctx, o.Images); err != nil {
		return err
	}
	k.progress("images written")
	for _, n := range k.Nodes() {
		if err := k.PowerOn(n); err != nil {
			return err
		}
	}
	for _, n := range k.Nodes() {
		if err := k.awaitFile(ctx, n, "images-done"); err != nil {
			return err
		}
	}
	k.progress("nodes %v run containerd and have their images", k.Nodes())
	return nil
}

// Down ends every node and removes its namespaces, cgroups and disks.
func (k *Kubelets) Down() error {
	k.downOnce.Do(func() {
		err := clearNetns()
		if !k.temp { // a disk is gigabytes
			err = errors.Join(err, os.RemoveAll(filepath.Join(k.dir, "nodes")), os.RemoveAll(filepath.Join(k.dir, "images")))
		}
		k.downErr = errors.Join(err, removeCgroups(prefix+"*"), k.Lab.Down())
	})
	return k.downErr
}

// writeImages writes images of Kubernetes and the lab to where nodes look for them.
func (k *Kubelets) writeImages(ctx context.Context, more []string) error {
	dir := filepath.Join(k.dir, "images")
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		return err
	}
	root, err := repoRoot()
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", filepath.Join(dir, "tool"),
		"./testing/lab/nodes/tool")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the tool: %w: %s", err, text)
	}
	var g errgroup.Group
	g.SetLimit(2) // each holds a program in memory
	g.Go(func() error {
		return writeImage(filepath.Join(dir, "tool.tar"), filepath.Join(dir, "tool"), nil, ToolImage)
	})
	for program, name := range podImages(kubeVersion) {
		g.Go(func() error { return writeImage(filepath.Join(dir, program+".tar"), k.programPath(program), nil, name) })
	}
	for _, archive := range more {
		g.Go(func() error { return os.Link(archive, filepath.Join(dir, filepath.Base(archive))) })
	}
	return g.Wait()
}

const kubeVersion = "v1.36.3"

func (k *Kubelets) nodeDir(node string) string { return filepath.Join(k.dir, "nodes", node) }

// File is a file of a node's own directories (etc/kubernetes, var/lib/kubelet...), as this process sees it.
func (k *Kubelets) File(node, path string) string { return filepath.Join(k.nodeDir(node), "own", path) }

// PowerOn starts a node, with the disk that it had before, if any.
func (k *Kubelets) PowerOn(node string) error {
	h := k.host(node)
	if err := k.writeNodeFiles(h); err != nil {
		return err
	}
	root, err := repoRoot()
	if err != nil {
		return err
	}
	p, err := k.Start(node, "node-"+node, []string{"unshare", "-m", "-u", "-i", "-p", "-f", "--kill-child=SIGKILL",
		filepath.Join(root, "testing/lab/nodes/node.sh"), node, k.nodeDir(node), k.opts.Parts})
	if err != nil {
		return err
	}
	k.starters[node] = p
	return nil
}

// PowerOff cuts a node's power: it leaves the network, and all processes are killed. Its disk stays.
func (k *Kubelets) PowerOff(ctx context.Context, node string) error {
	err := errors.Join(k.Cut(node), k.CutAPI(node))
	if p := k.starters[node]; p != nil {
		p.Kill()
	}
	// Every process in the network namespace is the node's; its pods end with its PID 1.
	err = errors.Join(err, killProcessesIn(node))
	// What a kernel keeps in memory is lost: addresses, rules, connections, cgroups. kubelet takes 3 s for each pod's
	// cgroup that it finds.
	if e := deleteNetns(node); e != nil {
		return errors.Join(err, e)
	}
	for _, bridge := range []string{lanBridge, mgmtBridge} {
		err = errors.Join(err, k.awaitPortRemoved(ctx, bridge, node))
	}
	return errors.Join(err, k.removeNodeCgroups(ctx, node), buildHost(k.host(node), k.hosts), k.Cut(node), k.CutAPI(node))
}

// Boot starts a node again after PowerOff, and reconnects it.
func (k *Kubelets) Boot(node string) error {
	return errors.Join(k.PowerOn(node), k.Reconnect(node), k.ConnectAPI(node))
}

// awaitPortRemoved waits until a removed node's port on the bridge is gone, or removes it.
func (k *Kubelets) awaitPortRemoved(ctx context.Context, bridge, node string) error {
	for {
		if _, err := k.Run(ctx, "switch", "ip", "link", "show", bridge+"-"+node); err != nil {
			return ctx.Err()
		}
		if _, err := k.Run(ctx, "switch", "ip", "link", "del", bridge+"-"+node); err != nil {
			return nil // gone meanwhile
		}
	}
}

// removeNodeCgroups removes the cgroups of a node of killed processes. It tries for 5 s: a cgroup's last process must
// be gone.
func (k *Kubelets) removeNodeCgroups(ctx context.Context, node string) error {
	for timeout := time.After(5 * time.Second); ; {
		err := removeCgroups(prefix + node)
		if err == nil {
			return nil
		}
		select {
		case <-timeout:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// RunOnNode runs a program in all namespaces of a node, and returns its standard output.
func (k *Kubelets) RunOnNode(ctx context.Context, node string, argv ...string) (string, error) {
	pid, err := k.pid1(node)
	if err != nil {
		return "", err
	}
	return k.Run(ctx, node, append([]string{"nsenter", "-t", strconv.Itoa(pid), "-m", "-u", "-i", "-p", "--"}, argv...)...)
}

func (k *Kubelets) pid1(node string) (int, error) {
	p := k.starters[node]
	if p == nil || !p.Running() {
		return 0, fmt.Errorf("node %s has no power", node)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", p.Pid))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func (k *Kubelets) awaitFile(ctx context.Context, node, name string) error {
	p := k.starters[node]
	return k.await(ctx, p, func() error {
		_, err := os.Stat(filepath.Join(k.nodeDir(node), name))
		return err
	})
}

// Init makes a cluster of its first node by kubeadm, and Join adds one to its control plane. Both return what kubeadm
// printed.
func (k *Kubelets) Init(ctx context.Context) (string, error) {
	if err := k.writeFile(k.Nodes()[0], "etc/kubernetes/kubeadm.yaml", k.initConfig(k.host(k.Nodes()[0]))); err != nil {
		return "", err
	}
	output, err := k.kubeadm(ctx, k.Nodes()[0], "init", "--upload-certs")
	if err != nil {
		return output, err
	}
	return output, k.connectKubelets()
}

// Join adds a node to the cluster that Init has made.
func (k *Kubelets) Join(ctx context.Context, node string) (string, error) {
	if err := k.writeFile(node, "etc/kubernetes/kubeadm.yaml", k.joinConfig(k.host(node))); err != nil {
		return "", err
	}
	return k.kubeadm(ctx, node, "join")
}

func (k *Kubelets) kubeadm(ctx context.Context, node, what string, args ...string) (string, error) {
	pid, err := k.pid1(node)
	if err != nil {
		return "", err
	}
	argv := append([]string{"nsenter", "-t", strconv.Itoa(pid), "-m", "-u", "-i", "-p", "--",
		k.programPath("kubeadm"), what, "--config=/etc/kubernetes/kubeadm.yaml", "--ignore-preflight-errors=all"}, args...)
	p, err := k.Start(node, "kubeadm-"+what+"-"+node, argv)
	if err != nil {
		return "", err
	}
	if err := p.Wait(ctx); err != nil {
		return p.Log(), fmt.Errorf("kubeadm %s on %s: %w:\n%s", what, node, err, p.tail())
	}
	return p.Log(), nil
}

// connectKubelets makes the admin's client of what kubeadm has written, for any API server, never by the VIP.
func (k *Kubelets) connectKubelets() error {
	config, err := clientcmd.BuildConfigFromFlags("", k.File(k.Nodes()[0], "etc/kubernetes/admin.conf"))
	if err != nil {
		return err
	}
	config.TLSClientConfig.ServerName, config.QPS, config.Dial = "kubernetes", -1, k.dialAny
	k.config = config
	if k.client, k.idle, err = newClient(config); err != nil {
		return err
	}
	return k.UseAPI(k.Nodes()[0])
}

// writeKubeconfigFor writes the admin's kubeconfig for the API server of a node.
func (k *Kubelets) writeKubeconfigFor(node, file string) error {
	return k.writeAdminKubeconfig(k.host(node).mgmt4(), file)
}

// WriteLANKubeconfig writes the admin's kubeconfig for a node's API server on the LAN, for hosts without management
// network.
func (k *Kubelets) WriteLANKubeconfig(node, file string) error {
	return k.writeAdminKubeconfig(k.host(node).lan4(), file)
}

func (k *Kubelets) writeAdminKubeconfig(server netip.Addr, file string) error {
	c, err := clientcmd.LoadFromFile(k.File(k.Nodes()[0], "etc/kubernetes/admin.conf"))
	if err != nil {
		return err
	}
	for _, cluster := range c.Clusters {
		cluster.Server, cluster.TLSServerName = "https://"+server.String()+":6443", "kubernetes"
	}
	return clientcmd.WriteToFile(*c, file)
}

// UseAPI has kubectl use the API server of a node from now on.
func (k *Kubelets) UseAPI(node string) error {
	return k.writeKubeconfigFor(node, k.kubeconfig("admin"))
}

func (k *Kubelets) writeFile(node, path, text string) error {
	file := k.File(node, path)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	// kubelet reads files as soon as they appear: never half of one.
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// StaticPod gives a manifest to the node's kubelet; "" removes it.
func (k *Kubelets) StaticPod(node, name, yaml string) error {
	path := filepath.Join("etc/kubernetes/manifests", name+".yaml")
	if yaml == "" {
		return os.Remove(k.File(node, path))
	}
	dir := filepath.Dir(k.File(node, path))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	// A name that begins with a dot is not read.
	temporary := filepath.Join(dir, "."+name)
	return errors.Join(os.WriteFile(temporary, []byte(yaml), 0o600),
		os.Rename(temporary, filepath.Join(dir, name+".yaml")))
}

func removeCgroups(pattern string) error {
	dirs, _ := filepath.Glob("/sys/fs/cgroup/*/" + pattern) // the pattern is well-formed
	var errs []error
	for _, dir := range dirs {
		var all []string
		filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				all = append(all, path)
			}
			return nil
		})
		for _, d := range slices.Backward(all) { // children first
			if err := unix.Rmdir(d); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove cgroup %s: %w", d, err))
			}
		}
	}
	return errors.Join(errs...)
}

// StartProxies starts a kube-proxy on every node, for its own API server.
func (k *Kubelets) StartProxies(ctx context.Context) error {
	for _, n := range k.Nodes() {
		if err := k.StartProxy(n); err != nil {
			return err
		}
	}
	for _, n := range k.Nodes() {
		p := k.starters[n]
		if err := k.await(ctx, p, func() error {
			_, err := k.Get(ctx, n, "http://127.0.0.1:10256/healthz")
			return err
		}); err != nil {
			return fmt.Errorf("kube-proxy on %s: %w", n, err)
		}
	}
	return nil
}

// StartProxy starts a kube-proxy on a node.
func (k *Kubelets) StartProxy(node string) error {
	kubeconfig := k.conf("kube-proxy-" + node + ".conf")
	if err := k.writeKubeconfigFor(node, kubeconfig); err != nil {
		return err
	}
	_, err := k.spawnProxy(node, kubeconfig)
	return err
}
