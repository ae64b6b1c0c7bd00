package bgp

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/log"
	"github.com/osrg/gobgp/v3/pkg/server"
)

// A gobgpServer is a gobgp server for one peer at a time, and its log.
type gobgpServer struct {
	*server.BgpServer
	log atomic.Pointer[slog.Logger] // of the peer
}

// pool is the servers without a peer. A server can't be ended without a trace, so it is kept; and starting one writes
// variables that all servers read, so some are started before the first is used.
var pool struct {
	sync.Mutex // guards idle, and that one at a time starts servers
	idle       []*gobgpServer
}

// startedTogether is how many servers are started at a time. An idle one costs four goroutines and 40 kB.
var startedTogether = 4

// takeServer is a server without peer or routes, which logs to log; it starts some if none is idle.
func takeServer(log *slog.Logger) (*gobgpServer, error) {
	pool.Lock()
	defer pool.Unlock()
	for len(pool.idle) == 0 {
		for range startedTogether {
			s, err := startServer()
			if err != nil {
				return nil, err
			}
			pool.idle = append(pool.idle, s)
		}
	}
	s := pool.idle[0]
	pool.idle = pool.idle[1:]
	s.log.Store(log)
	return s, nil
}

// giveServer puts back a server without peer and routes.
func giveServer(s *gobgpServer) {
	pool.Lock()
	defer pool.Unlock()
	pool.idle = append(pool.idle, s)
}

func startServer() (*gobgpServer, error) {
	s := &gobgpServer{}
	s.log.Store(slog.New(slog.DiscardHandler))
	s.BgpServer = server.NewBgpServer(server.LoggerOption(gobgpLog{s}))
	go s.Serve()
	return s, s.StartBgp(context.Background(), &api.StartBgpRequest{Global: &api.Global{
		Asn:        1,           // each peer has its own
		ListenPort: -1,          // none
		RouterId:   "192.0.2.2", // guards put each peer's in its place
	}})
}

// A gobgpLog logs what gobgp says as Debug: the guard tells users. It ends no process.
type gobgpLog struct{ *gobgpServer }

func (l gobgpLog) write(msg string, f log.Fields) {
	l.log.Load().Debug("gobgp: "+msg, "fields", fmt.Sprint(map[string]any(f)))
}
func (l gobgpLog) Panic(msg string, f log.Fields) { l.write(msg, f) }
func (l gobgpLog) Fatal(msg string, f log.Fields) { l.write(msg, f) }
func (l gobgpLog) Error(msg string, f log.Fields) { l.write(msg, f) }
func (l gobgpLog) Warn(msg string, f log.Fields)  { l.write(msg, f) }
func (l gobgpLog) Info(msg string, f log.Fields)  { l.write(msg, f) }
func (l gobgpLog) Debug(string, log.Fields)       {} // one for each message
func (l gobgpLog) SetLevel(log.LogLevel)          {}
func (l gobgpLog) GetLevel() log.LogLevel         { return log.InfoLevel }
