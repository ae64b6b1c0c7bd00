package kube

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// PeersSecret is the name of the Secret, in the announcers' namespace, with the
	// keys by which the nodes seal what they tell each other on the wire.
	PeersSecret = "herald-peers"
	// PeersEntry is the entry of it that has them: one per line, in base64, the newest first.
	PeersEntry = "keys"
)

// PeersKeys reads PeersEntry of PeersSecret. If there is no such Secret it makes
// one, with what fresh returns: whoever comes first does, and the others read that.
func (c *Cluster) PeersKeys(ctx context.Context, fresh func() []byte) ([]byte, error) {
	read := func() (*corev1.Secret, error) {
		s := &corev1.Secret{}
		return s, c.secrets.Get().Namespace(c.home).Resource("secrets").Name(PeersSecret).Do(ctx).Into(s)
	}
	s, err := read()
	if apierrors.IsNotFound(err) {
		s = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: PeersSecret, Namespace: c.home, Labels: map[string]string{"app.kubernetes.io/managed-by": "herald"}},
			Type:       corev1.SecretTypeOpaque,
			Data:       map[string][]byte{PeersEntry: fresh()},
		}
		err = c.secrets.Post().Namespace(c.home).Resource("secrets").Body(s).Do(ctx).Into(s)
		if apierrors.IsAlreadyExists(err) {
			s, err = read()
		}
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("herald must be allowed to get the Secret %s in the namespace %s, and to create it: apply what \"herald manifest rbac\" prints, or set herald_peers_key: %w", PeersSecret, c.home, err)
	case err != nil:
		return nil, fmt.Errorf("the Secret %s/%s: %w", c.home, PeersSecret, err)
	}
	keys, ok := s.Data[PeersEntry]
	if !ok {
		return nil, fmt.Errorf("the Secret %s/%s has no entry %q", c.home, PeersSecret, PeersEntry)
	}
	return keys, nil
}
