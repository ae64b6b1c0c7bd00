// Package nodes tests Herald on real nodes: kubelet, containerd and runc, a
// control plane that kubeadm makes, Herald as static Pod and as DaemonSet, from the
// image and the manifests that users get.
package nodes
