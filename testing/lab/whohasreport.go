package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// A WhoHasReport is the result of a WhoHas.
type WhoHasReport struct {
	Every        time.Duration
	Began, Ended time.Time
	Addrs        []AddrReport // in the order they were given
	Err          error        // a request could not be sent; the report is not to be trusted
}

// An AddrReport is who answered for one address, and when.
type AddrReport struct {
	Addr       netip.Addr
	Rounds     int       // requests sent
	Unanswered int       // those without an answer before the next request
	First      time.Time // the first answer; zero if there was none

	// A silence is unanswered requests in a row: from the first one until an answer, or the end, less the time in which
	// this process should have asked and did not.
	LongestSilence, TotalSilence time.Duration
	// A double is a row of rounds that two or more hosts answered.
	LongestDouble, TotalDouble time.Duration

	Timeline []Span
}

// A Span is a time during which the same hosts answered every round.
type Span struct {
	From, To time.Time
	Hosts    []string // sorted: names of the lab's hosts, or hardware addresses of others; empty: nobody
}

func (s Span) length() time.Duration { return s.To.Sub(s.From) }

// report makes one address's report: an answer belongs to the last request before it. An address never asked for is
// silent.
func (t *target) report(began, ended time.Time, every time.Duration) AddrReport {
	r := AddrReport{Addr: t.addr, Rounds: len(t.requested)}
	slices.SortFunc(t.answers, func(a, b answer) int { return a.at.Compare(b.at) })
	if len(t.answers) > 0 {
		r.First = t.answers[0].at
	}
	if len(t.requested) == 0 {
		r.LongestSilence = ended.Sub(began)
		r.TotalSilence = r.LongestSilence
		return r
	}
	if last := t.requested[len(t.requested)-1].Add(every); last.Before(ended) {
		ended = last // nobody was asked since: this process may have got no CPU
	}
	next := 0                   // answer
	silence := time.Duration(0) // the present one
	for i, sent := range t.requested {
		until := ended
		if i+1 < len(t.requested) {
			until = t.requested[i+1]
		}
		from, hosts := sent, []string(nil)
		for ; next < len(t.answers) && t.answers[next].at.Before(until); next++ {
			if hosts == nil {
				from = t.answers[next].at
			}
			hosts = append(hosts, t.answers[next].who)
		}
		slices.Sort(hosts)
		hosts = slices.Compact(hosts)
		waited := from.Sub(sent)
		if len(hosts) == 0 {
			r.Unanswered++
			waited = min(until.Sub(sent), 3*every/2)
		}
		if len(hosts) == 0 || silence > 0 {
			silence, r.TotalSilence = silence+waited, r.TotalSilence+waited
			r.LongestSilence = max(r.LongestSilence, silence)
		}
		if len(hosts) > 0 {
			silence = 0
		}
		r.addRound(from, hosts)
	}
	r.Timeline[len(r.Timeline)-1].To = ended
	r.sumUp(every)
	return r
}

// Owners are the hosts that answered, by spans; those that answered again are named again.
func (r AddrReport) Owners() []string {
	var owners []string
	for _, s := range r.Timeline {
		for _, h := range s.Hosts {
			if len(owners) == 0 || owners[len(owners)-1] != h {
				owners = append(owners, h)
			}
		}
	}
	return owners
}

// Stayed reports whether one host answered all the time, but for silences: on a busy machine an answer may come late.
func (r AddrReport) Stayed(silence time.Duration) bool {
	return len(r.Owners()) == 1 && r.LongestSilence <= silence
}

// addRound extends the last span if the same hosts answered, or starts another.
func (r *AddrReport) addRound(from time.Time, hosts []string) {
	if n := len(r.Timeline); n > 0 {
		last := &r.Timeline[n-1]
		if slices.Equal(last.Hosts, hosts) {
			return
		}
		last.To = from
	}
	r.Timeline = append(r.Timeline, Span{From: from, Hosts: hosts})
}

func (r *AddrReport) sumUp(every time.Duration) {
	for _, s := range r.Timeline {
		if len(s.Hosts) > 1 {
			d := max(s.length(), every) // the last round may be cut short by the end
			r.LongestDouble = max(r.LongestDouble, d)
			r.TotalDouble += d
		}
	}
}

// Addr is the report of one address, or zero.
func (r WhoHasReport) Addr(a netip.Addr) AddrReport {
	for _, x := range r.Addrs {
		if x.Addr == a {
			return x
		}
	}
	return AddrReport{}
}

// String lists each address with its timeline; of more than ten, the ten with the longest silence.
func (r WhoHasReport) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "who has, every %v for %v\n", r.Every, r.Ended.Sub(r.Began).Round(time.Millisecond))
	if r.Err != nil {
		fmt.Fprintf(&b, "  FAILED: %v\n", r.Err)
	}
	list := slices.Clone(r.Addrs)
	if len(list) > 10 {
		slices.SortFunc(list, func(a, b AddrReport) int { return cmp.Compare(b.LongestSilence, a.LongestSilence) })
		fmt.Fprintf(&b, "  the 10 of %d addresses with the longest silence:\n", len(list))
		list = list[:10]
	}
	for _, a := range list {
		a.write(&b, r.Began)
	}
	return b.String()
}

// String lists who answered when, counted from the first span.
func (r AddrReport) String() string {
	var b strings.Builder
	began := time.Time{}
	if len(r.Timeline) > 0 {
		began = r.Timeline[0].From
	}
	r.write(&b, began)
	return b.String()
}

func (r AddrReport) write(b *strings.Builder, began time.Time) {
	fmt.Fprintf(b, "  %s: %d rounds, %d unanswered", r.Addr, r.Rounds, r.Unanswered)
	if r.LongestSilence > 0 {
		fmt.Fprintf(b, "; silent %s, longest %s", ms(r.TotalSilence), ms(r.LongestSilence))
	}
	if r.LongestDouble > 0 {
		fmt.Fprintf(b, "; two answering %s, longest %s", ms(r.TotalDouble), ms(r.LongestDouble))
	}
	b.WriteByte('\n')
	for _, s := range r.Timeline {
		who := strings.Join(s.Hosts, " and ")
		if who == "" {
			who = "nobody"
		}
		fmt.Fprintf(b, "    %+9.3fs  %-9s %s\n", s.From.Sub(began).Seconds(), ms(s.length()), who)
	}
}

func ms(d time.Duration) string { return fmt.Sprintf("%.0fms", float64(d)/float64(time.Millisecond)) }
