package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What is to be known of the options is logged whatever the level is: it may be the level that is wrong.
func TestWarnOfOptions(t *testing.T) {
	var out bytes.Buffer
	warnOfOptions(&out, config.Log{Format: config.JSON, Level: slog.LevelError}, []string{"x has no effect", "y"})
	for _, want := range []string{`"level":"WARN","msg":"x has no effect"}`, `"level":"WARN","msg":"y"}`} {
		if strings.Count(out.String(), want) != 1 {
			t.Errorf("logged, want %s:\n%s", want, &out)
		}
	}
}

// With JSON a line is one object, whose values programs can use: durations in seconds, addresses and errors as text.
func TestJSONLog(t *testing.T) {
	var out bytes.Buffer
	log := newLog(&out, config.Log{Format: config.JSON})
	log.Debug("not at this level")
	log.Warn("a VIP has moved", "service", vip.Key{Namespace: "default", Name: "web"}, "vips", []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		"outage", 520*time.Millisecond, "err", errors.New("no\nway"), "mac", net.HardwareAddr{2, 0, 0, 0, 0, 1}, "epoch", 7)
	var got map[string]any
	check.OK(t, json.Unmarshal(out.Bytes(), &got))
	if at, ok := got["time"].(string); !ok || time.Since(check.Value(time.Parse(time.RFC3339Nano, at))(t)) > time.Minute {
		t.Errorf("time is %v", got["time"])
	}
	delete(got, "time")
	want := map[string]any{
		"level": "WARN", "msg": "a VIP has moved", "service": "default/web", "vips": []any{"10.0.0.1", "fd00::1"}, "outage": 0.52, "err": "no\nway", "mac": "02:00:00:00:00:01", "epoch": 7.0,
	}
	if diff := cmp.Diff(want, got); diff != "" || strings.Count(out.String(), "\n") != 1 {
		t.Errorf("-want +got:\n%s%s", diff, &out)
	}
	out.Reset()
	newLog(&out, config.Log{Format: config.Text}).Info("x", "outage", time.Second)
	if !strings.Contains(out.String(), "level=INFO msg=x outage=1s") {
		t.Errorf("as text: %s", &out)
	}
}
