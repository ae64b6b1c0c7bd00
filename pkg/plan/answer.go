package plan

import (
	"slices"

	"github.com/heraldvip/herald/pkg/vip"
)

// A Level says how urgent an answer is.
type Level string

// The levels, also classes of rows on a node's page.
const (
	Fine Level = ""     // nothing to do
	Warn Level = "warn" // clients are served, or will be by themselves
	Bad  Level = "bad"  // clients are not served, or not all of them
)

// An Answer is what becomes of a Service, and what to do about it: for herald status, explain, a node's page, and JSON.
type Answer struct {
	Reason  vip.Reason
	Message string
	Advice  string // "" if there is nothing to do
	Level   Level
}

// fine and waiting are the reasons of those levels; all others are Bad.
var (
	fine = []vip.Reason{vip.VIPAnnounced, vip.VIPElsewhere, vip.VIPMoved, vip.VIPAnswered, vip.PortMapped,
		vip.AddressOffLink, vip.AddressSet, vip.AddressAllocated, vip.OtherClass, vip.Ignored, vip.NotLoadBalancer,
		vip.ServiceDeleted}
	waiting = []vip.Reason{vip.VIPClaiming, vip.DHCPPending, vip.NoEndpoints, vip.NoAddress, vip.HeldByOtherAnnouncer,
		vip.AddressOutsidePools}
)

// LevelOf returns how urgent a reason is.
func LevelOf(reason vip.Reason) Level {
	switch {
	case slices.Contains(fine, reason):
		return Fine
	case slices.Contains(waiting, reason):
		return Warn
	}
	return Bad
}

// NewAnswer returns the answer for a reason.
func NewAnswer(service vip.Key, reason vip.Reason, message string) Answer {
	a := Answer{Reason: reason, Message: message, Level: LevelOf(reason)}
	if a.Level != Fine {
		a.Advice = Advice(service, reason)
	}
	return a
}

// AnswerAbout returns the answer about a Service, by its conditions: the deciding node wrote them, for all to read.
// Without any, as of a new Service, the verdict counts.
func AnswerAbout(s *vip.Service, verdict vip.Reason, message string) Answer {
	if LevelOf(verdict) == Fine && verdict != vip.VIPAnnounced && verdict != vip.VIPElsewhere {
		return NewAnswer(s.Key, verdict, message) // it is not Herald's
	}
	for _, t := range []vip.ConditionType{vip.Announced, vip.Allocated} {
		i := slices.IndexFunc(s.Conditions, func(c vip.Condition) bool { return c.Type == t })
		if i < 0 {
			continue
		}
		c := s.Conditions[i]
		if t == vip.Allocated && (LevelOf(verdict) != Fine || LevelOf(c.Reason) == Fine) {
			continue // it says nothing more
		}
		verdict, message = c.Reason, c.Message
	}
	return NewAnswer(s.Key, verdict, message)
}

// String is the reason and the message.
func (a Answer) String() string { return string(a.Reason) + ": " + a.Message }
