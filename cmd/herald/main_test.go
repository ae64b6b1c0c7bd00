package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// TestUnknownCommands: a command that is mistyped, or lacks an argument, is an error and not a page of help: a script must not take it for done,
// and "herald manifest" prints nothing that could be piped into kubectl.
func TestUnknownCommands(t *testing.T) {
	for args, want := range map[string]string{
		"import metalb": "unknown command", "pools chek": "unknown command", "uninstall nod": "unknown command", "manifest daemonst": "unknown command",
		"statsu": `unknown command "statsu" for "herald"; did you mean status?`, "manifest": "",
		"drain":         "herald drain takes one NODE, as herald status lists them; it was given 0 arguments",
		"undrain n1 n2": "herald undrain takes one NODE, as herald status lists them; it was given 2 arguments",
		"pools check":   "herald pools check takes one FILE, a ConfigMap in YAML or - for standard input; it was given 0 arguments",
	} {
		out, _, err := run(t, root(), strings.Fields(args)...)
		if err == nil || status(err) != 2 || !strings.HasPrefix(err.Error(), want) || out != "" {
			t.Errorf("%s: status %d, want 2; %v, want %s; printed %q", args, status(err), err, want, out)
		}
	}
	for _, args := range []string{"import", ""} {
		if out, _, err := run(t, root(), strings.Fields(args)...); err != nil || !strings.Contains(out, "Available Commands") {
			t.Errorf("%s: %v and\n%s", args, err, out)
		}
	}
}

// A terminal that is closed, or a reload that sends SIGHUP, ends the process in good order.
func TestHangUp(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("SIGHUP is ignored here (nohup), as it is for a Herald that is started so")
	}
	ctx, cancel := signal.NotifyContext(t.Context(), ends()...)
	defer cancel()
	check.OK(t, syscall.Kill(syscall.Getpid(), syscall.SIGHUP))
	<-ctx.Done()
}

// What is to be known of the options is logged whatever the level is: it may be the level that is wrong.
func TestWarnOfOptions(t *testing.T) {
	var out bytes.Buffer
	warnOfOptions(&out, config.Log{Format: config.JSON, Level: slog.LevelError}, []string{"x has no effect", "y"})
	for _, want := range []string{`"level":"WARN","msg":"x has no effect"}`, `"level":"WARN","msg":"y"}`} {
		check.Equal(t, strings.Count(out.String(), want), 1, "how often %s is logged:\n%s", want, &out)
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
	check.Contains(t, out.String(), "level=INFO msg=x outage=1s")
}

func TestDescribe(t *testing.T) {
	build := func(settings ...string) *debug.BuildInfo {
		info := &debug.BuildInfo{GoVersion: "go1.26.0"}
		for i := 0; i < len(settings); i += 2 {
			info.Settings = append(info.Settings, debug.BuildSetting{Key: settings[i], Value: settings[i+1]})
		}
		return info
	}
	tests := []struct {
		info *debug.BuildInfo
		want string
	}{
		{nil, "herald v1"},
		{build("GOOS", "linux", "GOARCH", "arm64"), "herald v1 (go1.26.0, linux/arm64)"},
		{build("GOOS", "linux", "GOARCH", "amd64", "vcs.revision", "abc", "vcs.time", "2026-01-02T03:04:05Z", "vcs.modified", "false"),
			"herald v1 (commit abc, of 2026-01-02T03:04:05Z, go1.26.0, linux/amd64)"},
		{build("GOOS", "linux", "GOARCH", "amd64", "vcs.revision", "abc", "vcs.modified", "true"),
			"herald v1 (commit abc and changes, go1.26.0, linux/amd64)"},
	}
	for _, tt := range tests {
		check.Equal(t, describe("v1", tt.info), tt.want, "the version")
	}
}

func TestVersion(t *testing.T) {
	defer func(v string) { version = v }(version)
	version = "v9.8.7"
	stdout, _, err := run(t, versionCommand())
	if err != nil || !strings.HasPrefix(stdout, "herald v9.8.7 (") || !strings.HasSuffix(stdout, ")\n") {
		t.Errorf("%q, %v", stdout, err)
	}
	version = ""
	if got := currentVersion(); got == "" {
		t.Error("no version without a release")
	}
}
