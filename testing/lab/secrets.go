package lab

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// accounts are the lab's users. The token is "<name>-token".
var accounts = []struct{ name, user, groups string }{
	{"admin", "admin", "system:masters"},
	{"controller", "system:kube-controller-manager", "system:masters"},
	{"kube-proxy", "system:kube-proxy", "system:node-proxier"},
	// The API server's view of a ServiceAccount's token: only RBAC bound to it applies.
	{"herald", "system:serviceaccount:kube-system:herald",
		"system:serviceaccounts,system:serviceaccounts:kube-system,system:authenticated"},
}

func (l *Lab) pki(name string) string        { return filepath.Join(l.dir, "pki", name) }
func (l *Lab) conf(name string) string       { return filepath.Join(l.dir, "conf", name) }
func (l *Lab) kubeconfig(user string) string { return l.conf(user + ".kubeconfig") }

func (l *Lab) writeSecrets() error {
	if err := l.writeCerts(); err != nil {
		return fmt.Errorf("certificates: %w", err)
	}
	var tokens bytes.Buffer
	for _, a := range accounts {
		fmt.Fprintf(&tokens, "%s-token,%s,%s,%q\n", a.name, a.user, a.name, a.groups)
		if err := l.writeKubeconfig(a.name, a.name+"-token"); err != nil {
			return err
		}
	}
	return os.WriteFile(l.pki("tokens.csv"), tokens.Bytes(), 0o600)
}

func (l *Lab) writeKubeconfig(user, token string) error {
	return os.WriteFile(l.kubeconfig(user), fmt.Appendf(nil, `apiVersion: v1
kind: Config
current-context: lab
clusters:
- name: lab
  cluster: {server: "https://%s", certificate-authority-data: %s}
users:
- name: lab
  user: {token: %q}
contexts:
- name: lab
  context: {cluster: lab, user: lab}
`, l.apiAddr(), base64.StdEncoding.EncodeToString(l.ca), token), 0o600)
}

func (l *Lab) writeCerts() error {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab-ca"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(0, 1, 0),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	l.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key, err := l.writeKey("apiserver.key")
	if err != nil {
		return err
	}
	// One for each host of an API server, with its name, for clients to see.
	var errs []error
	for i, h := range l.hosts {
		if h.mgmt {
			errs = append(errs, l.writeServerCert(h.name, int64(2+i), ca, &key.PublicKey, caKey))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := os.WriteFile(l.pki("ca.crt"), l.ca, 0o644); err != nil {
		return err
	}
	_, err = l.writeKey("sa.key") // signs the tokens of ServiceAccounts
	return err
}

func (l *Lab) writeServerCert(host string, serial int64, ca *x509.Certificate, key *ecdsa.PublicKey,
	caKey *ecdsa.PrivateKey) error {
	server := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: host},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		IPAddresses: []net.IP{net.IPv4(10, 78, 0, 2), net.IPv4(127, 0, 0, 1), net.IPv4(10, 112, 0, 1),
			net.ParseIP("fd78::2"), net.ParseIP("fd77:112::1")},
		DNSNames: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
	}
	der, err := x509.CreateCertificate(rand.Reader, server, ca, key, caKey)
	if err != nil {
		return err
	}
	return os.WriteFile(l.pki(host+".crt"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func (l *Lab) writeKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(l.pki(name), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
