// Package pool reads address pools from a ConfigMap and allocates addresses of them to
// Services. It does no I/O, asks no clock, and for the same input it always has the same output.
//
// Parse reads the ConfigMap of kube-vip's cloud provider as that does, and the keys that
// Herald adds to it; docs/pools.md explains them all. What it can't read is a PoolProblem that
// names the key, and only that key is affected.
//
// An Allocator is told which Services there are and what they have (Set, Delete), what may not
// be given (SetReserved), and the Pools. Decide then returns what is to be written on which
// Service, and which Services get nothing and why.
//
//	Service has addresses that a person set         nothing; nobody else is given them
//	Service has addresses that were allocated       it keeps them, in a pool or not, unless it may be renumbered
//	                                                (heraldvip.io/renumber) and they are in none; what spec.ipFamilies
//	                                                lacks is released, what it wants besides is added
//	... and another has the same without consent    who ranks lower (see Allocator.ranked) gets another
//	Service has none                                from the pools it asks for, else from those that are
//	                                                offered to it; one that it shares by its key or by
//	                                                allow-share, else the lowest free one that does not
//	                                                rest, else the one that has rested longest
package pool
