package lab

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"time"
)

// StartAPIServer starts a further API server on a node, at port 6443 of all its addresses, without waiting. All have
// one etcd, users and tokens.
func (l *Lab) StartAPIServer(node string) (*Process, error) {
	return l.Start(node, "kube-apiserver-"+node, l.apiArgs(node, l.etcdURL()))
}

// An APIConn is a connection of the host cl to an API server.
type APIConn struct {
	Server string // the host of the API server that answers
	conn   *tls.Conn
	in     *bufio.Reader
}

// DialAPI connects from the host cl to the API server at addr, an IP address and a port.
func (l *Lab) DialAPI(ctx context.Context, addr string) (*APIConn, error) {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(l.ca)
	tcp, err := l.DialFrom("cl")(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	conn := tls.Client(tcp, &tls.Config{RootCAs: roots, ServerName: "kubernetes"})
	if err := conn.HandshakeContext(ctx); err != nil {
		tcp.Close()
		return nil, err
	}
	return &APIConn{Server: conn.ConnectionState().PeerCertificates[0].Subject.CommonName, conn: conn,
		in: bufio.NewReader(conn)}, nil
}

// Ask makes one request as the admin; the answer must come within 2 s.
func (c *APIConn) Ask() error {
	if err := c.conn.SetDeadline(time.Now().Add(2 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprint(c.conn, "GET /api/v1/namespaces/default HTTP/1.1\r\nHost: kubernetes\r\nAuthorization: "+
		"Bearer admin-token\r\n\r\n"); err != nil {
		return err
	}
	resp, err := http.ReadResponse(c.in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the API server on %s says %s", c.Server, resp.Status)
	}
	return nil
}

// Close closes the connection.
func (c *APIConn) Close() error { return c.conn.Close() }
