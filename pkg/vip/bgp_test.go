package vip

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// What is secret is shown in no way that Go has of showing things.
func TestSecret(t *testing.T) {
	n := Node{Name: "n1", Annotations: map[string]Secret{"bgp-peers-0-bgp-pass": "s3cret"}}
	p := BGPPeer{AS: 1, Password: "s3cret"}
	page, err := json.Marshal([]any{n, p})
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%v %+v %#v %s %q %v %+v %#v", n, n, n, p.Password, p.Password, p, &p, p)
	if shown := string(page) + text; strings.Contains(shown, "s3cret") || !strings.Contains(shown, hidden) {
		t.Error(shown)
	}
}

func TestParseCommunities(t *testing.T) {
	small, large, err := ParseCommunities("65000:100, 0:0,65535:65535,4294967295:0:7,No-Export,graceful-shutdown")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(small, large), "[65000:100 0:0 65535:65535 65535:65281 65535:0] [4294967295:0:7]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	most := strings.Repeat("65000:1,65000:1:1,", 31) + "no-export,no-peer"
	if small, large, err := ParseCommunities(most); err != nil || len(small)+len(large) != maxCommunities {
		t.Errorf("%d communities: %v, %v, %v", maxCommunities, small, large, err)
	}
	for _, text := range []string{most + ",1:1", "", ",", "65000", "65000:", "65536:1", "1:65536", "1:2:4294967296", "1:2:3:4", "-1:2", "1: 2", "export"} {
		if small, large, err := ParseCommunities(text); err == nil {
			t.Errorf("%q is taken for %v %v", text, small, large)
		}
	}
}

// A Service's word wins, piece by piece; 0 and "none" are words, too.
func TestOver(t *testing.T) {
	zero, five, two := uint32(0), uint32(5), 2
	def := BGPAttributes{Communities: []Community{1}, LargeCommunities: []LargeCommunity{{1, 2, 3}}, LocalPref: &five, MED: &five, Prepend: &two, Peers: []string{"a"}}
	for _, tt := range []struct{ say, want BGPAttributes }{
		{BGPAttributes{}, def},
		{BGPAttributes{Communities: []Community{}, LocalPref: &zero}, BGPAttributes{Communities: []Community{}, LocalPref: &zero, MED: &five, Prepend: &two, Peers: []string{"a"}}},
		{BGPAttributes{LargeCommunities: []LargeCommunity{{4, 5, 6}}, Peers: []string{}}, BGPAttributes{LargeCommunities: []LargeCommunity{{4, 5, 6}}, LocalPref: &five, MED: &five, Prepend: &two, Peers: []string{}}},
	} {
		if got := tt.say.WithDefaults(def); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%+v over the default: %+v", tt.say, got)
		}
	}
	other := five
	if a, b := (BGPAttributes{MED: &five}), (BGPAttributes{MED: &other}); !a.Equal(b) || a.Equal(BGPAttributes{}) || a.Equal(BGPAttributes{MED: &zero}) {
		t.Error("numbers are compared by where they are")
	}
}

// FuzzParseCommunities: any text is parsed into maxCommunities at most, which are read again from what
// they are written as, or is an error of a bounded length.
func FuzzParseCommunities(f *testing.F) {
	for _, text := range []string{"65000:100, 65000:1:100,no-export", "", ",", "65536:1", "NO-EXPORT", strings.Repeat("1:1,", 63) + "1:1:1", strings.Repeat("x", 3000) + ":1"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		small, large, err := ParseCommunities(text)
		if err != nil {
			if len(small)+len(large) > 0 || len(err.Error()) > 400 {
				t.Errorf("%v %v, and %v", small, large, err)
			}
			return
		}
		var words []string
		for _, c := range small {
			words = append(words, c.String())
		}
		for _, c := range large {
			words = append(words, c.String())
		}
		s, l, err := ParseCommunities(strings.Join(words, ","))
		if err != nil || !slices.Equal(s, small) || !slices.Equal(l, large) || len(words) == 0 || len(words) > maxCommunities {
			t.Errorf("%q: %v %v, and read again %v %v, %v", text, small, large, s, l, err)
		}
	})
}
