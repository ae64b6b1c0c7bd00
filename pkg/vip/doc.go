// Package vip is Herald's vocabulary: plain values for every other package. It knows the standard library only, holds
// no state and does no I/O.
//
// A pass of the agent reads a World, makes a Plan, and hands each part of the node all that the Plan wants of it.
package vip
