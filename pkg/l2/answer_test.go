package l2

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// Where sysctls keep the kernel from answering, this node answers for what it announces, and only while it may hold it.
func TestAnswers(t *testing.T) {
	onLAN(t, "eth0", func(t *testing.T, r *fixture) {
		sysctls := map[string]int{}
		r.conf = func(link, name string) int { return sysctls[link+" "+name] }
		r.set(t, "eth0 10.0.0.8 listen\neth0 10.0.0.9", "", announce("eth0", "10.0.0.9"), listenOnly("eth0", "10.0.0.8"))
		time.Sleep(tick / 2) // repetitions are sent at whole ticks
		answers := func(what string, want string, m neighborMessage) {
			t.Helper()
			time.Sleep(10 * time.Second) // the announcements of the beginning are over
			r.lan.takeFrames()
			r.lan.mu.Lock()
			r.lan.deliver("eth0", m)
			r.lan.mu.Unlock()
			synctest.Wait()
			if got := r.lan.takeFrames(); (want == "") != (got == "") || !strings.HasSuffix(strings.TrimSpace(got), want) {
				t.Errorf("%s: frames are %q, want %q", what, got, want)
			}
		}
		request, probe := messageRequest.by("10.0.0.77", 7), messageProbe.by("10.0.0.9", 7)
		answers("the kernel answers", "", request.asking("10.0.0.9"))
		for _, name := range []string{"all arp_ignore", "eth0 arp_ignore", "all arp_filter", "eth0 arp_filter"} {
			sysctls[name] = 2
			answers(name, "eth0 arp reply 10.0.0.9 02:00:00:00:00:0a to 10.0.0.77", request.asking("10.0.0.9"))
			clear(sysctls)
		}
		sysctls["all arp_ignore"] = 8
		answers("a probe", "eth0 arp reply 10.0.0.9 02:00:00:00:00:0a to 0.0.0.0", probe.asking("10.0.0.9"))
		answers("what is only listened for", "", request.asking("10.0.0.8"))
		answers("another address", "", request.asking("10.0.0.7"))
		r.changeTenure(func(t *vip.Tenure) { t.Confirmed = false })
		answers("without tenure", "", request.asking("10.0.0.9"))
	})
}
