package bgp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

const birdHead = `router id 192.0.2.2;
protocol device {}
protocol bgp herald {
 local %[1]s as 65001;
 neighbor %[2]s as 65000;
 passive;
 error wait time 1, 2;
 %[3]s
 ipv4 { import all; export %[4]s; };
 ipv6 { import all; export none; };
}
`

var (
	birdRoute = regexp.MustCompile(`(?m)^(\S+)\s+unicast \[herald`)
	birdAttr  = regexp.MustCompile(`(?m)^\s+BGP\.(\w+): (.*)$`)
)

// routes is BIRD's table, in order.
func (r *router) routes() []string {
	r.t.Helper()
	out := check.Value(r.birdc("show route protocol herald"))(r.t)
	var have []string
	for _, m := range birdRoute.FindAllStringSubmatch(out, -1) {
		have = append(have, m[1])
	}
	slices.Sort(have)
	return have
}

// newBIRD is a router that runs BIRD with options of the session, and more beside it.
func newBIRD(t testing.TB, n int, options, more string) *router {
	t.Helper()
	r := newRouter(t, n)
	r.bird(fmt.Sprintf(birdHead, r.v4(), r.here4(), options, "none") + more)
	return r
}

// says waits until what a router shows has these words.
func says(t testing.TB, within time.Duration, what, words string, show func() (string, error)) {
	t.Helper()
	check.Until(t, within, what, func() error {
		out, err := show()
		if err == nil && !strings.Contains(out, words) {
			err = errors.New(out)
		}
		return err
	})
}

// knows waits until BIRD's table is exactly want.
func (r *router) knows(want ...string) {
	r.t.Helper()
	check.Until(r.t, 30*time.Second, r.name+"'s table", func() error {
		if diff := cmp.Diff(want, r.routes()); diff != "" {
			return fmt.Errorf("(-want +got)\n%s", diff)
		}
		return nil
	})
}

// BIRD, with a password, and beside it a peer whose password is another and one that refuses: they say so, and disturb nobody.
func TestPasswords(t *testing.T) {
	t.Parallel()
	r := newBIRD(t, 21, `password "s3cret";`, "")
	wrong := newBIRD(t, 22, `password "s3cret";`, "")
	refusing := newRouter(t, 23)
	s := runSpeaker(t, nil, vip.BGPPeer{Address: r.v4(), AS: 65001, Password: "s3cret"}, vip.BGPPeer{Address: wrong.v4(), AS: 65001, Password: "other"},
		vip.BGPPeer{Address: refusing.v4(), AS: 65001})
	all := routes("198.51.100.7/32", "2001:db8::7/128")
	all[0].Attributes = vip.BGPAttributes{Communities: []vip.Community{65000<<16 | 100}, LargeCommunities: []vip.LargeCommunity{{65000, 1, 2}}, MED: ptr(uint32(42))}
	s.Put(all)
	r.knows("198.51.100.7/32", "2001:db8::7/128")
	out := check.Value(r.birdc("show route all 198.51.100.7/32"))(t)
	got := make(map[string]string)
	for _, m := range birdAttr.FindAllStringSubmatch(out, -1) {
		got[m[1]] = m[2]
	}
	delete(got, "local_pref") // BIRD's own
	want := map[string]string{"origin": "IGP", "as_path": "65000", "next_hop": r.here4(), "med": "42", "community": "(65000,100)", "large_community": "(65000, 1, 2)"}
	check.Same(t, want, got, "attributes")
	check.Until(t, 30*time.Second, "reasons", func() error {
		x := s.Sessions()
		if !x[0].Up() || x[0].Prefixes != 2 || !strings.Contains(x[1].Reason, "MD5") || !strings.Contains(x[2].Reason, "refuses") {
			return fmt.Errorf("%+v", x)
		}
		return nil
	})
	if text := fmt.Sprintf("%v %+v %#v", s.o.Peers(), s.o.Peers(), s.o.Peers()); strings.Contains(text, "s3cret") || strings.Contains(text, "other") {
		t.Errorf("passwords are shown: %s", text)
	}
}

// A password that is in a file, and is changed there, is that of the next session, without a restart.
func TestPasswordRotation(t *testing.T) {
	t.Parallel()
	r := newBIRD(t, 18, `password "new";`, "")
	var content atomic.Pointer[vip.Secret]
	content.Store(ptr(vip.Secret("old")))
	list := &PeerList{
		Fixed:        []vip.BGPPeer{{Address: r.v4(), AS: 65001, LocalAS: 65000, Port: 179, Password: "old", PasswordFile: "/keys/rack1"}},
		Log:          slog.New(slog.NewTextHandler(t.Output(), nil)),
		ReadPassword: func(string) (vip.Secret, error) { return *content.Load(), nil },
	}
	s := runSpeaker(t, func(o *Options) { o.Peers, o.ReadPasswords = list.Peers, list.ReadPasswords })
	s.advertise("198.51.100.7/32")
	s.awaits(0, 30*time.Second, "the reason", func(x vip.BGPSession) bool { return strings.Contains(x.Reason, "MD5") })
	content.Store(ptr(vip.Secret("new")))
	r.knows("198.51.100.7/32")
	for name, v := range map[string]*prometheus.CounterVec{"sent": s.metrics.sent, "received": s.metrics.received, "flaps": s.metrics.flaps} {
		series := make(chan prometheus.Metric, 9)
		v.Collect(series)
		check.Equal(t, len(series), 1, "%s: series that are left", name)
	}
}

// Where no link has IPv4, an IPv4 prefix has an IPv6 next hop, and goes only to a router that takes such (RFC 8950): else the session says that it
// carries no IPv4.
func TestIPv6NextHop(t *testing.T) {
	t.Parallel()
	for n, tt := range map[int]struct {
		option, want string
		knows        []string
	}{
		63: {"extended next hop off;", "1 false true", []string{"2001:db8::7/128"}},
		64: {"extended next hop on;", "2 true true", []string{"198.51.100.7/32", "2001:db8::7/128"}},
	} {
		t.Run(tt.option, func(t *testing.T) {
			t.Parallel()
			r := newRouter(t, n)
			sh(t, fmt.Sprintf("ip -4 addr flush dev r%[1]d\nip -n r%[1]d -4 addr flush dev eth0", n))
			r.bird("log stderr all;\n" + strings.Replace(fmt.Sprintf(birdHead, r.v6(), r.here6(), "", "none"), "ipv4 { ", "ipv4 { "+tt.option+" ", 1))
			s := runSpeaker(t, nil, vip.BGPPeer{Address: r.v6(), AS: 65001})
			s.advertise("198.51.100.7/32", "2001:db8::7/128")
			s.up()
			r.knows(tt.knows...)
			x := s.Sessions()[0]
			got := fmt.Sprint(x.Prefixes, x.Takes(netip.MustParseAddr("198.51.100.7")), x.Takes(netip.MustParseAddr("2001:db8::7")))
			check.Equal(t, got, tt.want, "prefixes, and whether it takes IPv4 and IPv6")
			out := check.Value(os.ReadFile(r.dir + "/bird.out"))(t)
			check.Lacks(t, string(out), "nvalid") // BIRD refused nothing
		})
	}
}

// A router behind another one, on another port, asked from an address of ours that the router expects.
func TestMultihop(t *testing.T) {
	t.Parallel()
	r := newRouter(t, 24)
	sh(t, `ip netns add far
ip -n r24 link add far type veth peer name eth0 netns far
ip -n r24 link set far up
ip -n r24 addr add 10.124.0.1/24 dev far
ip -n far link set eth0 up
ip -n far addr add 10.124.0.2/24 dev eth0
ip -n far route add default via 10.124.0.1
ip netns exec r24 sysctl -qw net.ipv4.ip_forward=1
ip route add 10.124.0.0/24 via 10.24.0.1
ip addr add 192.0.2.99/32 dev lo
ip -n r24 route add 192.0.2.99/32 via 10.24.0.2`)
	t.Cleanup(func() { sh(t, "ip netns del far\nip addr del 192.0.2.99/32 dev lo") })
	near := r.name
	r.name = "far"
	r.bird(fmt.Sprintf(birdHead, "10.124.0.2 port 1179", "192.0.2.99", "multihop;", "none") +
		"protocol static { ipv4; route 192.0.2.99/32 via 10.124.0.1; }\n") // to resolve the next hop by
	defer func() { r.kill("bird"); r.name = near }()
	s := runSpeaker(t, nil, vip.BGPPeer{Address: netip.MustParseAddr("10.124.0.2"), AS: 65001, Port: 1179, Multihop: true, SourceInterface: "lo"})
	s.advertise("198.51.100.7/32")
	r.knows("198.51.100.7/32")
}

// A router on this node, asked at 127.0.0.1, gets a next hop that others can use, and tells them.
func TestRouterOnThisNode(t *testing.T) {
	r := newBIRD(t, 62, "", "")
	own := &router{t: t, dir: t.TempDir(), proc: make(map[string]*exec.Cmd)}
	defer own.kill("bird")
	own.bird(fmt.Sprintf(birdHead, "127.0.0.1", "127.0.0.1", "multihop;", "none") + fmt.Sprintf(`protocol bgp up {
 local %s as 65000;
 neighbor %s as 65001;
 ipv4 { import none; export all; };
 ipv6 { import none; export all; };
}
`, r.here4(), r.v4()))
	s := runSpeaker(t, nil, vip.BGPPeer{Address: netip.MustParseAddr("127.0.0.1"), AS: 65001})
	s.advertise("198.51.100.7/32", "2001:db8::7/128")
	s.up()
	for prefix, hop := range map[string]string{"198.51.100.7/32": r.here4(), "2001:db8::7/128": r.here6()} {
		for name, x := range map[string]*router{"this node's": own, "the next": r} {
			says(t, 30*time.Second, name+" router has the route", "BGP.next_hop: "+hop, func() (string, error) { return x.birdc("show route all " + prefix) })
		}
	}
}

// A router that sends the table of the Internet: nothing of it gets into ours, and
// what it costs is measured. Another peer's route is as quick as ever meanwhile.
func TestFullTable(t *testing.T) {
	const size = 100_000
	r, quiet := newRouter(t, 25), newRouter(t, 26)
	var b strings.Builder
	fmt.Fprintf(&b, birdHead, r.v4(), r.here4(), "", "all")
	b.WriteString("protocol static { ipv4;\n")
	for i := range size {
		fmt.Fprintf(&b, "route %d.%d.%d.0/24 blackhole { bgp_med = %d; };\n", 20+i>>16, i>>8&255, i&255, i%500)
	}
	b.WriteString("}\n")
	r.bird(b.String())
	quiet.bird(fmt.Sprintf(birdHead, quiet.v4(), quiet.here4(), "", "none"))
	before := heap()
	s := runSpeaker(t, nil, vip.BGPPeer{Address: r.v4(), AS: 65001}, vip.BGPPeer{Address: quiet.v4(), AS: 65001})
	s.advertise("198.51.100.7/32")
	quiet.knows("198.51.100.7/32")
	r.knows("198.51.100.7/32")
	began := time.Now()
	s.advertise("198.51.100.7/32", "198.51.100.8/32")
	quiet.knows("198.51.100.7/32", "198.51.100.8/32")
	meanwhile := time.Since(began)
	check.Until(t, 30*time.Second, "the full table", func() error {
		n := check.Metric(t, "", s.metrics.received.WithLabelValues(r.v4().String(), "65001"))
		if n < 500 || !s.Sessions()[0].Up() { // one for each of the attribute's values
			return fmt.Errorf("%v UPDATE messages", n)
		}
		return nil
	})
	cost := int(heap()-before) >> 20
	t.Logf("%d routes of a router: %d MB of heap; a change took %v meanwhile", size, cost, meanwhile.Round(time.Millisecond))
	if meanwhile > time.Second || cost > 5 {
		t.Errorf("a change took %v to reach the other peer, and the routes %d MB of heap", meanwhile, cost)
	}
	if out, err := os.ReadFile("/proc/net/route"); err != nil || strings.Count(string(out), "\n") > 20 {
		t.Errorf("routes were installed: %v\n%.500s", err, out)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A router that does not answer, is killed, comes back, and resets sessions: the hold time ends the session, and it comes back by itself.
func TestRouterFails(t *testing.T) {
	t.Parallel()
	r := newRouter(t, 27)
	conf := fmt.Sprintf(birdHead, r.v4(), r.here4(), "", "none")
	r.bird(conf)
	s := runSpeaker(t, func(o *Options) { o.HoldTime, o.KeepaliveTime = 3*time.Second, time.Second }, vip.BGPPeer{Address: r.v4(), AS: 65001})
	s.advertise("198.51.100.7/32")
	s.up()
	down := func(words string, within time.Duration) {
		t.Helper()
		took := s.awaits(0, within, "the session's end", func(x vip.BGPSession) bool { return !x.Up() && strings.Contains(x.Reason, words) })
		t.Logf("down after %v: %s", took.Round(10*time.Millisecond), s.Sessions()[0].Reason)
	}
	bird := r.proc["bird"].Process.Pid // ip netns exec becomes what it runs
	check.OK(t, syscall.Kill(bird, syscall.SIGSTOP))
	down("hold time", 4*time.Second)
	check.OK(t, syscall.Kill(bird, syscall.SIGCONT))
	s.up()
	r.knows("198.51.100.7/32")
	for range 2 {
		check.Value(r.birdc("restart herald"))(t)
		down("cease", 2*time.Second)
		s.up()
	}
	r.kill("bird")
	down("", 2*time.Second)
	s.advertise("198.51.100.8/32") // what changed meanwhile is told, too
	r.bird(conf)
	s.up()
	r.knows("198.51.100.8/32")
	check.Equal(t, check.Metric(t, "", s.metrics.flaps.WithLabelValues(r.v4().String(), "65001")), 4, "sessions that ended")
}

// A peer that is added, and one that is not wanted any more, are followed.
func TestPeersChange(t *testing.T) {
	t.Parallel()
	a, b := newRouter(t, 28), newRouter(t, 29)
	a.bird(fmt.Sprintf(birdHead, a.v4(), a.here4(), "", "none"))
	b.bird(fmt.Sprintf(birdHead, b.v6(), b.here6(), "", "none"))
	to := func(r netip.Addr) vip.BGPPeer { return vip.BGPPeer{Address: r, AS: 65001, LocalAS: 65000, Port: 179} }
	peers := []vip.BGPPeer{to(a.v4()), to(b.v6())} // gobgp keeps variables of its package, which a later start would write
	var removed atomic.Int32                       // how many of them are no longer configured
	s := runSpeaker(t, func(o *Options) { o.Peers = func() []vip.BGPPeer { return peers[removed.Load():] } })
	all := routes("198.51.100.7/32", "198.51.100.8/32")
	all[1].Attributes.Peers = []string{b.v6().String()}
	s.Put(all)
	s.up()
	a.knows("198.51.100.7/32")
	b.knows("198.51.100.7/32", "198.51.100.8/32")
	removed.Store(1)
	s.Put(all)
	a.knows()
	// After the routes are withdrawn.
	says(t, 5*time.Second, "the router hears why", "not configured any more", func() (string, error) { return a.birdc("show protocols all herald") })
	check.Equal(t, len(s.Sessions()), 1, "sessions")
}

// With graceful restart a process that is replaced leaves its routes with BIRD and FRR, and the next one takes them over without a gap. That
// nothing is heard by BFD meanwhile is no failure to them. It is not parallel, since one process has the port of BFD.
func TestGracefulRestart(t *testing.T) {
	r, frr := newRouter(t, 30), newRouter(t, 56)
	r.bird(fmt.Sprintf(birdHead, r.v4(), r.here4(), "graceful restart on;\nbfd graceful;", "none") + "protocol bfd { interface \"*\" { interval 300 ms; multiplier 3; }; }\n")
	frr.frr(fmt.Sprintf(frrHead, frr.here4(), "65000", " neighbor "+frr.here4()+" bfd\n"))
	run := func(prefixes string) *exec.Cmd {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), speakerProcessEnv+"="+r.v4().String()+","+frr.v4().String()+" "+prefixes)
		cmd.Stderr = t.Output()
		check.OK(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		return cmd
	}
	first := run("198.51.100.7/32 198.51.100.8/32")
	r.knows("198.51.100.7/32", "198.51.100.8/32")
	frr.has("ipv4", map[string]string{"198.51.100.7/32": frr.here4(), "198.51.100.8/32": frr.here4()})
	check.Until(t, 20*time.Second, "BFD", func() error {
		ofBIRD, err := r.birdc("show bfd sessions")
		ofFRR, err2 := frr.vtysh("show bfd peers")
		if err = errors.Join(err, err2); err == nil && !(strings.Contains(ofBIRD, " Up ") && strings.Contains(ofFRR, "Status: up")) {
			err = errors.New(ofBIRD + ofFRR)
		}
		return err
	})
	check.OK(t, first.Process.Signal(syscall.SIGTERM))
	check.OK(t, first.Wait())
	time.Sleep(3 * time.Second) // BFD would have failed by then
	check.Equal(t, len(r.routes()), 2, "routes of BIRD")
	check.Equal(t, frr.path("ipv4", "198.51.100.7/32")["stale"], any(true), "FRR's path is stale")
	run("198.51.100.7/32")
	began := time.Now()
	for len(r.routes()) == 2 {
		if time.Since(began) > 10*time.Second {
			t.Fatal("what the new process does not have stays")
		}
		time.Sleep(10 * time.Millisecond)
	}
	check.Between(t, time.Since(began), time.Second, time.Minute, "withdrawn, once the new process can have spoken, after")
	r.knows("198.51.100.7/32")
	frr.has("ipv4", map[string]string{"198.51.100.7/32": frr.here4()})
}

// A router that knows no graceful restart is told without delay.
func TestNoGracefulRestart(t *testing.T) {
	t.Parallel()
	r := newBIRD(t, 33, "graceful restart off;", "")
	s := runSpeaker(t, func(o *Options) { o.RestartTime = 30 * time.Second }, vip.BGPPeer{Address: r.v4(), AS: 65001})
	s.advertise("198.51.100.7/32")
	s.up()
	check.Until(t, time.Second, "the route", func() error {
		if have := r.routes(); len(have) != 1 {
			return fmt.Errorf("%v", have)
		}
		return nil
	})
}

// speakerProcessEnv makes the test binary a process that speaks to peers: "address,... prefix...".
const speakerProcessEnv = "HERALD_TEST_SPEAK"

func runSpeakerProcess(words []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var peers []vip.BGPPeer
	for a := range strings.SplitSeq(words[0], ",") {
		peers = append(peers, vip.BGPPeer{Address: netip.MustParseAddr(a), AS: 65001, LocalAS: 65000, Port: 179, BFD: fastBFD})
	}
	s := New(Options{Node: "n1", Peers: func() []vip.BGPPeer { return peers }, HoldTime: 30 * time.Second, KeepaliveTime: 10 * time.Second,
		RestartTime: 30 * time.Second, Links: kernelLinks, Poke: func() {}, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	s.Put(routes(words[1:]...))
	done := make(chan error, 1)
	running, end := context.WithCancel(context.Background())
	defer end()
	go func() { done <- s.Run(running) }()
	<-ctx.Done()
	// As the agent stops: the routes are kept, and then nothing is wanted.
	last := routes(words[1:]...)
	for i := range last {
		last[i].Keep = true
	}
	for _, want := range [][]vip.Route{last, nil} {
		s.Put(want)
	}
	time.Sleep(100 * time.Millisecond)
	end()
	if <-done != nil {
		return 1
	}
	return 0
}
