package routes

import (
	"fmt"
	"log/slog"
)

// Table and protocol number that routes to VIPs have by default.
const (
	defaultID       = 198
	defaultProtocol = 248
)

// WarnOfRoutes logs that there are routes of the protocol number and in the table that Herald's have by default. It
// is for a process without vip_routingtable: they may be those of one that was killed, but kube-vip's are just like
// them, and so nothing is removed.
func WarnOfRoutes(log *slog.Logger) {
	k := &kernel{o: Options{ID: defaultID, Protocol: defaultProtocol}}
	switch found, err := k.list(); {
	case err != nil:
		log.Debug("a routing table can't be read", "table", defaultID, "err", err)
	case len(found) > 0:
		log.Warn(fmt.Sprintf("a routing table has routes that Herald may have left when it was killed, and does not keep, "+
			"since vip_routingtable is off. If they are not kube-vip's, remove them: "+
			"ip route flush table %d proto %d; ip -6 route flush table %d proto %d", defaultID, defaultProtocol, defaultID,
			defaultProtocol),
			"table", defaultID, "routes", len(found))
	}
}
