package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

const foreignMAC = "02:00:00:00:00:ff"

// worldWithMACs is world with nodes n1, n2 and n3 that publish their MACs, 02::01, 02::02 and 02::03 on eth0.
func worldWithMACs(services ...vip.Service) vip.World {
	w := world(services...)
	w.CheckResults = map[netip.Addr]vip.CheckResult{}
	for i := range w.Members {
		w.Members[i].Info.Links[0].MAC = fmt.Sprintf("02:00:00:00:00:0%d", i+1)
	}
	return w
}

func probingRules() Rules {
	r := rules()
	r.ProbeNew = true
	return r
}

// checksSummary is what a plan asks, in few words, then what summary has, with the messages of Events about other hosts.
func checksSummary(p vip.Plan) string {
	var b strings.Builder
	for _, i := range p.AddressChecks {
		fmt.Fprintf(&b, "ask %s on %s %s", i.Addr, i.Link, i.Kind)
		if i.Kind == vip.CheckVerify {
			fmt.Fprintf(&b, " of %s #%d: %s", i.Owner, i.Transitions, i.AllowedMACs)
		}
		b.WriteString("\n")
	}
	b.WriteString(summary(p))
	for _, n := range p.Events {
		switch n.Reason {
		case vip.AddressInUse, vip.VIPForeignMAC, vip.VIPUnanswered, vip.VIPAnswered, vip.FormerOwnerAnswers:
			fmt.Fprintf(&b, "%s\n", n.Message)
		}
	}
	return b.String()
}

// withResults puts a result of every AddressCheck of the plan into the World.
func withResults(w vip.World, r Rules, change func(*vip.CheckResult)) vip.World {
	w.CheckResults = maps.Clone(w.CheckResults)
	for _, i := range Make(r, w).AddressChecks {
		f := vip.CheckResult{AddressCheck: i, At: w.Now}
		change(&f)
		w.CheckResults[i.Addr] = f
	}
	return w
}

func noConflict(*vip.CheckResult) {}

func answeredBy(macs ...string) func(*vip.CheckResult) {
	return func(f *vip.CheckResult) { f.UnexpectedMACs = macs }
}

// heldNew says that n1 holds the lease as the first node ever.
func heldNew(w vip.World, name string) vip.World {
	w.Claims[key("kubevip-"+name)] = vip.Claim{Holder: "n1", Valid: true}
	return w
}

func TestProbe(t *testing.T) {
	a := func() vip.World { return worldWithMACs(svc("a", "10.77.0.50,fd77::50")) }
	const taken = `kubevip-a -> n1
		a: AddressInUse
		event a AddressInUse
		10.77.0.50 is in use by another host on eth0 (MAC 02:00:00:00:00:ff), so it is not announced: take it off that host, or give the Service another address; it is asked again at least once a minute, and announced when it is free; ` +
		`fd77::50 is in use by another host on eth0 (MAC 02:00:00:00:00:ff), so it is not announced: take it off that host, or give the Service another address; it is asked again at least once a minute, and announced when it is free`
	const asking = `ask 10.77.0.50 on eth0 probe
		ask fd77::50 on eth0 probe
		`
	const bound = "kubevip-a -> n1; bind 10.77.0.50/32 dev eth0; bind fd77::50/128 dev eth0; a: VIPAnnounced"
	const changedAndTaken = `ask 10.77.0.50 on eth0 probe
		kubevip-a -> n1
		status a
		a: AddressInUse
		event a AddressInUse
		10.77.0.50 is in use by another host on eth0 (MAC 02:00:00:00:00:ff), so it is not announced: take it off that host, or give the Service another address; it is asked again at least once a minute, and announced when it is free`
	tests := []struct {
		name string
		w    vip.World
		want string
	}{
		{"claimed by this node: probed before it is held", with(a(), func(w *vip.World) { w.Members = w.Members[:1] }),
			asking + "kubevip-a -> n1\na: VIPClaiming"},
		{"held for the first time: asked, nothing bound", heldNew(a(), "a"), asking + "kubevip-a -> n1\na: VIPAnnounced"},
		{"free: bound, and asked until it is", withResults(heldNew(a(), "a"), probingRules(), noConflict), asking + bound},
		{"bound: no more questions", with(withResults(heldNew(a(), "a"), probingRules(), noConflict), func(w *vip.World) {
			w.Bound = Make(probingRules(), *w).Addresses
			w.CheckResults = nil
		}), `kubevip-a -> n1
			bind 10.77.0.50/32 dev eth0
			bind fd77::50/128 dev eth0
			status a 10.77.0.50(VIP) fd77::50(VIP)
			a: VIPAnnounced
			event a VIPAnnounced`},
		{"another host has it", withResults(heldNew(a(), "a"), probingRules(), answeredBy(foreignMAC)), asking + taken},
		{"another host had it by another kind of check: asked again",
			withResults(heldNew(a(), "a"), probingRules(), func(f *vip.CheckResult) {
				f.Kind, f.UnexpectedMACs = vip.CheckDefend, []string{foreignMAC}
			}), asking + "kubevip-a -> n1\na: VIPAnnounced"},
		{"one of two", with(withResults(heldNew(a(), "a"), probingRules(), noConflict), func(w *vip.World) {
			f := w.CheckResults[addr("fd77::50")]
			f.UnexpectedMACs = []string{foreignMAC}
			w.CheckResults[f.Addr] = f
			w.Bound = Make(probingRules(), *w).Addresses
		}), `ask fd77::50 on eth0 probe
			kubevip-a -> n1
			bind 10.77.0.50/32 dev eth0
			status a 10.77.0.50(VIP)
			a: AddressInUse
			event a AddressInUse
			fd77::50 is in use by another host on eth0 (MAC 02:00:00:00:00:ff), so it is not announced: take it off that host, or give the Service another address; it is asked again at least once a minute, and announced when it is free`},
		{"moved from another node: never asked", held(worldWithMACs(svc("a", "10.77.0.50,fd77::50", written("n2"))), "a", "n1"), bound},
		{"moved from a node that had not bound it: asked", held(a(), "a", "n1"), asking + "kubevip-a -> n1\na: VIPAnnounced"},
		{"the status says it was announced: never asked", heldNew(worldWithMACs(svc("a", "10.77.0.50,fd77::50", written("n2"))), "a"),
			bound},
		{"another program's status names it: never asked",
			heldNew(worldWithMACs(svc("a", "10.77.0.50,fd77::50", written("kube-vip"), func(s *vip.Service) { s.VIPHost = "" })), "a"),
			bound},
		{"the Service asks for another address, which is in use: the status is cleared",
			withResults(held(worldWithMACs(svc("a", "10.77.0.50", written("n1"), func(s *vip.Service) { s.Ingress[0].Addr = addr("10.77.0.60") })), "a", "n1"), probingRules(), answeredBy(foreignMAC)),
			changedAndTaken},
		{"... and the node that wrote the status is dead",
			withResults(held(worldWithMACs(svc("a", "10.77.0.50", written("gone"), func(s *vip.Service) { s.Ingress[0].Addr = addr("10.77.0.60") })), "a", "n1"), probingRules(), answeredBy(foreignMAC)),
			changedAndTaken},
		{"... and of those before it asks for one still: once that is bound the status names it alone",
			withResults(held(worldWithMACs(svc("a", "10.77.0.60,10.77.0.50", written("n1"), func(s *vip.Service) { s.Ingress = s.Ingress[:1] })), "a", "n1"), probingRules(), answeredBy(foreignMAC)),
			strings.Replace(changedAndTaken, "status a\n", "bind 10.77.0.60/32 dev eth0\n", 1)},
		{"of two Services with one address one has a status: never asked",
			heldNew(worldWithMACs(svc("a", "10.77.0.50"), svc("b", "10.77.0.50", younger, port(81), written("n2"))), "a"),
			"kubevip-a -> n1\nkubevip-b -> n1\nbind 10.77.0.50/32 dev eth0\na: VIPAnnounced\nb: VIPAnnounced"},
		{"kube-proxy is not ready: later",
			heldNew(worldWithMACs(svc("a", "10.77.0.50", local("n1"), func(s *vip.Service) { s.HealthCheckNodePort = 30000 })), "a"),
			"kubevip-a -> n1\na: VIPAnnounced"},
		{"one address of two Services is asked for once",
			heldNew(worldWithMACs(svc("a", "10.77.0.50"), svc("b", "10.77.0.50", younger, port(81))), "a"),
			"ask 10.77.0.50 on eth0 probe\nkubevip-a -> n1\nkubevip-b -> n1\na: VIPAnnounced\nb: VIPAnnounced"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Make(probingRules(), tt.w)
			diff(t, checksSummary(p), tt.want)
			for _, i := range p.AddressChecks {
				if want := "02:00:00:00:00:01 02:00:00:00:00:02 02:00:00:00:00:03"; len(tt.w.Members) == 3 && i.AllowedMACs != want {
					t.Errorf("%s may be answered by %q, want %q", i.Addr, i.AllowedMACs, want)
				}
			}
		})
	}
	t.Run("no status is written: the lease counts", func(t *testing.T) {
		r := probingRules()
		r.NoStatus = true
		diff(t, checksSummary(Make(r, held(a(), "a", "n1"))), bound)
		diff(t, checksSummary(Make(r, heldNew(a(), "a"))), asking+"kubevip-a -> n1\na: VIPAnnounced")
	})
	t.Run("switched off", func(t *testing.T) { diff(t, checksSummary(Make(rules(), heldNew(a(), "a"))), bound) })
}

// What has no endpoints yet is asked for by the few that may get it.
func TestProbeEarly(t *testing.T) {
	bare := func(s *vip.Service) { s.Endpoints = vip.Endpoints{} }
	for _, tt := range []struct {
		name   string
		change func(w *vip.World)
		want   int // nodes that ask
	}{
		{"new", func(*vip.World) {}, 3},
		{"on ten nodes", func(w *vip.World) {
			for i := 4; i <= 10; i++ {
				x := w.Members[0]
				x.Name = fmt.Sprintf("n%d", i)
				w.Members = append(w.Members, x)
			}
		}, 4},
		{"one is excluded", func(w *vip.World) { w.Nodes = allNodes(vip.Node{Name: "n2", Excluded: "a taint"}) }, 2},
		{"one has a link that is down", func(w *vip.World) {
			w.Members[0].Info.Links = slices.Clone(w.Members[0].Info.Links)
			w.Members[0].Info.Links[0].Up = false
		}, 2},
		{"old", func(w *vip.World) { w.Services[0].Created = w.Now.Add(-time.Minute) }, 1}, // the one that is to show its address
		{"announced before", func(w *vip.World) { written("n1")(&w.Services[0]) }, 0},
	} {
		w := worldWithMACs(svc("a", "10.77.0.50", bare))
		w.Services[0].Created = w.Now.Add(-time.Second)
		tt.change(&w)
		asked := 0
		for _, x := range w.Members {
			w.Self = x.Name
			asked += len(Make(probingRules(), w).AddressChecks)
		}
		check.Equal(t, asked, tt.want, "%s: nodes that ask", tt.name)
	}
	// While the lease is free, those go on: which of them takes it is not sure before.
	w := worldWithMACs(svc("a", "10.77.0.50"))
	for _, x := range w.Members {
		w.Self = x.Name
		check.Equal(t, len(Make(probingRules(), w).AddressChecks), 1, "how often %s asks", x.Name)
	}
	if w = held(w, "a", "n2"); len(Make(probingRules(), w).AddressChecks) > 0 {
		t.Error("asked though another node has the lease")
	}
	// Once it has endpoints and a lease, what is known counts.
	w = worldWithMACs(svc("a", "10.77.0.50", bare))
	w.Services[0].Created = w.Now
	w = withResults(w, probingRules(), noConflict)
	w.Services[0].Endpoints = vip.Endpoints{Ready: []string{"n1"}}
	check.Equal(t, len(Make(probingRules(), heldNew(w, "a")).Addresses), 1, "how many addresses are wanted")
}

// withHeard has somebody claim 10.77.0.50 some time ago.
func withHeard(w vip.World, mac string, ago time.Duration) vip.World {
	w.Heard = map[netip.Addr]vip.HeardAnnouncement{addr("10.77.0.50"): {MAC: mac, Link: "eth0", At: w.Now.Add(-ago)}}
	return w
}

// afterStop has the foreign MAC heard just after this node has acquired the VIP, which a node had before.
func afterStop(w vip.World, before string) vip.World {
	return with(withHeard(w, foreignMAC, time.Second), claimOfA(func(c *vip.Claim) {
		c.AcquiredAt, c.FormerHolders = w.Now.Add(-2*time.Second), []vip.FormerHolder{{Node: before}}
	}))
}

func TestDefend(t *testing.T) {
	mine := func() vip.World {
		return bind(rules(), held(worldWithMACs(svc("a", "10.77.0.50", written("n1"))), "a", "n1"))
	}
	const well = `kubevip-a -> n1
		bind 10.77.0.50/32 dev eth0
		status a 10.77.0.50(VIP)
		a: VIPAnnounced
		event a VIPAnnounced
		`
	const ill = `ask 10.77.0.50 on eth0 defend
		kubevip-a -> n1
		bind 10.77.0.50/32 dev eth0
		status a 10.77.0.50(VIP)
		a: VIPForeignMAC
		event a VIPAnnounced
		event a VIPForeignMAC
		another host on eth0 claims 10.77.0.50 (MAC %s): some clients may reach that host instead; take the address off it. Node n1 goes on announcing the VIP`
	const over = "ask 10.77.0.50 on eth0 defend\n" + well + `event a VIPAnswered
		no other host on eth0 claims 10.77.0.50 any more`
	tests := []struct {
		name string
		w    vip.World
		want string
	}{
		{"a foreign host", withHeard(mine(), foreignMAC, time.Second), fmt.Sprintf(ill, foreignMAC)},
		{"it answers no question", withResults(withHeard(mine(), foreignMAC, time.Second), rules(), noConflict),
			fmt.Sprintf(ill, foreignMAC)},
		{"it answers no question, and was not heard for a while",
			withResults(withHeard(mine(), foreignMAC, 31*time.Second), rules(), noConflict), over},
		{"heard a while ago, and still there", withResults(withHeard(mine(), foreignMAC, time.Minute), rules(), answeredBy(foreignMAC)),
			fmt.Sprintf(ill, foreignMAC)},
		{"two of them", withResults(withHeard(mine(), foreignMAC, time.Second), rules(), answeredBy("02:00:00:00:00:fe", foreignMAC)),
			fmt.Sprintf(ill, "02:00:00:00:00:fe, "+foreignMAC)},
		{"one of so many that not all are kept: no Event for each",
			withResults(withHeard(mine(), foreignMAC, time.Second), rules(), answeredBy("02:00:00:00:00:fe")),
			fmt.Sprintf(ill, "02:00:00:00:00:fe")},
		{"long ago", withHeard(mine(), foreignMAC, time.Hour), well},
		{"long ago, but still there",
			with(withResults(withHeard(mine(), foreignMAC, time.Second), rules(), answeredBy(foreignMAC)), func(w *vip.World) { w.Heard = nil }),
			fmt.Sprintf(ill, foreignMAC)},
		{"long ago, and just gone",
			with(withResults(withHeard(mine(), foreignMAC, time.Second), rules(), func(f *vip.CheckResult) { f.ClearedAt = f.At }), func(w *vip.World) { w.Heard = nil }),
			over},
		{"the node that had it a moment ago", with(withHeard(mine(), "02:00:00:00:00:02", time.Second),
			claimOfA(func(c *vip.Claim) { c.AcquiredAt = mine().Now.Add(-5 * time.Second) })), well},
		{"the node that had it a moment ago, and has stopped", afterStop(mine(), "n9"), well},
		{"... but the one that had it is known by its MAC", afterStop(mine(), "n2"), fmt.Sprintf(ill, foreignMAC)},
		{"a node with an older Herald may be anybody",
			with(withHeard(mine(), foreignMAC, time.Second), func(w *vip.World) { w.Members[2].Info.Links[0].MAC = "" }), well},
		{"on another link", with(withHeard(mine(), foreignMAC, time.Second), func(w *vip.World) {
			s := w.Heard[addr("10.77.0.50")]
			s.Link = "eth1"
			w.Heard[addr("10.77.0.50")] = s
		}), well},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Make(rules(), tt.w)
			diff(t, checksSummary(p), tt.want)
			check.Equal(t, p.ReplanAfter, lookAtTables, "what firewalls flush is looked at after")
		})
	}
}

// What a host that is no node announces does not end a hand-over, and what a node announced before does not.
func TestOnlyNodesEndHandOver(t *testing.T) {
	w := held(worldWithMACs(svc("a", "10.77.0.50", written("n1"))), "a", "n1")
	w = held(bind(rules(), w), "a", "n2")
	w.HandingOver[key("kubevip-a")] = vip.HandingOver{Successor: "n2", Since: w.Now.Add(-time.Second), Until: w.Now.Add(2 * time.Second)}
	for mac, want := range map[string]int{foreignMAC: 1, "02:00:00:00:00:02": 0} {
		check.Equal(t, len(Make(rules(), withHeard(w, mac, 0)).Addresses), want, "how many addresses are wanted after an announcement by %s", mac)
		check.Equal(t, len(Make(rules(), withHeard(w, mac, 2*time.Second)).Addresses), 1, "... and after one before the hand-over")
	}
}

func TestVerify(t *testing.T) {
	// n2 owns it; of n1 and n3 the one with the highest rendezvous hash asks.
	theirs := func(change ...func(*vip.Service)) vip.World {
		w := held(worldWithMACs(svc("a", "10.77.0.50", written("n2"))), "a", "n2")
		w.Self = verifiers(w)[0]
		for _, f := range change {
			f(&w.Services[0])
		}
		return w
	}
	const ask = "ask 10.77.0.50 on eth0 verify of n2 #1: 02:00:00:00:00:02\n"
	tests := []struct {
		name string
		w    vip.World
		want string
	}{
		{"asked, and well", withResults(theirs(), rules(), noConflict), ask + "a: VIPElsewhere"},
		{"silent", withResults(theirs(), rules(), func(f *vip.CheckResult) { f.NoAnswer = true }), ask + `a: VIPUnanswered
			event a VIPUnanswered
			node SELF has asked on eth0 who has 10.77.0.50: node n2 owns it, but does not answer; look at that node's firewall (ARP, ICMPv6 neighbor solicitations), at its sysctls arp_ignore and arp_filter, and at the network between the two`},
		{"others answer", withResults(theirs(), rules(), answeredBy("02:00:00:00:00:03", foreignMAC)), ask + `a: VIPForeignMAC
			event a VIPForeignMAC
			node SELF has asked on eth0 who has 10.77.0.50: node n2 owns it, but somebody else answers (MAC 02:00:00:00:00:03, node n3; MAC 02:00:00:00:00:ff)`},
		{"again well", withResults(theirs(), rules(), func(f *vip.CheckResult) { f.ClearedAt = f.At }), ask + `a: VIPElsewhere
			event a VIPAnswered
			node n2, which owns 10.77.0.50, answers for it again, and nobody else does`},
		{"found of an earlier owner",
			with(withResults(theirs(), rules(), func(f *vip.CheckResult) { f.NoAnswer = true }), func(w *vip.World) { w.Claims[key("kubevip-a")] = vip.Claim{Holder: "n2", Valid: true, Transitions: 3} }),
			"ask 10.77.0.50 on eth0 verify of n2 #3: 02:00:00:00:00:02\na: VIPElsewhere"},
		{"the owner has not bound it yet", theirs(func(s *vip.Service) { s.Ingress = nil }), "a: VIPElsewhere"},
		{"the owner has not written the status", theirs(written("n1")), "a: VIPElsewhere"},
		{"the owner does not renew", with(theirs(), func(w *vip.World) { w.Members[1].Alive = false }), "a: VIPElsewhere"},
		{"the owner is in another network", with(theirs(), func(w *vip.World) {
			w.Members[1].Info.Links[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.88.0.1/24")}
		}), "a: VIPElsewhere"},
		{"an older Herald publishes no MAC: whoever answers", with(theirs(), func(w *vip.World) { w.Members[1].Info.Links[0].MAC = "" }),
			"ask 10.77.0.50 on eth0 verify of n2 #1: \na: VIPElsewhere"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := tt.w
			diff(t, checksSummary(Make(rules(), w)), strings.ReplaceAll(tt.want, "SELF", w.Self))
		})
	}
}

// verifiers is the nodes that ask for a VIP of another.
func verifiers(w vip.World) []string {
	var who []string
	for _, x := range w.Members {
		w.Self = x.Name
		if slices.ContainsFunc(Make(rules(), w).AddressChecks, func(c vip.AddressCheck) bool { return c.Kind == vip.CheckVerify }) {
			who = append(who, x.Name)
		}
	}
	return who
}

// Of all nodes that can, one asks; if it can't, another does.
func TestOneVerifier(t *testing.T) {
	count := map[string]int{}
	for n := range 100 {
		w := held(worldWithMACs(svc("a", fmt.Sprintf("10.77.0.%d", 50+n), written("n2"))), "a", "n2")
		w.Services[0].Key.Name = fmt.Sprint("a", n)
		w.Claims = map[vip.Key]vip.Claim{key(fmt.Sprint("kubevip-a", n)): {Holder: "n2", Valid: true}}
		who := verifiers(w)
		if len(who) != 1 || who[0] == "n2" {
			t.Fatalf("%v ask", who)
		}
		count[who[0]]++
		i := slices.IndexFunc(w.Members, func(m vip.Member) bool { return m.Name == who[0] })
		for what, spoil := range map[string]func(*vip.Member){
			"dead":      func(m *vip.Member) { m.Alive = false },
			"link down": func(m *vip.Member) { m.Info.Links = slices.Clone(m.Info.Links); m.Info.Links[0].Up = false },
			"in another network": func(m *vip.Member) {
				m.Info.Links = slices.Clone(m.Info.Links)
				m.Info.Links[0].Prefixes = []netip.Prefix{netip.MustParsePrefix("10.88.0.1/24")}
			},
		} {
			x := w
			x.Members = slices.Clone(w.Members)
			spoil(&x.Members[i])
			if other := verifiers(x); len(other) != 1 || other[0] == who[0] {
				t.Errorf("%s is %s: %v ask", who[0], what, other)
			}
		}
	}
	if count["n1"] < 30 || count["n3"] < 30 {
		t.Errorf("the work is not shared: %v", count)
	}
}

// Whoever can write to the LAN can send an announcement in the name of another node. While renewals are late it must
// not take the VIP from its owner: a node that has taken it over says so in its heartbeats.
func TestAnnouncementInTheNameOfANodeTakesNothing(t *testing.T) {
	const mac = "02:00:00:00:00:02"
	w := bind(rules(), held(worldWithMACs(svc("a", "10.77.0.50", written("n1"))), "a", "n1"))
	w.Tenure.RenewalLateSince = w.Now.Add(-10 * time.Second)
	p := Make(rules(), withHeard(w, mac, time.Second))
	if len(p.Addresses) != 1 || len(p.Announcements) != 1 || p.Announcements[0].ListenOnly {
		t.Errorf("bound: %v, announced: %v", p.Addresses, p.Announcements)
	}
	if p.Verdicts[0].Reason != vip.VIPForeignMAC || !strings.Contains(p.Verdicts[0].Message, "MAC "+mac+" of node n2") {
		t.Errorf("verdict %s: %s", p.Verdicts[0].Reason, p.Verdicts[0].Message)
	}
}

// A VIP is not bound here while the kernel of a node that has lost its claims answers for it.
func TestFormerOwnersAnswer(t *testing.T) {
	r := rules()
	lost := func(until time.Duration) vip.World {
		w := held(worldWithMACs(svc("a", "10.77.0.50")), "a", "n1")
		w.Members[1].Alive, w.Members[1].AnswersUntil = false, w.Now.Add(until)
		return w
	}
	answered := func(noAnswer bool) vip.World {
		w := lost(time.Second)
		return withResults(w, r, func(x *vip.CheckResult) { x.NoAnswer = noAnswer })
	}
	noMAC := lost(time.Second)
	noMAC.Members[1].Info.Links[0].MAC = ""
	gone, cut := lost(time.Second), lost(time.Second)
	gone.Members[1].Gone, cut.Members[1].Gone = true, true
	for i := range cut.Members { // heartbeats by a link of their own: that does not answer there tells nothing of the VIPs' link
		cut.Members[i].Info.HeartbeatInterface = "eth9"
	}
	tests := []struct {
		name  string
		w     vip.World
		bound bool
		asks  bool
		again time.Duration
	}{
		{"no node has lost its claims", held(worldWithMACs(svc("a", "10.77.0.50")), "a", "n1"), true, false, 0},
		{"not known yet whether it answers", lost(time.Second), false, true, time.Second},
		{"it answers", answered(false), false, true, time.Second},
		{"it does not answer", answered(true), true, true, 0},
		{"its addresses have ended", lost(-time.Millisecond), true, false, 0},
		{"it publishes no MAC", noMAC, true, false, 0},
		{"it does not answer on the link of heartbeats, which is the VIP's", gone, true, false, 0},
		{"it does not answer on the link of heartbeats, which is another", cut, false, true, time.Second},
		{"the VIP is bound here", bind(r, held(worldWithMACs(svc("a", "10.77.0.50")), "a", "n1")), true, false, 0},
	}
	tests[len(tests)-1].w.Members[1].AnswersUntil = tests[len(tests)-1].w.Now.Add(time.Second)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Make(r, tt.w)
			if got := len(p.Addresses) == 1; got != tt.bound || tt.again > 0 && p.ReplanAfter != tt.again {
				t.Errorf("bound: %v, again after %v; want %v, %v\n%s", got, p.ReplanAfter, tt.bound, tt.again, checksSummary(p))
			}
			for _, x := range p.AddressChecks {
				if x.Kind == vip.CheckFormer && (x.AllowedMACs != "02:00:00:00:00:02" || x.Link != "eth0") {
					t.Errorf("asks %q on %s", x.AllowedMACs, x.Link)
				}
			}
			check.Equal(t, strings.Contains(checksSummary(p), " former"), tt.asks, "it asks: %s", checksSummary(p))
		})
	}
}

// A new VIP is probed, and bound once neither another host nor a node that has lost its claims answers. The two must
// not wait for each other: there is one check for each address.
func TestFormerOwnersAndProbe(t *testing.T) {
	r := probingRules()
	lost := func() vip.World {
		w := heldNew(worldWithMACs(svc("a", "10.77.0.50")), "a")
		w.Members[1].Alive, w.Members[1].AnswersUntil = false, w.Now.Add(time.Second)
		return w
	}
	before := heldNew(worldWithMACs(svc("a", "10.77.0.50")), "a")
	before = withResults(before, r, noConflict)
	before.Members[1].Alive, before.Members[1].AnswersUntil = false, before.Now.Add(time.Second)
	given := lost()
	given.Services[0].Allocated = "red"
	tests := []struct {
		name  string
		w     vip.World
		bound bool
		inUse bool
	}{
		{"nothing is known yet", lost(), false, false},
		{"nobody answers", withResults(lost(), r, noConflict), true, false},
		{"the node answers", withResults(lost(), r, answeredBy("02:00:00:00:00:02")), false, false},
		{"another host answers", withResults(lost(), r, answeredBy("02:00:00:00:00:99")), false, true},
		{"nobody answered before the node lost its claims", before, false, false},
		{"nobody can be asked", withResults(lost(), r, func(x *vip.CheckResult) { x.NotSent = "no buffer space" }), false, false},
		{"nobody answers for an address of a pool", withResults(given, r, noConflict), true, false},
	}
	for _, tt := range tests {
		p := Make(r, tt.w)
		if got := len(p.Addresses) == 1; got != tt.bound || strings.Contains(checksSummary(p), "AddressInUse") != tt.inUse {
			t.Errorf("%s: bound %v, want %v\n%s", tt.name, got, tt.bound, checksSummary(p))
		}
		if x := p.AddressChecks; !tt.bound && (len(x) != 1 || x[0].Kind != vip.CheckProbe || strings.Contains(x[0].AllowedMACs, "02:00:00:00:00:02") || p.ReplanAfter != time.Second) {
			t.Errorf("%s: asks %+v, again after %v", tt.name, x, p.ReplanAfter)
		}
	}
}

// A VIP that waits for a node which is neither heard nor known to be dead (docs/why.md, "Nobody answers beside a
// silent node") for longer than a kernel answers whose Herald has ended is an Event and a condition, with node, MAC
// and the way out: it may wait for hours, and a switch that suppresses ARP answers for a node that is off, too.
func TestFormerOwnerAnswersForLong(t *testing.T) {
	const mac, lease = "02:00:00:00:00:02", "kubectl -n herald delete lease herald-node-n2"
	still := func(f *vip.CheckResult) { f.StillAnsweredBy = mac }
	waits := func(w vip.World, r Rules, wait time.Duration, change func(*vip.CheckResult)) vip.World {
		w.Now = w.Now.Add(wait)
		w.Members[1].Alive, w.Members[1].AnswersUntil = false, w.Now.Add(6200*time.Millisecond) // as each evaluation has it
		return withResults(w, r, change)
	}
	r, probing := rules(), probingRules()
	r.Announcer, probing.Announcer = "herald", "herald"
	given := func() vip.World {
		w := held(worldWithMACs(svc("a", "10.77.0.50,fd77::50")), "a", "n1")
		return with(w, claimOfA(func(c *vip.Claim) { c.AcquiredAt = w.Now }))
	}
	isNew := func() vip.World { return with(given(), claimOfA(func(c *vip.Claim) { c.Transitions = 0 })) }
	tests := []struct {
		name string
		r    Rules
		w    vip.World
		want []string // in the message; nil: no Event
	}{
		{"it answers, not for long", r, waits(given(), r, time.Second, noConflict), nil},
		{"it answers for a minute", r, waits(given(), r, time.Minute, still),
			[]string{"10.77.0.50 on eth0 (MAC " + mac + " of node n2)", "fd77::50 on eth0", lease}},
		{"it can't be asked for a minute", r, waits(given(), r, time.Minute, func(f *vip.CheckResult) { f.NotSent = "no buffer space" }),
			[]string{"10.77.0.50 on eth0 (a MAC of node n2, which can't be asked: no buffer space)", lease}},
		{"it is silent now", r, waits(given(), r, time.Minute, func(f *vip.CheckResult) { f.NoAnswer = true }), nil},
		{"it answers a probe, not for long", probing, waits(isNew(), probing, 7*time.Second, answeredBy(mac)), nil},
		{"it answers probes for a minute", probing, waits(isNew(), probing, time.Minute, answeredBy(mac)),
			[]string{"10.77.0.50 on eth0 (MAC " + mac + " of node n2)", lease}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := Make(tt.r, tt.w)
			message := ""
			for _, e := range p.Events {
				if e.Reason == vip.FormerOwnerAnswers && e.Warning {
					message += e.Message
				}
			}
			if (message != "") != (tt.want != nil) || (p.Verdicts[0].Reason == vip.FormerOwnerAnswers) != (tt.want != nil) || len(message) > 1024 {
				t.Fatalf("Event %q, verdict %s: %s", message, p.Verdicts[0].Reason, p.Verdicts[0].Message)
			}
			check.Contains(t, message, tt.want...)
			announced := conditionOf(p, "a", vip.Announced)
			check.Equal(t, announced.Status == vip.ConditionFalse && announced.Reason == vip.FormerOwnerAnswers, tt.want != nil, "it says so: condition %+v", announced)
		})
	}
}

// conditionOf is the condition of that type that the plan writes on a Service; zero if it writes none.
func conditionOf(p vip.Plan, name string, kind vip.ConditionType) vip.Condition {
	for _, s := range p.Statuses {
		for _, c := range s.Conditions {
			if s.Service == key(name) && c.Type == kind {
				return c
			}
		}
	}
	return vip.Condition{}
}
