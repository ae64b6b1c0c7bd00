package bgp

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	api "github.com/osrg/gobgp/v3/api"
	"github.com/osrg/gobgp/v3/pkg/server"
)

// A speaker is gobgp's server for one peer at a time.
type speaker struct {
	*server.BgpServer
	listen *listener
	id     netip.Addr
}

// pool is the servers of this process that speak to nobody. A server can't be
// ended without a trace, so it is kept for the next peer; and starting one writes
// variables of gobgp's packages that all servers read, so some are started before the
// first has anything to do.
var pool struct {
	sync.Mutex
	idle []*speaker
}

// spare is how many servers are started at a time. An idle one costs
// four goroutines and 40 kB.
var spare = 4

// take is a server with a BGP identifier that speaks to nobody yet.
func take(id netip.Addr) (*speaker, error) {
	pool.Lock()
	defer pool.Unlock()
	fits := func(s *speaker) bool { return s.id == id }
	if !slices.ContainsFunc(pool.idle, fits) {
		for range spare {
			s, err := newSpeaker(id)
			if err != nil {
				return nil, err
			}
			pool.idle = append(pool.idle, s)
		}
	}
	i := slices.IndexFunc(pool.idle, fits)
	s := pool.idle[i]
	pool.idle = slices.Delete(pool.idle, i, i+1)
	return s, nil
}

// give puts a server back that has no peer any more.
func give(s *speaker) {
	_ = s.DeletePath(context.Background(), &api.DeletePathRequest{}) // all of ours
	s.listen.of.Store(nil)
	pool.Lock()
	defer pool.Unlock()
	pool.idle = append(pool.idle, s)
}

func newSpeaker(id netip.Addr) (*speaker, error) {
	s := &speaker{listen: &listener{}, id: id}
	s.listen.connecting.Store(true)
	s.BgpServer = server.NewBgpServer(server.LoggerOption(s.listen))
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
	// Only what is ours gets into the table.
	ours := &api.Policy{Name: "ours", Statements: []*api.Statement{{
		Name: "ours", Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, Actions: &api.Actions{RouteAction: api.RouteAction_ACCEPT},
	}}}
	if err := s.AddPolicy(ctx, &api.AddPolicyRequest{Policy: ours}); err != nil {
		return nil, err
	}
	err = s.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Name: "global", Direction: api.PolicyDirection_IMPORT, Policies: []*api.Policy{ours}, DefaultAction: api.RouteAction_REJECT,
	}})
	if err != nil {
		return nil, err
	}
	hear := func(e *api.WatchEventResponse) {
		if p := s.listen.of.Load(); p != nil {
			p.hear(e)
		}
	}
	return s, s.WatchEvent(ctx, &api.WatchEventRequest{Peer: &api.WatchEventRequest_Peer{}}, hear)
}
