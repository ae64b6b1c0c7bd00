// Package e2e tests Herald as its users meet it: a real API server, real
// kube-proxies, real packets, in the cluster that package lab brings up. Herald
// has exactly the rights that `herald manifest rbac` prints.
package e2e
