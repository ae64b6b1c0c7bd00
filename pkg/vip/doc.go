// Package vip is Herald's vocabulary: plain values that every other package
// speaks in. It knows the standard library only, holds no state and does no I/O.
//
// A pass of the agent reads a World, makes a Plan of it, and hands each part of
// the node the whole of what the Plan wants of it.
package vip
