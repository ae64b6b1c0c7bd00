package pool

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

func mergeReserved(reserved []vip.ReservedRange) []vip.Range {
	ranges := make([]vip.Range, len(reserved))
	for i, r := range reserved {
		ranges[i] = vip.RangeOf(r.Prefix)
	}
	return vip.MergeRanges(ranges)
}

func subtract(from, what []vip.Range) (out []vip.Range) {
	for _, r := range from {
		for len(what) > 0 && what[0].To.Less(r.From) {
			what = what[1:]
		}
		rest := true
		for _, w := range what {
			if r.To.Less(w.From) {
				break
			}
			if r.From.Less(w.From) {
				out = append(out, vip.Range{From: r.From, To: w.From.Prev()})
			}
			if !w.To.Less(r.To) {
				rest = false
				break
			}
			r.From = w.To.Next()
		}
		if rest {
			out = append(out, r)
		}
	}
	return out
}

// contains reports whether a is in one of ranges, which are merged.
func contains(ranges []vip.Range, a netip.Addr) bool {
	i, _ := slices.BinarySearchFunc(ranges, a, func(r vip.Range, a netip.Addr) int { return r.To.Compare(a) })
	return i < len(ranges) && ranges[i].Contains(a)
}

// isEnd reports whether a is given only on request: .0, .255, or Subnet-Router anycast (RFC 4291 2.6.1).
func isEnd(a netip.Addr) bool {
	if a.Is4() {
		last := a.As4()[3]
		return last == 0 || last == 255
	}
	bytes := a.As16()
	return binary.BigEndian.Uint64(bytes[8:]) == 0
}

// size is how many addresses of r are not isEnd, exact up to 2^53.
func size(r vip.Range) float64 {
	if r.From.Is4() {
		from, to := r.From.As4(), r.To.As4()
		return float64(ordinary(int64(binary.BigEndian.Uint32(to[:]))) - ordinary(int64(binary.BigEndian.Uint32(from[:]))-1))
	}
	from, to := r.From.As16(), r.To.As16()
	high := float64(binary.BigEndian.Uint64(to[:8]) - binary.BigEndian.Uint64(from[:8]))
	lowFrom, lowTo := binary.BigEndian.Uint64(from[8:]), binary.BigEndian.Uint64(to[8:])
	n := float64(lowTo - lowFrom)
	if high > 0 {
		n = high*(1<<64) - high + float64(lowTo) - float64(lowFrom)
	}
	if lowFrom > 0 { // else the first is not counted
		n++
	}
	return n
}

// ordinary returns how many IPv4 addresses up to n, maybe -1, end neither in .0 nor .255.
func ordinary(n int64) int64 {
	return n/256*254 + max(0, min(n%256, 254))
}
