package lease

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/heraldvip/herald/pkg/vip"
)

// maxFormerHolders is how many nodes an entry names at most.
const maxFormerHolders = 8

// parseFormerHolders parses formerHoldersText, without repeated nodes: these would send packets in a circle.
func parseFormerHolders(text string) (all []vip.FormerHolder) {
	for entry := range strings.SplitSeq(text, ",") {
		node, at, _ := strings.Cut(entry, "@")
		seconds, err := strconv.ParseInt(at, 10, 64)
		again := slices.ContainsFunc(all, func(f vip.FormerHolder) bool { return f.Node == node })
		if err == nil && node != "" && !again && len(all) < maxFormerHolders {
			all = append(all, vip.FormerHolder{Node: node, Until: time.Unix(seconds, 0)})
		}
	}
	return all
}

// addFormerHolder returns all with the node, which loses the lease now, first.
func addFormerHolder(all []vip.FormerHolder, node string, now time.Time) []vip.FormerHolder {
	all = slices.DeleteFunc(slices.Clone(all), func(f vip.FormerHolder) bool { return f.Node == node })
	return slices.Insert(all, 0, vip.FormerHolder{Node: node, Until: now})
}

func formerHoldersText(all []vip.FormerHolder) string {
	var entries []string
	for _, f := range all {
		if len(entries) < maxFormerHolders {
			entries = append(entries, f.Node+"@"+strconv.FormatInt(f.Until.Unix(), 10))
		}
	}
	return strings.Join(entries, ",")
}

// maxCause is how many bytes of a cause are written, or read.
const maxCause = 256
