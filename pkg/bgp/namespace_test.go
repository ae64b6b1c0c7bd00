package bgp

import (
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/namespace"
)

// TestMain runs all tests in network and mount namespaces of their own: this
// process is the node, and each router has a namespace beside it.
func TestMain(m *testing.M) {
	if words := os.Getenv(speakerProcessEnv); words != "" {
		os.Exit(runSpeakerProcess(strings.Fields(words)))
	}
	namespace.EnterAsRoot()
	flag.Parse()
	startedTogether = 128 // for all tests at once, so that none starts one while others run
	passwordPeriod = time.Second
	if flag.Lookup("test.fuzz").Value.String() == "" {
		_ = flag.Set("test.parallel", "8") // they wait for timers more than for a processor
	}
	os.Exit(m.Run())
}

const frrDir = "/usr/lib/frr"

// sh runs shell commands, one per line, each of which must work.
func sh(t testing.TB, lines string) {
	t.Helper()
	for l := range strings.Lines(lines) {
		if out, err := exec.Command("sh", "-c", l).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.TrimSpace(l), err, out)
		}
	}
}

// A router is a namespace at the other end of a cable: link <name> here, eth0
// there. Here are 10.<n>.0.2 and fd<n>::2, there 10.<n>.0.1 and fd<n>::1.
type router struct {
	t    testing.TB
	name string
	n    int
	dir  string
	proc map[string]*exec.Cmd
}

func newRouter(t testing.TB, n int) *router {
	t.Helper()
	dir := check.Value(os.MkdirTemp("", "herald-router-"))(t) // FRR runs as a user of its own, who can't enter t.TempDir
	check.OK(t, os.Chmod(dir, 0o777))
	r := &router{t: t, name: fmt.Sprintf("r%d", n), n: n, dir: dir, proc: make(map[string]*exec.Cmd)}
	sh(t, fmt.Sprintf(`ip netns add r%[1]d
ip link add r%[1]d type veth peer name eth0 netns r%[1]d
ip link set r%[1]d up
ip addr add 10.%[1]d.0.2/24 dev r%[1]d
ip addr add fd%02[1]d::2/64 dev r%[1]d nodad
ip -n r%[1]d link set lo up
ip -n r%[1]d link set eth0 up
ip -n r%[1]d addr add 10.%[1]d.0.1/24 dev eth0
ip -n r%[1]d addr add fd%02[1]d::1/64 dev eth0 nodad`, n))
	// The kernel says that a link is up up to a second after it is (net/core/link_watch.c).
	check.True(t, 30*time.Second, r.name+" is up", func() bool {
		link, err := net.InterfaceByName(r.name)
		return err == nil && link.Flags&net.FlagRunning != 0
	})
	t.Cleanup(func() {
		for name := range r.proc {
			r.kill(name)
			if out, err := os.ReadFile(filepath.Join(dir, name+".out")); t.Failed() && err == nil && len(out) > 0 {
				t.Logf("--- %s of %s\n%s", name, r.name, out[max(0, len(out)-2000):])
			}
		}
		exec.Command("ip", "link", "del", r.name).Run()
		exec.Command("ip", "netns", "del", r.name).Run()
		os.RemoveAll(dir)
	})
	return r
}

func (r *router) v4() netip.Addr { return netip.MustParseAddr(fmt.Sprintf("10.%d.0.1", r.n)) }
func (r *router) v6() netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fd%02d::1", r.n)) }
func (r *router) here4() string  { return fmt.Sprintf("10.%d.0.2", r.n) }
func (r *router) here6() string  { return fmt.Sprintf("fd%02d::2", r.n) }

// run starts a daemon in the router's namespace.
func (r *router) run(name string, argv ...string) {
	r.t.Helper()
	check.Program(r.t, argv[0])
	log := check.Value(os.Create(filepath.Join(r.dir, name+".out")))(r.t)
	defer log.Close()
	if r.name != "" { // else it is on this node
		argv = append([]string{"ip", "netns", "exec", r.name}, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	check.OK(r.t, cmd.Start())
	r.proc[name] = cmd
}

func (r *router) kill(name string) {
	if p := r.proc[name]; p != nil {
		p.Process.Kill()
		p.Wait()
		delete(r.proc, name)
	}
}

// frr runs FRR's zebra and bgpd with the given configuration of bgpd, and bfdd if that asks for BFD.
func (r *router) frr(conf string) {
	r.t.Helper()
	check.OK(r.t, os.WriteFile(filepath.Join(r.dir, "zebra.conf"), []byte("hostname "+r.name+"\n"), 0o644))
	check.OK(r.t, os.WriteFile(filepath.Join(r.dir, "bgpd.conf"), []byte(conf), 0o644))
	r.daemon("zebra")
	r.await("zebra", func() error { _, err := os.Stat(filepath.Join(r.dir, "zserv.api")); return err })
	if strings.Contains(conf, " bfd\n") {
		check.OK(r.t, os.WriteFile(filepath.Join(r.dir, "bfdd.conf"), nil, 0o644))
		r.daemon("bfdd", "--bfdctl", filepath.Join(r.dir, "bfdd.sock"))
		r.await("bfdd", func() error { _, err := r.vtysh("show bfd peers"); return err })
	}
	r.daemon("bgpd")
	r.await("bgpd", func() error { _, err := r.vtysh("show version"); return err })
}

func (r *router) daemon(name string, more ...string) {
	r.t.Helper()
	r.run(name, append([]string{frrDir + "/" + name, "-f", r.dir + "/" + name + ".conf", "-i", r.dir + "/" + name + ".pid", "-z", r.dir + "/zserv.api",
		"--vty_socket", r.dir, "-P", "0"}, more...)...)
}

func (r *router) vtysh(command ...string) (string, error) {
	args := []string{"--vty_socket", r.dir}
	for _, c := range command {
		args = append(args, "-c", c)
	}
	out, err := exec.Command("vtysh", args...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("vtysh %v: %w\n%s", command, err, out)
	}
	return string(out), nil
}

// show is FRR's answer to a show command, in the words of encoding/json.
func (r *router) show(command string) map[string]any {
	r.t.Helper()
	out := check.Value(r.vtysh(command + " json"))(r.t)
	var v map[string]any
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		r.t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return v
}

// prefixes are those in FRR's table, with their next hops.
func (r *router) prefixes(family string) map[string]string {
	r.t.Helper()
	routes, _ := r.show("show bgp " + family + " unicast")["routes"].(map[string]any)
	have := make(map[string]string)
	for p, paths := range routes {
		path := paths.([]any)[0].(map[string]any)
		hop := path["nexthops"].([]any)[0].(map[string]any)
		have[p] = hop["ip"].(string)
		if v, _ := path["valid"].(bool); !v {
			have[p] += " invalid"
		}
	}
	return have
}

// path is what FRR knows of a prefix.
func (r *router) path(family, prefix string) map[string]any {
	r.t.Helper()
	paths, _ := r.show("show bgp " + family + " unicast " + prefix)["paths"].([]any)
	if len(paths) != 1 {
		r.t.Fatalf("%s has %d paths to %s, want 1", r.name, len(paths), prefix)
	}
	return paths[0].(map[string]any)
}

// bird runs BIRD with the given configuration.
func (r *router) bird(conf string) {
	r.t.Helper()
	check.OK(r.t, os.WriteFile(filepath.Join(r.dir, "bird.conf"), []byte(conf), 0o644))
	r.run("bird", "bird", "-f", "-c", r.dir+"/bird.conf", "-s", r.dir+"/bird.ctl", "-P", r.dir+"/bird.pid")
	r.await("bird", func() error { _, err := r.birdc("show status"); return err })
}

func (r *router) birdc(command string) (string, error) {
	out, err := exec.Command("birdc", append([]string{"-s", r.dir + "/bird.ctl"}, strings.Fields(command)...)...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("birdc %s: %w\n%s", command, err, out)
	}
	return string(out), nil
}

// await polls what has no event to wait for.
func (r *router) await(what string, look func() error) {
	r.t.Helper()
	check.Until(r.t, 30*time.Second, r.name+": "+what, look)
}

// routerID is the same in all tests: servers are kept by it.
var routerID = netip.MustParseAddr("192.0.2.100")

// A runningSpeaker is a Speaker that runs.
type runningSpeaker struct {
	*Speaker
	t    testing.TB
	stop func() // ends Run
}

// runSpeaker runs a Speaker as AS 65000 towards the peers until the test ends.
func runSpeaker(t testing.TB, change func(*Options), peers ...vip.BGPPeer) *runningSpeaker {
	t.Helper()
	for i := range peers {
		p := &peers[i]
		if p.LocalAS == 0 {
			p.LocalAS = 65000
		}
		if p.Port == 0 {
			p.Port = 179
		}
	}
	level := slog.LevelInfo
	if os.Getenv("HERALD_TEST_DEBUG") != "" {
		level = slog.LevelDebug
	}
	o := Options{
		Node: "n1", Peers: func() []vip.BGPPeer { return peers }, HoldTime: 30 * time.Second, KeepaliveTime: 10 * time.Second, DrainTime: time.Second,
		RouterID: routerID, Links: kernelLinks, Poke: func() {}, Log: slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: level})),
	}
	if change != nil {
		change(&o)
	}
	s := &runningSpeaker{Speaker: New(o), t: t}
	s.stop = check.Run(t, s)
	return s
}

// advertise puts routes to the prefixes, and no others.
func (s *runningSpeaker) advertise(prefixes ...string) { s.Put(routes(prefixes...)) }

func routes(prefixes ...string) []vip.Route {
	var all []vip.Route
	for _, p := range prefixes {
		all = append(all, vip.Route{Prefix: netip.MustParsePrefix(p)})
	}
	return all
}

// up waits until all sessions are established.
func (s *runningSpeaker) up() {
	s.t.Helper()
	check.Until(s.t, 30*time.Second, "sessions", func() error {
		for _, x := range s.Sessions() {
			if !x.Up() {
				return fmt.Errorf("%+v", x)
			}
		}
		return nil
	})
}

// awaits waits until a session is as it should be, and returns how long that took.
func (s *runningSpeaker) awaits(i int, within time.Duration, what string, ok func(vip.BGPSession) bool) time.Duration {
	s.t.Helper()
	return check.Until(s.t, within, what, func() error {
		if x := s.Sessions()[i]; !ok(x) {
			return fmt.Errorf("%+v", x)
		}
		return nil
	})
}

// kernelLinks is the links of the test's namespace, as netif reads them.
func kernelLinks() (all []vip.Link) {
	list, _ := net.Interfaces()
	for _, l := range list {
		link := vip.Link{Index: l.Index, Name: l.Name, Up: l.Flags&net.FlagRunning != 0}
		addrs, _ := l.Addrs() // it may be gone by now
		for _, a := range addrs {
			if p := netip.MustParsePrefix(a.String()); p.Addr().IsGlobalUnicast() {
				link.Prefixes = append(link.Prefixes, p)
			}
		}
		all = append(all, link)
	}
	return all
}
