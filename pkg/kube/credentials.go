package kube

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// credentialsPeriod is how often a kubeconfig is looked at.
const credentialsPeriod = time.Minute

// credentials is what a kubeconfig itself has of them. Files that it names, client-go reads again by itself.
type credentials struct{ ca, cert, key, token, user, password string }

func credentialsOf(c *rest.Config) credentials {
	token := c.BearerToken
	if c.BearerTokenFile != "" { // of which clientcmd has filled in what it contains now
		token = ""
	}
	return credentials{string(c.CAData), string(c.CertData), string(c.KeyData), token, c.Username, c.Password}
}

// A CredentialsWatch looks whether the kubeconfig by which Connect has found the API server has other credentials meanwhile: its client certificate
// is renewed each year. The Kubernetes libraries go on with the old one until it has expired.
type CredentialsWatch struct {
	file string // "" if there is none: the credentials of a Pod are renewed by themselves
	used credentials
}

// NewCredentialsWatch makes one for what Connect has returned.
func NewCredentialsWatch(cfg *rest.Config, origin string) *CredentialsWatch {
	file, _ := strings.CutPrefix(origin, "file ")
	if file == origin {
		return &CredentialsWatch{}
	}
	file, _, _ = strings.Cut(file, ", ")
	return &CredentialsWatch{file, credentialsOf(cfg)}
}

// String names the task.
func (w *CredentialsWatch) String() string { return "credentials" }

// Run returns an error once the file has had other credentials, or was replaced where it is mounted into a container, at two looks, a minute apart: it may
// be half written. It returns nil when ctx ends.
func (w *CredentialsWatch) Run(ctx context.Context) error {
	if w.file == "" {
		return nil
	}
	look := time.NewTicker(credentialsPeriod)
	defer look.Stop()
	for before := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-look.C:
		}
		now := w.differs()
		if now && before {
			return fmt.Errorf("the kubeconfig %s has other credentials than this process has begun with, such as a renewed certificate; it ends, and is to be started again with those", w.file)
		}
		before = now
	}
}

// differs reports whether the file can be used and has other credentials. A file that is mounted into a container, and was replaced by another one
// outside, stays what it was here, but has no name any more.
func (w *CredentialsWatch) differs() bool {
	info, err := os.Stat(w.file)
	if err != nil {
		return false
	}
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Nlink == 0 {
		return true
	}
	now, err := clientcmd.BuildConfigFromFlags("", w.file)
	return err == nil && credentialsOf(now) != w.used
}
