package pool

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// manyRequests is n Services of 20 namespaces, each with a pool of /16, as the Plan knows them.
func manyRequests(n int) (in vip.PoolInput) {
	var lines []string
	for i := range 20 {
		lines = append(lines, fmt.Sprintf("cidr-ns%d=10.%d.0.0/16", i, i))
	}
	in = vip.PoolInput{Now: start, Source: source(lines...), Allocate: true}
	for i := range n {
		in.Requests = append(in.Requests, manyService(i))
	}
	return in
}

// shown is in once all that was decided is on the Services, and in their statuses.
func shown(b *testing.B, a *Assigner, in vip.PoolInput) vip.PoolInput {
	b.Helper()
	var w vip.World
	a.Observe(&w)
	if len(w.Assignments) != len(in.Requests) {
		b.Fatalf("%d addresses for %d Services", len(w.Assignments), len(in.Requests))
	}
	of := make(map[vip.Key]vip.Assignment)
	for _, d := range w.Assignments {
		of[d.Service] = d
	}
	in.Requests = slices.Clone(in.Requests)
	for i, q := range in.Requests {
		s := *q.Service
		s.Addresses, s.Allocated, s.Ingress = of[s.Key].Addresses, of[s.Key].Pool, []vip.Ingress{{Addr: of[s.Key].Addresses[0]}}
		in.Requests[i].Service = &s
	}
	return in
}

// BenchmarkPass is what the allocation adds to a pass of the agent with 10,000 Services over 20 pools.
func BenchmarkPass(b *testing.B) {
	in := manyRequests(10000)
	b.Run("all are new", func(b *testing.B) {
		b.ReportAllocs()
		var before, after runtime.MemStats
		var a *Assigner
		runtime.GC()
		runtime.ReadMemStats(&before)
		for b.Loop() {
			a = NewAssigner(time.Minute, func() {})
			a.Put([]vip.PoolInput{in})
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "MiB-kept")
		runtime.KeepAlive(a)
	})
	a := NewAssigner(time.Minute, func() {})
	a.Put([]vip.PoolInput{in})
	in = shown(b, a, in)
	a.Put([]vip.PoolInput{in})
	b.Run("nothing has changed", func(b *testing.B) {
		for b.Loop() {
			a.Put([]vip.PoolInput{in})
		}
	})
	b.Run("one has changed", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			changed := in
			changed.Requests = slices.Clone(in.Requests)
			s := *in.Requests[i%10000].Service
			s.Ports = []vip.Port{{Protocol: "TCP", Port: uint16(1 + i%60000)}}
			changed.Requests[i%10000].Service = &s
			a.Put([]vip.PoolInput{changed})
		}
	})
	b.Run("the ConfigMap has changed", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			changed := in
			changed.Source = source(fmt.Sprintf("cidr-global=10.100.%d.0/24", i%200))
			for k, v := range in.Source.Data {
				changed.Source.Data[k] = v
			}
			a.Put([]vip.PoolInput{changed})
		}
	})
}

// 10,000 Services wait for a pool that has ten addresses; one of those that have one goes, and comes again.
func BenchmarkManyWait(b *testing.B) {
	in := manyRequests(10000)
	in.Source = source("cidr-global=10.0.0.0-10.0.0.10")
	a := NewAssigner(time.Minute, func() {})
	for i := 0; b.Loop(); i++ {
		left := in
		left.Now = in.Now.Add(time.Duration(i) * time.Second)
		left.Requests = slices.Delete(slices.Clone(in.Requests), i%10, i%10+1)
		a.Put([]vip.PoolInput{left})
	}
}
