package abuse

import (
	"context"
	"io"
	"net"
	"strconv"
	"time"
)

// reopenAfter is how long a client waits that was refused, or that the other side has hung up on.
const reopenAfter = 5 * time.Second

// holdConnections keeps the connections to each port of each node open, without a request, until
// ctx ends. One that is closed or refused is opened again after reopenAfter.
func (r *Running) holdConnections(ctx context.Context) {
	for _, node := range r.lab.Nodes() {
		address, _ := r.lab.Addrs(node)
		for _, port := range r.ports {
			to := net.JoinHostPort(address.String(), strconv.Itoa(port))
			for range r.load[Connections] {
				r.goOn(ctx, func(ctx context.Context) error {
					for ctx.Err() == nil {
						r.hold(ctx, to)
						select {
						case <-ctx.Done():
						case <-time.After(reopenAfter):
						}
					}
					return nil
				})
			}
		}
	}
}

// hold opens a connection, and returns when the other side has closed it, or ctx ends.
func (r *Running) hold(ctx context.Context, to string) {
	soon, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := r.lab.DialFrom(floodHost)(soon, "tcp", to)
	if err != nil {
		r.refused.Add(1)
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	r.made[Connections].Add(1)
	r.held.Add(1)
	defer r.held.Add(-1)
	_, _ = io.Copy(io.Discard, c)
}
