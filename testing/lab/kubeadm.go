package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const dialTimeout = 500 * time.Millisecond

// writeNodeFiles writes what a node has on disk before its first start.
func (k *Kubelets) writeNodeFiles(h host) error {
	for path, text := range map[string]string{
		"etc/containerd/config.toml":    containerdConfig,
		"etc/cni/net.d/10-lab.conflist": fmt.Sprintf(cniConfig, h.pods4(), h.pods6()),
	} {
		file := k.File(h.name, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// dialAny connects to the first node's API server that accepts, one given to AvoidAPIServer last; or returns all
// errors.
func (k *Kubelets) dialAny(ctx context.Context, network, _ string) (net.Conn, error) {
	var errs []error
	nodes := k.Nodes()
	avoid, _ := k.avoided.Load().(string)
	if i := slices.Index(nodes, avoid); i >= 0 {
		nodes = append(slices.Delete(nodes, i, i+1), avoid)
	}
	for _, n := range nodes {
		one, cancel := context.WithTimeout(ctx, dialTimeout)
		c, err := k.DialFrom("cp")(one, network, net.JoinHostPort(k.host(n).mgmt4().String(), "6443"))
		cancel()
		if err == nil {
			return c, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// AvoidAPIServer has the admin's clients use node's API server only if no other accepts. It closes idle connections.
func (k *Kubelets) AvoidAPIServer(node string) {
	k.avoided.Store(node)
	k.idle() // those in use end by themselves
}

func (k *Kubelets) endpoint() string { return net.JoinHostPort(k.vip.String(), "6443") }

func (k *Kubelets) initConfig(h host) string {
	return fmt.Sprintf(initConfig, token, certificateKey, h.mgmt4(), h.name, k.endpoint(), kubeVersion, k.nodeIP(h))
}

func (k *Kubelets) joinConfig(h host) string {
	return fmt.Sprintf(joinConfig, k.endpoint(), token, h.mgmt4(), certificateKey, h.name, k.nodeIP(h))
}

func (k *Kubelets) nodeIP(h host) netip.Addr {
	if k.onLAN {
		return h.lan4()
	}
	return h.mgmt4()
}

// containerd 1.6, as in Debian 12. Without CAP_SYS_RESOURCE no process can get a lower oom_score_adj than its parent.
const containerdConfig = `version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + ToolImage + `"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
`

const cniConfig = `{"cniVersion": "0.4.0", "name": "lab", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "isDefaultGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "/run/cni", "ranges": [[{"subnet": "%s"}], [{"subnet": "%s"}]]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

const initConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: InitConfiguration
bootstrapTokens: [{token: %[1]s, ttl: 1h0m0s}]
certificateKey: %[2]s
localAPIEndpoint: {advertiseAddress: %[3]s}
skipPhases: [addon/coredns, addon/kube-proxy]
nodeRegistration:
  name: %[4]s
  criSocket: unix:///run/containerd/containerd.sock
  taints: []
  imagePullPolicy: Never
  kubeletExtraArgs:
  - {name: cgroup-root, value: /` + prefix + `%[4]s}
  - {name: node-ip, value: %[7]s}
---
apiVersion: kubeadm.k8s.io/v1beta4
kind: ClusterConfiguration
controlPlaneEndpoint: "%[5]s"
kubernetesVersion: %[6]s
encryptionAlgorithm: ECDSA-P256
networking: {serviceSubnet: "` + ServiceCIDRs + `"}
etcd:
  local:
    extraArgs: [{name: unsafe-no-fsync, value: "true"}]
---
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failCgroupV1: false
cgroupDriver: cgroupfs
failSwapOn: false
resolvConf: ""
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: "100Mi", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%"}
serializeImagePulls: false
oomScoreAdj: 0
maxOpenFiles: 20000
nodeStatusUpdateFrequency: 2s
`

const joinConfig = `apiVersion: kubeadm.k8s.io/v1beta4
kind: JoinConfiguration
discovery:
  bootstrapToken: {apiServerEndpoint: "%[1]s", token: %[2]s, unsafeSkipCAVerification: true}
controlPlane:
  localAPIEndpoint: {advertiseAddress: %[3]s}
  certificateKey: %[4]s
nodeRegistration:
  name: %[5]s
  criSocket: unix:///run/containerd/containerd.sock
  taints: []
  imagePullPolicy: Never
  kubeletExtraArgs:
  - {name: cgroup-root, value: /` + prefix + `%[5]s}
  - {name: node-ip, value: %[6]s}
`
