package dhcp

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
)

// A fakeServer is a server on a link that sends what no real one would.
type fakeServer struct {
	mu       sync.Mutex
	received []message
	answer   func(b []byte, to *PacketAddr) [][]byte // the answers to a message
	open     int                                     // sockets
	used     map[netip.Addr]string
	checking time.Duration // how long it takes to ask who uses an address
}

// A message is one that was sent by the client.
type message struct {
	at time.Time
	to PacketAddr
	b  []byte
}

func (w *fakeServer) messages() []message {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]message(nil), w.received...)
}

// setAnswer replaces the answers.
func (w *fakeServer) setAnswer(answer func(b []byte, to *PacketAddr) [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer = answer
}

// kinds is the types of the messages that were sent.
func (w *fakeServer) kinds() []string {
	var kinds []string
	for _, a := range w.messages() {
		kinds = append(kinds, kind(a.b))
	}
	return kinds
}

func kind(b []byte) string {
	if m, err := dhcpv4.FromBytes(b); err == nil {
		return m.MessageType().String()
	}
	if m, err := dhcpv6.MessageFromBytes(b); err == nil {
		return m.MessageType.String()
	}
	return "?"
}

type socket struct {
	w        *fakeServer
	in       chan []byte
	closed   chan struct{}
	mu       sync.Mutex
	deadline chan struct{}
	timer    *time.Timer
}

func (w *fakeServer) dial(vip.DHCPRequest) (net.PacketConn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open++
	return &socket{w: w, in: make(chan []byte, 100), closed: make(chan struct{}), deadline: make(chan struct{})}, nil
}

func (s *socket) WriteTo(b []byte, to net.Addr) (int, error) {
	p := to.(*PacketAddr)
	s.w.mu.Lock()
	s.w.received = append(s.w.received, message{time.Now(), *p, append([]byte(nil), b...)})
	answer := s.w.answer
	s.w.mu.Unlock()
	if answer != nil {
		for _, a := range answer(b, p) {
			s.in <- a
		}
	}
	return len(b), nil
}

func (s *socket) ReadFrom(b []byte) (int, net.Addr, error) {
	for {
		s.mu.Lock()
		deadline := s.deadline
		s.mu.Unlock()
		select {
		case <-deadline:
			return 0, nil, os.ErrDeadlineExceeded
		default:
		}
		select {
		case m := <-s.in:
			return copy(b, m), &PacketAddr{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}}, nil
		case <-deadline:
			return 0, nil, os.ErrDeadlineExceeded
		case <-s.closed:
			return 0, nil, net.ErrClosed
		}
	}
}

// SetReadDeadline wakes a reader whose deadline has passed.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.timer != nil && !s.timer.Stop() {
		select {
		case <-s.deadline:
			s.deadline = make(chan struct{})
		default:
		}
	}
	select {
	case <-s.deadline:
		s.deadline = make(chan struct{})
	default:
	}
	d := s.deadline
	if wait := time.Until(t); wait > 0 {
		s.timer = time.AfterFunc(wait, func() { close(d) })
	} else {
		s.timer = nil
		close(d)
	}
	return nil
}

func (s *socket) Close() error {
	close(s.closed)
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.open--
	return nil
}

func (s *socket) LocalAddr() net.Addr              { return &PacketAddr{} }
func (s *socket) SetDeadline(time.Time) error      { return nil }
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

// Requests, one for each family.
var (
	request4 = vip.DHCPRequest{ID: "a", Family: vip.IPv4, Link: "mv", MAC: "02:00:00:00:00:aa", Hostname: "host"}
	request6 = vip.DHCPRequest{ID: "a", Family: vip.IPv6, Link: "mv", MAC: "02:00:00:00:00:aa", DUID: "000400112233445566778899aabbccddeeff", IAID: 7}
)

// bubble runs Clients on the link of a fakeServer, by a clock of its own.
func bubble(t *testing.T, attempts int, w *fakeServer, test func(*Clients)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := New(Options{
			Log: slog.New(slog.DiscardHandler), Poke: func() {}, Attempts: attempts, Open: w.dial,
			Tenure: func() vip.Tenure {
				return vip.Tenure{Epoch: 1, Confirmed: true, Until: time.Now().Add(time.Hour)}
			},
			InUse: func(ctx context.Context, _ string, a netip.Addr) (string, bool) {
				mailbox.Sleep(ctx, w.checking)
				mac, ok := w.used[a]
				return mac, ok
			},
		})
		stop := check.Run(t, c)
		test(c)
		stop()
		check.Equal(t, w.open, 0, "sockets left open")
	})
}

// put puts what is wanted, and lets the client go as far as it can at once.
func put(c *Clients, want ...vip.DHCPRequest) vip.DHCPState {
	c.Put(want)
	return after(c, 0)
}

// after is the state of the only request a while later.
func after(c *Clients, d time.Duration) vip.DHCPState {
	time.Sleep(d)
	synctest.Wait()
	var w vip.World
	c.Observe(&w)
	if len(w.DHCPStates) != 1 {
		return vip.DHCPState{}
	}
	return w.DHCPStates[0]
}

// brief is the state, the address that is leased, and whether one was lost: "bound 10.0.0.50".
func brief(x vip.DHCPState) string {
	text := x.State
	if x.Lease.Addr.IsValid() {
		text += " " + x.Lease.Addr.String()
	}
	if x.Lost {
		text += " lost"
	}
	return text
}

// reply4 answers a message with the options.
func reply4(b []byte, kind dhcpv4.MessageType, addr string, options ...dhcpv4.Modifier) []byte {
	m, err := dhcpv4.FromBytes(b)
	if err != nil {
		panic(err)
	}
	r, err := dhcpv4.NewReplyFromRequest(m, append([]dhcpv4.Modifier{dhcpv4.WithMessageType(kind),
		dhcpv4.WithYourIP(net.ParseIP(addr)), dhcpv4.WithNetmask(net.CIDRMask(24, 32)),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(10, 0, 0, 1)))}, options...)...)
	if err != nil {
		panic(err)
	}
	return r.ToBytes()
}

// honest4 is a server that leases one address.
func honest4(addr string, lease uint32) func([]byte, *PacketAddr) [][]byte {
	return func(b []byte, _ *PacketAddr) [][]byte {
		switch kind(b) {
		case "DISCOVER":
			return [][]byte{reply4(b, dhcpv4.MessageTypeOffer, addr, dhcpv4.WithLeaseTime(lease))}
		case "REQUEST":
			return [][]byte{reply4(b, dhcpv4.MessageTypeAck, addr, dhcpv4.WithLeaseTime(lease))}
		}
		return nil
	}
}

// reply6 answers a message with an address.
func reply6(b []byte, kind dhcpv6.MessageType, addr string, lease time.Duration, options ...dhcpv6.Option) []byte {
	m, err := dhcpv6.MessageFromBytes(b)
	if err != nil {
		panic(err)
	}
	r := &dhcpv6.Message{MessageType: kind, TransactionID: m.TransactionID}
	r.AddOption(dhcpv6.OptClientID(m.Options.ClientID()))
	r.AddOption(dhcpv6.OptServerID(&dhcpv6.DUIDEN{EnterpriseNumber: 1, EnterpriseIdentifier: []byte{1, 2, 3, 4}}))
	if addr != "" {
		ia := &dhcpv6.OptIANA{IaId: m.Options.OneIANA().IaId}
		ia.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP(addr), PreferredLifetime: lease, ValidLifetime: lease})
		r.AddOption(ia)
	}
	for _, o := range options {
		r.AddOption(o)
	}
	return r.ToBytes()
}
