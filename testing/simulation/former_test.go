package simulation

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/quorum"
	"github.com/heraldvip/herald/pkg/vip"
)

// A formerCheck is a vip.CheckFormer under way.
type formerCheck struct {
	want       vip.AddressCheck
	unanswered int // rounds in a row
}

// check replaces the CheckFormer and CheckNeighbor that p makes; other kinds are left out.
func (p *process) check(want []vip.AddressCheck) ([]vip.AddressCheck, error) {
	p.n.c.mu.Lock()
	defer p.n.c.mu.Unlock()
	before, silent := p.former, p.neighbors
	p.former, p.neighbors = map[netip.Addr]*formerCheck{}, map[netip.Addr]time.Time{}
	for _, w := range want {
		if w.Kind == vip.CheckNeighbor {
			p.neighbors[w.Addr] = silent[w.Addr]
		}
		if w.Kind != vip.CheckFormer {
			continue
		}
		x := before[w.Addr]
		if x == nil || !x.want.Same(w) {
			x = &formerCheck{}
		}
		x.want, p.former[w.Addr] = w, x
	}
	return want, nil
}

// askFormer asks each 10 ms whether nodes that have lost their claims go on to answer, as l2 does, until ctx ends.
func (p *process) askFormer(ctx context.Context) {
	n := p.n
	for ctx.Err() == nil {
		time.Sleep(10 * time.Millisecond)
		poke := false
		n.c.mu.Lock()
		for a, x := range p.former {
			if !p.runs() || n.has(hung) || x.unanswered >= 3 {
				continue
			}
			x.unanswered++
			if n.reaches(n) && slices.ContainsFunc(n.c.answers(a, n.side), func(o *node) bool { return slices.Contains(strings.Fields(x.want.AllowedMACs), o.name) }) {
				x.unanswered = 0
			}
			poke = poke || x.unanswered == 3
		}
		for a, since := range p.neighbors {
			if silent := !n.reaches(n.c.nodes[a.As4()[3]-1]); !silent || since.IsZero() {
				p.neighbors[a] = quorum.Since(since, silent, time.Now())
			}
		}
		n.c.mu.Unlock()
		if poke {
			p.agent.Poke()
		}
	}
}

// unanswered returns the own addresses of nodes that have not answered for as long as l2 takes to be sure, while another node, or the gateway on side 0, is heard.
func (p *process) unanswered() (found []netip.Addr) {
	n := p.n
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	for a, since := range p.neighbors {
		if !since.IsZero() && time.Since(since) > 5*time.Second && (n.reaches(n) && n.side == 0 || slices.ContainsFunc(n.c.nodes, func(o *node) bool { return o != n && n.reaches(o) })) {
			found = append(found, a)
		}
	}
	slices.SortFunc(found, netip.Addr.Compare)
	return found
}
