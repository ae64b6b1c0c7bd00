package kube

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/heraldvip/herald/pkg/mailbox"
	"github.com/heraldvip/herald/pkg/vip"
)

const (
	credentialsPeriod = time.Minute     // how often a kubeconfig is looked at
	askTimeout        = 5 * time.Second // for the API server to answer
)

// credentials is a kubeconfig's own; files that it names, client-go reads again.
type credentials struct{ ca, cert, key, token, user, password string }

func credentialsOf(c *rest.Config) credentials {
	token := c.BearerToken
	if c.BearerTokenFile != "" { // of which clientcmd has filled in what it contains now
		token = ""
	}
	return credentials{string(c.CAData), string(c.CertData), string(c.KeyData), token, c.Username, c.Password}
}

// A CredentialsWatch looks for new credentials in Connect's kubeconfig: certificates are renewed each year, and the
// libraries keep the old one.
type CredentialsWatch struct {
	file   string // "" if there is none: the credentials of a Pod are renewed by themselves
	cfg    *rest.Config
	used   credentials // of cfg
	tenure func() vip.Tenure
	// reads the node lease: nil if the API server answers
	ask    func(context.Context, *rest.Config) error
	log    *slog.Logger
	logged unaccepted // last
}

// unaccepted is credentials that failed, and whether they were refused, or not answered.
type unaccepted struct {
	credentials
	refused bool
}

// NewCredentialsWatch makes one for Connect's results, and a node's lease and tenure.
func NewCredentialsWatch(cfg *rest.Config, origin Origin, nodeLease vip.Key, tenure func() vip.Tenure,
	log *slog.Logger) *CredentialsWatch {
	ask := func(ctx context.Context, cfg *rest.Config) error {
		c, err := newClients(cfg, newMetrics(), nil)
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		r := c.coordination.Get().Namespace(nodeLease.Namespace).Resource("leases").Name(nodeLease.Name)
		err = r.MaxRetries(0).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	return &CredentialsWatch{file: origin.File, cfg: cfg, used: credentialsOf(cfg), tenure: tenure, ask: ask, log: log}
}

// Run returns an error once other credentials were seen twice, and the process may end.
func (w *CredentialsWatch) Run(ctx context.Context) error {
	if w.file == "" {
		return nil
	}
	for seen := false; ; {
		wait := credentialsPeriod
		if seen {
			wait += rand.N(credentialsPeriod)
		}
		if !mailbox.Sleep(ctx, wait) {
			return nil
		}
		now, differs := w.differs()
		switch {
		case !differs || !seen:
			seen = differs
		case w.mayEnd(ctx, now):
			return fmt.Errorf("the kubeconfig %s has other credentials than this process has begun with, such as a renewed "+
				"certificate; it ends, and is to be started again with those", w.file)
		}
	}
}

// differs returns the file's configuration (nil: replaced outside), and whether it is new.
func (w *CredentialsWatch) differs() (*rest.Config, bool) {
	info, err := os.Stat(w.file)
	if err != nil {
		return nil, false
	}
	// mounted, and replaced outside: it stays what it was, without a name
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Nlink == 0 {
		return nil, true
	}
	now, err := clientcmd.BuildConfigFromFlags("", w.file)
	return now, err == nil && credentialsOf(now) != w.used
}

// mayEnd reports whether it acts on no claims, or now is accepted.
func (w *CredentialsWatch) mayEnd(ctx context.Context, now *rest.Config) bool {
	t := w.tenure()
	switch {
	case !t.Holds(time.Now()):
		return true
	case !t.RenewalLateSince.IsZero() && !refusesCredentials(w.ask(ctx, w.cfg)):
		return false
	case now == nil:
		return true
	}
	now.Host, now.Dial, now.ServerName = w.cfg.Host, w.cfg.Dial, w.cfg.ServerName
	err := w.ask(ctx, now)
	if u := (unaccepted{credentialsOf(now), refusesCredentials(err)}); err != nil && ctx.Err() == nil && u != w.logged {
		w.logged = u
		w.log.Warn("the API server does not accept the credentials that the kubeconfig has now; going on with those that "+
			"it had before", "file", w.file, "err", err)
	}
	return err == nil
}

func refusesCredentials(err error) bool {
	var other *tls.CertificateVerificationError
	return apierrors.IsUnauthorized(err) || errors.As(err, &other)
}
