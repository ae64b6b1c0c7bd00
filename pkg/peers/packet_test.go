package peers

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

func full() *message {
	return &message{
		from: "n1", nonce: 1 << 31, interval: 250 * time.Millisecond, stopping: true,
		heartbeat: vip.Heartbeat{Epoch: 1 << 40, APIReachable: true, TenureValid: true, StateHash: 1<<64 - 1, ProposalHash: 7, MovesUnwritten: true, Isolated: true, APIServerReady: true},
		echoes:    []echo{{node: idOf("n2"), hears: true, nonce: 9}, {node: idOf("n3"), hears: true}, {node: idOf("n4")}},
	}
}

func compare(t *testing.T, want, got *message) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(message{}, echo{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestMessage(t *testing.T) {
	want := full()
	text := want.append(nil)
	got := check.Value(parseMessage(text))(t)
	compare(t, want, got)
	got = check.Value(parseMessage(append(text, "of a later version"...)))(t)
	compare(t, want, got)
	for n := range text {
		if m, err := parseMessage(text[:n]); err == nil {
			t.Errorf("%d bytes of %d: got %+v", n, len(text), m)
		}
	}
}

// TestMessageFits: with 100 nodes a packet is no longer than an Ethernet frame of IPv6 can carry.
func TestMessageFits(t *testing.T) {
	m := full()
	m.from = strings.Repeat("a", 63)
	m.echoes = make([]echo, 99)
	check.Between(t, headerLen+len(m.append(nil))+overhead, 0, 1500-40-8, "bytes")
}

func FuzzMessage(f *testing.F) {
	f.Add(full().append(nil))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseMessage(text)
		if err != nil {
			return
		}
		again := check.Value(parseMessage(m.append(nil)))(t)
		if len(m.echoes) <= maxEchoes {
			compare(t, m, again)
		}
	})
}

func TestSeal(t *testing.T) {
	keyA, keyB, keyC := bytes.Repeat([]byte{1}, 32), bytes.Repeat([]byte{2}, 16), bytes.Repeat([]byte{3}, 32)
	sender, receiver := newSealer(vip.ProcessID{1}), newSealer(vip.ProcessID{2})
	sender.setKeys([][]byte{keyA, keyB})
	receiver.setKeys([][]byte{keyB})
	text := []byte("hello")

	packet := sender.seal(text)
	for range 2 { // the second time with what was kept of the first
		id, got, err := receiver.open(packet)
		if err != nil || id != (packetID{vip.ProcessID{1}, 1}) || !bytes.Equal(got, text) {
			t.Fatalf("got %v %q, %v", id, got, err)
		}
	}
	check.Equal(t, bytes.Contains(packet, text), false, "it can be read")
	check.Equal(t, bytes.Equal(sender.seal(text)[headerLen:], packet[headerLen:]), false, "the same twice looks the same")
	sender.setKeys([][]byte{keyB, keyA})
	_, _, err := receiver.open(sender.seal(text))
	check.Is(t, err, errKey, "another key")
	for i := range packet {
		forged := bytes.Clone(packet)
		forged[i] ^= 1
		if _, _, err := receiver.open(forged); err == nil && i != 3 {
			t.Errorf("byte %d changed: nobody noticed", i)
		}
		if _, _, err := receiver.open(packet[:i]); err == nil {
			t.Errorf("cut after %d bytes: nobody noticed", i)
		}
	}
	receiver.setKeys([][]byte{keyA})
	_, _, err = receiver.open(packet)
	check.OK(t, err) // by the key before
	receiver.setKeys([][]byte{keyC})
	_, _, err = receiver.open(packet)
	check.Is(t, err, errKey, "a key that was taken away")
	check.Equal(t, len(newSealer(vip.ProcessID{3}).seal(text)), 0, "bytes sealed without a key")
}

func FuzzOpen(f *testing.F) {
	s := newSealer(vip.ProcessID{1})
	s.setKeys([][]byte{bytes.Repeat([]byte{1}, 32)})
	f.Add(s.seal([]byte("x")))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if _, text, err := s.open(packet); err == nil && string(text) != "x" {
			t.Errorf("forged: %q", text)
		}
	})
}

// TestRestoredSnapshotUsesOtherNonces: a process that is restored from a snapshot of its memory goes
// on with the sequence number that it had. Two messages under one sequence number must not be
// encrypted with one nonce: the keystream of AES-GCM would show the difference of the two.
func TestRestoredSnapshotUsesOtherNonces(t *testing.T) {
	first := newSealer(vip.ProcessID{1})
	first.setKeys([][]byte{bytes.Repeat([]byte{1}, 32)})
	restored := *first // all that its memory holds
	a, b := []byte("it reaches the API server"), []byte("it does not reach the API")
	packetA, packetB := first.seal(a), restored.seal(b)
	same := true
	for i := range a {
		same = same && packetA[headerLen+nonceLen+i]^packetB[headerLen+nonceLen+i] == a[i]^b[i]
	}
	check.Equal(t, same, false, "both messages are encrypted with the same keystream")
}
