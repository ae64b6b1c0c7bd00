package config

import (
	"errors"
	"fmt"

	"sigs.k8s.io/yaml"
)

// ConfigMapData reads the data of a ConfigMap from YAML or JSON. The API server takes text only as
// values; so does this.
func ConfigMapData(text []byte) (map[string]string, error) {
	var object struct {
		Kind string            `json:"kind"`
		Data map[string]string `json:"data"`
	}
	if err := yaml.Unmarshal(text, &object); err != nil {
		return nil, fmt.Errorf("not the YAML of a ConfigMap: %w", err)
	}
	if object.Kind != "ConfigMap" {
		return nil, errors.New("not a ConfigMap: it must have kind: ConfigMap, and the pools under data")
	}
	return object.Data, nil
}
