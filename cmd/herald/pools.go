package main

import (
	"time"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/vip"
)

// addressRest is how long an address that was released is given to another Service only if its
// pool has no other: clients and name servers may still know it.
const addressRest = 5 * time.Minute

// providerLease is the one by which the processes of kube-vip's cloud provider elect a leader.
var providerLease = vip.Key{Namespace: "kube-system", Name: "kube-vip-cloud-controller"}

// poolsLeaseName is the name of the lease whose holder gives addresses to Services.
const poolsLeaseName = "herald-pools"

// poolsLease is the one whose holder gives addresses to Services.
func poolsLease(cfg config.Config) vip.Key {
	return vip.Key{Namespace: cfg.Node.Namespace, Name: poolsLeaseName}
}
