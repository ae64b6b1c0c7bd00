package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// An observedVIP is a VIP, with a host that asks who has it and a client that connects to it.
type observedVIP struct {
	t     *testing.T
	addr  netip.Addr
	owner string
	who   *lab.WhoHas
	conn  *lab.Connect
}

// observe creates a Service, and observes its VIP once the client reaches it and every kube-proxy serves it.
func observe(t *testing.T, name, vip string) *observedVIP {
	t.Helper()
	createService(t, webService(name, vip))
	node := awaitOwner(t, name)
	awaitReachable(t, httpURL(vip, "80"))
	awaitProxies(t, vip) // or else a node that the VIP moves to would refuse connections
	s := &observedVIP{t: t, addr: netip.MustParseAddr(vip), owner: node}
	s.who, s.conn = whoHas(t, 20*time.Millisecond, vip), connect(t, net.JoinHostPort(vip, "80"))
	check.Value(s.who.AwaitAnswer(withTimeout(t, 10*time.Second), s.addr, node))(t)
	return s
}

// awaitMove waits until a node other than the first owner answers, and returns it.
func (s *observedVIP) awaitMove(within time.Duration) string {
	s.t.Helper()
	ctx, cancel := context.WithCancel(withTimeout(s.t, within))
	defer cancel()
	first := make(chan string, len(otherNodes(s.owner)))
	for _, n := range otherNodes(s.owner) {
		go func() {
			if _, err := s.who.AwaitAnswer(ctx, s.addr, n); err == nil {
				first <- n
			}
		}()
	}
	select {
	case n := <-first:
		return n
	case <-ctx.Done():
	}
	s.t.Fatalf("nobody else than %s answers for %s within %v\n%s", s.owner, s.addr, within, s.who.Stop())
	return ""
}

// awaitWithdrawn waits until the first owner has no VIP any more.
func (s *observedVIP) awaitWithdrawn(within time.Duration) {
	s.t.Helper()
	until(s.t, within, s.owner+" has no VIP", func(context.Context) error {
		if left := vips(s.t, s.owner); len(left) > 0 {
			return fmt.Errorf("%v", left)
		}
		return nil
	})
}

// report ends the observation.
func (s *observedVIP) report() (lab.AddrReport, lab.ConnectReport) {
	s.t.Helper()
	w, c := s.who.Stop(), s.conn.Stop()
	if w.Err != nil {
		s.t.Error(w.Err)
	}
	s.t.Logf("%s\n%s", w, c)
	return w.Addrs[0], c
}

// expectConnectionsSurvive fails the test if a connection failed, but for those reset by so many changes of a route. These are for
// VIPs by BGP: a router sends the next packets of all connections whose handshakes are under way to another node, which has never heard
// of them. By ARP and NDP that node sends them on to the one that has (docs/connections.md).
func expectConnectionsSurvive(t *testing.T, c lab.ConnectReport, changes int) {
	t.Helper()
	notReset := func(a lab.Attempt) bool { return !errors.Is(a.Err, syscall.ECONNRESET) }
	if c.Instants() > changes || slices.ContainsFunc(c.Failures, notReset) {
		t.Errorf("of %d connections %d failed: %v", c.Attempts, len(c.Failures), c.Failures)
	}
}

// expectUnmoved ends the observation, and fails the test if the VIP moved, was unanswered, or a connection failed.
func (s *observedVIP) expectUnmoved() {
	s.t.Helper()
	w, c := s.report()
	if w.LongestSilence > 100*time.Millisecond || len(c.Failures) > 0 || !slices.Equal(w.Owners(), []string{s.owner}) {
		s.t.Errorf("unanswered for %v, %d connections failed, owners %v", w.LongestSilence, len(c.Failures), w.Timeline)
	}
}

// expectUnharmed ends the observation, and fails the test if the VIP was unanswered for longer, moved, or a connection failed.
func (s *observedVIP) expectUnharmed(silence time.Duration) {
	s.t.Helper()
	if w, c := s.report(); !w.Stayed(silence) || len(c.Failures) > 0 {
		s.t.Errorf("another Service was harmed: unanswered for %v, %d connections failed, %v", w.LongestSilence, len(c.Failures), w.Timeline)
	}
}

// expectNoGap ends the observation, and fails the test if the VIP was unanswered, or a connection failed.
func (s *observedVIP) expectNoGap() {
	s.t.Helper()
	w, c := s.report()
	if w.LongestSilence > 100*time.Millisecond {
		s.t.Errorf("unanswered for %v", w.LongestSilence)
	}
	expectConnectionsSurvive(s.t, c, 0)
}

// expectAnswered ends the observation, and fails the test if the VIP was unanswered, or answered by two, for longer.
func (s *observedVIP) expectAnswered(silence, double time.Duration) {
	s.t.Helper()
	if w, _ := s.report(); w.LongestSilence > silence || w.LongestDouble > double {
		s.t.Errorf("unanswered for %v, want %v at most; by two for %v, want %v at most", w.LongestSilence, silence, w.LongestDouble, double)
	}
}

// SIGTERM of the owner: make before break.
func TestTerminated(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	began := time.Now()
	f.node[s.owner].Signal(syscall.SIGTERM)
	to := s.awaitMove(10 * time.Second)
	if err := f.node[s.owner].Wait(withTimeout(t, 15*time.Second)); err != nil {
		t.Errorf("exit: %v", err)
	}
	t.Logf("stopped after %v", time.Since(began).Round(time.Millisecond))
	time.Sleep(time.Second) // the repeated announcements are part of it
	s.expectNoGap()
	awaitEvent(t, "a", "VIPMoved", "from node "+s.owner)
	awaitOwnedBy(t, "a", to)
}

// One Herald after another is restarted, as an upgrade does: no connection fails.
func TestRollingRestart(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	for _, n := range cluster.Nodes() {
		f.terminate(n, 10*time.Second)
		f.startAgain(n)
	}
	s.expectNoGap()
}

// SIGKILL of the owner: its kernel answers and serves until the lifetime of the address ends. Then, not before, another node answers.
func TestKilled(t *testing.T) {
	f := start(t, env())
	f.killed = true
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	killed := time.Now()
	f.node[s.owner].Kill()
	to := s.awaitMove(lab.KernelAnswers + time.Second)
	t.Logf("%s took over after %v", to, time.Since(killed).Round(time.Millisecond))
	time.Sleep(time.Second)
	w, c := s.report()
	if w.TotalDouble > 100*time.Millisecond {
		t.Errorf("two nodes answered for %v", w.TotalDouble)
	}
	if w.LongestSilence > time.Second {
		t.Errorf("unanswered for %v", w.LongestSilence)
	}
	expectConnectionsSurvive(t, c, 0)
	awaitEvent(t, "a", "VIPMoved", s.owner)
	// Back again: nothing moves, and what it left is not there.
	f.startAgain(s.owner)
	time.Sleep(time.Second)
	awaitOwnedBy(t, "a", to)
}

// Where nodes exchange no heartbeats, the lease duration decides: the killed node's kernel has long dropped the VIP, and two never answer.
func TestKilledUnwatched(t *testing.T) {
	f := start(t, env("vip_leaseduration", "6", "vip_renewdeadline", "4", "vip_retryperiod", "1", "herald_peers_port", "0"))
	f.killed = true
	s := observe(t, "a", "10.77.0.50")
	killed := time.Now()
	f.node[s.owner].Kill()
	to := s.awaitMove(20 * time.Second)
	t.Logf("%s took over after %v, with a lease duration of 6 s", to, time.Since(killed).Round(time.Millisecond))
	s.expectAnswered(time.Minute, 0)
	awaitEvent(t, "a", "VIPMoved", s.owner)
}

// Killed and started again after two seconds, as kubelet does it: nothing moves, and no client notices.
func TestKilledAndBack(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	f.node[s.owner].Kill()
	killed := time.Now()
	time.Sleep(2 * time.Second)
	f.startAgain(s.owner)
	f.awaitLog(s.owner, "the node lease is held", 20*time.Second)
	if took := time.Since(killed); took > 3500*time.Millisecond {
		t.Skipf("on this machine it was back after %v, and the others wait for 3.75 s", took)
	}
	time.Sleep(lab.KernelAnswers)
	s.expectUnmoved()
}

// SIGSTOP of the owner: its kernel answers and serves until the lifetime of the address ends, and then another node
// answers. Woken, the process finds that it lost its claims and announces nothing.
func TestStoppedAndWoken(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	stopped := time.Now()
	f.node[s.owner].Signal(syscall.SIGSTOP)
	to := s.awaitMove(15 * time.Second)
	t.Logf("%s took over after %v", to, time.Since(stopped).Round(time.Millisecond))
	time.Sleep(time.Second)
	f.node[s.owner].Signal(syscall.SIGCONT)
	f.awaitLog(s.owner, "the node lease is lost", 5*time.Second)
	time.Sleep(4 * time.Second) // longer than any repeated announcement
	s.expectAnswered(time.Second, 0)
	awaitOwnedBy(t, "a", to)
	if left := vips(t, s.owner); len(left) > 0 {
		t.Errorf("%s has %v", s.owner, left)
	}
}

// A node cut from the API server, which the others reach, yields: they take over, and two never answer for long.
func TestCutFromAPI(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	check.OK(t, cluster.CutAPI(s.owner))
	t.Cleanup(func() { cluster.ConnectAPI(s.owner) })
	defer neverLogged(t, f, "the key of the heartbeats can't be read") // it has the key
	cut := time.Now()
	to := s.awaitMove(12 * time.Second) // the renew deadline, and some
	t.Logf("%s took over after %v", to, time.Since(cut).Round(time.Millisecond))
	time.Sleep(time.Second)
	cluster.ConnectAPI(s.owner)
	f.awaitReady(s.owner)
	time.Sleep(2 * time.Second)
	s.expectAnswered(time.Second, time.Second)
	awaitOwnedBy(t, "a", to)
}

// The same where nodes exchange no heartbeats: it withdraws by the renew deadline, before anyone takes over.
func TestCutFromAPIUnwatched(t *testing.T) {
	f := start(t, env("vip_leaseduration", "8", "vip_renewdeadline", "5", "vip_retryperiod", "1", "herald_peers_port", "0"))
	s := observe(t, "a", "10.77.0.50")
	check.OK(t, cluster.CutAPI(s.owner))
	t.Cleanup(func() { cluster.ConnectAPI(s.owner) })
	cut := time.Now()
	s.awaitWithdrawn(7500 * time.Millisecond)
	t.Logf("withdrawn after %v", time.Since(cut).Round(time.Millisecond))
	to := s.awaitMove(6 * time.Second)
	cluster.ConnectAPI(s.owner)
	f.awaitReady(s.owner)
	time.Sleep(2 * time.Second)
	s.expectAnswered(time.Minute, 0)
	awaitOwnedBy(t, "a", to)
}

// Both cables of the owner are cut, and it sees no link go down: its heartbeats
// are missed. Back after longer than its renew deadline it has let go.
func TestCutOff(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	cutOff := func() {
		t.Helper()
		check.OK(t, errors.Join(cluster.Cut(s.owner), cluster.CutAPI(s.owner)))
	}
	back := func() error { return errors.Join(cluster.Reconnect(s.owner), cluster.ConnectAPI(s.owner)) }
	t.Cleanup(func() { back() })
	cutOff()
	cut := time.Now()
	to := s.awaitMove(3 * time.Second)
	t.Logf("%s took over after %v", to, time.Since(cut).Round(time.Millisecond))
	time.Sleep(12 * time.Second)
	check.OK(t, back())
	f.awaitReady(s.owner)
	time.Sleep(2 * time.Second)
	s.expectAnswered(2*time.Second, time.Second)
	awaitOwnedBy(t, "a", to)
}

// The owner's link loses the node's own addresses, and the API server is out of reach: the others take the node for dead, and do not ask
// whether its kernel answers for the VIP, as it does. So it lets go when they take over. By default the link of VIPs is that of the default route, which goes, too.
func TestOwnAddressLost(t *testing.T) {
	f := start(t, env("vip_interface", "eth0"))
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	v4, v6 := cluster.Addrs(s.owner)
	own := []string{v4.String() + "/24", v6.String() + "/64"}
	routes := map[string]string{} // they go, too
	for _, family := range []string{"-4", "-6"} {
		routes[family] = check.Value(cluster.Run(t.Context(), s.owner, "ip", family, "route"))(t)
	}
	back := func() {
		for _, a := range own {
			cluster.Run(context.Background(), s.owner, "ip", "addr", "replace", a, "dev", "eth0", "nodad")
		}
		for family, all := range routes {
			for r := range strings.Lines(all) {
				if strings.Contains(r, " via ") {
					cluster.Run(context.Background(), s.owner, append([]string{"ip", family, "route", "replace"}, strings.Fields(r)...)...)
				}
			}
		}
		cluster.ConnectAPI(s.owner)
	}
	t.Cleanup(back)
	check.OK(t, cluster.CutAPI(s.owner))
	for _, a := range own {
		runOn(t, s.owner, "ip", "addr", "del", a, "dev", "eth0")
	}
	s.awaitMove(3 * time.Second)
	time.Sleep(12 * time.Second) // its renew deadline
	s.expectAnswered(2*time.Second, 2*time.Second)
	back()
	f.awaitReady(s.owner)
}

// Only the LAN is cut, at the switch, so that the owner's link stays up: the others
// notice, and it learns from the API server that it carries nothing.
func TestCutFromLAN(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	check.OK(t, cluster.Cut(s.owner))
	t.Cleanup(func() { cluster.Reconnect(s.owner) })
	to := s.awaitMove(3 * time.Second)
	s.awaitWithdrawn(5 * time.Second)
	f.awaitLog(s.owner, "reaches too few other nodes", 5*time.Second)
	moves := movesOf(t, "a")
	if last := moves[max(0, len(moves)-1):]; len(last) != 1 || last[0].From != s.owner || last[0].To != to || last[0].Cause == "" {
		t.Errorf("%+v", moves)
	} else if last[0].Outage < int64(125*time.Millisecond) { // a node is found dead after 0.15 s of silence
		t.Errorf("the outage that is remembered began with the last renewal of its node lease: %+v", moves)
	}
	for i, name := range []string{"b", "c", "d"} { // no new one goes there
		createService(t, webService(name, fmt.Sprintf("10.77.0.%d", 51+i)))
		if got := awaitOwner(t, name); got == s.owner {
			t.Errorf("%s went to the node that is cut off", name)
		}
	}
	check.OK(t, cluster.Reconnect(s.owner))
	f.awaitLog(s.owner, "reaches the other nodes on the VIPs' link again", 10*time.Second)
	neverLogged(t, f, "could not be renewed in time") // its way to the API server was never cut
	s.expectAnswered(2*time.Second, time.Second)
	awaitOwnedBy(t, "a", to)
}

// A firewall blocks the port of the owner's heartbeats: nothing moves, and log and status say so.
func TestPortBlocked(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	blockPort(t, s.owner, 7947)
	other := otherNodes(s.owner)[0]
	f.awaitLog(other, "another node is suspect", 20*time.Second)
	until(t, 10*time.Second, "herald status shows it", func(context.Context) error {
		if out := runHerald(t, "status"); !strings.Contains(out, "it gets no heartbeats from") {
			return errors.New(out)
		}
		return nil
	})
	s.expectUnmoved()
}

// The owner joins a network of its own on the VIPs' link, of lower addresses: heartbeats go on as before.
func TestAnotherNetwork(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	ip := func(what string) {
		check.Value(cluster.Run(context.Background(), s.owner, "ip", "address", what, "10.9.0.5/24", "dev", "eth0"))(t)
	}
	ip("add")
	t.Cleanup(func() { ip("delete") })
	until(t, 10*time.Second, "its node lease has the address", func(ctx context.Context) error {
		out, err := cluster.Kubectl(ctx, "-n", "kube-system", "get", "lease", "herald-node-"+s.owner, "-o", "yaml")
		if err == nil && !strings.Contains(out, "10.9.0.5") {
			err = errors.New(out)
		}
		return err
	})
	time.Sleep(5 * time.Second) // a node that is not heard is suspect after 3 s
	neverLogged(t, f, "another node is suspect")
	s.expectUnmoved()
}

// The API server is away for longer than any lease lasts: all VIPs stay, and none moves when it comes back.
func TestAPIServerAway(t *testing.T) {
	f := start(t, env("vip_leaseduration", "6", "vip_renewdeadline", "4", "vip_retryperiod", "1"))
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	check.OK(t, cluster.StopAPI())
	t.Cleanup(func() { cluster.StartAPI(context.Background()) })
	time.Sleep(7 * time.Second) // all leases end after 6 s; the longer, the later watches come back
	f.awaitLog(s.owner, "VIPs stay where they are", time.Second)
	neverLogged(t, f, "the key of the heartbeats can't be read")
	check.OK(t, cluster.StartAPI(withTimeout(t, time.Minute)))
	time.Sleep(5 * time.Second)
	createService(t, webService("b", "10.77.0.51"))
	awaitAnswer(t, whoHas(t, 20*time.Millisecond, "10.77.0.51"), "10.77.0.51", 40*time.Second) // watches come back with the library's back-off
	s.expectUnmoved()
	awaitRecovery(t)
}

// The API server is away and the owner dies: the others agree without it, and write down what they agreed on when it is back.
func TestAPIServerAwayAndOwnerKilled(t *testing.T) {
	f := start(t, env("vip_leaseduration", "6", "vip_renewdeadline", "4", "vip_retryperiod", "1"))
	f.killed = true
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	check.OK(t, cluster.StopAPI())
	t.Cleanup(func() { cluster.StartAPI(context.Background()) })
	time.Sleep(10 * time.Second)
	f.node[s.owner].Kill()
	killed := time.Now()
	to := s.awaitMove(lab.KernelAnswers + 2*time.Second)
	t.Logf("%s took over after %v", to, time.Since(killed).Round(time.Millisecond))
	time.Sleep(time.Second)
	check.OK(t, cluster.StartAPI(withTimeout(t, time.Minute)))
	until(t, 20*time.Second, "the table names the new owner", func(ctx context.Context) error {
		out, err := cluster.Owner(ctx, "default", "kubevip-a")
		if err != nil || out != to {
			return fmt.Errorf("%q %v", out, err)
		}
		return nil
	})
	s.expectAnswered(time.Second, 100*time.Millisecond)
	awaitRecovery(t)
}

// A drained node hands over what it has, and gets it back: no connection fails.
func TestDrain(t *testing.T) {
	start(t, env())
	s := observe(t, "a", "10.77.0.50")
	out := runHerald(t, "drain", s.owner)
	if !strings.Contains(out, "carries no VIP any more") {
		t.Error(out)
	}
	awaitMoved(t, "a", s.owner, 5*time.Second) // it is written a little after the table
	if out := runHerald(t, "status"); !strings.Contains(out, "carries no VIP: it is drained") {
		t.Errorf("herald status does not show it:\n%s", out)
	}
	if out := runHerald(t, "undrain", s.owner); !strings.Contains(out, "carries VIPs again") {
		t.Error(out)
	}
	until(t, 5*time.Second, "it comes back", func(context.Context) error {
		if got := awaitOwner(t, "a"); got != s.owner {
			return errors.New(got)
		}
		return nil
	})
	time.Sleep(time.Second)
	s.expectNoGap()
}

// The link of the VIP goes down: handed over at once.
func TestUnplugged(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	began := time.Now()
	check.OK(t, cluster.Unplug(s.owner))
	t.Cleanup(func() { cluster.Reconnect(s.owner) })
	to := s.awaitMove(2 * time.Second)
	t.Logf("%s answers after %v", to, time.Since(began).Round(time.Millisecond))
	time.Sleep(500 * time.Millisecond)
	f.awaitLog(s.owner, "link=eth0", time.Second)
	if out := runHerald(t, "status"); !strings.Contains(out, "its link eth0 is down") {
		t.Errorf("herald status does not name the link:\n%s", out)
	}
	neverLogged(t, f, "look at the switch") // the link is to blame
	time.Sleep(7 * time.Second)             // then the others are suspect for a moment when it hears them again
	cluster.Reconnect(s.owner)
	time.Sleep(time.Second)
	awaitDetectable(t)
	s.expectAnswered(time.Second, 0)
	awaitOwnedBy(t, "a", to)
}

// After a power cut nodes are up before their switch: Heralds that have begun with their link down take the VIP once it is up.
func TestStartedUnplugged(t *testing.T) {
	reconnect := func() {
		for _, n := range cluster.Nodes() {
			cluster.Reconnect(n)
		}
	}
	t.Cleanup(reconnect)
	for _, n := range cluster.Nodes() {
		check.OK(t, cluster.Unplug(n))
	}
	f := start(t, env("vip_interface", "eth0"))
	for _, n := range cluster.Nodes() {
		f.awaitLog(n, "vip_interface=eth0: the interface is not up", time.Second)
	}
	createService(t, webService("a", "10.77.0.50"))
	time.Sleep(15 * time.Second) // nodes that have never heard each other are suspect by then
	if out := runHerald(t, "status"); !strings.Contains(out, "its link eth0 is down") {
		t.Errorf("herald status does not name the link:\n%s", out)
	}
	w, began := whoHas(t, 20*time.Millisecond, "10.77.0.50"), time.Now()
	reconnect()
	node := awaitAnswer(t, w, "10.77.0.50", 3*time.Second) // about 1 s
	t.Logf("%s answers after %v", node, time.Since(began).Round(time.Millisecond))
	awaitDetectable(t)
	if owners := w.Stop().Addrs[0].Owners(); !slices.Equal(owners, []string{node}) {
		t.Errorf("answered by %v, one after the other", owners)
	}
	awaitOwnedBy(t, "a", node)
}

// A node that may not carry VIPs hands them over without a gap.
func TestExcluded(t *testing.T) {
	start(t, env())
	s := observe(t, "a", "10.77.0.50")
	label := func(value string) {
		t.Helper()
		if out, err := cluster.Kubectl(context.Background(), "label", "node", s.owner, "node.kubernetes.io/exclude-from-external-load-balancers"+value); err != nil {
			t.Fatal(err, out)
		}
	}
	label("=")
	t.Cleanup(func() {
		cluster.Kubectl(context.Background(), "label", "node", s.owner, "node.kubernetes.io/exclude-from-external-load-balancers-")
	})
	to := s.awaitMove(2 * time.Second)
	label("-")
	time.Sleep(time.Second)
	s.expectNoGap()
	awaitOwnedBy(t, "a", to)
}

// Without an election per Service one node has all, by the one lease.
func TestOneOwner(t *testing.T) {
	f := start(t, env("svc_election", "false"))
	createService(t, webService("b", "10.77.0.51"))
	s := observe(t, "a", "10.77.0.50")
	if other := awaitOwner(t, "b"); other != s.owner {
		t.Errorf("a is on %s, b on %s", s.owner, other)
	}
	out, err := cluster.Owner(t.Context(), "kube-system", "plndr-svcs-lock")
	if err != nil || out != s.owner {
		t.Errorf("plndr-svcs-lock is held by %q (%v), want %s", out, err, s.owner)
	}
	createService(t, webService("c", "10.77.0.52", lab.Local))
	awaitEvent(t, "c", "LocalWithoutElection", "svc_election")
	f.node[s.owner].Signal(syscall.SIGTERM)
	to := s.awaitMove(10 * time.Second)
	if err := f.node[s.owner].Wait(withTimeout(t, 15*time.Second)); err != nil {
		t.Error(err)
	}
	s.expectNoGap()
	awaitOwnedBy(t, "b", to)
}

// All Heralds stop at once, as when the DaemonSet is deleted: nothing is left, neither in the kernels nor in the API.
func TestUninstalled(t *testing.T) {
	f := start(t, env())
	for i := range 6 {
		createService(t, webService(fmt.Sprint("s", i), fmt.Sprintf("10.77.0.%d", 60+i)))
	}
	for i := range 6 {
		awaitOwner(t, fmt.Sprint("s", i))
	}
	for _, n := range cluster.Nodes() {
		f.node[n].Signal(syscall.SIGTERM)
	}
	for _, n := range cluster.Nodes() {
		if err := f.node[n].Wait(withTimeout(t, 15*time.Second)); err != nil {
			t.Error(err)
		}
	}
	for i := range 6 {
		if s := getService(t, fmt.Sprint("s", i)); externalIPs(s) != "" || s.Annotations["kube-vip.io/vipHost"] != "" || s.Annotations["heraldvip.io/announcer"] != "" {
			t.Errorf("%s: status %q, annotations %v", s.Name, externalIPs(s), s.Annotations)
		}
	}
	// Leases and addresses are looked for when the test ends.
}

// With vip_rebalance a node that came back is given VIPs again, one after the
// other and without a gap, once it has been alive for a while. Connections outlive it.
func TestRebalance(t *testing.T) {
	f := start(t, env("vip_rebalance", "true"))
	names := []string{"b", "c", "d", "e", "f"}
	for i, name := range names {
		createService(t, webService(name, fmt.Sprintf("10.77.0.%d", 51+i)))
	}
	s := observe(t, "a", "10.77.0.50")
	var all []*held
	more := func() {
		for i, name := range names {
			vip := fmt.Sprintf("10.77.0.%d", 51+i)
			awaitReachable(t, "http://"+vip+"/") // so that the client has a neighbor entry
			awaitProxies(t, vip)
			owner := ""
			until(t, 10*time.Second, "the client sends packets for "+vip+" to the owner that the Service names", func(ctx context.Context) error {
				owner = awaitOwner(t, name)
				return neighborIs(ctx, vip, owner)
			})
			all = append(all, hold(t, 2, vip, owner)...)
		}
	}
	more()
	away := otherNodes(s.owner)[0]
	f.terminate(away, 10*time.Second)
	more()
	f.startAgain(away)
	back := time.Now()
	until(t, 90*time.Second, "VIPs are spread", func(context.Context) error {
		for _, n := range cluster.Nodes() {
			if have := vips(t, n); len(have) != 2 {
				return fmt.Errorf("%s has %v", n, have)
			}
		}
		return nil
	})
	if took := time.Since(back); took < 20*time.Second {
		t.Errorf("spread again after %v: before the node was alive for long enough", took)
	}
	expectHeld(t, "rebalancing", all)
	s.expectNoGap()
}

// The Node of the owner is deleted from the API while the machine goes on, as a cloud's node controller or a hasty administrator does it:
// its VIPs are answered all the time, by it or by another, and its node lease does not come and go.
func TestNodeDeleted(t *testing.T) {
	start(t, env())
	s := observe(t, "a", "10.77.0.50")
	deleteNode(t, s.owner)
	ctx := context.Background()
	time.Sleep(5 * time.Second)
	counted := check.Value(cluster.APIRequests(ctx))(t)
	time.Sleep(5 * time.Second)
	now := check.Value(cluster.APIRequests(ctx))(t)
	if d := lab.Since(now, counted); d["POST leases"]+d["DELETE leases"] > 2 {
		t.Errorf("leases come and go: %v", d)
	}
	s.expectNoGap()
}

// deleteNode deletes a Node from the API, and creates it again when the test ends.
func deleteNode(t *testing.T, name string) {
	t.Helper()
	ctx := context.Background()
	nodes := cluster.Client().CoreV1().Nodes()
	before := check.Value(nodes.Get(ctx, name, metav1.GetOptions{}))(t)
	check.OK(t, nodes.Delete(ctx, name, metav1.DeleteOptions{}))
	t.Cleanup(func() { // as it was, for the tests that follow
		again := before.DeepCopy()
		again.ObjectMeta = metav1.ObjectMeta{Name: before.Name, Labels: before.Labels, Annotations: before.Annotations}
		made, err := nodes.Create(ctx, again, metav1.CreateOptions{})
		if err == nil {
			made.Status = before.Status
			_, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Error(err)
		}
	})
}

// expectVoided fails the test if no other node has voided the claims of one, by which its VIPs have moved.
func (f *heralds) expectVoided(node string) {
	f.t.Helper()
	for _, n := range otherNodes(node) {
		if strings.Contains(f.node[n].Log(), `msg="the claims of a node are voided" node=`+node) {
			return
		}
	}
	// Where the API server is slow who did it may not have its answer yet.
	if own := f.node[node].Log(); strings.Contains(own, "another node has voided it") || strings.Contains(own, "it was fenced by another node") {
		return
	}
	f.t.Errorf("nobody has voided the claims of %s", node)
}

// TestReceivesNothing: a node that hears nobody, and is heard by all, says so, and is replaced as one that is silent.
func TestReceivesNothing(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	began := time.Now()
	check.OK(t, cluster.Lose(t.Context(), s.owner, 100, 0))
	t.Cleanup(func() { cluster.LoseNothing(context.Background(), s.owner) })
	s.awaitMove(10 * time.Second) // 0.8 s on a machine with nothing else to do
	t.Logf("another answers %v after the fault began", time.Since(began).Round(time.Millisecond))
	f.expectVoided(s.owner)
	check.OK(t, cluster.LoseNothing(t.Context(), s.owner))
	awaitDetectable(t)
}

// TestTransmitsNothing: a node that hears all others, and is heard by none, is replaced, and gets no VIP as long as others can have it, though it
// renews its node lease.
func TestTransmitsNothing(t *testing.T) {
	f := start(t, env())
	s := observe(t, "a", "10.77.0.50")
	awaitDetectable(t)
	began := time.Now()
	check.OK(t, cluster.Lose(t.Context(), s.owner, 0, 100))
	t.Cleanup(func() { cluster.LoseNothing(context.Background(), s.owner) })
	s.awaitMove(10 * time.Second)
	t.Logf("another answers %v after the fault began", time.Since(began).Round(time.Millisecond))
	f.expectVoided(s.owner)
	until(t, 10*time.Second, "Herald on "+s.owner+" begins another epoch", func(ctx context.Context) error {
		_, err := cluster.Get(ctx, s.owner, "http://127.0.0.1:2112/readyz")
		return err
	})
	var vips []string
	for i := range 6 {
		vips = append(vips, fmt.Sprintf("10.77.0.%d", 60+i))
		createService(t, webService(fmt.Sprint("b", i), vips[i]))
	}
	w := whoHas(t, 20*time.Millisecond, vips...)
	for _, vip := range vips {
		awaitAnswer(t, w, vip, 10*time.Second)
	}
	time.Sleep(5 * time.Second)
	for _, a := range w.Stop().Addrs {
		if a.LongestSilence > 6*time.Second { // it takes a node 3 s to know
			t.Errorf("%s: unanswered for %v: %v", a.Addr, a.LongestSilence, a.Timeline)
		}
	}
	check.OK(t, cluster.LoseNothing(t.Context(), s.owner))
	awaitDetectable(t)
}
