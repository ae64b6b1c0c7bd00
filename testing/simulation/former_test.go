package simulation

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// A formerCheck is a vip.CheckFormer under way.
type formerCheck struct {
	want       vip.AddressCheck
	unanswered int // rounds in a row
}

// check replaces the CheckFormer that p makes; other kinds are left out.
func (p *process) check(want []vip.AddressCheck) ([]vip.AddressCheck, error) {
	p.n.c.mu.Lock()
	defer p.n.c.mu.Unlock()
	before := p.former
	p.former = map[netip.Addr]*formerCheck{}
	for _, w := range want {
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
			if n.transmits && n.receives && slices.ContainsFunc(n.c.answers(a, n.side), func(o *node) bool { return slices.Contains(strings.Fields(x.want.AllowedMACs), o.name) }) {
				x.unanswered = 0
			}
			poke = poke || x.unanswered == 3
		}
		n.c.mu.Unlock()
		if poke {
			p.agent.Poke()
		}
	}
}
