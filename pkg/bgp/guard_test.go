package bgp

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// frame is a message with a right header.
func frame(kind byte, body ...byte) []byte {
	m := append(bytes.Repeat([]byte{0xff}, 16), 0, 0, kind)
	binary.BigEndian.PutUint16(m[16:], uint16(19+len(body)))
	return append(m, body...)
}

// unhex is the bytes that a text names, with spaces.
func unhex(text string) []byte {
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		panic(err)
	}
	return b
}

// openWith is an OPEN of AS 65001 with a hold time of 30 s and these optional parameters.
func openWith(params string) []byte {
	p := unhex(params)
	return frame(1, append(unhex("04 fde9 001e c0000202"+fmt.Sprintf("%02x", len(p))), p...)...)
}

// update is an UPDATE with path attributes to 20.0.0.0/24.
func update(attributes string) []byte {
	a := unhex(attributes)
	return frame(2, slices.Concat([]byte{0, 0, byte(len(a) >> 8), byte(len(a))}, a, unhex("18 140000"))...)
}

const (
	goodParams = "02 06 0104 0001 0001 02 06 0104 0002 0001 02 02 0200 02 06 4104 0000fde9"
	origin     = "40 01 01 00"
	path       = "40 02 06 02 01 0000fde9"
	hop        = "40 03 04 0a000001"
)

var (
	goodOpen  = openWith(goodParams)
	keepalive = frame(4)
)

// badMessage is what a router sends, and what comes of it.
type badMessage struct {
	name  string
	after int // how many messages of the router came before: 0 none, 1 its OPEN, 2 its KEEPALIVE, too
	bytes []byte
	want  string // the NOTIFICATION's code and subcode; "" if the session goes on, "closed" if there is none
}

// badMessages are malformed in every way that was thought of: header, OPEN, states, and what is in an UPDATE.
func badMessages() []badMessage {
	all := []badMessage{
		{"unknown type", 0, frame(99), "1/3"},
		{"type 0", 0, frame(0), "1/3"},
		{"bad marker", 0, append(make([]byte, 16), 0, 19, 4), "1/1"},
		{"length of 18", 0, unhex("ffffffffffffffffffffffffffffffff 0012 04"), "1/2"},
		{"length of 0", 0, unhex("ffffffffffffffffffffffffffffffff 0000 01"), "1/2"},
		{"length of 65535", 0, unhex("ffffffffffffffffffffffffffffffff ffff 01"), "1/2"},
		{"OPEN that is too short", 0, frame(1, 4, 0xfd, 0xe9), "1/2"},
		{"version 3", 0, frame(1, unhex("03 fde9 001e c0000202 00")...), "2/1"},
		{"another AS", 0, frame(1, unhex("04 fdea 001e c0000202 00")...), "2/2"},
		{"AS 0", 0, frame(1, unhex("04 0000 001e c0000202 00")...), "2/2"},
		{"identifier 0", 0, frame(1, unhex("04 fde9 001e 00000000 00")...), "2/3"},
		{"hold time of 1 s", 0, frame(1, unhex("04 fde9 0001 c0000202 00")...), "2/6"},
		{"hold time of 0 s", 0, frame(1, unhex("04 fde9 0000 c0000202 00")...), "2/6"},
		{"parameters longer than the message", 0, frame(1, unhex("04 fde9 001e c0000202 50 0206")...), "2/0"},
		{"parameters shorter than the message", 0, frame(1, unhex("04 fde9 001e c0000202 00 0206")...), "2/0"},
		{"parameter cut off", 0, openWith("02"), "2/0"},
		{"parameter longer than the rest", 0, openWith("02 09 01 04 0001"), "2/0"},
		{"unknown parameter", 0, openWith("01 02 0000"), "2/4"},
		{"capability cut off", 0, openWith("02 01 41"), "2/0"},
		{"capability longer than the rest", 0, openWith("02 06 4109 0000fde9"), "2/0"},
		{"four-octet AS of 2 bytes", 0, openWith("02 04 4102 fde9"), "2/0"},
		{"multiprotocol of 1 byte", 0, openWith("02 03 0101 00"), "2/0"},
		{"graceful restart of 1 byte", 0, openWith("02 03 4001 00"), "2/0"},
		{"graceful restart with half a family", 0, openWith("02 06 4004 0078 0001"), "2/0"},
		{"extended next hop of 3 bytes", 0, openWith("02 05 0503 000100"), "2/0"},
		{"KEEPALIVE first", 0, keepalive, "5/1"},
		{"UPDATE first", 0, update(origin), "5/1"},
		{"NOTIFICATION that is too short", 0, frame(3, 6), "1/2"},
		{"NOTIFICATION first", 0, frame(3, 6, 2, 255, 'x'), "closed"},
		{"odd NOTIFICATION first", 0, frame(3, 99, 99, 255, 0, 7), "closed"},
		{"half a header", 0, frame(1)[:7], "closed"},
		{"half a message", 0, goodOpen[:25], "closed"},

		{"OPEN twice", 1, goodOpen, "5/2"},
		{"UPDATE before KEEPALIVE", 1, update(origin + path + hop), "5/2"},
		{"KEEPALIVE with a body", 1, frame(4, 0), "1/2"},
		{"unknown type in OpenConfirm", 1, frame(6), "1/3"},

		{"OPEN within", 2, goodOpen, "5/3"},
		{"unknown type within", 2, frame(99), "1/3"},
		{"unknown type with a body", 2, frame(6, make([]byte, 300)...), "1/3"},
		{"long KEEPALIVE within", 2, frame(4, 1, 2, 3), "1/2"},
		{"ROUTE-REFRESH that is too short", 2, frame(5, 0, 1), "1/2"},
		{"ROUTE-REFRESH that is too long", 2, frame(5, 0, 1, 0, 1, 9, 9), "1/2"},
		{"UPDATE that is too short", 2, frame(2, 0, 0), "1/2"},
		{"withdrawn routes too long", 2, frame(2, unhex("00ff 0000")...), "3/1"},
		{"attributes too long", 2, frame(2, unhex("0000 ffff")...), "3/1"},
		{"NOTIFICATION without text", 2, frame(3, 6, 2), "closed"},
		{"NOTIFICATION of a hard reset, cut off", 2, frame(3, 6, 9, 6), "closed"},
		{"NOTIFICATION whose text is longer than it", 2, frame(3, 6, 2, 200, 0xff), "closed"},
		{"half a message within", 2, update(origin)[:22], "closed"},
		{"ROUTE-REFRESH of another family", 2, frame(5, 0x40, 4, 0, 71), ""},
		{"ROUTE-REFRESH of another kind", 2, frame(5, 0, 1, 77, 1), ""},
	}
	for name, attributes := range map[string]string{
		"no attributes": "", "attribute cut off": "40 01", "attribute longer than the rest": "40 01 20 00",
		"extended length cut off": "50 01 00", "origin of 9": "40 01 01 09" + path + hop, "origin twice": origin + origin + path + hop,
		"AS4_PATH before AS_PATH":         origin + "c0 11 06 02 01 0000fde9" + "40 02 06 02 01 0000fde9" + hop,
		"AS4_PATH without AS_PATH":        origin + "c0 11 06 02 01 0000fde9" + hop,
		"AS_PATH segment longer than it":  origin + "40 02 06 02 ff 0000fde9" + hop,
		"AS_PATH of unknown segment":      origin + "40 02 06 09 01 0000fde9" + hop,
		"AS_PATH of half a number":        origin + "40 02 03 02 01 00" + hop,
		"AS_PATH of length 1":             origin + "40 02 01 02" + hop,
		"next hop of 2 bytes":             origin + path + "40 03 02 0a00",
		"AGGREGATOR of 1 byte":            origin + path + hop + "c0 07 01 00",
		"AS4_AGGREGATOR alone":            origin + path + hop + "c0 12 08 0000fde9 0a000001",
		"communities of 3 bytes":          origin + path + hop + "c0 08 03 000000",
		"extended communities of 3 bytes": origin + path + hop + "c0 10 03 000000",
		"large communities of 5 bytes":    origin + path + hop + "c0 20 05 0000000000",
		"MP_REACH of 2 bytes":             origin + path + "80 0e 02 0001",
		"MP_REACH next hop too long":      origin + path + "80 0e 05 0002 01 ff 00",
		"MP_REACH of flow specification":  origin + path + "80 0e 09 0001 85 00 00 03 0120 ff",
		"MP_REACH of EVPN, cut off":       origin + path + "80 0e 0b 0019 46 04 0a000001 00 02 ff",
		"MP_REACH of BGP-LS, cut off":     origin + path + "80 0e 0d 4004 47 04 0a000001 00 0001 00ff",
		"MP_REACH of VPN, cut off":        origin + path + "80 0e 08 0001 80 00 00 70 0000",
		"MP_UNREACH cut off":              "80 0f 02 0001", "MP_UNREACH, prefix of 200 bits": "80 0f 05 0001 01 c8 00",
		"prefix SID cut off": origin + path + hop + "c0 28 02 0500", "tunnel encapsulation cut off": origin + path + hop + "c0 17 03 000fff",
		"AIGP cut off": origin + path + hop + "80 1a 02 0100", "BGP-LS attribute cut off": origin + path + hop + "80 1d 04 0401 00ff",
		"PMSI tunnel of 1 byte": origin + path + hop + "c0 16 01 00", "cluster list of 3 bytes": origin + path + hop + "80 0a 03 000000",
		"unknown well-known attribute": origin + path + hop + "40 63 01 00", "attribute 0": origin + path + hop + "c0 00 00",
	} {
		all = append(all, badMessage{"UPDATE: " + name, 2, update(attributes), ""})
	}
	all = append(all, badMessage{"UPDATE: prefix of 255 bits", 2, frame(2, unhex("0000 0000 ff 01020304")...), ""},
		badMessage{"UPDATE: withdrawn prefix of 255 bits", 2, frame(2, unhex("0002 ff01 0000")...), ""},
		badMessage{"UPDATE of 4096 bytes", 2, frame(2, append([]byte{0, 0, 0, 0}, make([]byte, 4096-23)...)...), ""})
	return all
}

// A rogue is a router of the test's own, with an address for each peer.
type rogue struct {
	net.Listener
	t *testing.T
}

// rogue listens in the router's namespace.
func (r *router) rogue(t *testing.T) *rogue {
	t.Helper()
	type result struct {
		l   net.Listener
		err error
	}
	made := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		ns, err := os.Open("/run/netns/" + r.name)
		if err == nil {
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err != nil {
			made <- result{nil, err}
			return
		}
		l, err := net.Listen("tcp", ":179")
		made <- result{l, err}
	}()
	x := <-made
	check.OK(t, x.err)
	t.Cleanup(func() { x.l.Close() })
	return &rogue{x.l, t}
}

// handshake sends the router's OPEN and KEEPALIVE, as far as a message after them needs it, and reads Herald's.
func handshake(c net.Conn, from *bufio.Reader, after int) error {
	for i, m := range [][]byte{goodOpen, keepalive}[:after] {
		if _, err := c.Write(m); err != nil {
			return err
		}
		if kind, _, err := next(from); err != nil || kind != []byte{1, 4}[i] {
			return fmt.Errorf("message %d of Herald is of type %d: %v", i, kind, err)
		}
	}
	return nil
}

// next is the next message of Herald.
func next(from *bufio.Reader) (kind byte, body []byte, err error) {
	header := make([]byte, 19)
	if _, err := io.ReadFull(from, header); err != nil {
		return 0, nil, err
	}
	body = make([]byte, int(binary.BigEndian.Uint16(header[16:]))-19)
	_, err = io.ReadFull(from, body)
	return header[18], body, err
}

// answer is what comes of a bad message: the code and subcode of a NOTIFICATION, "closed", or "" if the session goes on.
func (m badMessage) answer(c net.Conn) (string, error) {
	from := bufio.NewReader(c)
	if _, err := from.Peek(1); err != nil {
		return "nothing yet", nil // on a machine under load Herald gave up connecting, and tries again
	}
	if err := handshake(c, from, m.after); err != nil {
		return "", err
	}
	if _, err := c.Write(m.bytes); err != nil {
		return "", err
	}
	if m.want == "closed" {
		_ = c.(*net.TCPConn).CloseWrite()
	}
	if m.want == "" { // what comes after it is answered
		if _, err := c.Write(frame(5, 0, 1, 0, 1)); err != nil {
			return "", err
		}
	}
	for updates := 0; ; {
		switch kind, body, err := next(from); {
		case err != nil:
			return "closed", nil
		case kind == 3:
			return fmt.Sprintf("%d/%d", body[0], body[1]), nil
		case kind == 2:
			if updates++; updates > 2 { // its routes of both families at the beginning, and one again
				return "", nil
			}
		}
	}
}

// Whatever a router sends, before a session or within, costs that session at most, with the NOTIFICATION that RFC 4271 asks for; an UPDATE
// that is framed right costs nothing, since no route is wanted of it (RFC 7606). The next session is as good as any.
func TestBadMessages(t *testing.T) {
	r := newRouter(t, 60)
	bad := badMessages()
	var peers []vip.BGPPeer
	cases := make(map[netip.Addr]badMessage)
	for i, m := range append(bad, badMessage{name: "well-behaved", after: 3}) {
		a := netip.AddrFrom4([4]byte{10, 60, 0, byte(100 + i)})
		sh(t, fmt.Sprintf("ip -n r60 addr add %s/24 dev eth0", a))
		cases[a] = m
		peers = append(peers, vip.BGPPeer{Address: a, AS: 65001})
	}
	l := r.rogue(t)
	var mu sync.Mutex // guards got
	got := make(map[netip.Addr]string)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a := c.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
			mu.Lock()
			answer, again := got[a]
			again = again && answer != "nothing yet"
			if !again {
				got[a] = map[bool]string{true: "nothing yet"}[cases[a].after < 3]
			}
			mu.Unlock()
			go func() {
				defer c.Close()
				if m := cases[a]; m.after < 3 && !again {
					answer, err := m.answer(c)
					if err != nil {
						answer = err.Error()
					}
					mu.Lock()
					got[a] = answer
					mu.Unlock()
					if answer != "" {
						return
					}
				} else if err := handshake(c, bufio.NewReader(c), 2); err != nil {
					return
				}
				for {
					if _, err := c.Write(keepalive); err != nil {
						return
					}
					time.Sleep(time.Second) // as a router does
				}
			}()
		}
	}()
	s := runSpeaker(t, nil, peers...)
	s.advertise("198.51.100.7/32", "2001:db8::7/128")
	reasons := make(map[string]string)
	check.Until(t, 60*time.Second, "a good session after the bad one", func() error {
		mu.Lock()
		defer mu.Unlock()
		var err error
		for _, x := range s.Sessions() {
			reasons[x.Peer] = cmp.Or(x.Reason, reasons[x.Peer])
			if a := netip.MustParseAddr(x.Peer); !x.Up() || got[a] == "nothing yet" {
				err = fmt.Errorf("%s: %q, %+v", cases[a].name, got[a], x)
			}
		}
		return err
	})
	for a, m := range cases {
		why := reasons[a.String()]
		wrong := m.after < 3 && got[a] != m.want
		if wrong || strings.Contains(m.want, "/") && !strings.Contains(why, "NOTIFICATION "+m.want) {
			t.Errorf("%s: the answer is %q, want %q; the reason %q", m.name, got[a], m.want, why)
		}
		t.Logf("%s: %s: %s", m.name, got[a], why)
	}
}

// A router that does graceful restart for a family which it does not take, and sends no End-of-RIB, is told of VIPs at once: nothing of it
// is waited for. The OPEN says that this node restarts, and that its routes still lead somewhere (RFC 4724 section 3).
func TestRestartWaitsForNobody(t *testing.T) {
	t.Parallel()
	r := newRouter(t, 61)
	l := r.rogue(t)
	s := runSpeaker(t, func(o *Options) { o.RestartTime = 30 * time.Second }, vip.BGPPeer{Address: r.v4(), AS: 65001})
	s.advertise("198.51.100.7/32", "2001:db8::7/128")
	c := check.Value(l.Accept())(t)
	defer c.Close()
	from := bufio.NewReader(c)
	check.OK(t, c.SetDeadline(time.Now().Add(15*time.Second)))
	check.Value(c.Write(slices.Concat(openWith("02 06 0104 0001 0001 02 02 0200 02 06 4104 0000fde9 02 0c 400a 0078 00010180 00020180"), keepalive)))(t)
	kind, body, err := next(from)
	if want := unhex("400a 801e 00010180 00020180"); err != nil || kind != 1 || !bytes.Contains(body, want) && !bytes.Contains(body, unhex("400a c01e 00010180 00020180")) {
		t.Errorf("message of type %d, %x (%v), which does not say %x", kind, body, err, want)
	}
	began := time.Now()
	for kind != 2 {
		kind, body, err = next(from)
		check.OK(t, err)
	}
	if took := time.Since(began); took > 2*time.Second || !bytes.HasSuffix(body, unhex("20 c6336407")) {
		t.Errorf("the first UPDATE came after %v: %x", took, body)
	}
	if kind, body, err = next(from); err != nil || kind != 2 || len(body) != 4 {
		t.Errorf("and then not End-of-RIB, but %d, %x (%v)", kind, body, err)
	}
}

// Another process on the node that connects to the guard is not served: it would speak to the router in this node's name.
func TestGuardServesOwnProcessOnly(t *testing.T) {
	t.Parallel()
	p, _, _ := offlinePeer(t, vip.BGPPeer{Address: netip.MustParseAddr("192.0.2.1"), AS: 65001}, func() []vip.Link { return nil })
	p.guard.to.Store(&endpoints{remote: "192.0.2.1", local: netip.MustParseAddr("127.0.0.1")})
	own := check.Value(net.Dial("tcp", p.guard.listener.Addr().String()))(t)
	defer own.Close()
	check.Value(own.Write(goodOpen))(t) // it waits for the router
	for range 3 {
		read := fmt.Sprintf("exec 3<>/dev/tcp/127.0.0.1/%d; cat <&3", p.guard.port())
		if out, err := exec.Command("timeout", "5", "bash", "-c", read).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("another process is served: %v, %q", err, out)
		}
	}
	check.OK(t, own.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	if _, err := own.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("this process is not served: %v", err)
	}
}
