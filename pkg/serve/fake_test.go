package serve

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
)

// logs is a log that keeps level and message.
type logs struct {
	mu    sync.Mutex
	lines []string
}

func (l *logs) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		Level: slog.LevelDebug,
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	}))
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func (l *logs) count(level string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, line := range l.lines {
		if strings.HasPrefix(line, "level="+level+" ") {
			n++
		}
	}
	return n
}

// A pipeListener is a listener without a network: whoever has it can call.
type pipeListener struct {
	conns  chan net.Conn
	broken chan error
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), broken: make(chan error), closed: make(chan struct{})}
}

func (w *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-w.conns:
		return c, nil
	case err := <-w.broken:
		return nil, err
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

func (w *pipeListener) Close() error {
	w.once.Do(func() { close(w.closed) })
	return nil
}

func (w *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 2112} }

// dial opens a connection, or fails if nobody listens any more.
func (w *pipeListener) dial() (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case w.conns <- far:
		return near, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

// get asks for a page over a connection of its own.
func (w *pipeListener) get(path string) (string, error) {
	c, err := w.dial()
	if err != nil {
		return "", err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n", path); err != nil {
		return "", err
	}
	r, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return fmt.Sprintf("%d %s", r.StatusCode, body), err
}
