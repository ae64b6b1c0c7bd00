package main

import (
	"runtime/debug"
	"strings"
	"testing"
)

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
		if got := describe("v1", tt.info); got != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
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
