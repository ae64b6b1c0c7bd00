package main

import (
	"testing"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/vip"
)

// Each node's vip_interface may be another: what nodes ask of each other names none of them.
func TestControlPlaneLink(t *testing.T) {
	for named, want := range map[string]string{"eth0": vip.DefaultLink, "": config.Auto} {
		var cfg config.Config
		cfg.Link.Interface = named
		if got := controlPlaneRules(cfg).Interface; got != want {
			t.Errorf("with vip_interface %q: %q, want %q", named, got, want)
		}
	}
}
