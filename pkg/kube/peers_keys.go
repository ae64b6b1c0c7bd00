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
	client, namespace := c.secrets, c.o.NodeLeaseNamespace
	s, err := getPeersSecret(ctx, client, namespace)
	switch {
	case apierrors.IsNotFound(err):
		s = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: PeersSecret, Namespace: namespace,
				Labels: map[string]string{"app.kubernetes.io/managed-by": "herald"}},
			Type: corev1.SecretTypeOpaque,
			Data: map[string][]byte{PeersEntry: newKeys()},
		}
		err = client.Post().Namespace(namespace).Resource("secrets").Body(s).Do(ctx).Into(s)
		if apierrors.IsForbidden(err) {
			return nil, fmt.Errorf("there is no Secret %s in the namespace %s, and Herald may not create it: apply what "+
				"\"herald manifest rbac\" prints, or \"kubectl -n %[2]s create secret generic %[1]s\", or set herald_peers_key: "+
				"%[3]w",
				PeersSecret, namespace, err)
		}
	case err == nil && len(s.Data) == 0:
		s.Data = map[string][]byte{PeersEntry: newKeys()}
		err = client.Put().Namespace(namespace).Resource("secrets").Name(PeersSecret).Body(s).Do(ctx).Into(s)
	}
	if apierrors.IsAlreadyExists(err) || apierrors.IsConflict(err) { // another node has written it meanwhile
		s, err = getPeersSecret(ctx, client, namespace)
	}
	switch {
	case apierrors.IsForbidden(err):
		return nil, fmt.Errorf("herald must be allowed to get and update the Secret %s in the namespace %s: apply what "+
			"\"herald manifest rbac\" prints, or set herald_peers_key: %w", PeersSecret, namespace, err)
	case err != nil:
		return nil, fmt.Errorf("the Secret %s/%s: %w", namespace, PeersSecret, err)
	case len(bytes.TrimSpace(s.Data[PeersEntry])) == 0:
		return nil, fmt.Errorf("the Secret %s/%s has no entry %q: remove its other entries, and Herald writes one",
			namespace, PeersSecret, PeersEntry)
	}
	return s.Data[PeersEntry], nil
}

func getPeersSecret(ctx context.Context, client rest.Interface, namespace string) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	return s, client.Get().Namespace(namespace).Resource("secrets").Name(PeersSecret).Do(ctx).Into(s)
}
