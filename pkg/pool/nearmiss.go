package pool

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// usualForms turns what people write for hyphens and separators into what is read.
var usualForms = strings.NewReplacer("\u2013", "-", "\u2014", "-", "\u2212", "-", "..", "-", ";", ",", "\"", "", "'",
	"", "[", "", "]", "", " to ", "-")

// didYouMean returns what an unreadable item looks like, else an example.
func didYouMean(item string) string {
	if meant := nearMiss(item); meant != "" {
		return "did you mean " + meant + "?"
	}
	return "write one such as 192.168.0.200/29 or 192.168.0.10-192.168.0.20"
}

// nearMiss returns readable addresses that item looks like, or "".
func nearMiss(item string) string {
	text := strings.TrimSpace(usualForms.Replace(item))
	for _, candidate := range []string{text, strings.ReplaceAll(text, " ", ""), strings.Join(strings.Fields(text), "-"),
		strings.Join(strings.Fields(text), ","), fullRange(text), lengthOfMask(text)} {
		if len(candidate) <= 200 && readable(candidate) {
			return candidate
		}
	}
	return ""
}

// readable reports whether every item of text, at most eight, can be read.
func readable(text string) bool {
	items := strings.Split(text, ",")
	return len(items) <= 8 && !slices.ContainsFunc(items, func(item string) bool {
		r, _, ok := vip.ParseRange(item)
		return !ok || !r.IsValid()
	})
}

// fullRange writes out the end of a range such as 192.168.51.180-185.
func fullRange(text string) string {
	first, last, isRange := strings.Cut(strings.ReplaceAll(text, " ", ""), "-")
	from, err := netip.ParseAddr(first)
	if !isRange || err != nil || last == "" {
		return ""
	}
	separator := "."
	if from.Is6() {
		separator, first = ":", from.StringExpanded()
	}
	parts, own := strings.Split(first, separator), strings.Split(strings.TrimLeft(last, separator), separator)
	if len(own) >= len(parts) {
		return ""
	}
	to, err := netip.ParseAddr(strings.Join(append(parts[:len(parts)-len(own)], own...), separator))
	if err != nil {
		return ""
	}
	return from.String() + "-" + to.String()
}

// lengthOfMask writes a netmask as a length, as of 192.168.51.0/255.255.255.0.
func lengthOfMask(text string) string {
	network, mask, _ := strings.Cut(strings.ReplaceAll(text, " ", ""), "/")
	m, err := netip.ParseAddr(mask)
	a, err2 := netip.ParseAddr(network)
	if err != nil || err2 != nil || !m.Is4() || !a.Is4() {
		return ""
	}
	zeros := ^binary.BigEndian.Uint32(m.AsSlice())
	if zeros&(zeros+1) != 0 { // a one after a zero
		return ""
	}
	return netip.PrefixFrom(a, bits.LeadingZeros32(zeros)).Masked().String()
}
