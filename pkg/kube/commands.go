package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
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

// AddPools returns what adds keys to the ConfigMap of pools; an error if one is there with another value.
func AddPools(ctx context.Context, cfg *rest.Config, k vip.Key, data map[string]string) (func() error, error) {
	have, err := TakePools(ctx, cfg, k)
	if err != nil {
		return nil, err
	}
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return nil, err
	}
	request := c.core.Post()
	var body any = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name}, Data: data}
	if have != nil {
		var errs []error
		for _, key := range slices.Sorted(maps.Keys(data)) {
			if v, ok := have.Data[key]; ok && v != data[key] {
				errs = append(errs, fmt.Errorf("the ConfigMap %s has the key %s with another value: %q instead of %q; remove "+
					"one of them", k, key, v, data[key]))
			}
		}
		if len(errs) > 0 {
			return nil, errors.Join(errs...)
		}
		request = c.core.Patch(types.MergePatchType).Name(k.Name)
		body, _ = json.Marshal(map[string]any{"data": data}) // texts only
	}
	return func() error {
		if err := request.Namespace(k.Namespace).Resource("configmaps").Body(body).Do(ctx).Error(); err != nil {
			return fmt.Errorf("can't write the ConfigMap %s: %w", k, err)
		}
		return nil
	}, nil
}

// AnnotateService sets annotations of a Service.
func AnnotateService(ctx context.Context, cfg *rest.Config, k vip.Key, annotations map[string]string) error {
	if err := annotate(ctx, cfg, "services", k, annotations); err != nil {
		return fmt.Errorf("can't set annotations of the Service %s: %w", k, err)
	}
	return nil
}

// describePermission returns it as kubectl auth can-i takes it.
func describePermission(p authorizationv1.ResourceAttributes) string {
	what := p.Resource
	if p.Group != "" {
		what += "." + p.Group
	}
	if p.Subresource != "" {
		what += "/" + p.Subresource
	}
	if p.Name != "" {
		what += " " + p.Name
	}
	if p.Namespace != "" {
		what += " in " + p.Namespace
	}
	return p.Verb + " " + what
}

// An Inspection is an API server's version, and what it does not permit.
type Inspection struct {
	Version string   // such as v1.36.3
	Minor   int      // of 1.x, or 0 if it can't be read
	Missing []string // the permissions of those Inspect was given, as describePermission writes them
}

// Inspect returns an API server's version, and which of want it permits.
func Inspect(ctx context.Context, cfg *rest.Config, want []authorizationv1.ResourceAttributes) (Inspection, error) {
	c, err := newClients(cfg, newMetrics(), nil)
	if err != nil {
		return Inspection{}, err
	}
	var i Inspection
	text, err := c.core.Get().AbsPath("/version").SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return i, fmt.Errorf("the API server %s does not answer: %w", cfg.Host, err)
	}
	var info version.Info
	if err := json.Unmarshal(text, &info); err != nil {
		return i, fmt.Errorf("the answer of the API server %s has no version: %w", cfg.Host, err)
	}
	i.Version = info.GitVersion
	if v, err := utilversion.ParseGeneric(i.Version); err == nil && v.Major() == 1 {
		i.Minor = int(v.Minor())
	}
	for _, p := range want {
		// Everybody may create a SelfSubjectAccessReview.
		review := &authorizationv1.SelfSubjectAccessReview{}
		review.Spec.ResourceAttributes = &p
		r := c.core.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").Body(review)
		if err := r.Do(ctx).Into(review); err != nil {
			return i, fmt.Errorf("can't ask the API server what is permitted: %w", err)
		}
		if !review.Status.Allowed {
			i.Missing = append(i.Missing, describePermission(p))
		}
	}
	return i, nil
}
