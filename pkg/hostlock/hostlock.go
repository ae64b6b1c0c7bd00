// Package hostlock lets one Herald work on a host at a time: two would take away each other's
// addresses. The lock is a Unix socket in the abstract namespace (unix(7)), which belongs to the
// network namespace, as VIPs do. The kernel removes it with the process that has it, however that ends, so
// a process that is restarted waits for nothing.
//
// Whoever holds the lock listens on the socket. Another process connects to it, both tell who
// they are in a line of text, and the connection stays open: its end tells that the lock is
// free, or that nobody waits any more.
//
// Any user of the host can take such a name, in its network namespace. Who does is waited for all the same, since two
// Heralds are worse than none that works, and named if that is not root.
package hostlock

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
)

// address is the name of the socket; "@" is Go's for the abstract namespace.
const address = "@heraldvip.io/herald"

// What other programs of this host may send or cost.
const (
	maxWaiting = 16  // connections; more are closed
	maxTold    = 4   // of them Waiting returns
	maxLine    = 300 // bytes
	lineTime   = 2 * time.Second
	retryTime  = 250 * time.Millisecond // between two tries while there is a lock but nobody answers
	logTime    = time.Minute
	remindTime = time.Hour // how often a process that waits says so again
)

// A Lock is this process's part in the lock of the host.
type Lock struct {
	self     string
	log      *slog.Logger
	address  string
	listener net.Listener // nil: not acquired
	waiting  *mailbox.Mailbox[[]string]
	holder   *mailbox.Mailbox[string]
	poke     func()

	refusedSince time.Time // since when the lock has been another's that does not listen; zero: it is not
}

// New makes a Lock that is not acquired. self is what other processes are told of this one:
// words without a line break. poke is called when Waiting has changed; it must not block.
func New(self string, log *slog.Logger, poke func()) *Lock {
	return &Lock{self: self, log: log, address: address, waiting: mailbox.New[[]string](), holder: mailbox.New[string](),
		poke: poke}
}

// String names the task.
func (l *Lock) String() string { return "hostlock" }

// Waiting returns what the processes that wait for this one to end say of themselves, the first
// maxTold, sorted; it must not be changed.
func (l *Lock) Waiting() []string { return l.waiting.Get() }

// Holder returns what the process that has the lock says of itself; "" if this one has it, or
// has not tried yet.
func (l *Lock) Holder() string { return l.holder.Get() }

// TryAcquire tries to acquire the lock, and reports whether no other process has it. It does
// not block. If the kernel has no such sockets it logs that, and returns true without the lock.
func (l *Lock) TryAcquire() bool {
	listener, err := net.Listen("unix", l.address)
	switch {
	case err == nil:
		l.listener = listener
		l.holder.Put("")
	case errors.Is(err, syscall.EADDRINUSE):
		return false
	default:
		l.log.Warn("no lock can be made that keeps a second Herald from working on this host", "err", err)
	}
	return true
}

// Acquire blocks until TryAcquire succeeds, or ctx ends, whose error it returns. While another
// process has the lock it logs, and calls tell with, what that says of itself: at once, and each
// remindTime.
func (l *Lock) Acquire(ctx context.Context, tell func(holder string)) error {
	logged, at := "", time.Time{}
	for !l.TryAcquire() {
		l.await(ctx, func(holder string) {
			l.holder.Put(holder)
			if holder != logged || time.Since(at) > remindTime {
				logged, at = holder, time.Now()
				l.log.Error("another Herald has the name of this node: it runs on this host. This one stays out of the way "+
					"until that ends; end one of them", "other", holder)
				tell(holder)
			}
		})
		pause(ctx, retryTime/10)
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	if logged != "" {
		l.log.Info("the other Herald has ended; this one begins", "other", logged)
	}
	return nil
}

// await connects to the process that has the lock, calls told with what that says of itself, and whose it is if not
// root's (describeUser), and blocks until the connection or ctx ends. If nobody answers it calls told with words that
// say so, and returns after retryTime. It calls nothing if that process has just ended; one that has not listened for
// lineTime has not.
func (l *Lock) await(ctx context.Context, told func(string)) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", l.address)
	if ctx.Err() != nil {
		return
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		if l.refusedSince.IsZero() {
			l.refusedSince = time.Now()
		}
		if time.Since(l.refusedSince) >= lineTime {
			told("a process that has the name of the lock, and does not listen: it is no Herald" + howToFind)
		}
		return
	}
	l.refusedSince = time.Time{}
	holder, user := "", ""
	if err == nil {
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		user = describeUser(conn)
		holder, err = exchange(conn, l.self)
	}
	if err != nil {
		told(cmp.Or(user, "a process that does not answer: it hangs, or is no Herald"))
		pause(ctx, retryTime)
		return
	}
	if user != "" {
		holder = user + "; it says: " + holder
	}
	told(holder)
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1)) // nothing more is sent: this blocks until it ends
}

// howToFind is a command that shows the process which has the lock.
const howToFind = " (on the host, as root: ss -xap | grep heraldvip.io/herald)"

// describeUser returns, if the process that listens at the other end of conn is neither root's nor of the user of
// this one (SO_PEERCRED, as of listen(2)), words that say so; "" if it is, or that can't be read.
func describeUser(conn net.Conn) string {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return ""
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return ""
	}
	var user *syscall.Ucred
	if raw.Control(func(fd uintptr) {
		user, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}) != nil || err != nil {
		return ""
	}
	if user.Uid == 0 || int(user.Uid) == os.Geteuid() {
		return ""
	}
	return fmt.Sprintf("a process of user %d, neither root nor the user of this one: unless you run Herald as that "+
		"user it is none, and only has the name of the lock%s", user.Uid, howToFind)
}

// exchange sends a line with self, and returns the line that comes from the other side,
// without what does not print. It blocks for lineTime at most.
func exchange(conn net.Conn, self string) (other string, err error) {
	if err := conn.SetDeadline(time.Now().Add(lineTime)); err != nil {
		return "", err
	}
	if _, err := io.WriteString(conn, self+"\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(io.LimitReader(conn, maxLine)).ReadString('\n')
	if err != nil && line == "" {
		return "", err
	}
	other = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, line)
	return other, conn.SetDeadline(time.Time{})
}

// pause blocks for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Run keeps the lock until ctx ends, and tells processes that wait for it who has it.
// It logs one that begins to wait, at most each logTime. Without the lock it waits for ctx. It
// returns nil.
func (l *Lock) Run(ctx context.Context) error {
	if l.listener == nil {
		<-ctx.Done()
		return nil
	}
	begun, ended := make(chan *process), make(chan *process)
	go l.accept(ctx, begun, ended)
	defer l.listener.Close()
	var all []*process
	var logged time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-begun:
			all = append(all, p)
			if time.Since(logged) > logTime {
				logged = time.Now()
				l.log.Warn("another Herald was started on this host; it waits until this one ends. End one of them", "other",
					p.text)
			}
		case p := <-ended:
			all = slices.DeleteFunc(all, func(q *process) bool { return p == q })
			l.log.Debug("another Herald on this host waits no more", "other", p.text)
		}
		var texts []string
		for _, p := range all[:min(len(all), maxTold)] {
			texts = append(texts, p.text)
		}
		slices.Sort(texts)
		l.waiting.Put(texts)
		l.poke()
		pause(ctx, time.Second)
	}
}

// A process is one that waits for the lock.
type process struct{ text string }

// accept accepts connections until the listener is closed, and sends each process that has
// said who it is to begun, and to ended once its connection ends. Beyond maxWaiting it closes them.
func (l *Lock) accept(ctx context.Context, begun, ended chan<- *process) {
	slots := make(chan struct{}, maxWaiting)
	for {
		conn, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause(ctx, retryTime)
			continue
		}
		select {
		case slots <- struct{}{}:
			go func() {
				defer func() { <-slots }()
				l.serve(ctx, conn, begun, ended)
			}()
		default:
			conn.Close()
		}
	}
}

// serve tells the process at the other end of conn who this one is, and blocks until the
// connection or ctx ends.
func (l *Lock) serve(ctx context.Context, conn net.Conn, begun, ended chan<- *process) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	text, err := exchange(conn, l.self)
	if err != nil {
		return
	}
	p := &process{text}
	send := func(to chan<- *process) {
		select {
		case to <- p:
		case <-ctx.Done():
		}
	}
	send(begun)
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1)) // it sends no more: this blocks until it ends
	send(ended)
}
