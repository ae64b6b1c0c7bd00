package bgp

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/heraldvip/herald/pkg/vip"
)

// Annotations that can't be read change nothing, and are logged once.
func TestPeerList(t *testing.T) {
	peer := func(a string, as uint32) vip.BGPPeer { return vip.BGPPeer{Address: netip.MustParseAddr(a), AS: as} }
	fixed, other, third := peer("192.0.2.1", 65001), peer("192.0.2.2", 65002), peer("192.0.2.3", 65003)
	var log strings.Builder
	var named []vip.BGPPeer
	var err error
	l := &PeerList{
		Fixed: []vip.BGPPeer{fixed}, Log: slog.New(slog.NewTextHandler(&log, nil)),
		Read: func() ([]vip.BGPPeer, error) { return named, err },
	}
	for _, tt := range []struct {
		what  string
		named []vip.BGPPeer
		err   error
		want  []vip.BGPPeer
		logs  int
	}{
		{"none named", nil, nil, []vip.BGPPeer{fixed}, 0},
		{"one of the options is named again", []vip.BGPPeer{peer("192.0.2.1", 65009), other}, nil, []vip.BGPPeer{fixed, other}, 0},
		{"unreadable", nil, errors.New("no number"), []vip.BGPPeer{fixed, other}, 1},
		{"still unreadable", nil, errors.New("no number"), []vip.BGPPeer{fixed, other}, 1},
		{"unreadable for another reason", nil, errors.New("no address"), []vip.BGPPeer{fixed, other}, 2},
		{"readable", []vip.BGPPeer{third}, nil, []vip.BGPPeer{fixed, third}, 2},
		{"none named any more", nil, nil, []vip.BGPPeer{fixed}, 2},
	} {
		named, err = tt.named, tt.err
		if diff := cmp.Diff(tt.want, l.Peers(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got)\n%s", tt.what, diff)
		}
		if got := strings.Count(log.String(), "can't be read"); got != tt.logs {
			t.Errorf("%s: %d lines of log, want %d", tt.what, got, tt.logs)
		}
	}
}
