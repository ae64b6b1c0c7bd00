package netif

import (
	"context"
	"errors"
	"fmt"
)

// Traces describes the addresses that bear Herald's mark, and the links that it has made, in this network namespace
// when n was made or last changed it.
func (n *Interfaces) Traces() (found []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range n.snapshot.sortedAddresses() {
		if a.marked {
			found = append(found, fmt.Sprintf("address %s on %s", a.prefix, n.snapshot.links[a.link].name))
		}
	}
	for _, l := range n.snapshot.macvlans() {
		found = append(found, "link "+l.name)
	}
	return found
}

// RemoveTraces removes what Traces describes; the parents of the links answer ARP again as they did before.
func (n *Interfaces) RemoveTraces(ctx context.Context) error {
	_, err := n.Set(ctx, nil)
	for left := len(n.macvlans.left()); left > 0; {
		_, failed := n.macvlans.Set(ctx, nil)
		now := len(n.macvlans.left())
		if now == left {
			return errors.Join(err, failed)
		}
		left = now
	}
	return err
}

// left returns the links of Herald that there are.
func (m *Macvlans) left() []link {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	return m.n.snapshot.macvlans()
}
