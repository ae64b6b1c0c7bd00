// Package simulation runs the plan, the leases and the agent of several nodes, as
// they are, against a simulated API server, kernel, wire and clock, with random
// faults, and checks at every step what must always hold. A seed that breaks
// something prints what led to it.
package simulation
