package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// readConditions fills in Conditions, Record and conditionsSince from status.conditions.
func (s *cachedService) readConditions(all []metav1.Condition) {
	var ours []vip.Condition
	for _, c := range all {
		t := vip.ConditionType(c.Type)
		if !isOurs(t) {
			continue
		}
		if s.conditionsSince == nil {
			s.conditionsSince = make(map[vip.ConditionType]metav1.Time)
		}
		s.conditionsSince[t] = c.LastTransitionTime
		ours = append(ours, vip.Condition{
			Type: t, Status: vip.ConditionStatus(c.Status), Reason: vip.Reason(c.Reason),
			Message: vip.Truncate(c.Message, maxConditionMessage),
		})
	}
	s.SetConditions(ours)
}

func isOurs(t vip.ConditionType) bool {
	return t == vip.Allocated || t == vip.Announced || t == vip.Recorded
}

// maxConditionMessage is how many bytes of a message are kept: more than Herald writes.
const maxConditionMessage = 2048

// hasConditions reports whether s has each of want, absent ones not.
func (s *cachedService) hasConditions(want []vip.Condition) bool {
	for _, c := range want {
		if !c.In(s.Conditions) {
			return false
		}
	}
	return true
}

// conditionsPatch returns the strategic merge patch that gives s want.
func (s *cachedService) conditionsPatch(want []vip.Condition) []map[string]any {
	out := make([]map[string]any, 0, len(want))
	for _, c := range want {
		if c.Status == vip.ConditionAbsent {
			if !c.In(s.Conditions) {
				out = append(out, map[string]any{"$patch": "delete", "type": c.Type})
			}
			continue
		}
		since := metav1.Now()
		for _, h := range s.Conditions {
			if h.Type == c.Type && h.Status == c.Status {
				since = s.conditionsSince[c.Type]
			}
		}
		out = append(out, map[string]any{"type": c.Type, "status": c.Status, "reason": c.Reason, "message": c.Message,
			"lastTransitionTime": since})
	}
	return out
}
