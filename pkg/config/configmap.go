package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// ConfigMapData reads a ConfigMap's data from YAML or JSON; like the API server it takes only text as values.
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

// Documents reads a file of YAML documents or JSON, each object as JSON; of a list, its items.
func Documents(text []byte) (objects []json.RawMessage, err error) {
	for doc := range strings.SplitSeq("\n"+string(text), "\n---") {
		data, err := yaml.YAMLToJSON([]byte(doc))
		if err != nil {
			return nil, fmt.Errorf("not YAML: %w", err)
		}
		var list struct {
			Items []json.RawMessage `json:"items"`
		}
		switch err := json.Unmarshal(data, &list); {
		case string(data) == "null":
		case err != nil:
			return nil, errors.New("not an object: a document must have kind, metadata and so on")
		case list.Items != nil:
			objects = append(objects, list.Items...)
		default:
			objects = append(objects, data)
		}
	}
	return objects, nil
}
