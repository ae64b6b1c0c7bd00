// Command tool is the one program in the pods of the lab's real nodes:
//
//	tool pause   keeps a pod's namespaces: it reaps orphans, and ends with SIGTERM
//	tool web     answers HTTP on :8080 with "pod node client", ready or not; a connection for /echo is no longer
//	             HTTP: it gets back what it sends; a path that begins with /log/ is printed
//
// web answers for another 5 s after SIGTERM, as a backend should, since kube-proxies
// still have its endpoint.
package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

func main() {
	what := "pause"
	if len(os.Args) > 1 {
		what = os.Args[1]
	}
	switch what {
	case "pause":
		pause()
	case "web":
		web()
	default:
		fmt.Fprintln(os.Stderr, "tool pause | tool web")
		os.Exit(2)
	}
}

func pause() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for s := range signals {
		if s != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); pid <= 0 || err != nil {
				break
			}
		}
	}
}

func web() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	name, _ := os.Hostname()
	srv := &http.Server{Addr: ":8080", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/echo" {
			if conn, in, err := http.NewResponseController(w).Hijack(); err == nil {
				_, _ = io.Copy(conn, in)
				conn.Close()
			}
			return
		}
		if strings.HasPrefix(r.URL.Path, "/log/") {
			fmt.Println(r.URL.Path)
		}
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprintf(w, "%s %s %s\n", name, os.Getenv("NODE"), client)
	})}
	srv.SetKeepAlivesEnabled(false) // each request takes a new connection
	go func() {
		<-ctx.Done()
		time.Sleep(5 * time.Second)
		srv.Close()
	}()
	if err := srv.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
