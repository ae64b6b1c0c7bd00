package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/agext/levenshtein"
	"sigs.k8s.io/yaml"
)

// prefixes begin variables meant for an announcer: unknown ones are misspellings.
var prefixes = []string{"vip_", "svc_", "cp_", "bgp_", "lb_", "egress_", "herald_", "dhcp_", "mpbgp_", "zebra_",
	"control_plane_"}

// isMisspelt reports whether an unknown variable begins as options do, or is within two letters of a long one.
func isMisspelt(name string) bool {
	if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
		return true
	}
	return slices.ContainsFunc(envNames(), func(known string) bool {
		return len(known) > 8 && levenshtein.Distance(name, known, nil) <= 2
	})
}

// collect reads every source, and returns the winning value of each given option, and warnings.
func collect(src Sources) (map[string]Setting, []string, error) {
	given := fromFlags(src)
	environment, warnings := fromEnv(src.Env)
	path, ok := environment["herald_config"]
	if !ok {
		path, ok = given["herald_config"]
	}
	var err error
	if ok {
		var file map[string]Setting
		file, err = fromFile(path, src.ReadFile)
		maps.Copy(given, file)
	}
	maps.Copy(given, environment)
	return given, warnings, err
}

// add puts s into m, unless its value means "not set". An option's own name wins, then the first spelling.
func add(m map[string]Setting, s Setting) {
	if s.Value == "" && !slices.Contains(s.Option.Empty, s.From) {
		return
	}
	key := s.Option.Env
	if strings.HasSuffix(key, "*") {
		key = s.name
	}
	if _, ok := m[key]; ok && s.name != key {
		return
	}
	m[key] = s
}

// lookup finds an option by name, alias or pattern.
func lookup(name string) (Option, bool) {
	if o, ok := byName(name); ok {
		return o, !strings.HasSuffix(name, "*")
	}
	return find(func(o Option) bool {
		prefix, pattern := strings.CutSuffix(o.Env, "*")
		return pattern && strings.HasPrefix(name, prefix)
	})
}

func fromFlags(src Sources) map[string]Setting {
	given := map[string]Setting{}
	if src.Flags == nil {
		return given
	}
	for _, o := range Options {
		for _, name := range flagNames(o) {
			if f := src.Flags.Lookup(name); f != nil && f.Changed {
				add(given, Setting{Option: o, Value: f.Value.String(), From: FromFlag, name: o.Env, where: "flag --" + name})
				break
			}
		}
	}
	return given
}

func fromEnv(environ []string) (map[string]Setting, []string) {
	given := map[string]Setting{}
	var warnings []string
	for _, e := range environ {
		name, value, _ := strings.Cut(e, "=")
		if o, ok := lookup(name); ok {
			add(given, Setting{Option: o, Value: value, From: FromEnv, name: name, where: "environment"})
			continue
		}
		// For a Service named lb kubelet sets LB_PORT=tcp://10.96.0.1:80.
		if strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://") {
			continue
		}
		// Others use names such as PORT too: no warning.
		if o, ok := byName(strings.ToLower(name)); ok && o.Supported() && strings.Contains(name, "_") {
			warnings = append(warnings, fmt.Sprintf("%s (environment) is not known: %s is written in lower case", name, o.Env))
			continue
		}
		if isMisspelt(name) {
			warnings = append(warnings, fmt.Sprintf("%s (environment) is not known%s", name, didYouMean(name, envNames())))
		}
	}
	return given, warnings
}

// fromFile reads the file that a setting names: YAML, from names of variables to scalars.
func fromFile(path Setting, readFile func(string) ([]byte, error)) (map[string]Setting, error) {
	if readFile == nil {
		return nil, fmt.Errorf("%v: files can't be read here", path)
	}
	text, err := readFile(path.Value)
	if err != nil {
		return nil, fmt.Errorf("%v: must be a file that can be read: %w", path, err)
	}
	var values map[string]any
	useNumber := func(d *json.Decoder) *json.Decoder { d.UseNumber(); return d } // 65000 must not become 6.5e+04
	if err := yaml.UnmarshalStrict(text, &values, useNumber); err != nil {
		return nil, fmt.Errorf("%v: must be a YAML mapping of names to values: %w", path, err)
	}
	given := map[string]Setting{}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(values)) {
		o, ok := lookup(name)
		value, err := scalar(values[name])
		switch {
		case !ok:
			errs = append(errs, fmt.Errorf("%s (file %s) is not known%s", name, path.Value, didYouMean(name, envNames())))
		case o.Env == "herald_config":
			errs = append(errs, fmt.Errorf("%s (file %s): a file can't name another", name, path.Value))
		case err != nil:
			errs = append(errs, fmt.Errorf("%s (file %s): %w", name, path.Value, err))
		case values[name] != nil:
			add(given, Setting{Option: o, Value: value, From: FromFile, name: name, where: "file " + path.Value})
		}
	}
	return given, errors.Join(errs...)
}

// scalar returns a value of the file as in the environment.
func scalar(v any) (string, error) {
	switch v := v.(type) {
	case nil:
		return "", nil
	case string:
		return v, nil
	case bool, json.Number:
		return fmt.Sprint(v), nil
	}
	return "", errors.New("must be one value: text, a number, true or false")
}

// didYouMean returns the part of a message that names the nearest candidate, in any case, or "".
func didYouMean(name string, candidates []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, c := range candidates {
		if d := levenshtein.Distance(strings.ToLower(name), strings.ToLower(c), nil); d < least {
			best, least = c, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

func envNames() []string {
	var names []string
	for _, o := range Options {
		if !strings.HasSuffix(o.Env, "*") {
			names = append(names, o.Env)
		}
	}
	return names
}
