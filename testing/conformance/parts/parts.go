//go:build parts

// Package parts pins the programs of Kubernetes' own end-to-end tests: e2e.test and agnhost.
// It is a module of its own, since neither Herald nor the lab needs what those import.
package parts

import (
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
