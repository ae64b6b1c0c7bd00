// Package simulation runs the plan, the leases and the agent of several nodes, as
// they are, against a simulated API server, kernel, wire and clock, with random
// faults, and checks the invariants at every step. A broken invariant fails the test
// and prints what led to it.
package simulation
