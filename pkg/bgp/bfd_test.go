package bgp

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

var fastBFD = vip.BFD{MinReceive: 300 * time.Millisecond, MinTransmit: 300 * time.Millisecond, Multiplier: 3}

// A router whose processes stop answering, without closing anything, has no BGP session after the Detection Time, long before the hold time
// ends; it has one again once it answers. FRR and BIRD understand BFD of this node (over IPv6: TestUnnumbered, since one process has the
// port); that Herald stops is no failure to them. One that does not do BFD keeps its BGP session.
func TestBFD(t *testing.T) {
	t.Parallel()
	bird := newRouter(t, 51)
	bird.bird(fmt.Sprintf(birdHead, bird.v4(), bird.here4(), "bfd on;", "none") + "protocol bfd { interface \"*\" { interval 300 ms; multiplier 3; }; }\n")
	frr := newRouter(t, 52)
	frr.frr(fmt.Sprintf(frrHead, frr.here4(), "65000", " neighbor "+frr.here4()+" bfd\n"))
	without := newRouter(t, 53)
	without.bird(fmt.Sprintf(birdHead, without.v4(), without.here4(), "", "none"))
	s := runSpeaker(t, nil, vip.BGPPeer{Address: bird.v4(), AS: 65001, BFD: fastBFD}, vip.BGPPeer{Address: frr.v4(), AS: 65001, BFD: fastBFD},
		vip.BGPPeer{Address: without.v4(), AS: 65001, BFD: fastBFD})
	s.advertise("198.51.100.7/32")
	s.up()
	bfdUp := func(i int) {
		t.Helper()
		check.Until(t, 20*time.Second, "BFD", func() error {
			if x := s.Sessions()[i]; x.BFD != "up" || !x.Up() {
				return fmt.Errorf("%+v", x)
			}
			return nil
		})
	}
	bfdUp(0)
	bfdUp(1)

	silence := func(i int, r *router, names ...string) {
		t.Helper()
		for _, name := range names {
			check.OK(t, syscall.Kill(r.proc[name].Process.Pid, syscall.SIGSTOP))
		}
		took := check.Until(t, 5*time.Second, "the end of the BGP session", func() error {
			if x := s.Sessions()[i]; x.Up() || !strings.Contains(x.Reason, "BFD: nothing was heard of the neighbor for 900ms") {
				return fmt.Errorf("%+v", x)
			}
			return nil
		})
		t.Logf("%s: down after %v: %s", names, took.Round(10*time.Millisecond), s.Sessions()[i].Reason)
		for _, name := range names {
			check.OK(t, syscall.Kill(r.proc[name].Process.Pid, syscall.SIGCONT))
		}
		bfdUp(i)
	}
	silence(0, bird, "bird")
	silence(1, frr, "bfdd", "bgpd")
	for i, want := range []float64{1, 1, 0} {
		var failures dto.Metric
		check.OK(t, s.metrics.bfdFailures.WithLabelValues(s.Sessions()[i].Peer, "65001").Write(&failures))
		if got := failures.GetCounter().GetValue(); got < want || want == 0 && got > 0 { // a machine under load may add some
			t.Errorf("%s failed %v times, want %v", s.Sessions()[i].Peer, got, want)
		}
	}
	if x := s.Sessions()[2]; !x.Up() || x.BFD != "down" {
		t.Errorf("the router without BFD: %+v", x)
	}

	s.stop()
	check.Until(t, 5*time.Second, "FRR is told that this is no failure", func() error {
		out, err := frr.vtysh("show bfd peers")
		if err == nil && !strings.Contains(out, "Remote diagnostics: administratively down") {
			err = errors.New(out)
		}
		return err
	})
}
