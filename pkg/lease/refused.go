package lease

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/heraldvip/herald/pkg/vip"
)

// A refusal is an answer of the API server that any other node would get as well: a quota,
// a namespace that is being deleted, admission, RBAC. The node that gets it goes on trying, less and less often,
// and tells the others in which namespaces that is (vip.NodeInfo.LeasesRefusedIn), so that they
// neither take it for stalled nor try in its place (docs/why.md, "What tenants can write").
const (
	maxRefusalPause = time.Minute            // between two tries of one lease
	refusalPace     = 2 * time.Second        // times the leases of a namespace that are refused: that pause instead if it is longer
	refusedShare    = 200 * time.Millisecond // times the same: the pause after the first try
	keepRefused     = 2 * time.Minute        // so long after the last refusal a namespace is told of: Services that come and go cost no write each
	maxRefusalText  = 500                    // bytes
	// namespaceTerminating is corev1.NamespaceTerminatingCause.
	namespaceTerminating = "NamespaceTerminating"
	maxRefusedIn         = 64 // namespaces that are told of; of more none, but vip.AllNamespaces
)

// refusalText returns why the API server refuses a write for good, and what to do, in
// at most maxRefusalText bytes. It returns "" for any other error: a conflict, a server that is overloaded, or
// out of reach, or an answer that did not arrive.
func refusalText(err error) string {
	var status apierrors.APIStatus
	if err == nil || !errors.As(err, &status) {
		return ""
	}
	text, hint := err.Error(), ""
	switch code := status.Status().Code; {
	case apierrors.IsNotFound(err) && (status.Status().Details == nil || status.Status().Details.Kind != "namespaces"):
		return ""
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, namespaceTerminating):
		hint = "the namespace is gone or being deleted"
	case code == http.StatusUnauthorized, code == http.StatusRequestTimeout, code == http.StatusConflict, code == http.StatusGone, code == http.StatusTooManyRequests:
		return ""
	case strings.Contains(text, "exceeded quota"):
		hint = "have the ResourceQuota allow more Leases"
	case apierrors.IsForbidden(err) && strings.Contains(text, " cannot "):
		hint = "herald manifest rbac prints what must be allowed (with --servicesLeaseNamespace=services while VIP leases are in the Services' namespaces)"
	case code >= 400 && code < 500:
		hint = "have admission allow it: a ValidatingAdmissionPolicy, webhook or the like refuses it"
	case code == http.StatusInternalServerError && strings.Contains(text, "webhook"):
		hint = "mend the webhook of admission, or have it leave out Leases"
	default:
		return ""
	}
	if limit := maxRefusalText - len(hint) - len("...; "); len(text) > limit {
		text = strings.ToValidUTF8(text[:limit], "") + "..."
	}
	return text + "; " + hint
}

// setRefusal stores that a write on k was refused, and why, if err says so, and when the next
// may be sent: refusedShare for each refused lease of the namespace later at first, four times as
// long after each, up to maxRefusalPause or refusalPace. It returns why, "" if err is no refusal,
// in the words of the first one until a write succeeds; and whether this is the first.
func (w *writes) setRefusal(k vip.Key, err error, now time.Time) (why string, first bool) {
	if why = refusalText(err); why == "" {
		return "", false
	}
	f := w.failures[k]
	if first = f.refused == ""; first {
		f.refused = why
	}
	f.refusals = min(f.refusals+1, 6)
	w.failures[k] = f
	n := time.Duration(w.countRefused(k.Namespace))
	f.until = now.Add(min(n*refusedShare<<(2*(f.refusals-1)), max(maxRefusalPause, n*refusalPace)))
	w.failures[k], w.refusedAt[k.Namespace] = f, now
	return f.refused, first
}

// countRefused counts the leases in a namespace whose last write was refused.
func (w *writes) countRefused(namespace string) (n int) {
	for k, f := range w.failures {
		if k.Namespace == namespace && f.refused != "" {
			n++
		}
	}
	return n
}

// dropRefusals forgets the refusals of leases that this node is no longer to write.
func (w *writes) dropRefusals() {
	for k, f := range w.failures {
		if intent, wanted := w.intents[k]; f.refused != "" && !w.pending(k) && (!wanted || intent.Action == vip.Follow) {
			delete(w.failures, k)
		}
	}
}

// refusals returns why the API server refuses this node's writes on VIP leases, by lease; nil
// if it refuses none.
func (w *writes) refusals() map[vip.Key]string {
	var all map[vip.Key]string
	for k, f := range w.failures {
		if f.refused == "" {
			continue
		}
		if all == nil {
			all = make(map[vip.Key]string)
		}
		all[k] = f.refused
	}
	return all
}

// refusedIn returns the namespaces in which a write of this node was refused within keepRefused,
// sorted; vip.AllNamespaces alone if they are more than maxRefusedIn. The others are forgotten.
func (w *writes) refusedIn(now time.Time) []string {
	maps.DeleteFunc(w.refusedAt, func(_ string, at time.Time) bool { return now.Sub(at) > keepRefused })
	if len(w.refusedAt) > maxRefusedIn {
		return []string{vip.AllNamespaces}
	}
	return slices.Sorted(maps.Keys(w.refusedAt))
}
