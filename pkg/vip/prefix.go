package vip

import (
	"net/netip"
	"slices"
	"strings"
)

// LastAddr returns the last address of a prefix; zero if invalid.
func LastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := max(0, p.Bits()); i < len(b)*8; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// A Range is the addresses From to To, included: one family, no zone, in order.
type Range struct{ From, To netip.Addr }

// RangeOf returns the addresses of a prefix, which may have more bits set.
func RangeOf(p netip.Prefix) Range { return Range{p.Masked().Addr(), LastAddr(p)} }

// ParseRange reads a CIDR, an address, or two with a hyphen between, in which case r may not be valid.
func ParseRange(text string) (r Range, isCIDR, ok bool) {
	text = strings.TrimSpace(text)
	if strings.Contains(text, "/") {
		p, err := netip.ParsePrefix(text)
		if a := p.Addr(); err == nil && a.Is4In6() {
			p = netip.PrefixFrom(a.Unmap(), p.Bits()-96)
		}
		return RangeOf(p), true, p.IsValid()
	}
	first, second, isRange := strings.Cut(text, "-")
	if !isRange {
		second = first
	}
	from, err := netip.ParseAddr(strings.TrimSpace(first))
	to, err2 := netip.ParseAddr(strings.TrimSpace(second))
	return Range{from.Unmap(), to.Unmap()}, false, err == nil && err2 == nil && from.Zone() == "" && to.Zone() == ""
}

// IsValid reports whether both ends are of one family, and in order.
func (r Range) IsValid() bool { return r.From.BitLen() == r.To.BitLen() && !r.To.Less(r.From) }

// Contains reports whether a is in r.
func (r Range) Contains(a netip.Addr) bool { return !a.Less(r.From) && !r.To.Less(a) }

// String is as the ConfigMap has it: one address, or two with a hyphen.
func (r Range) String() string {
	if r.From == r.To {
		return r.From.String()
	}
	return r.From.String() + "-" + r.To.String()
}

// MergeRanges returns the addresses of ranges, sorted, without overlaps and gaps.
func MergeRanges(ranges []Range) []Range {
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
