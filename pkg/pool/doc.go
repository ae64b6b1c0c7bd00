// Package pool reads address pools from a ConfigMap and gives addresses of them to Services. It does no I/O, asks no
// clock, and for the same input and memory it always has the same output.
//
// Parse reads the ConfigMap of kube-vip's cloud provider as that does, and the keys that Herald adds to it
// (docs/pools.md). What it can't read is a PoolProblem that names the key, and only that key is affected.
//
// An Assigner decides from scratch (decide) each time something has changed: which Services are to have which
// addresses, and which get nothing and why. Who has an address that several name is judged by package plan
// (AddressRequest.Lost).
//
//	a Service has addresses that a person set     nothing; nobody else is given them
//	... that were given                           it keeps them, in a pool or not, unless it may be renumbered
//	                                              (heraldvip.io/renumber) and they are in none; what spec.ipFamilies
//	                                              lacks is released, what it wants besides is added
//	... that it has lost                          it is given others
//	it has none                                   from the pools it asks for, else from those that are offered to it: one
//	                                              that it shares by its key or by allow-share, else the lowest free one
//	                                              that does not rest, else the one that has rested longest
package pool
