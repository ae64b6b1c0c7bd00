package main

import (
	"os/signal"
	"syscall"
	"testing"
)

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
