package config

import (
	"errors"
	"strings"
	"testing"

	"github.com/heraldvip/herald/testing/check"
)

func TestFile(t *testing.T) {
	const text = `
# YAML's own kinds of scalars are all understood.
svc_enable: true
vip_arp: "true"
vip_loglevel: -4
vip_subnet: 24,64
prometheus_server: ""
lb_class_name: ""
vip_leaseduration: 30
svc_namespace: null
bgp_as: 65000   # the default, and no 6.5e+04
`
	want := baseConfig()
	want.Log.Level = -4
	want.Link.Bits4, want.Link.Bits6 = 24, 64
	want.Serve.Metrics = "" // in a file, empty is off
	want.Class.Name = ""
	want.Lease.Duration *= 2
	for _, src := range []Sources{
		{Flags: parsed(t, "--config=/etc/herald.yaml")},
		{Env: []string{"herald_config=/etc/herald.yaml"}},
		{Env: []string{"herald_config=/etc/herald.yaml"}, Flags: parsed(t, "--config=/not/this/one")},
	} {
		src.Hostname = "n1"
		src.ReadFile = func(name string) ([]byte, error) {
			check.Equal(t, name, "/etc/herald.yaml", "the file that is read")
			return []byte(text), nil
		}
		got, warnings, err := Parse(src)
		check.OK(t, err)
		same(t, "", want, got)
		if len(warnings) > 0 {
			t.Errorf("warnings %q, want none", warnings)
		}
	}
}

// To YAML an unquoted off is false.
func TestFileWithOff(t *testing.T) {
	want := baseConfig()
	want.Serve.Metrics = ""
	for _, text := range []string{"off", "Off", "false", "'off'"} {
		got, _, err := Parse(Sources{Env: []string{"herald_config=/x"}, ReadFile: readsAs("svc_enable: on\nvip_arp: yes\nprometheus_server: " + text), Hostname: "n1"})
		check.OK(t, err)
		same(t, text, want, got)
	}
}

func TestFileErrors(t *testing.T) {
	const path = `herald_config="/etc/herald.yaml" (environment): `
	tests := []struct {
		text string
		want string // how the error begins
	}{
		{"- a\n- b\n", path + "must be a YAML mapping of names to values: "},
		{"just text", path + "must be a YAML mapping of names to values: "},
		{"a: b: c", path + "must be a YAML mapping of names to values: "},
		{"vip_arp: true\nvip_arp: false", path + "must be a YAML mapping of names to values: "},
		{"vip_arp: {enable: true}", "vip_arp (file /etc/herald.yaml): must be one value: text, a number, true or false"},
		{"vipArp: true", "vipArp (file /etc/herald.yaml) is not known; did you mean vip_arp?"},
		{"egress_*: 1", "egress_* (file /etc/herald.yaml) is not known"},
		{"serviceaccount: x", "serviceaccount (file /etc/herald.yaml) is not known"},
		{"vip_arpRate: 1.5", `vip_arpRate="1.5" (file /etc/herald.yaml): must be a whole number`},
	}
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			_, _, err := Parse(Sources{Env: []string{"herald_config=/etc/herald.yaml"}, ReadFile: readsAs(tt.text), Hostname: "n1"})
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n"+path) {
				t.Errorf("got  %v\nwant %s...", err, tt.want)
			}
		})
	}
}

func TestFileThatCannotBeRead(t *testing.T) {
	broken := errors.New("disk on fire")
	src := Sources{Env: []string{"herald_config=/x"}, Hostname: "n1", ReadFile: func(string) ([]byte, error) { return nil, broken }}
	if _, _, err := Parse(src); !errors.Is(err, broken) {
		t.Errorf("Parse: %v, want %v", err, broken)
	}
	if _, err := Given(src); !errors.Is(err, broken) || !errors.As(err, new(*Error)) {
		t.Errorf("Given: %v, want %v", err, broken)
	}
	src.ReadFile = nil
	if _, _, err := Parse(src); err == nil || err.Error() != `herald_config="/x" (environment): files can't be read here` {
		t.Errorf("Parse without ReadFile: %v", err)
	}
}

// TestEmptyFile: a file with nothing in it is no error, and a key without a value is not set, even where an empty value is one.
func TestEmptyFile(t *testing.T) {
	for _, text := range []string{"", "# only a comment\n", "{}", "lb_class_name:\nprometheus_server: null\n"} {
		src := Sources{Env: append([]string{"herald_config=/x"}, baseEnv...), Hostname: "n1", ReadFile: readsAs(text)}
		got, _, err := Parse(src)
		check.OK(t, err)
		same(t, text, baseConfig(), got)
	}
}
