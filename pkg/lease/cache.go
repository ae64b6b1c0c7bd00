package lease

import (
	"context"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Store is the Leases of the API server: a watch cache to read and a way to write.
// Every write is conditional on the resourceVersion of what it replaces, so that
// of two writers one is refused (an error for which apierrors.IsConflict,
// IsAlreadyExists or IsNotFound holds).
type Store interface {
	// Synced reports whether the watch cache has been filled at least once.
	Synced() bool
	// TakeChanges returns what has happened to the watch cache since the last call: the
	// Leases in it that are new or changed, and the last versions of those that left it, in
	// that order (one that came back is in both). They must not be changed.
	TakeChanges() (changed, dropped []*coordinationv1.Lease)
	// WatchAgain has all watches of the process, not only that of Leases, begin again with a list of what there is by then. It does not block.
	WatchAgain()
	// Get reads past the watch cache.
	Get(ctx context.Context, namespace, name string) (*coordinationv1.Lease, error)
	Create(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	Update(ctx context.Context, l *coordinationv1.Lease) (*coordinationv1.Lease, error)
	Delete(ctx context.Context, namespace, name, resourceVersion string) error
}

// A cache is the newest version known of every Lease: what the watch shows, or what this
// node's own writes returned before the watch shows it.
type cache struct {
	self      string
	namespace string // of node leases
	latest    map[vip.Key]*record
	mine      map[vip.Key]bool      // of latest, the Leases whose holder is this node
	transfers map[string]*transfers // by node: those on its node lease, if there are any

	transfersChanged uint64           // how often transfers have come or gone
	transferred      map[vip.Key]bool // of latest, the VIP leases whose owner has them by a transfer (listTransferred)
	transferredAt    uint64           // transfersChanged when transferred was listed

	shown    uint64 // the newest version of any Lease that the watch has shown: it has shown all that are older
	restored bool   // a write of this node has shown that etcd was restored from a backup, and the watch has shown nothing since
	restores int    // how often etcd was restored, as the watch has shown

	watched map[vip.Key]*coordinationv1.Lease // what the watch shows
	written map[vip.Key]bool                  // latest was returned by a write, and the watch has not shown it
	deleted map[vip.Key]uint64                // the last version of what this node deleted, until the watch has dropped it
	dropped map[vip.Key]uint64                // the last version of what the watch has dropped, while a write of this node on it is under way
	pending map[vip.Key]bool                  // to be compared by update: watched or latest has changed

	// Of VIP leases only:
	changedAt map[vip.Key]time.Time             // when one was seen to change that no Herald holds, or a node whose node lease does not bear that out; or a vanished one to vanish
	vanished  map[vip.Key]*coordinationv1.Lease // those that were deleted, but not by their holder
	outdated  map[vip.Key]uint64                // versions that are known to be old, though the watch shows no newer one
}

// newCache makes an empty cache for the node self, with node leases in namespace.
func newCache(self, namespace string) cache {
	return cache{
		self:      self,
		namespace: namespace,
		latest:    make(map[vip.Key]*record),
		mine:      make(map[vip.Key]bool),
		transfers: make(map[string]*transfers),
		watched:   make(map[vip.Key]*coordinationv1.Lease),
		written:   make(map[vip.Key]bool),
		deleted:   make(map[vip.Key]uint64),
		dropped:   make(map[vip.Key]uint64),
		pending:   make(map[vip.Key]bool),
		changedAt: make(map[vip.Key]time.Time),
		vanished:  make(map[vip.Key]*coordinationv1.Lease),
		outdated:  make(map[vip.Key]uint64),

		transferred: make(map[vip.Key]bool),
	}
}

// version returns the newest resourceVersion known of a Lease; 0 if none is known to exist.
func (c *cache) version(k vip.Key) uint64 {
	if x := c.latest[k]; x != nil {
		return x.version
	}
	return 0
}

// setLatest stores l, parsed, as the newest version known of the Lease k, without comparing it
// with the one before; nil removes that. It marks k to be compared with the watch by the next
// update. The transfers of a node lease are stored with it.
func (c *cache) setLatest(k vip.Key, l *coordinationv1.Lease) {
	delete(c.latest, k)
	delete(c.mine, k)
	delete(c.transferred, k)
	c.pending[k] = true
	if node, ok := strings.CutPrefix(k.Name, NodePrefix); ok && k.Namespace == c.namespace {
		c.setTransfers(node, l)
	}
	if l == nil {
		return
	}
	x := parseRecord(l)
	c.latest[k] = x
	if x.holder == c.self {
		c.mine[k] = true
	}
	if c.ownerOf(x).unwritten {
		c.transferred[k] = true
	}
}

// setTransfers stores the transfers on the node lease l; none for nil.
func (c *cache) setTransfers(node string, l *coordinationv1.Lease) {
	text := ""
	if l != nil {
		text = l.Annotations[TransfersAnnotation]
	}
	if t := c.transfers[node]; t == nil && text == "" || t != nil && t.text == text {
		return
	}
	c.transfersChanged++
	delete(c.transfers, node)
	if t := parseTransfers(text); t != nil {
		c.transfers[node] = t
	}
}

// ownerOf returns the owner of a VIP lease. It follows the transfers only if one has come or gone since it was asked last.
func (c *cache) ownerOf(x *record) owner {
	if len(c.transfers) == 0 {
		return owner{node: x.holder, epoch: x.epoch}
	}
	if x.ownerAt != c.transfersChanged {
		x.owner, x.ownerAt = followTransfers(x, func(node string) *transfers { return c.transfers[node] }), c.transfersChanged
	}
	return x.owner
}

// listTransferred returns the VIP leases whose owner has them by a transfer. It looks at all only after a transfer has come
// or gone. The map must not be changed.
func (c *cache) listTransferred() map[vip.Key]bool {
	if c.transferredAt == c.transfersChanged {
		return c.transferred
	}
	clear(c.transferred)
	for k, x := range c.latest {
		if c.ownerOf(x).unwritten {
			c.transferred[k] = true
		}
	}
	c.transferredAt = c.transfersChanged
	return c.transferred
}

// leads reports whether any VIP lease that exists is in t in its newest version, so that its owner follows from t.
func (c *cache) leads(t *transfers) bool {
	if t == nil {
		return false
	}
	for _, x := range c.latest {
		if x.ours && t.find(x.digest) != nil {
			return true
		}
	}
	return false
}

// setWritten stores l, which a write of this node returned, as the newest version, until the
// watch shows it or a newer one. It does nothing if the watch has already shown the deletion
// of that version or of a later one. A VIP lease that it stores is no longer vanished.
func (c *cache) setWritten(l *coordinationv1.Lease) {
	k := keyOf(l)
	if last, ok := c.dropped[k]; ok && last >= version(l) {
		return
	}
	delete(c.vanished, k)
	c.setLatest(k, l)
	c.written[k] = true
	delete(c.deleted, k)
}

// setDeleted removes a Lease that this node has deleted, whose last version was l. As long as
// the watch still shows that version or an older one, update ignores it.
func (c *cache) setDeleted(l *coordinationv1.Lease) {
	k := keyOf(l)
	c.forget(k)
	c.deleted[k] = version(l)
}

// forget removes the newest version of a Lease that the API server says does not exist, and
// marks the key to be compared: the next update takes it back if the watch still shows it.
// What is kept of VIP leases only (changedAt, vanished, outdated) stays.
func (c *cache) forget(k vip.Key) {
	c.setLatest(k, nil)
	delete(c.written, k)
}

// update brings the newest versions up to date with what has happened to the watch cache since
// the last call (Store.TakeChanges: added, dropped). It returns the Leases of which the watch
// shows a newer version than was known, and the last versions of those that are gone without a
// delete of this node. What this node's own writes and deletes have stored already is in
// neither. The order is random.
func (c *cache) update(added, dropped []*coordinationv1.Lease) (changed, gone []*coordinationv1.Lease) {
	last := make(map[vip.Key]*coordinationv1.Lease, len(dropped))
	for _, l := range dropped {
		k := keyOf(l)
		delete(c.watched, k)
		last[k], c.dropped[k], c.pending[k] = l, version(l), true
	}
	if len(added) > 0 && c.restored || slices.ContainsFunc(added, c.isEarlier) {
		c.forgetWrites()
	}
	for _, l := range added {
		k := keyOf(l)
		c.watched[k], c.pending[k] = l, true
		c.shown = max(c.shown, version(l))
	}
	for k := range c.pending {
		if l := c.watched[k]; l != nil {
			if c.updateShown(k, l) {
				changed = append(changed, l)
			}
		} else if l := c.updateMissing(k, last[k]); l != nil {
			gone = append(gone, l)
		}
	}
	clear(c.pending)
	return changed, gone
}

// isEarlier reports whether the watch has shown a later version of the Lease l before: etcd was restored from a backup since.
func (c *cache) isEarlier(l *coordinationv1.Lease) bool {
	before := c.watched[keyOf(l)]
	return before != nil && version(before) > version(l)
}

// isRestored reports whether etcd was restored from a backup before a write that returned l: shown is what it was when that was sent, so that a later version was there before.
func isRestored(l *coordinationv1.Lease, shown uint64) bool { return version(l) <= shown }

// setRestored notes that etcd was restored from a backup, as a write of l, which only this node writes, has shown (isRestored). What the watch has shown proves
// nothing about what is written from then on. It may go on without a list, and show no change before versions are as late as before;
// so what it shows of l is left out until it shows it again. Once it shows anything, that counts instead of this node's writes (forgetWrites).
func (c *cache) setRestored(l *coordinationv1.Lease) {
	c.restored, c.shown = true, 0
	delete(c.watched, keyOf(l))
}

// forgetWrites has what the watch shows count, instead of this node's writes and deletes that it has not shown, once etcd was restored from a
// backup: they may be lost, and versions begin again from an earlier one.
func (c *cache) forgetWrites() {
	for k := range c.written {
		c.pending[k] = true
	}
	for k := range c.deleted {
		c.pending[k] = true
	}
	clear(c.written)
	clear(c.deleted)
	clear(c.dropped)
	c.restored, c.shown = false, 0
	c.restores++
}

// updateShown stores l, the version that the watch shows of the Lease k, as the newest, unless
// that version is known, or was deleted by this node, or this node has just written a newer one. One that is older than what the watch has shown before counts: etcd was
// restored from a backup. It reports whether it has
// stored it. Once the watch has caught up with this node's last write or delete it forgets
// that there was one.
func (c *cache) updateShown(k vip.Key, l *coordinationv1.Lease) bool {
	v := version(l)
	if old, ok := c.deleted[k]; ok {
		if v <= old {
			return false // the watch is behind this node's delete
		}
		delete(c.deleted, k)
	}
	known := c.version(k)
	if known > v && c.written[k] {
		return false // the watch is behind this node's write
	}
	delete(c.written, k)
	if known == v && c.latest[k] != nil {
		return false
	}
	c.setLatest(k, l)
	return true
}

// updateMissing removes the newest version of the Lease k, which the watch does not show, and
// returns it, or last if that is newer. last is the version that the watch has dropped since
// the update before; nil: none. If none was known, as after a delete of this node, or the
// watch is behind this node's last write, it removes nothing and returns nil. In each case it
// forgets that this node has deleted k.
func (c *cache) updateMissing(k vip.Key, last *coordinationv1.Lease) *coordinationv1.Lease {
	delete(c.deleted, k)
	x := c.latest[k]
	if x == nil || c.written[k] && (last == nil || version(last) < x.version) {
		return nil
	}
	c.forget(k)
	if last != nil && version(last) > x.version {
		return last
	}
	return x.Lease
}

// setVIPLeaseChanged marks a VIP lease, of which x is a new version, as neither vanished nor
// outdated. It stores now as the time of the change if timed is set, which is for those whose claim
// lasts no longer than a certain time after it; of any other it stores no time.
func (c *cache) setVIPLeaseChanged(x *record, timed bool, now time.Time) {
	delete(c.vanished, x.key)
	delete(c.outdated, x.key)
	delete(c.changedAt, x.key)
	if timed {
		c.changedAt[x.key] = now
	}
}

// setVIPLeaseGone stores x, the last version of a VIP lease that was deleted, though not by this
// node, as vanished since now if a Herald wrote its holder; with the claim of its owner if it was transferred, as long as the transfer is known: nobody
// needs that any more, so it goes. Of any it forgets the time of the last change.
func (c *cache) setVIPLeaseGone(x *record, now time.Time) {
	delete(c.changedAt, x.key)
	if !x.ours {
		return
	}
	last := x.Lease
	if o := c.ownerOf(x); o.unwritten {
		last = o.writtenOn(last)
	}
	c.vanished[x.key], c.changedAt[x.key] = last, now
}
