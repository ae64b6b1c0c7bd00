package bgp

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"
)

// A gobgpServer is a server of gobgp for one peer at a time.
type gobgpServer struct {
	*server.BgpServer
	id   netip.Addr
	peer atomic.Pointer[peer] // whose events and logs these are; nil: nobody's
}

// pool is the servers of this process that have no peer. A server can't be ended
// without a trace, so it is kept for the next peer; and starting one writes variables
// of gobgp's packages that all servers read, so some are started before the first is used.
var pool struct {
	sync.Mutex // guards idle, and that one at a time starts servers
	idle       []*gobgpServer
}

// startedTogether is how many servers are started at a time. An idle one costs four
// goroutines and 40 kB.
var startedTogether = 4

// takeServer is a server with a BGP identifier, and without a peer or routes. It starts
// servers if none is idle.
func takeServer(id netip.Addr) (*gobgpServer, error) {
	pool.Lock()
	defer pool.Unlock()
	i := slices.IndexFunc(pool.idle, func(s *gobgpServer) bool { return s.id == id })
	if i < 0 {
		i = len(pool.idle)
		for range startedTogether {
			s, err := startServer(id)
			if err != nil {
				return nil, err
			}
			pool.idle = append(pool.idle, s)
		}
	}
	s := pool.idle[i]
	pool.idle = slices.Delete(pool.idle, i, i+1)
	return s, nil
}

// giveServer puts a server back that has no peer and no routes any more.
func giveServer(s *gobgpServer) {
	s.peer.Store(nil)
	pool.Lock()
	defer pool.Unlock()
	pool.idle = append(pool.idle, s)
}

// startServer starts a server that listens on no port, and takes no route of a peer into
// its table.
func startServer(id netip.Addr) (*gobgpServer, error) {
	s := &gobgpServer{id: id}
	s.BgpServer = server.NewBgpServer(server.LoggerOption(&gobgpLog{s}))
	go s.Serve()
	ctx := context.Background()
	err := s.StartBgp(ctx, &api.StartBgpRequest{Global: &api.Global{
		Asn:        1,           // each peer has its own
		ListenPort: -1,          // others may have port 179 on this node
		RouterId:   id.String(), // what a peer can't have of its own
	}})
	if err != nil {
		return nil, err
	}
	local := &api.Policy{Name: "local", Statements: []*api.Statement{{
		Name: "local", Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, Actions: &api.Actions{RouteAction: api.RouteAction_ACCEPT},
	}}}
	if err := s.AddPolicy(ctx, &api.AddPolicyRequest{Policy: local}); err != nil {
		return nil, err
	}
	err = s.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: api.PolicyDirection_IMPORT, Policies: []*api.Policy{local}, DefaultAction: api.RouteAction_REJECT,
	}})
	if err != nil {
		return nil, err
	}
	return s, s.WatchEvent(ctx, &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}, func(e *api.WatchEventResponse) {
		if p := s.peer.Load(); p != nil {
			p.deliver(e)
		}
	})
}
