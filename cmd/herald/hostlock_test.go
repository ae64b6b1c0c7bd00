package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// While a process has the lock of the host, be it no Herald and listen to nothing, another one waits, says so once, and
// has it as soon as that ends.
func TestHostLock(t *testing.T) {
	name := hostSocket + "-" + t.Name()
	held := func(t *testing.T) func() {
		lock, mine := tryHostLock(name, slog.New(slog.DiscardHandler))
		if !mine {
			t.Fatal("it is not free")
		}
		return func() { check.OK(t, lock.Close()) }
	}
	bound := func(t *testing.T) func() {
		fd := check.Value(syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
		check.OK(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: name}))
		return func() { check.OK(t, syscall.Close(fd)) }
	}
	for what, hold := range map[string]func(*testing.T) func(){"another Herald": held, "a program that does not listen": bound} {
		release := hold(t)
		var log bytes.Buffer
		told, got := make(chan bool, 10), make(chan net.Listener)
		go func() {
			lock, err := awaitHostLock(t.Context(), name, slog.New(slog.NewTextHandler(&log, nil)), func() { told <- true })
			if err != nil {
				t.Error(err)
			}
			got <- lock
		}()
		<-told
		select {
		case <-got:
			t.Errorf("%s has the lock, and so has this one", what)
		case <-time.After(time.Second):
		}
		release()
		check.OK(t, (<-got).Close())
		if n := strings.Count(log.String(), "ss -xap"); n != 1 || len(told) > 0 {
			t.Errorf("%s: told %d times too often, logged\n%s", what, len(told), &log)
		}
	}
}

// A process that waits for the lock can be stopped.
func TestHostLockIsGivenUp(t *testing.T) {
	name := hostSocket + "-" + t.Name()
	lock, _ := tryHostLock(name, slog.New(slog.DiscardHandler))
	defer lock.Close()
	ctx, cancel := context.WithCancel(t.Context())
	if _, err := awaitHostLock(ctx, name, slog.New(slog.DiscardHandler), cancel); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
