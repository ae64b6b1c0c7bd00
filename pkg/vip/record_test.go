package vip

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
)

// TestRecord: a record is read as it was written, the longest too, and only from a condition that is True.
func TestRecord(t *testing.T) {
	a, b, c := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd77::1"), netip.MustParseAddr("10.0.0.2")
	r := Record{Named: []netip.Addr{a}, Given: []netip.Addr{b}, Leased: []netip.Addr{c}, MAC: "02:00:00:00:00:01", Link: "herald-01234567", Hostname: strings.Repeat("a", 253)}
	s := Service{}
	s.SetConditions([]Condition{{Type: Announced, Status: ConditionTrue}, r.Condition()})
	if !reflect.DeepEqual(s.Record, r) || !r.Has(a) || !r.Has(b) || !r.Has(c) || r.Has(netip.MustParseAddr("10.0.0.3")) {
		t.Errorf("%s is read as %s", &r, &s.Record)
	}
	for range 15 {
		r.Given = append(r.Given, netip.MustParseAddr(strings.Repeat("ffff:", 7)+"ffff"))
	}
	if n := len(r.String()); n > 1280 {
		t.Errorf("%d bytes", n)
	}
	for _, change := range []func(*Condition){
		func(c *Condition) { c.Status = ConditionFalse },
		func(c *Condition) { c.Type = Allocated },
		func(c *Condition) { c.Message = "named: " + a.String() },
		func(c *Condition) { *c = (&Record{MAC: r.MAC}).Condition() },
	} {
		x := r.Condition()
		change(&x)
		if s.SetConditions([]Condition{x}); !reflect.DeepEqual(s.Record, Record{}) {
			t.Errorf("%+v counts: %s", x, &s.Record)
		}
	}
}

// FuzzRecord: whatever can be read is written and read again as the same.
func FuzzRecord(f *testing.F) {
	f.Add(`{"named":["10.0.0.1"],"given":["fd77::1"],"leased":["10.0.0.2"],"mac":"02:00:00:00:00:01","link":"herald-x","hostname":"web"}`)
	f.Add(`{"named":["",null,"::ffff:10.0.0.1","fe80::1%eth0"],"more":1}`)
	f.Fuzz(func(t *testing.T, text string) {
		var s, again Service
		s.SetConditions([]Condition{{Type: Recorded, Status: ConditionTrue, Message: text}})
		again.SetConditions([]Condition{{Type: Recorded, Status: ConditionTrue, Message: s.Record.String()}})
		if again.Record.String() != s.Record.String() {
			t.Errorf("%q is read as %s, then as %s", text, &s.Record, &again.Record)
		}
	})
}

// TestPeculiar: each field that would decide where or how an address is announced keeps a Service from sharing it.
func TestPeculiar(t *testing.T) {
	if got := new(Service).Peculiar(); got != "" {
		t.Errorf("a plain Service has %s", got)
	}
	for i, change := range []func(*Service){
		func(s *Service) { s.Local = true },
		func(s *Service) { s.ClientIPAffinity = true },
		func(s *Service) { s.Lease = "x" },
		func(s *Service) { s.Announce = []Method{} },
		func(s *Service) { s.BGPAttributes.Communities = []Community{} },
		func(s *Service) { s.BGPAttributes.LargeCommunities = []LargeCommunity{} },
		func(s *Service) { s.BGPAttributes.LocalPref = new(uint32) },
		func(s *Service) { s.BGPAttributes.MED = new(uint32) },
		func(s *Service) { s.BGPAttributes.Prepend = new(int) },
		func(s *Service) { s.BGPAttributes.Peers = []string{} },
	} {
		s := new(Service)
		if change(s); s.Peculiar() == "" {
			t.Errorf("%d: %+v is plain", i, s)
		}
	}
}
