package lab

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
)

// backendName is the name under which the program re-executes itself as the
// process of a pod.
const backendName = "herald-lab-backend"

// A program that uses this package runs itself again as the backend of its pods: no other
// program has to be built and found.
func init() {
	if len(os.Args) == 3 && os.Args[0] == backendName {
		serveBackend(os.Args[1], os.Args[2])
		os.Exit(0)
	}
}

// serveBackend answers every HTTP request on the listeners it has inherited, which
// are file descriptors 3 and up, with a line "pod node client". A connection that asks for
// /echo is no longer HTTP: it gets back what it sends, until the client closes it.
func serveBackend(pod, node string) {
	answer := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/echo" {
			if conn, in, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.Copy(conn, in)
				conn.Close()
			}
			return
		}
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s %s %s\n", pod, node, client)
	}
	srv := http.Server{Handler: http.HandlerFunc(answer)}
	srv.SetKeepAlivesEnabled(false) // each request takes a new connection
	var wg sync.WaitGroup
	for i := range backendPorts {
		wg.Go(func() {
			f := os.NewFile(uintptr(3+i), "listener")
			ln, err := net.FileListener(f)
			f.Close()
			if err != nil {
				fmt.Fprintln(os.Stderr, "inherited listener:", err)
				return
			}
			fmt.Fprintln(os.Stderr, "serve:", srv.Serve(ln))
		})
	}
	wg.Wait()
}
