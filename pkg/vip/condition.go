package vip

// A ConditionType is a type in status.conditions of a Service.
type ConditionType string

// The conditions that Herald writes.
const (
	Allocated ConditionType = "heraldvip.io/Allocated" // the Service has an address
	Announced ConditionType = "heraldvip.io/Announced" // a node announces it
	Recorded  ConditionType = "heraldvip.io/Record"    // what Herald must know of its addresses: the message is a Record
)

// A ConditionStatus is the status of a condition, as Kubernetes spells it.
type ConditionStatus string

// The statuses of conditions. A wanted ConditionAbsent is to be removed.
const (
	ConditionTrue    ConditionStatus = "True"
	ConditionFalse   ConditionStatus = "False"
	ConditionUnknown ConditionStatus = "Unknown"
	ConditionAbsent  ConditionStatus = ""
)

// A Condition is one of a Service's status.conditions (metav1.Condition).
type Condition struct {
	Type    ConditionType
	Status  ConditionStatus
	Reason  Reason
	Message string // at most 1024 bytes, of Recorded 1280
}

// In reports whether a Service has c; none of its type, if c is ConditionAbsent.
func (c Condition) In(have []Condition) bool {
	for _, h := range have {
		if h.Type == c.Type {
			return h == c
		}
	}
	return c.Status == ConditionAbsent
}
