package pool

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Range is the addresses From to To, included: one family, no zone, in order.
type Range struct{ From, To netip.Addr }

// rangeOf returns the addresses of a prefix, which may have more bits set.
func rangeOf(p netip.Prefix) Range {
	return Range{p.Masked().Addr(), vip.LastAddr(p)}
}

// String is as the ConfigMap has it: one address, or two with a hyphen.
func (r Range) String() string {
	if r.From == r.To {
		return r.From.String()
	}
	return r.From.String() + "-" + r.To.String()
}

// merge returns the addresses of ranges, sorted, without overlaps and gaps.
func merge(ranges []Range) []Range {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b Range) int { return a.From.Compare(b.From) })
	out := sorted[:0]
	for _, r := range sorted {
		if n := len(out) - 1; n >= 0 && out[n].To.BitLen() == r.From.BitLen() &&
			(r.From.Compare(out[n].To) <= 0 || out[n].To.Next() == r.From) {
			if out[n].To.Less(r.To) {
				out[n].To = r.To
			}
			continue
		}
		out = append(out, r)
	}
	return slices.Clip(out)
}

func mergeReserved(reserved []vip.ReservedRange) []Range {
	ranges := make([]Range, len(reserved))
	for i, r := range reserved {
		ranges[i] = rangeOf(r.Prefix)
	}
	return merge(ranges)
}

func subtract(from, what []Range) (out []Range) {
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
				out = append(out, Range{r.From, w.From.Prev()})
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
func contains(ranges []Range, a netip.Addr) bool {
	_, found := slices.BinarySearchFunc(ranges, a, func(r Range, a netip.Addr) int {
		switch {
		case r.To.Less(a):
			return -1
		case a.Less(r.From):
			return 1
		}
		return 0
	})
	return found
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
func (r Range) size() float64 {
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
