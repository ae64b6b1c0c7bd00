package main

import (
	"time"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/vip"
)

// addressRest is how long a released address rests: clients and name servers may know it.
const addressRest = 5 * time.Minute

// providerLease elects a leader of kube-vip's cloud provider.
var providerLease = vip.Key{Namespace: "kube-system", Name: "kube-vip-cloud-controller"}

// poolsLeaseName is the lease whose holder gives addresses to Services.
const poolsLeaseName = "herald-pools"

func poolsLease(cfg config.Config) vip.Key {
	return vip.Key{Namespace: cfg.Node.Namespace, Name: poolsLeaseName}
}
