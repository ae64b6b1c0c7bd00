package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

// assignmentWrites is how many addresses are written at a time.
const assignmentWrites = 6

// Assignments writes the addresses that Services are given: kube-vip.io/loadbalancerIPs and
// heraldvip.io/allocated, and the condition Allocated, in one write that is conditional on the version that the cache shows,
// so that it never undoes what somebody else has written.
type Assignments struct {
	log    *slog.Logger
	off    bool // Options.NoUpdates
	cached func(vip.Key) *cachedService
	patch  func(ctx context.Context, k vip.Key, body []byte) error
	wanted *mailbox.Mailbox[[]vip.Assignment]
}

func newAssignments(c *Cluster, api *clients, o Options) *Assignments {
	return &Assignments{
		log: o.Log, off: o.NoUpdates, cached: c.service,
		patch: func(ctx context.Context, k vip.Key, body []byte) error {
			return api.core.Patch(types.StrategicMergePatchType).Namespace(k.Namespace).Resource("services").Name(k.Name).
				SubResource("status").Body(body).MaxRetries(0).Do(ctx).Error()
		},
		wanted: mailbox.New[[]vip.Assignment](),
	}
}

// Put has Run write every Assignment of want that has addresses and is not seen on its Service
// in the cache, if that has the same UID. With Options.NoUpdates it does nothing.
func (a *Assignments) Put(want []vip.Assignment) {
	if a.off || len(want) == 0 && len(a.wanted.Get()) == 0 {
		return
	}
	a.wanted.Put(want)
}

// String names the task.
func (a *Assignments) String() string { return "kube: addresses of Services" }

// An attempt is the last write of an Assignment.
type attempt struct {
	version    string // that it was made for
	at         time.Time
	rejections int           // of this version, in a row
	wait       time.Duration // from at until it is tried again, unless the version changes
}

// Run writes until ctx ends.
func (a *Assignments) Run(ctx context.Context) error {
	retry := time.NewTimer(time.Hour)
	defer retry.Stop()
	attempts := make(map[vip.Key]attempt)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wanted.Changed:
		case <-retry.C:
		}
		if a.writeAll(ctx, attempts) {
			retry.Reset(time.Hour)
		} else {
			retry.Reset(time.Second)
		}
	}
}

// writeAll tries once to write all that is wanted and not seen, and returns when that has been
// answered. What the API server rejects, since the Service has become too large, say, is tried again after 1 s, then
// less and less often, until the Service changes. It forgets attempts that nothing is wanted of any more, and reports false if
// something is to be tried again although nothing changes.
func (a *Assignments) writeAll(ctx context.Context, attempts map[vip.Key]attempt) (done bool) {
	wanted := a.wanted.Get()
	names := make(map[vip.Key]bool, len(wanted))
	failed := make([]error, len(wanted))
	done = true
	var writes errgroup.Group
	writes.SetLimit(assignmentWrites)
	for i, w := range wanted {
		names[w.Service] = true
		o := a.cached(w.Service)
		if len(w.Addresses) == 0 || o == nil || o.UID != w.UID || o.shows(w) || ctx.Err() != nil {
			continue
		}
		last := attempts[w.Service]
		if last.version != o.version {
			last = attempt{version: o.version}
		} else if time.Since(last.at) < last.wait {
			done = false
			continue
		}
		last.at, last.wait = time.Now(), cacheTimeout // the cache does not show the result yet
		attempts[w.Service] = last
		writes.Go(func() error {
			failed[i] = a.write(ctx, o, w)
			return nil
		})
	}
	_ = writes.Wait()
	for i, w := range wanted {
		if failed[i] == nil {
			continue
		}
		done = false
		last := attempts[w.Service]
		if last.wait = 0; resultOf(failed[i]) == rejected {
			last.wait = min(rejectedMin<<min(last.rejections, 10), rejectedMax)
			last.rejections++
		}
		attempts[w.Service] = last
	}
	for k := range attempts {
		if !names[k] {
			delete(attempts, k)
		}
	}
	return done
}

// shows reports whether s has what w says.
func (s *cachedService) shows(w vip.Assignment) bool {
	return s.Allocated == w.Pool && s.Source == addressesKey && slices.Equal(s.Addresses, w.Addresses)
}

// write makes o have the addresses of w, for 10 s at most, and logs what went wrong. A write
// that was refused since the Service has changed, or is gone, is no error: the cache will show that.
func (a *Assignments) write(ctx context.Context, o *cachedService, w vip.Assignment) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	allocated := vip.Condition{Type: vip.Allocated, Status: vip.ConditionTrue, Reason: vip.AddressAllocated, Message: strings.ReplaceAll(joinAddrs(w.Addresses), ",", ", ") + ": of pool " + w.Pool}
	body, err := json.Marshal(map[string]any{
		"metadata": map[string]any{
			"resourceVersion": o.version,
			"annotations":     map[string]string{addressesKey: joinAddrs(w.Addresses), allocatedKey: w.Pool},
		},
		"status": map[string]any{"conditions": o.conditionsPatch([]vip.Condition{allocated})},
	})
	if err == nil {
		err = a.patch(ctx, w.Service, body)
	}
	switch {
	case err == nil:
		a.log.Debug("address written", "service", w.Service.String(), "addresses", joinAddrs(w.Addresses), "pool", w.Pool)
		return nil
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil
	}
	a.log.Warn("the address that a Service was given could not be written; trying again", "service", w.Service.String(), "err", err)
	return fmt.Errorf("writing the address of Service %s: %w", w.Service, err)
}

// joinAddrs writes addresses with commas.
func joinAddrs(addrs []netip.Addr) string {
	texts := make([]string, 0, len(addrs))
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}
