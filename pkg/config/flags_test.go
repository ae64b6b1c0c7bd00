package config

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/heraldvip/herald/testing/check"
)

func TestFlags(t *testing.T) {
	tests := []struct {
		args string
		want func(c *Config)
	}{
		{"", func(*Config) {}},
		{"--interface eth0 --leaderElection", func(c *Config) { c.Link.Interface, c.Link.Services = "eth0", "eth0" }},
		{"--servicesElection", func(c *Config) { c.Services.Election = true }},
		{"--enableServicesElection=true", func(c *Config) { c.Services.Election = true }},
		{"--servicesElection --servicesElection=false", func(*Config) {}}, // the last one counts
		{"--lbClassNameLegacyHandling=false", func(c *Config) { c.Class.Legacy = false }},
		{"--LoadBalancerClassLegacyHandling=false", func(c *Config) { c.Class.Legacy = false }},
		{"--lbClassName=", func(c *Config) { c.Class.Name = "" }},
		{"--lbClassName example.com/a --lbClassOnly", func(c *Config) { c.Class = Class{Name: "example.com/a", Only: true, Legacy: true} }},
		{"-n lb", func(c *Config) {
			c.Node.Namespace, c.Services.Lease.Namespace, c.ControlPlane.Lease.Namespace = "lb", "lb", "lb"
		}},
		{"--prometheusHTTPServer=", func(c *Config) { c.Serve.Metrics = "" }},
		{"--vipSubnet=", func(*Config) {}},
		{"--enableUPNP=false --bgp=0 --peerAS 65000", func(*Config) {}},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			want := baseConfig()
			tt.want(&want)
			args := append([]string{"--services", "--arp=true"}, strings.Fields(tt.args)...)
			got, warnings, err := Parse(Sources{Flags: parsed(t, args...), Hostname: "n1"})
			check.OK(t, err)
			same(t, "", want, got)
			if len(warnings) > 0 {
				t.Errorf("warnings %q, want none", warnings)
			}
		})
	}
}

func TestFlagError(t *testing.T) {
	tests := []struct{ arg, want string }{
		{"--serviceElection", "unknown flag: --serviceElection; did you mean --servicesElection?"},
		{"--service-interface=eth0", "unknown flag: --service-interface; did you mean --serviceInterface?"},
		{"--ARP", "unknown flag: --ARP; did you mean --arp?"},
		{"--somethingElseEntirely", "unknown flag: --somethingElseEntirely"},
		{"-x", "unknown shorthand flag: 'x' in -x"},
		{"--interface", "flag needs an argument: --interface"},
	}
	for _, tt := range tests {
		fs := pflag.NewFlagSet("herald", pflag.ContinueOnError)
		fs.SetOutput(io.Discard)
		AddFlags(fs)
		err := FlagError(fs, fs.Parse([]string{tt.arg}))
		if err == nil || err.Error() != tt.want {
			t.Errorf("%s: got %v, want %s", tt.arg, err, tt.want)
		}
		if !errors.As(err, new(*Error)) {
			t.Errorf("%s: %T, want an *Error", tt.arg, err)
		}
	}
}

// TestHelp shows each supported option once, and no other.
func TestHelp(t *testing.T) {
	usages := "\n" + parsed(t).FlagUsages()
	for _, o := range Options {
		for i, name := range flagNames(o) {
			got := strings.Count(usages, " --"+name+" ")
			want := 0
			if o.Supported() && i == 0 {
				want = 1
			}
			check.Equal(t, got, want, "how often --%s is shown", name)
		}
	}
	if want := "-n, --namespace name "; !strings.Contains(usages, want) {
		t.Errorf("no %q in the help", want)
	}
	for line := range strings.Lines(usages) {
		if strings.Contains(line, "`") || len(line) > 180 {
			t.Errorf("a line for the reference, not for the help: %s", line)
		}
	}
}

// TestListsAddUp: a flag of a list that is given again adds to it, as kube-vip's --bgppeers does; the last of any other flag holds.
func TestListsAddUp(t *testing.T) {
	c, _, err := Parse(Sources{Hostname: "n1", Flags: parsed(t, "--bgp", "--services", "--bgppeers=192.0.2.1:65001", "--bgppeers", "192.0.2.2:65002,192.0.2.3:65003", "--log=4", "--log=8")})
	check.OK(t, err)
	var peers []string
	for _, p := range c.BGP.Peers {
		peers = append(peers, p.Name())
	}
	if got, want := strings.Join(peers, " "), "192.0.2.1 192.0.2.2 192.0.2.3"; got != want || c.Log.Level != 8 {
		t.Errorf("peers %s, want %s; level %d", got, want, c.Log.Level)
	}
}
