package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/heraldvip/herald/testing/check"
	"github.com/heraldvip/herald/testing/lab"
)

// An answerTo writes datagrams to one address.
type answerTo struct {
	net.PacketConn
	to net.Addr
}

func (a answerTo) Write(b []byte) (int, error) { return a.WriteTo(b, a.to) }

// outside is a server on the client, by TCP and UDP, which tells everybody the source address that it sees.
func outside(t *testing.T) (v4, v6 string) {
	t.Helper()
	a4, a6 := cluster.Addrs("cl")
	for _, a := range []netip.Addr{a4, a6} {
		var l net.Listener
		var datagrams net.PacketConn
		check.OK(t, cluster.InNamespace("cl", func() (err error) {
			if l, err = net.Listen("tcp", netip.AddrPortFrom(a, 9100).String()); err == nil {
				datagrams, err = net.ListenPacket("udp", netip.AddrPortFrom(a, 9100).String())
			}
			return err
		}))
		t.Cleanup(func() { l.Close(); datagrams.Close() })
		go func() {
			for buf := make([]byte, 100); ; {
				_, from, err := datagrams.ReadFrom(buf)
				if err != nil {
					return
				}
				fmt.Fprintln(answerTo{datagrams, from}, from.(*net.UDPAddr).AddrPort().Addr().Unmap())
			}
		}()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer c.Close()
					for in := bufio.NewReader(c); ; {
						if _, err := in.ReadString('\n'); err != nil {
							return
						}
						fmt.Fprintln(c, c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap())
					}
				}()
			}
		}()
	}
	return netip.AddrPortFrom(a4, 9100).String(), netip.AddrPortFrom(a6, 9100).String()
}

// masquerade has nodes masquerade what pods send to elsewhere than pods, as network plugins do.
func masquerade(t *testing.T) {
	for _, n := range cluster.Nodes() {
		for _, rule := range []string{"add table inet plugin", "add chain inet plugin post { type nat hook postrouting priority srcnat; }",
			"add rule inet plugin post ip saddr 10.240.0.0/16 ip daddr != 10.240.0.0/16 masquerade", "add rule inet plugin post ip6 saddr fd77:240::/32 ip6 daddr != fd77:240::/32 masquerade"} {
			check.Value(cluster.Run(t.Context(), n, "nft", rule))(t)
		}
		t.Cleanup(func() { cluster.Run(context.Background(), n, "nft", "delete table inet plugin") })
	}
}

// sourceOf is the source address by which a pod reaches a server outside.
func sourceOf(ctx context.Context, p lab.Pod, server string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	c, err := cluster.DialFrom(lab.PodNamespace(p))(ctx, "tcp", server)
	if err != nil {
		return "", err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := io.WriteString(c, "\n"); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return strings.TrimSpace(line), err
}

// What the pods of a Service with egress send leaves from the VIP, on whichever node they are, by both families, within its limits, whatever its
// externalTrafficPolicy, and never from another address while the owner is dead. A pod that has an address after another has not what that had.
func TestEgress(t *testing.T) {
	masquerade(t)
	v4, v6 := outside(t)
	f := start(t, env())
	pods := map[string]lab.Pod{}
	add := func(name, node, app string) lab.Pod {
		p := lab.Pod{Name: name, Node: node, Labels: map[string]string{"app": app}}
		check.OK(t, cluster.AddPod(t.Context(), p))
		t.Cleanup(func() { cluster.RemovePod(context.Background(), p) })
		return p
	}
	for _, n := range cluster.Nodes() {
		pods[n] = add("out-"+n, n, "out")
	}
	sends := func(what string, p lab.Pod, server, want string) {
		t.Helper()
		until(t, 45*time.Second, what+": what "+p.Name+" sends has the source "+want, func(ctx ctx) error {
			got, err := sourceOf(ctx, p, server)
			if err == nil && got != want {
				err = fmt.Errorf("it has %s", got)
			}
			return err
		})
	}
	all := func(what, server, want string) {
		t.Helper()
		for n, p := range pods {
			of := want
			if own, own6 := cluster.Addrs(n); want == "" && server == v4 {
				of = own.String()
			} else if want == "" {
				of = own6.String()
			}
			sends(what, p, server, of)
		}
	}
	all("without egress", v4, "")
	createService(t, webService("out", "10.77.0.50,fd77::1050", lab.Selecting("out"), lab.Annotated("kube-vip.io/egress", "true")))
	all("with egress", v4, "10.77.0.50")
	all("with egress", v6, "fd77::1050")
	patch := func(text string) {
		t.Helper()
		check.Value(cluster.Client().CoreV1().Services("default").Patch(t.Context(), "out", types.MergePatchType, []byte(text), metav1.PatchOptions{}))(t)
	}
	patch(`{"metadata":{"annotations":{"kube-vip.io/egress-denied-networks":"10.77.0.0/24"}}}`)
	all("a denied network", v4, "")
	all("a denied network of the other family", v6, "fd77::1050")
	patch(`{"metadata":{"annotations":{"kube-vip.io/egress-denied-networks":null,"kube-vip.io/egress-destination-ports":"tcp:9100"}},"spec":{"externalTrafficPolicy":"Local"}}`)
	all("an allowed port, Local", v4, "10.77.0.50")

	// Pods come and go: the address of one that has gone is soon another's.
	check.OK(t, cluster.RemovePod(t.Context(), pods["n1"]))
	other := add("other-n1", "n1", "other")
	own, _ := cluster.Addrs("n1")
	sends("a pod of no Service with egress", other, v4, own.String())
	pods["n1"] = add("out-n1", "n1", "out")
	sends("a pod that is back", pods["n1"], v4, "10.77.0.50")
	owner := awaitOwner(t, "out")
	elsewhere := otherNodes(owner)[0]
	took := time.Minute
	for i := 0; i < 3 && took >= time.Second; i++ { // load on the machine may delay one
		p := add(fmt.Sprint("new-", i), elsewhere, "out")
		began := time.Now()
		sends("a new pod", p, v4, "10.77.0.50")
		took = time.Since(began)
		t.Logf("a new pod on another node than the VIP's sends from the VIP %v after it was added", took.Round(time.Millisecond))
	}
	if took >= time.Second {
		t.Error("none of three new pods sends from the VIP within a second")
	}

	// Herald is started again on the node of a pod: what the pod sends meanwhile comes from the VIP.
	f.killed = true
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		stop := make(chan bool)
		done := make(chan int)
		go func() {
			for n := 0; ; n++ {
				if got, err := sourceOf(t.Context(), pods[elsewhere], v4); got != "10.77.0.50" {
					t.Errorf("%s of Herald on its node: what %s sends has the source %q (%v)", signal, pods[elsewhere].Name, got, err)
				}
				select {
				case <-stop:
					done <- n
					return
				default:
				}
			}
		}()
		f.node[elsewhere].Signal(signal)
		_ = f.node[elsewhere].Wait(withTimeout(t, 10*time.Second))
		f.startAgain(elsewhere)
		sends("Herald is back", pods[elsewhere], v4, "10.77.0.50")
		stop <- true
		t.Logf("%s of Herald on its node: %d connections meanwhile", signal, <-done)
	}

	// The owner dies. Whatever reaches the server comes from the VIP.
	owner = awaitOwner(t, "out")
	check.OK(t, f.node[owner].Signal(syscall.SIGSTOP))
	check.OK(t, cluster.Cut(owner))
	t.Cleanup(func() { cluster.Reconnect(owner); f.node[owner].Signal(syscall.SIGCONT) })
	began := time.Now()
	for n, p := range pods {
		if n == owner {
			continue
		}
		until(t, 45*time.Second, p.Name+" reaches the server again", func(ctx ctx) error {
			got, err := sourceOf(ctx, p, v4)
			if err == nil && got != "10.77.0.50" {
				t.Errorf("what %s sends has the source %s %v after the owner's death", p.Name, got, time.Since(began))
			}
			return err
		})
	}
	t.Logf("after %v all pods send from the VIP by a new owner", time.Since(began).Round(time.Millisecond))
	check.OK(t, cluster.Reconnect(owner))
	check.OK(t, f.node[owner].Signal(syscall.SIGCONT))
	all("the owner is back", v4, "10.77.0.50")

	patch(`{"metadata":{"annotations":{"kube-vip.io/egress":null}}}`)
	all("egress ends", v4, "")
	for _, n := range cluster.Nodes() {
		until(t, 45*time.Second, "no rule is left on "+n, func(ctx ctx) error {
			out, err := cluster.Run(ctx, n, "sh", "-c", "ip rule; ip -6 rule; nft list tables")
			if err == nil && (strings.Contains(out, "1980:") || strings.Contains(out, "herald_egress")) {
				err = errors.New(out)
			}
			return err
		})
	}
}

// Connections that pods have from a VIP outlive its move, whichever node they are on: that of the former owner, of the new one, and a third. Sockets
// of UDP, though they never pause, have the VIP again.
func TestEgressOutlivesMove(t *testing.T) {
	masquerade(t)
	v4, v6 := outside(t)
	start(t, env())
	sources := map[string]string{v4: "10.77.0.50", v6: "fd77::1050"}
	createService(t, webService("out", "10.77.0.50,fd77::1050", lab.Selecting("out"), lab.Annotated("kube-vip.io/egress", "true")))
	type connection struct {
		net.Conn
		in         *bufio.Reader
		name, want string
	}
	var all, datagrams []connection
	ask := func(what string) {
		t.Helper()
		for _, c := range all {
			c.SetDeadline(time.Now().Add(5 * time.Second))
			_, err := io.WriteString(c, "\n")
			var line string
			if err == nil {
				line, err = c.in.ReadString('\n')
			}
			if got := strings.TrimSpace(line); err != nil || got != c.want {
				t.Fatalf("%s: %s has the source %q (%v), want %s", what, c.name, got, err, c.want)
			}
		}
	}
	var pods []lab.Pod
	for _, n := range cluster.Nodes() {
		p := lab.Pod{Name: "out-" + n, Node: n, Labels: map[string]string{"app": "out"}}
		check.OK(t, cluster.AddPod(t.Context(), p))
		t.Cleanup(func() { cluster.RemovePod(context.Background(), p) })
		pods = append(pods, p)
	}
	for _, p := range pods {
		for server, want := range sources {
			until(t, 45*time.Second, "what "+p.Name+" sends has the source "+want, func(ctx ctx) error {
				got, err := sourceOf(ctx, p, server)
				if err == nil && got != want {
					err = fmt.Errorf("it has %s", got)
				}
				return err
			})
			c := check.Value(cluster.DialFrom(lab.PodNamespace(p))(t.Context(), "tcp", server))(t)
			t.Cleanup(func() { c.Close() })
			all = append(all, connection{c, bufio.NewReader(c), fmt.Sprintf("the connection of %s to %s", p.Name, server), want})
			u := check.Value(cluster.DialFrom(lab.PodNamespace(p))(t.Context(), "udp", server))(t)
			t.Cleanup(func() { u.Close() })
			datagrams = append(datagrams, connection{u, nil, fmt.Sprintf("the socket of %s to %s", p.Name, server), want})
		}
	}
	send := func(ctx) error { // by each socket, which has an answer with its source
		var errs []error
		for _, u := range datagrams {
			io.WriteString(u, "\n") // an error is one of an earlier datagram
			u.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			line := make([]byte, 100)
			n, err := u.Read(line)
			if got := strings.TrimSpace(string(line[:n])); err != nil || got != u.want {
				errs = append(errs, fmt.Errorf("%s has the source %q (%v), want %s", u.name, got, err, u.want))
			}
		}
		return errors.Join(errs...)
	}
	until(t, 15*time.Second, "answers to all sockets before the move", send)
	moving, moved := context.WithCancel(t.Context())
	var sending sync.WaitGroup
	sending.Go(func() {
		for moving.Err() == nil {
			_ = send(moving)
		}
	})
	owner := awaitOwner(t, "out")
	runHerald(t, "drain", owner)
	defer runHerald(t, "undrain", owner)
	awaitMoved(t, "out", owner, 10*time.Second)
	now := awaitOwner(t, "out")
	moved()
	sending.Wait()
	until(t, 15*time.Second, "answers to all sockets after the move", send)
	for end := time.Now().Add(25 * time.Second); time.Now().Before(end); {
		ask(fmt.Sprintf("after the move from %s to %s", owner, now))
		time.Sleep(200 * time.Millisecond)
	}
}
