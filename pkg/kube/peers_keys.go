package kube

import (
	"bytes"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

const (
	// PeersSecret names the Secret, beside node leases, with the keys of heartbeats.
	PeersSecret = "herald-peers"
	// PeersEntry has the keys: one per line, in base64, the newest first.
	PeersEntry = "keys"
)

// PeersKeys returns the keys of PeersSecret, which it writes if there are none (docs/why.md, "The key of the
// heartbeats").
func (c *Cluster) PeersKeys(ctx context.Context, newKeys func() []byte) ([]byte, error) {
	p := peersSecret{client: c.secrets, namespace: c.o.NodeLeaseNamespace}
	s, err := p.get(ctx)
	switch {
	case apierrors.IsNotFound(err):
		if s, err = p.create(ctx, newKeys()); apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("there is no Secret %s in the namespace %s, and Herald may not create it: apply what "+
				"\"herald manifest rbac\" prints, or \"kubectl -n %[2]s create secret generic %[1]s\", or set herald_peers_key: "+
				"%[3]w",
				PeersSecret, p.namespace, err)
		}
	case err == nil && len(s.Data) == 0:
		s.Data = map[string][]byte{PeersEntry: newKeys()}
		s, err = p.update(ctx, s)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) { // another node has written it meanwhile
		s, err = p.get(ctx)
	}
	if err != nil {
		return nil, p.explain(err)
	}
	return p.keys(s)
}

type peersSecret struct {
	client    rest.Interface
	namespace string
}

func (p peersSecret) get(ctx context.Context) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	return s, p.client.Get().Namespace(p.namespace).Resource("secrets").Name(PeersSecret).Do(ctx).Into(s)
}

func (p peersSecret) create(ctx context.Context, keys []byte) (*corev1.Secret, error) {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: PeersSecret, Namespace: p.namespace,
			Labels: map[string]string{"app.kubernetes.io/managed-by": "herald"}},
		Type: corev1.SecretTypeOpaque,
		Data: map[string][]byte{PeersEntry: keys},
	}
	return s, p.client.Post().Namespace(p.namespace).Resource("secrets").Body(s).Do(ctx).Into(s)
}

// update writes s, unless it has changed, and returns what was written.
func (p peersSecret) update(ctx context.Context, s *corev1.Secret) (*corev1.Secret, error) {
	written := &corev1.Secret{}
	r := p.client.Put().Namespace(p.namespace).Resource("secrets").Name(PeersSecret)
	return written, r.Body(s).Do(ctx).Into(written)
}

// explain adds to an error what to do about it.
func (p peersSecret) explain(err error) error {
	if apierrors.IsForbidden(err) {
		return fmt.Errorf("herald must be allowed to get and update the Secret %s in the namespace %s: apply what "+
			"\"herald manifest rbac\" prints, or set herald_peers_key: %w", PeersSecret, p.namespace, err)
	}
	return fmt.Errorf("the Secret %s/%s: %w", p.namespace, PeersSecret, err)
}

// keys returns PeersEntry of s; an error if that is empty.
func (p peersSecret) keys(s *corev1.Secret) ([]byte, error) {
	keys := s.Data[PeersEntry]
	if len(bytes.TrimSpace(keys)) == 0 {
		return nil, fmt.Errorf("the Secret %s/%s has no entry %q: remove its other entries, and Herald writes one",
			p.namespace, PeersSecret, PeersEntry)
	}
	return keys, nil
}
