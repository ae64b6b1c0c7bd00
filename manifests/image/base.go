package main

import (
	"bytes"
	"encoding/pem"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// users lets the image run as somebody else than root, for whom the commands that
// need no capabilities are enough ("herald manifest", "herald status").
const (
	users  = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"
	groups = "root:x:0:\nnonroot:x:65532:\n"
)

// base is what is in the image beside the program.
func base(license, sbom []byte) []file {
	return []file{
		{"etc/group", []byte(groups), 0o644},
		{"etc/passwd", []byte(users), 0o644},
		{"etc/ssl/certs/ca-certificates.crt", authorities(), 0o644},
		{"licenses/LICENSE", license, 0o644},
		{"sbom.spdx.json", sbom, 0o644},
	}
}

// authorities is the certificates of public CAs, Mozilla's list as Go keeps it. Those
// whose trust is limited to older certificates can't be told so in a file, and are left out.
func authorities() []byte {
	var b bytes.Buffer
	for c := range bundle.Roots() {
		if c.Constraint == nil {
			pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate})
		}
	}
	return b.Bytes()
}
