package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"github.com/heraldvip/herald/pkg/vip"
)

// ReadObjects reads the objects of a kind at a path, or the one there, as JSON; none if nothing is there.
func ReadObjects(ctx context.Context, cfg *rest.Config, kind, path string) (objects []json.RawMessage, err error) {
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return nil, err
	}
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		r := c.core.Get().AbsPath(path).SetHeader("Accept", "application/json").VersionedParams(&o, metav1.ParameterCodec)
		text, err := r.DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		found, err := runtime.Decode(unstructured.UnstructuredJSONScheme, text)
		if one, ok := found.(*unstructured.Unstructured); ok {
			return &unstructured.UnstructuredList{Items: []unstructured.Unstructured{*one}}, err
		}
		return found, err
	})
	err = pages.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
		o.(*unstructured.Unstructured).SetKind(kind)
		text, err := json.Marshal(o)
		objects = append(objects, text)
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("can't read %s: %w", path, err)
	}
	return objects, nil
}

// ApplyPools adds keys to the ConfigMap of pools, unless one differs.
func ApplyPools(ctx context.Context, cfg *rest.Config, k vip.Key, data map[string]string) error {
	have, err := TakePools(ctx, cfg, k)
	if err != nil {
		return err
	}
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return err
	}
	configMaps := func(r *rest.Request) *rest.Request { return r.Namespace(k.Namespace).Resource("configmaps") }
	if have == nil {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}, Data: data}
		err = configMaps(c.core.Post()).Body(o).Do(ctx).Error()
	} else {
		var errs []error
		for _, key := range slices.Sorted(maps.Keys(data)) {
			if v, ok := have.Data[key]; ok && v != data[key] {
				errs = append(errs, fmt.Errorf("the ConfigMap %s has the key %s with another value: %q instead of %q; remove "+
					"one of them", k, key, v, data[key]))
			}
		}
		if len(errs) > 0 {
			return errors.Join(errs...)
		}
		body, _ := json.Marshal(map[string]any{"data": data}) // texts only
		err = configMaps(c.core.Patch(types.MergePatchType)).Name(k.Name).Body(body).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("can't write the ConfigMap %s: %w", k, err)
	}
	return nil
}

// AnnotateService sets annotations of a Service.
func AnnotateService(ctx context.Context, cfg *rest.Config, k vip.Key, annotations map[string]string) error {
	if err := annotate(ctx, cfg, "services", k, annotations); err != nil {
		return fmt.Errorf("can't set annotations of the Service %s: %w", k, err)
	}
	return nil
}
