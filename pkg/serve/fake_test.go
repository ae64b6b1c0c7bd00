package serve

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
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

func (w *pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv6unspecified, Port: 2112} }

// Addresses of the node, of a VIP on it, and of other hosts.
const (
	nodeAddress      = "192.0.2.1"
	secondaryAddress = "192.0.2.2"
	vipAddress       = "192.0.2.50"
	otherHost        = "192.0.2.99"
)

// options is those of a node with these addresses.
func options(metrics string, healthPort uint16, log *slog.Logger) Options {
	return Options{
		Metrics: metrics, HealthPort: healthPort, Pages: healthyPages(), Log: log,
		IsLocal: func(a netip.Addr) bool {
			return a.IsLoopback() || a.String() == nodeAddress || a.String() == secondaryAddress || a.String() == vipAddress
		},
		IsVIP: func(a netip.Addr) bool { return a.String() == vipAddress },
	}
}

// An addressed is a connection between two addresses.
type addressed struct {
	net.Conn
	local, remote net.Addr
}

func (a addressed) LocalAddr() net.Addr  { return a.local }
func (a addressed) RemoteAddr() net.Addr { return a.remote }

// dial opens a connection over the loopback link, or fails if nobody listens any more.
func (w *pipeListener) dial() (net.Conn, error) { return w.dialFrom("127.0.0.1", "127.0.0.1") }

// dialFrom opens a connection from one address to another of this node.
func (w *pipeListener) dialFrom(from, to string) (net.Conn, error) {
	near, far := net.Pipe()
	tcp := func(a string, port uint16) net.Addr {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(a), port))
	}
	select {
	case w.conns <- addressed{far, tcp(to, 2112), tcp(from, 40000)}:
		return near, nil
	case <-w.closed:
		return nil, net.ErrClosed
	}
}

// get asks for a page over a connection of its own.
func (w *pipeListener) get(path string) (string, error) {
	return w.getFrom("127.0.0.1", "127.0.0.1", path)
}

func (w *pipeListener) getFrom(from, to, path string) (string, error) {
	c, err := w.dialFrom(from, to)
	if err != nil {
		return "", err
	}
	defer c.Close()
	return ask(c, path)
}

// ask asks for a page over c, which the server closes then.
func ask(c net.Conn, path string) (string, error) {
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
