package kube

import (
	"context"
	"encoding/json"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	utilversion "k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
)

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
