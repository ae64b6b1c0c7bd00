package lab

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

var backendPorts = []uint16{80, 8080}

// A Pod is a backend: a namespace with a web server behind a node, and its Pod object. It answers requests with "pod
// node client", the source address that it saw.
type Pod struct {
	Namespace string // "" means default; it must exist
	Name      string
	Node      string // "n1".. or "w1"
	Labels    map[string]string
	NotReady  bool // begins as not ready
}

func (p Pod) namespace() string {
	if p.Namespace == "" {
		return "default"
	}
	return p.Namespace
}

func (p Pod) key() string { return p.namespace() + "/" + p.Name }

// PodNamespace is the network namespace of a pod, for Do and Run.
func PodNamespace(p Pod) string { return "p-" + p.namespace() + "-" + p.Name }

type backend struct {
	Pod   Pod
	Index int // its addresses are the node's pod ranges' Index-th
	PID   int
}

// AddPod starts a backend and writes its Pod, as a kubelet would; EndpointSlices follow.
func (l *Lab) AddPod(ctx context.Context, p Pod) error {
	h := l.host(p.Node)
	if !h.node {
		return fmt.Errorf("pod %s: there is no node %q", p.key(), p.Node)
	}
	b, err := l.reservePod(p)
	if err != nil {
		return err
	}
	v4, v6 := nth(h.pods4(), b.Index), nth(h.pods6(), b.Index)
	err = l.startBackend(b, h, v4, v6)
	if err == nil {
		err = l.writePod(ctx, p, h, v4, v6)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("pod %s: %w", p.key(), err), l.RemovePod(context.WithoutCancel(ctx), p))
	}
	return nil
}

// reservePod records the pod with the lowest free index of its node, from 2; an error if it exists.
func (l *Lab) reservePod(p Pod) (*backend, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pods[p.key()] != nil {
		return nil, fmt.Errorf("pod %s is there already", p.key())
	}
	taken := map[int]bool{}
	for _, b := range l.pods {
		taken[b.Index] = taken[b.Index] || b.Pod.Node == p.Node
	}
	b := &backend{Pod: p, Index: 2}
	for taken[b.Index] {
		b.Index++
	}
	l.pods[p.key()] = b
	return b, nil
}

// startBackend plugs a namespace into the node's pod bridge and starts the server in it.
func (l *Lab) startBackend(b *backend, h host, v4, v6 netip.Addr) error {
	ns := PodNamespace(b.Pod)
	if err := createNetns(ns, hostSysctls...); err != nil {
		return err
	}
	peer, err := netns.GetFromPath(netnsPath(ns))
	if err != nil {
		return err
	}
	defer peer.Close()
	err = withNetlink(h.name, func(nl *netlink.Handle) error {
		cni, err := nl.LinkByName("cni0")
		if err != nil {
			return err
		}
		veth := netlink.NewVeth(linkAttrs(fmt.Sprintf("pod%d", b.Index)))
		veth.MasterIndex = cni.Attrs().Index
		veth.PeerName, veth.PeerNamespace = "eth0", netlink.NsFd(peer)
		if err := nl.LinkAdd(veth); err != nil {
			return fmt.Errorf("link to %s: %w", h.name, err)
		}
		return nl.LinkSetHairpin(veth, true) // a pod may reach itself by its Service
	})
	if err != nil {
		return err
	}
	err = withNetlink(ns, func(nl *netlink.Handle) error {
		if err := configure(nl, "eth0", h.hasPrefixes(netip.PrefixFrom(v4, 24), netip.PrefixFrom(v6, 64))...); err != nil {
			return err
		}
		var errs []error
		for _, gw := range h.has(nth(h.pods4(), 1), nth(h.pods6(), 1)) {
			errs = append(errs, nl.RouteAdd(&netlink.Route{Gw: gw.AsSlice()}))
		}
		return errors.Join(errs...)
	})
	if err != nil {
		return err
	}
	return l.execBackend(b, ns)
}

// execBackend starts the server with open listeners: the pod never refuses a connection.
func (l *Lab) execBackend(b *backend, ns string) error {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{backendName, b.Pod.Name, b.Pod.Node}
	cmd.Env = l.environment("GOMAXPROCS=1")
	for _, port := range backendPorts {
		var ln net.Listener
		err := inNamespace(ns, func() (err error) {
			ln, err = net.Listen("tcp", fmt.Sprintf("[::]:%d", port))
			return err
		})
		if err != nil {
			return err
		}
		f, err := ln.(*net.TCPListener).File()
		ln.Close()
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	p, err := l.spawn(ns, "pod-"+strings.ReplaceAll(b.Pod.key(), "/", "-"), cmd)
	if err == nil {
		b.PID = p.Pid
	}
	return err
}

func (l *Lab) writePod(ctx context.Context, p Pod, h host, v4, v6 netip.Addr) error {
	grace := int64(0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace(), Name: p.Name, Labels: p.Labels},
		Spec: corev1.PodSpec{NodeName: h.name, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "web", Image: "lab/web"}}},
	}
	pods := l.client.CoreV1().Pods(p.namespace())
	pod, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create: %w", err)
	}
	now, ready := metav1.Now(), conditionStatus(!p.NotReady)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, StartTime: &now,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: ready, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: now},
		},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "web", Image: "lab/web", ImageID: "lab/web", Ready: !p.NotReady,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}},
	}
	for _, a := range h.has(v4, v6) {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	for _, a := range h.has(h.lan4(), h.lan6()) {
		pod.Status.HostIPs = append(pod.Status.HostIPs, corev1.HostIP{IP: a.String()})
	}
	pod.Status.PodIP, pod.Status.HostIP = pod.Status.PodIPs[0].IP, pod.Status.HostIPs[0].IP
	if _, err := pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}

func conditionStatus(b bool) corev1.ConditionStatus {
	if b {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}

// SetReady writes the pod's Ready condition. Its server answers in any case.
func (l *Lab) SetReady(ctx context.Context, p Pod, ready bool) error {
	s := conditionStatus(ready)
	patch := fmt.Appendf(nil,
		`{"status":{"conditions":[{"type":"Ready","status":%q},{"type":"ContainersReady","status":%q}]}}`, s, s)
	_, err := l.client.CoreV1().Pods(p.namespace()).Patch(ctx, p.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("pod %s: write status: %w", p.key(), err)
	}
	return nil
}

// DeletePod deletes the pod like a rolling update: terminating, still serving, until grace (whole seconds, rounded up)
// is over or ctx is done; then it is removed.
func (l *Lab) DeletePod(ctx context.Context, p Pod, grace time.Duration) error {
	secs := int64(math.Ceil(grace.Seconds()))
	if secs > 0 {
		over := time.NewTimer(time.Duration(secs) * time.Second)
		defer over.Stop()
		err := l.client.CoreV1().Pods(p.namespace()).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &secs})
		if err != nil {
			return fmt.Errorf("delete pod %s: %w", p.key(), err)
		}
		select {
		case <-over.C:
		case <-ctx.Done():
		}
	}
	return errors.Join(ctx.Err(), l.RemovePod(context.WithoutCancel(ctx), p))
}

// RemovePod removes the pod's process, namespace and object at once, if they are there.
func (l *Lab) RemovePod(ctx context.Context, p Pod) error {
	ns := PodNamespace(p)
	var errs []error
	if _, err := os.Stat(netnsPath(ns)); err == nil {
		errs = append(errs, killProcessesIn(ns))
		if h, err := netns.GetFromPath(netnsPath(ns)); err == nil {
			// The kernel would do it, but some time later.
			nl, err := netlink.NewHandleAt(h)
			if err == nil {
				if eth0, err := nl.LinkByName("eth0"); err == nil {
					errs = append(errs, nl.LinkDel(eth0))
				}
				nl.Close()
			}
			h.Close()
		}
		errs = append(errs, deleteNetns(ns))
	}
	now := int64(0)
	err := l.client.CoreV1().Pods(p.namespace()).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if !apierrors.IsNotFound(err) {
		errs = append(errs, err)
	}
	l.mu.Lock()
	delete(l.pods, p.key())
	l.mu.Unlock()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove pod %s: %w", p.key(), err)
	}
	return nil
}

// AddDeployment writes a Deployment with the given labels, for "kubectl expose deployment". Its pods are AddPod's to
// make.
func (l *Lab) AddDeployment(ctx context.Context, ns, name string, labels map[string]string) error {
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "web", Image: "lab/web",
					Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}},
			},
		},
	}
	if _, err := l.client.AppsV1().Deployments(ns).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create deployment %s/%s: %w", ns, name, err)
	}
	return nil
}
