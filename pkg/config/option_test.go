package config

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// TestOptions holds every row of the table to its form.
func TestOptions(t *testing.T) {
	names, flags := map[string]string{}, map[string]string{}
	for _, o := range Options {
		t.Run(o.Env, func(t *testing.T) {
			for _, name := range append([]string{o.Env}, o.Aliases...) {
				if other, ok := names[name]; ok {
					t.Errorf("variable %s is also one of %s", name, other)
				}
				names[name] = o.Env
			}
			for _, name := range append(flagNames(o), o.Short) {
				if other, ok := flags[name]; ok && name != "" {
					t.Errorf("flag %s is also one of %s", name, other)
				}
				flags[name] = o.Env
			}
			if !regexp.MustCompile(`^([a-z0-9]\w*\*?|--\w+)$`).MatchString(o.Env) {
				t.Errorf("Env = %q, want a word", o.Env)
			}
			if o.Meaning == "" || !strings.HasSuffix(o.Meaning, ".") {
				t.Errorf("Meaning = %q, want full sentences", o.Meaning)
			}
			if o.Type == "" || !slices.Contains(groups, o.Group) {
				t.Errorf("Type = %q, Group = %q, want both, and the group in groups", o.Type, o.Group)
			}
			if o.Type == Bool && o.Default != "true" && o.Default != "false" {
				t.Errorf("Default = %q, want true or false", o.Default)
			}
			if o.Supported() {
				checkSupported(t, o)
			} else {
				checkUnsupported(t, o)
			}
		})
	}
	for _, g := range groups {
		if !slices.ContainsFunc(Options, func(o Option) bool { return o.Group == g }) {
			t.Errorf("group %q has no options", g)
		}
	}
}

func checkSupported(t *testing.T, o Option) {
	if o.Flag == "" || o.Effect != "" {
		t.Errorf("Flag = %q, Effect = %q, want the first only", o.Flag, o.Effect)
	}
	value := o.Default
	if o.Env == "vip_nodename" {
		value = "a-host" // its default is the host's name
	}
	if err := o.set(new(Config), value); err != nil {
		t.Errorf("the default %q: %v", value, err)
	}
}

func checkUnsupported(t *testing.T, o Option) {
	if o.set != nil || !slices.Contains([]Effect{Refused, Unused, NoEffect}, o.Effect) {
		t.Errorf("Effect = %q, want an effect only", o.Effect)
	}
	if strings.HasSuffix(o.Env, "*") && o.Flag != "" {
		t.Errorf("Flag = %q for a pattern, want none", o.Flag)
	}
}

// TestEveryOptionHasSources gives every option a value by flag, and by environment, and looks whether it arrives.
func TestEveryOptionHasSources(t *testing.T) {
	for _, o := range Options {
		name := strings.Replace(o.Env, "*", "something", 1)
		given, _, err := collect(Sources{Env: []string{name + "=x"}, ReadFile: noFiles})
		if o.Env != "herald_config" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got := given[name]; got.Value != "x" || got.From != FromEnv || got.Option.Env != o.Env {
			t.Errorf("%s=x in the environment: got %v of %s", name, got, got.Option.Env)
		}
		for _, flag := range flagNames(o) {
			given, _, _ := collect(Sources{Flags: parsed(t, "--"+flag+"=x"), ReadFile: noFiles})
			if got := given[o.Env]; got.Value != "x" || got.From != FromFlag {
				t.Errorf("--%s=x: got %v, want %s", flag, got, o.Env)
			}
		}
	}
}

// parsed is a set of all flags after it has parsed args.
func parsed(t *testing.T, args ...string) *pflag.FlagSet {
	t.Helper()
	fs := pflag.NewFlagSet("herald", pflag.ContinueOnError)
	AddFlags(fs)
	if err := fs.Parse(args); err != nil {
		t.Fatalf("Parse(%q): %v", args, err)
	}
	return fs
}
