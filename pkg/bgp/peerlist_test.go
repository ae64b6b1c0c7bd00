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

// A password in a file is read again. One that can't be read changes nothing, and is logged once.
func TestPasswordFile(t *testing.T) {
	var log strings.Builder
	var text vip.Secret
	var err error
	a, b := vip.BGPPeer{Address: netip.MustParseAddr("192.0.2.1"), Password: "old", PasswordFile: "/keys/a"}, vip.BGPPeer{Address: netip.MustParseAddr("192.0.2.2"), Password: "other"}
	l := &PeerList{Fixed: []vip.BGPPeer{a, b}, Log: slog.New(slog.NewTextHandler(&log, nil)), ReadPassword: func(path string) (vip.Secret, error) {
		if path != "/keys/a" {
			t.Errorf("%q is read", path)
		}
		return text, err
	}}
	for _, tt := range []struct {
		what          string
		text          vip.Secret
		err           error
		want          vip.Secret
		changes, logs int
	}{
		{"as it was", "old", nil, "old", 0, 0},
		{"another", "new", nil, "new", 1, 0},
		{"the same", "new", nil, "new", 1, 0},
		{"unreadable", "", errors.New("no such file"), "new", 1, 1},
		{"still unreadable", "", errors.New("no such file"), "new", 1, 1},
		{"empty", "", errors.New("1 to 80 bytes"), "new", 1, 2},
		{"the same, readable again", "new", nil, "new", 1, 2},
		{"empty again", "", errors.New("1 to 80 bytes"), "new", 1, 3},
		{"a third", "newest", nil, "newest", 2, 3},
	} {
		text, err = tt.text, tt.err
		l.ReadPasswords()
		if got := l.Peers(); got[0].Password != tt.want || got[1] != b {
			t.Errorf("%s: %q, want %q; the other: %+v", tt.what, string(got[0].Password), string(tt.want), got[1])
		}
		if changes, logs := strings.Count(log.String(), "has changed"), strings.Count(log.String(), "can't be read"); changes != tt.changes || logs != tt.logs {
			t.Errorf("%s: %d lines of changes and %d of errors, want %d and %d", tt.what, changes, logs, tt.changes, tt.logs)
		}
		if strings.Contains(log.String(), "newest") {
			t.Errorf("the password is logged: %s", log.String())
		}
	}
	if a.Password != l.Fixed[0].Password {
		t.Error("what was handed in is changed")
	}
}
