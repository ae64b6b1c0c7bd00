package pool

import (
	"fmt"
	"strings"

	"github.com/heraldvip/herald/pkg/vip"
)

// addresses is the value of a key that lists addresses.
type addresses struct {
	Ranges []vip.Range  // all of them, merged
	DHCP   []vip.Family // of 0.0.0.0/32 and ::/128: the address is asked of a DHCP server

	inner []vip.Range // Ranges without the first and last address of each IPv4 CIDR shorter than /31
}

// parseAddresses reads CIDRs, ranges and addresses, with commas or line breaks between.
func parseAddresses(text string) (out addresses, problem string) {
	for item := range strings.FieldsFuncSeq(text, func(c rune) bool { return c == ',' || c == '\n' || c == '\r' }) {
		item = strings.TrimSpace(item)
		switch item {
		case "":
			continue
		case "0.0.0.0/32", "0.0.0.0":
			out.DHCP = vip.AppendUnique(out.DHCP, vip.IPv4)
			continue
		case "::/128", "::":
			out.DHCP = vip.AppendUnique(out.DHCP, vip.IPv6)
			continue
		}
		r, isCIDR, problem := parseItem(item)
		if problem != "" {
			return addresses{}, problem
		}
		out.Ranges = append(out.Ranges, r)
		if isCIDR && r.From.Is4() && r.From != r.To && r.From.Next() != r.To {
			r = vip.Range{From: r.From.Next(), To: r.To.Prev()}
		}
		out.inner = append(out.inner, r)
	}
	if len(out.Ranges)+len(out.DHCP) == 0 {
		return addresses{}, "it has no addresses; write CIDRs and ranges separated by commas, such as " +
			"192.168.0.200/29,192.168.1.10-192.168.1.20,2001:db8::/112"
	}
	out.Ranges, out.inner = vip.MergeRanges(out.Ranges), vip.MergeRanges(out.inner)
	return out, ""
}

func parseItem(item string) (r vip.Range, isCIDR bool, problem string) {
	r, isCIDR, ok := vip.ParseRange(item)
	switch {
	case !ok && isCIDR:
		return r, true, vip.Quote(item) + " is no CIDR; " + didYouMean(item)
	case !ok:
		return r, false, vip.Quote(item) + " is neither a CIDR nor a range; " + didYouMean(item)
	case r.From.BitLen() != r.To.BitLen():
		return r, false, fmt.Sprintf("%s begins with an %s address and ends with an %s one; both must be of one family",
			vip.Quote(item), vip.FamilyOf(r.From), vip.FamilyOf(r.To))
	case r.To.Less(r.From):
		return r, false, fmt.Sprintf("%s ends before it begins; write %s-%s", vip.Quote(item), r.To, r.From)
	}
	return r, isCIDR, ""
}
