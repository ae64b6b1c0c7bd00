package config

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/pflag"
)

// FuzzParse: whatever is given, Parse does not panic, and what it accepts keeps its promises.
func FuzzParse(f *testing.F) {
	for _, tt := range errorTests {
		f.Add(strings.ReplaceAll(tt.env, " ", "\n"), "", "--arp")
	}
	f.Add("vip_arp=true", "vip_subnet: 24\nsvc_enable: true", "--services=true")
	f.Add("vip_interface=", "{", "-n")
	f.Add("=", "a: *b", "--lbClassName=")
	f.Fuzz(func(t *testing.T, env, text, arg string) {
		fs := pflag.NewFlagSet("herald", pflag.ContinueOnError)
		AddFlags(fs)
		if err := fs.Parse([]string{arg}); err != nil {
			_ = FlagError(fs, err).Error()
			return
		}
		src := Sources{
			Flags: fs, Env: append(strings.Split(env, "\n"), "herald_config=/x"),
			ReadFile: readsAs(text), Hostname: "n1", Namespace: "lb",
		}
		c, warnings, err := Parse(src)
		for _, w := range warnings {
			if w == "" || utf8.ValidString(env) && !utf8.ValidString(w) {
				t.Errorf("warning %q", w)
			}
		}
		if err != nil {
			return
		}
		l := c.Lease
		if !(l.Duration > l.RenewDeadline && l.RenewDeadline > l.RetryPeriod && l.RetryPeriod >= time.Second) {
			t.Errorf("Lease = %+v, want duration > deadline > period", l)
		}
		if c.Node.Name != strings.ToLower(c.Node.Name) || c.Node.Name == "" || len(c.Link.Services) > 15 || c.ARP.Period < 500*time.Millisecond {
			t.Errorf("Config = %+v", c)
		}
		if c.Services.Enable && !c.ARP.Enable {
			t.Error("Services without a way to announce them")
		}
		if _, err := Given(src); err != nil {
			t.Errorf("Given: %v after Parse was content", err)
		}
	})
}
