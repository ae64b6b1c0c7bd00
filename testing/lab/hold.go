package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

const askTimeout = 5 * time.Second

// A Held is a TCP connection that the client holds to a pod behind an address.
type Held struct {
	net.Conn
	in *bufio.Reader
}

// Hold connects the client to an address and port, and to the pod's /echo there. Close ends it.
func (l *Lab) Hold(ctx context.Context, address string) (*Held, error) {
	conn, err := l.DialFrom("cl")(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	h := &Held{conn, bufio.NewReader(conn)}
	if _, err = io.WriteString(conn, "GET /echo HTTP/1.1\r\nHost: pod\r\n\r\n"); err == nil {
		_, err = h.Ask()
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	return h, nil
}

// Close ends the connection, and waits up to a second for the pod's end, so that the nodes between know.
func (h *Held) Close() error {
	if c, ok := h.Conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		_ = h.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = io.Copy(io.Discard, h.in)
	}
	return h.Conn.Close()
}

// Ask sends a line, waits up to 5 s for its echo, and returns how long that took. The error is that of a broken
// connection.
func (h *Held) Ask() (took time.Duration, err error) {
	const line = "hello\n"
	began := time.Now()
	_ = h.SetDeadline(began.Add(askTimeout))
	if _, err = io.WriteString(h, line); err != nil {
		return 0, err
	}
	echo, err := h.in.ReadString('\n')
	if err == nil && echo != line {
		err = fmt.Errorf("the pod sent %q", echo)
	}
	return time.Since(began), err
}
