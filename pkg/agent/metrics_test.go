package agent

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/heraldvip/herald/pkg/vip"
	"github.com/heraldvip/herald/testing/check"
)

// What is scraped during a pass has each verdict with its whole number: an alert that waits for 2 min begins again where one scrape lacks its series. A verdict
// that no Service has any more has no series.
func TestServicesAreCountedAtOnce(t *testing.T) {
	m := newMetrics()
	counts := func() map[string]float64 {
		all := make(map[string]float64)
		for _, x := range collect(t, m.services) {
			all[x.GetLabel()[0].GetValue()] = x.GetGauge().GetValue()
		}
		return all
	}
	plan := vip.Plan{Verdicts: make([]vip.Verdict, 2000)}
	for i := range plan.Verdicts {
		plan.Verdicts[i].Reason = vip.NoEligibleNode
	}
	m.observe(plan, time.Millisecond)
	stop, stopped := make(chan bool), make(chan bool)
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				m.observe(plan, time.Millisecond)
			}
		}
	}()
	for range 300 {
		if got := counts(); got[string(vip.NoEligibleNode)] != 2000 || len(got) != 1 {
			t.Errorf("%v, want 2000", got)
			break
		}
	}
	close(stop)
	<-stopped
	plan.Verdicts[0].Reason = vip.VIPAnnounced
	m.observe(plan, time.Millisecond)
	m.observe(vip.Plan{Verdicts: plan.Verdicts[:1]}, time.Millisecond)
	if got := counts(); got[string(vip.VIPAnnounced)] != 1 || len(got) != 1 {
		t.Errorf("%v, want one that is announced", got)
	}
}

// collect returns what a vector has.
func collect(t *testing.T, v prometheus.Collector) (all []*dto.Metric) {
	t.Helper()
	metrics := make(chan prometheus.Metric, 100)
	v.Collect(metrics)
	close(metrics)
	for x := range metrics {
		var one dto.Metric
		check.OK(t, x.Write(&one))
		all = append(all, &one)
	}
	return all
}
