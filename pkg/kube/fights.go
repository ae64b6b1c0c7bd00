package kube

import (
	"cmp"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// fights are the Services on which somebody else changes, again and again, what Herald writes there, and who does.
type fights struct {
	refusals                        // by Service: who
	counts   map[vip.Key]fightCount // for the goroutine that writes
}

// A fightCount is how often in a row a Service was changed back, and when last.
type fightCount struct {
	times   int
	last    time.Time
	version string // that was counted last
}

// count takes account of a change of o that undid what Herald had written, and returns how many there were since there
// was none for rewritesForgotten. From promptRewrites on it is a fight.
func (f *fights) count(k vip.Key, o *cachedService, now time.Time) int {
	c := f.counts[k]
	if c.version == o.version && c.times > 0 { // the cache has not shown the last write yet
		return c.times
	}
	if now.Sub(c.last) > rewritesForgotten {
		c.times = 0
	}
	c.times, c.last, c.version = c.times+1, now, o.version
	if f.counts == nil {
		f.counts = make(map[vip.Key]fightCount)
	}
	if f.counts[k] = c; c.times >= promptRewrites {
		f.set(k, cmp.Or(o.otherManager, "a program that metadata.managedFields does not name"))
	}
	return c.times
}

// end forgets the Services that nobody has changed for rewritesForgotten, and returns when to call it again; at least
// in an hour.
func (f *fights) end(now time.Time) time.Duration {
	next := time.Hour
	for k, c := range f.counts {
		if left := c.last.Add(rewritesForgotten).Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		delete(f.counts, k)
		f.set(k, "")
	}
	return next
}

// otherManager returns who changed an object last, but for Herald: its name in metadata.managedFields, or "".
func otherManager(all []metav1.ManagedFieldsEntry) (name string) {
	at := metav1.Time{}
	for _, e := range all {
		if e.Manager != "" && e.Manager != "herald" && e.Time != nil && !e.Time.Before(&at) {
			name, at = quote(strings.ToValidUTF8(e.Manager, "?")), *e.Time
		}
	}
	return name
}
