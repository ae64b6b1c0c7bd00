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

// A gobgpServer is a server of gobgp for one peer at a time, which is its log, too.
type gobgpServer struct {
	*server.BgpServer
	log atomic.Pointer[slog.Logger] // of the peer
}

// pool is the servers of this process that have no peer. A server can't be ended without a trace, so it is kept for
// the next peer; and starting one writes variables of gobgp's packages that all servers read, so some are started
// before the first is used.
var pool struct {
	sync.Mutex // guards idle, and that one at a time starts servers
	idle       []*gobgpServer
}

// startedTogether is how many servers are started at a time. An idle one costs four goroutines and 40 kB.
var startedTogether = 4

// takeServer is a server without a peer or routes, which logs to log. It starts servers if none is idle.
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

// giveServer puts a server back that has no peer and no routes any more.
func giveServer(s *gobgpServer) {
	pool.Lock()
	defer pool.Unlock()
	pool.idle = append(pool.idle, s)
}

// startServer starts a server that listens on no port.
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

// A gobgpLog logs what a server of gobgp says, as Debug: what a user needs to know is told by the guard. It ends no
// process.
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
