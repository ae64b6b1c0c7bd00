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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heraldvip/herald/pkg/vip"
)

// ReadObjects reads the objects of a kind at a path of the API server, such as /apis/metallb.io/v1beta1/ipaddresspools, each
// as JSON with that kind; the path may also be that of one object. It returns none if there is nothing at that path.
func ReadObjects(ctx context.Context, cfg *rest.Config, kind, path string) (objects []json.RawMessage, err error) {
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return nil, err
	}
	for page := ""; ; {
		r := c.core.Get().AbsPath(path).SetHeader("Accept", "application/json").Param("limit", "500")
		if page != "" {
			r = r.Param("continue", page)
		}
		text, err := r.DoRaw(ctx)
		switch {
		case apierrors.IsNotFound(err):
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("can't read %s: %w", path, err)
		}
		var list struct {
			Metadata struct {
				Continue string `json:"continue"`
			} `json:"metadata"`
			Items []map[string]json.RawMessage `json:"items"`
		}
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("what the API server has at %s can't be read: %w", path, err)
		}
		if list.Items == nil {
			var one map[string]json.RawMessage
			if err := json.Unmarshal(text, &one); err != nil {
				return nil, err
			}
			if one["data"] == nil && one["spec"] == nil { // an empty list
				return nil, nil
			}
			list.Items = append(list.Items, one)
		}
		for _, o := range list.Items {
			o["kind"], _ = json.Marshal(kind) // the items of a list have none
			text, err := json.Marshal(o)
			if err != nil {
				return nil, err
			}
			objects = append(objects, text)
		}
		if page = list.Metadata.Continue; page == "" {
			return objects, nil
		}
	}
}

// ApplyPools adds keys to the ConfigMap of pools, which it creates if there is none. It is an error, and nothing is written,
// if that has one of the keys with another value.
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
				errs = append(errs, fmt.Errorf("the ConfigMap %s has the key %s with another value: %q instead of %q; remove one of them", k, key, v, data[key]))
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
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return err
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err == nil {
		err = c.core.Patch(types.MergePatchType).Namespace(k.Namespace).Resource("services").Name(k.Name).Body(body).Do(ctx).Error()
	}
	if err != nil {
		return fmt.Errorf("can't set annotations of the Service %s: %w", k, err)
	}
	return nil
}
