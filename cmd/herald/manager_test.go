package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/vip"
)

// A process without egress removes what an earlier one, with egress, has left in nftables and in the routing policy database.
func TestEgressSwitchedOff(t *testing.T) {
	n := idleNode(t)
	n.cfg.Egress.Enable = false
	if o := n.agentOptions(); o.Egress == nil || o.EgressRoutes == nil {
		t.Error("the agent is handed no rooms of egress, so that what is in the kernel stays")
	}
}

var errFake = errors.New("a task fails")

// An ending is what a test sees of tasks: what each does, and how many seconds after the first.
type ending struct {
	mu    sync.Mutex
	began time.Time
	seen  map[time.Duration][]string
}

func (e *ending) add(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.began.IsZero() {
		e.began, e.seen = time.Now(), make(map[time.Duration][]string)
	}
	at := time.Since(e.began)
	e.seen[at] = append(e.seen[at], what)
}

func (e *ending) String() string {
	var all []string
	for at, what := range e.seen {
		slices.Sort(what)
		all = append(all, at.String()+": "+strings.Join(what, ", "))
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// A fakeTask is asked to end by its ctx, and returns some time later. It may fail before.
type fakeTask struct {
	name  string
	takes time.Duration    // from the end of ctx until it returns
	fails <-chan time.Time // may be nil
	*ending
}

func (f *fakeTask) String() string { return f.name }

func (f *fakeTask) Run(ctx context.Context) error {
	select {
	case <-f.fails:
		return errFake
	case <-ctx.Done():
	}
	f.add(f.name)
	if f.takes > 0 {
		time.Sleep(f.takes)
		f.add(f.name + " has ended")
	}
	return nil
}

// Whatever ends a process, the agent hands over before leases, announcements and heartbeats end; unless another process
// has taken the node's name, so that this one must not act on its claims any longer.
func TestTasksEndInOrder(t *testing.T) {
	const handsOver = "0s: agent; 2s: agent has ended, leases, other; 3s: leases has ended, reader"
	for _, tt := range []struct{ name, fails, want string }{
		{"asked to end", "", handsOver},
		{"a reader fails, as when credentials were renewed", "credentials", handsOver},
		{"another task fails", "announcer", handsOver},
		{"the name is taken", "leases", "0s: agent, other, reader; 2s: agent has ended"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &ending{}
				fake := func(name string, takes time.Duration) *fakeTask {
					f := &fakeTask{name: name, takes: takes, ending: e}
					if name == tt.fails {
						f.fails = time.After(time.Minute)
					}
					return f
				}
				x := tasks{
					readers: []task{fake("reader", 0)}, awaitName: func(context.Context) error { return nil },
					others: []task{fake("other", 0)}, leases: fake("leases", time.Second), agent: fake("agent", 2*time.Second),
				}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				switch tt.fails {
				case "":
					time.AfterFunc(time.Minute, cancel)
				case "announcer":
					x.others = append(x.others, fake("announcer", 0))
				case "credentials":
					x.readers = append(x.readers, fake("credentials", 0))
				}
				err := x.run(ctx, slog.New(slog.DiscardHandler))
				if (err != nil) != (tt.fails != "") || err != nil && (!errors.Is(err, errFake) || !strings.Contains(err.Error(), tt.fails)) {
					t.Errorf("it ends with %v", err)
				}
				if got := e.String(); got != tt.want {
					t.Errorf("asked to end\n%s, want\n%s", got, tt.want)
				}
			})
		})
	}
}

// A process that waits for its node's name ends at once when a task fails, or when it is asked to.
func TestTasksEndBeforeTheyBegin(t *testing.T) {
	for _, fails := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			e := &ending{}
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			failing := &fakeTask{name: "credentials", ending: e}
			if fails {
				failing.fails = time.After(time.Minute)
			}
			began := time.Now()
			err := tasks{
				readers: []task{&fakeTask{name: "reader", ending: e}, failing},
				awaitName: func(ctx context.Context) error {
					<-ctx.Done()
					return ctx.Err()
				},
			}.run(ctx, slog.New(slog.DiscardHandler))
			if took := time.Since(began); errors.Is(err, errFake) != fails || fails != (took == time.Minute) {
				t.Errorf("a task fails: %v: it ended after %v with %v", fails, took, err)
			}
		})
	}
}

// Each node's vip_interface may be another: what nodes ask of each other names none of them.
func TestControlPlaneLink(t *testing.T) {
	for named, want := range map[string]string{"eth0": vip.DefaultLink, "": config.Auto} {
		var cfg config.Config
		cfg.Link.Interface = named
		if got := controlPlaneRules(cfg).Interface; got != want {
			t.Errorf("with vip_interface %q: %q, want %q", named, got, want)
		}
	}
}
