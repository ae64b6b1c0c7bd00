package main

import (
	"os/signal"
	"strings"
	"syscall"
	"testing"
)

// TestUnknownCommands: a command that is mistyped is an error and not a page of help: a script must not take it for done.
func TestUnknownCommands(t *testing.T) {
	for _, args := range []string{"import metalb", "pools chek", "uninstall nod", "manifest daemonst", "statsu"} {
		_, _, err := run(t, root(), strings.Fields(args)...)
		if got := status(err); err == nil || got != 2 || !strings.Contains(err.Error(), "unknown command") {
			t.Errorf("%s: status %d, %v; want 2 and an unknown command", args, got, err)
		}
	}
	if _, _, err := run(t, root(), "statsu"); text(err) != `unknown command "statsu" for "herald"; did you mean status?` {
		t.Error(err)
	}
	for _, args := range []string{"import", ""} {
		if out, _, err := run(t, root(), strings.Fields(args)...); err != nil || !strings.Contains(out, "Available Commands") {
			t.Errorf("%s: %v and\n%s", args, err, out)
		}
	}
}

// TestNoManifestNamed: "herald manifest" alone is a wrong command line, which prints nothing that could be piped into kubectl.
func TestNoManifestNamed(t *testing.T) {
	if out, _, err := run(t, root(), "manifest"); err == nil || status(err) != 2 || out != "" {
		t.Errorf("status %d, want 2: %v, printed %q", status(err), err, out)
	}
}

// A terminal that is closed, or a reload that sends SIGHUP, ends the process in good order.
func TestHangUp(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Skip("SIGHUP is ignored here (nohup), as it is for a Herald that is started so")
	}
	ctx, cancel := signal.NotifyContext(t.Context(), ends()...)
	defer cancel()
	if err := syscall.Kill(syscall.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
}
