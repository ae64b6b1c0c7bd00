package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"

	"k8s.io/client-go/rest"
)

// A Permission is one thing to do with one kind of object.
type Permission struct {
	Namespace   string // "" is everywhere
	Group       string
	Resource    string
	Subresource string
	Name        string // "" is any
	Verb        string
}

// String is as kubectl auth can-i would be asked.
func (p Permission) String() string {
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

// An Inspection is what an API server says of itself, and of the one who asks.
type Inspection struct {
	Version string       // such as v1.36.3
	Minor   int          // of 1.x, or 0 if it can't be read
	Missing []Permission // of those asked for
}

// Inspect asks an API server who it is and which of want it permits.
func Inspect(ctx context.Context, cfg *rest.Config, want []Permission) (Inspection, error) {
	a, err := newAPI(cfg, newMetrics(), nil)
	if err != nil {
		return Inspection{}, err
	}
	var i Inspection
	text, err := a.core.Get().AbsPath("/version").SetHeader("Accept", "application/json").DoRaw(ctx)
	if err != nil {
		return i, fmt.Errorf("the API server %s does not answer: %w", cfg.Host, err)
	}
	var version struct{ GitVersion string }
	if err := json.Unmarshal(text, &version); err != nil {
		return i, fmt.Errorf("the API server %s does not say which version it is: %w", cfg.Host, err)
	}
	i.Version = version.GitVersion
	if m := minor.FindStringSubmatch(i.Version); m != nil {
		i.Minor, _ = strconv.Atoi(m[1])
	}
	for _, p := range want {
		allowed, err := may(ctx, a.core, p)
		if err != nil {
			return i, err
		}
		if !allowed {
			i.Missing = append(i.Missing, p)
		}
	}
	return i, nil
}

var minor = regexp.MustCompile(`^v1\.(\d+)`)

// may asks whether p is permitted (SelfSubjectAccessReview, which everybody may create).
func may(ctx context.Context, client rest.Interface, p Permission) (bool, error) {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": map[string]string{
			"namespace": p.Namespace, "group": p.Group, "resource": p.Resource, "subresource": p.Subresource, "name": p.Name, "verb": p.Verb,
		}},
	})
	if err != nil {
		return false, err
	}
	text, err := client.Post().AbsPath("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews").
		SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(body).DoRaw(ctx)
	if err != nil {
		return false, fmt.Errorf("can't ask the API server what is permitted: %w", err)
	}
	var review struct{ Status struct{ Allowed bool } }
	err = json.Unmarshal(text, &review)
	return review.Status.Allowed, err
}
