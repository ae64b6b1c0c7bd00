package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// PeersSecret is the name of the Secret, in the namespace of node leases, with the
	// keys by which the nodes encrypt their heartbeats.
	PeersSecret = "herald-peers"
	// PeersEntry is its entry with the keys: one per line, in base64, the newest first.
	PeersEntry = "keys"
)

// PeersKeys reads PeersEntry of PeersSecret. If there is no such Secret it creates one
// with what newKeys returns, or reads the one that another node has created meanwhile.
// A Secret without the entry is an error.
func (c *Cluster) PeersKeys(ctx context.Context, newKeys func() []byte) ([]byte, error) {
	namespace := c.o.NodeLeaseNamespace
	read := func() (*corev1.Secret, error) {
		s := &corev1.Secret{}
		return s, c.secrets.Get().Namespace(namespace).Resource("secrets").Name(PeersSecret).Do(ctx).Into(s)
	}
	s, err := read()
	if apierrors.IsNotFound(err) {
		s = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: PeersSecret, Namespace: namespace, Labels: map[string]string{"app.kubernetes.io/managed-by": "herald"}},
			Type:       corev1.SecretTypeOpaque,
			Data:       map[string][]byte{PeersEntry: newKeys()},
		}
		err = c.secrets.Post().Namespace(namespace).Resource("secrets").Body(s).Do(ctx).Into(s)
		if apierrors.IsAlreadyExists(err) {
			s, err = read()
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("herald must be allowed to get the Secret %s in the namespace %s, and to create it: apply what \"herald manifest rbac\" prints, or set herald_peers_key: %w", PeersSecret, namespace, err)
	case err != nil:
		return nil, fmt.Errorf("the Secret %s/%s: %w", namespace, PeersSecret, err)
	}
	keys, ok := s.Data[PeersEntry]
	if !ok {
		return nil, fmt.Errorf("the Secret %s/%s has no entry %q", namespace, PeersSecret, PeersEntry)
	}
	return keys, nil
}
