package lab

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
)

// backendName is how the program runs itself as the process of a pod.
const backendName = "herald-lab-backend"

// A program that uses this package is the backend of its pods: no other one has to be built and found.
func init() {
	if len(os.Args) == 3 && os.Args[0] == backendName {
		serveBackend(os.Args[1], os.Args[2])
		os.Exit(0)
	}
}

// serveBackend answers HTTP requests on inherited listeners, from file descriptor 3, with "pod node client". A
// connection that asks for /echo then gets back what it sends, until the client closes it.
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
