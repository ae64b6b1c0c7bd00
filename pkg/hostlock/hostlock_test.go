package hostlock

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/heraldvip/herald/testing/check"
)

// newLock makes a Lock whose socket is this test's alone.
func newLock(t *testing.T, self string) *Lock {
	l := New(self, slog.New(slog.DiscardHandler), func() {})
	l.address = fmt.Sprintf("%s-%d-%s", address, os.Getpid(), t.Name())
	return l
}

// hold acquires the lock and keeps it until release is called, which waits for its end.
func hold(t *testing.T, l *Lock) (release func()) {
	t.Helper()
	check.OK(t, l.Acquire(t.Context(), func(string) {}))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- l.Run(ctx) }()
	return func() { stop(); check.OK(t, <-done) }
}

// Of two processes one has the lock; each learns who the other is; when the first ends the
// second has it at once.
func TestTwoProcesses(t *testing.T) {
	first, second := newLock(t, "first"), newLock(t, "second")
	release := hold(t, first)
	acquired := make(chan error)
	go func() { acquired <- second.Acquire(t.Context(), func(string) {}) }()
	check.Until(t, 10*time.Second, "each knows of the other", func() error {
		if w := first.Waiting(); len(w) != 1 || w[0] != "second" || second.Holder() != "first" {
			return fmt.Errorf("waiting %q, holder %q", w, second.Holder())
		}
		return nil
	})
	select {
	case err := <-acquired:
		t.Fatalf("the second one has it too: %v", err)
	default:
	}
	release()
	began := time.Now()
	check.OK(t, <-acquired)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the second one has it after %v", took)
	}
	if second.Holder() != "" {
		t.Errorf("it waits for %q", second.Holder())
	}
}

// A process that waits no more is forgotten.
func TestWaitsNoMore(t *testing.T) {
	first, second := newLock(t, "first"), newLock(t, "second")
	defer hold(t, first)()
	ctx, stop := context.WithCancel(t.Context())
	acquired := make(chan error)
	go func() { acquired <- second.Acquire(ctx, func(string) {}) }()
	check.Until(t, 10*time.Second, "it waits", func() error {
		if len(first.Waiting()) != 1 {
			return fmt.Errorf("waiting: %q", first.Waiting())
		}
		return nil
	})
	stop()
	if err := <-acquired; err == nil {
		t.Error("it was acquired")
	}
	check.Until(t, 10*time.Second, "it is forgotten", func() error {
		if len(first.Waiting()) != 0 {
			return fmt.Errorf("waiting: %q", first.Waiting())
		}
		return nil
	})
}

// Other programs of the host can neither fill the memory of the holder nor its log's lines.
func TestOtherPrograms(t *testing.T) {
	first := newLock(t, "first")
	defer hold(t, first)()
	for range 3 * maxWaiting {
		conn := check.Value(net.Dial("unix", first.address))(t)
		defer conn.Close()
		go io.WriteString(conn, strings.Repeat("\x1b[31mx", 10000)) // fails once that is closed
	}
	check.Until(t, 10*time.Second, "some of them are heard", func() error {
		if len(first.Waiting()) == 0 {
			return fmt.Errorf("none is")
		}
		return nil
	})
	if n := len(first.Waiting()); n > maxTold {
		t.Errorf("%d are told of", n)
	}
	for _, w := range first.Waiting() {
		if len(w) > maxLine || strings.ContainsRune(w, '\x1b') {
			t.Errorf("heard %q", w)
		}
	}
}

// A process that has the lock and does not answer is waited for, too.
func TestHolderHangs(t *testing.T) {
	second := newLock(t, "second")
	hanging := check.Value(net.Listen("unix", second.address))(t)
	acquired := make(chan error)
	go func() { acquired <- second.Acquire(t.Context(), func(string) {}) }()
	check.Until(t, 10*time.Second, "it says so", func() error {
		if !strings.Contains(second.Holder(), "does not answer") {
			return fmt.Errorf("holder %q", second.Holder())
		}
		return nil
	})
	hanging.Close()
	check.OK(t, <-acquired)
}

// The name of the socket is free to any user of the host: who is not root is named, whatever it says of itself.
func TestHolderOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user for a moment")
	}
	const nobody = 65534
	second := newLock(t, "second")
	listening, ended := make(chan net.Listener), make(chan struct{})
	go func() {
		runtime.LockOSThread() // for good: the thread, which is nobody's now, ends with this goroutine
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, nobody, nobody, nobody)
		listener, err := net.Listen("unix", second.address)
		if errno != 0 || err != nil {
			t.Error(errno, err)
		}
		listening <- listener
	}()
	listener := <-listening
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = io.WriteString(conn, "herald, as it says\n")
			<-ended
			conn.Close()
		}
	}()
	acquired := make(chan error)
	go func() { acquired <- second.Acquire(t.Context(), func(string) {}) }()
	check.Until(t, 10*time.Second, "it is named", func() error {
		if h := second.Holder(); !strings.Contains(h, "user 65534") || !strings.Contains(h, "herald, as it says") {
			return fmt.Errorf("holder %q", h)
		}
		return nil
	})
	listener.Close()
	close(ended)
	check.OK(t, <-acquired)
}

// A process that has the name and does not listen is waited for, too, and not in silence.
func TestHolderDoesNotListen(t *testing.T) {
	second := newLock(t, "second")
	fd := check.Value(syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0))(t)
	check.OK(t, syscall.Bind(fd, &syscall.SockaddrUnix{Name: second.address}))
	acquired := make(chan error)
	go func() { acquired <- second.Acquire(t.Context(), func(string) {}) }()
	check.Until(t, 10*time.Second, "it says so", func() error {
		if !strings.Contains(second.Holder(), "no Herald") {
			return fmt.Errorf("holder %q", second.Holder())
		}
		return nil
	})
	check.OK(t, syscall.Close(fd))
	check.OK(t, <-acquired)
}
