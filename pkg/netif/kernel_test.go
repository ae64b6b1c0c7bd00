package netif

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"testing"
	"time"
)

func TestMeasureExpiry(t *testing.T) {
	if os.Getenv("MEASURE") == "" {
		t.Skip()
	}
	hardware(t, "eth0", "10.0.0.5/24")
	k, err := openNetlink()
	must(t, err)
	pic, err := k.read()
	must(t, err)
	idx := pic.index("eth0")
	n, _ := strconv.Atoi(os.Getenv("MEASURE"))
	spread, _ := time.ParseDuration(os.Getenv("SPREAD"))
	v6 := os.Getenv("V6") != ""
	f, err := k.subscribe()
	must(t, err)
	last := map[place]time.Time{}
	for i := range n {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 32)
		if v6 {
			a := netip.MustParseAddr("2001:db8::").As16()
			a[14], a[15] = byte((i+1)>>8), byte(i+1)
			p = netip.PrefixFrom(netip.AddrFrom16(a), 128)
		}
		pl := place{idx, p}
		must(t, k.bind(binding{place: pl, link: "eth0", seconds: 3}))
		last[pl] = time.Now()
		time.Sleep(spread / time.Duration(n))
	}
	var mn, mx time.Duration = time.Hour, 0
	for gone := 0; gone < n; {
		cs, err := f.next()
		must(t, err)
		for _, c := range cs {
			if c.gone && c.entry != nil {
				if l, ok := last[c.entry.place]; ok {
					d := time.Since(l)
					mn, mx = min(mn, d), max(mx, d)
					gone++
				}
			}
		}
	}
	fmt.Println("expiry min", mn, "max", mx)
}
