package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	spdx "github.com/spdx/tools-golang/spdx/v2/v2_3"
)

const (
	tool    = "github.com/heraldvip/herald/manifests/image"
	unknown = "NOASSERTION"
)

// notInID is what an SPDX identifier can't contain.
var notInID = regexp.MustCompile(`[^A-Za-z0-9.]+`)

// newSBOM returns an SPDX 2.3 document (ISO/IEC 5962) in JSON: the modules a program is made of, as the Go
// linker recorded them in it.
func newSBOM(binary, arch, version, revision string, when time.Time) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("%s has no build information: %w", binary, err)
	}
	goVersion := strings.TrimPrefix(info.GoVersion, "go")
	herald := component("herald", info.Main.Path, version, "git+https://github.com/heraldvip/herald@"+revision,
		"Apache-2.0", "linux/"+arch)
	d := spdx.Document{
		SPDXVersion: spdx.Version, DataLicense: spdx.DataLicense, SPDXIdentifier: "DOCUMENT", DocumentName: "herald-" +
			version + "-" + arch,
		DocumentNamespace: "https://github.com/heraldvip/herald/spdx/" + version + "/" + revision + "/" + arch,
		CreationInfo: &spdx.CreationInfo{Created: when.UTC().Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: tool}}},
		Packages: []*spdx.Package{herald,
			component("go", "stdlib", goVersion, "https://go.dev/dl/", "BSD-3-Clause", "")},
		Relationships: []*spdx.Relationship{relate("DOCUMENT", common.TypeRelationshipDescribe, "herald")},
	}
	for _, m := range info.Deps { // sorted
		if m.Replace != nil {
			m = m.Replace
		}
		id := notInID.ReplaceAllString(m.Path+"-"+m.Version, "-")
		d.Packages = append(d.Packages,
			component(id, m.Path, m.Version, "https://proxy.golang.org/"+m.Path+"/@v/"+m.Version+".zip", unknown,
				checksum(m.Sum)))
	}
	for _, p := range d.Packages[1:] {
		d.Relationships = append(d.Relationships, relate("herald", common.TypeRelationshipDependsOn, p.PackageSPDXIdentifier))
	}
	var b bytes.Buffer
	err = json.Write(&d, &b, json.Indent(" "), json.EscapeHTML(false))
	return b.Bytes(), err
}

// component is the SPDX package of a Go module.
func component(id, name, version, location, license, comment string) *spdx.Package {
	return &spdx.Package{
		PackageSPDXIdentifier: common.ElementID(id), PackageName: name, PackageVersion: version,
		PackageDownloadLocation: location,
		PackageLicenseDeclared:  license, PackageLicenseConcluded: license, PackageCopyrightText: unknown,
		PackageComment: comment,
		PackageExternalReferences: []*spdx.PackageExternalReference{{
			Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: "pkg:golang/" + name +
				"@" + version,
		}},
	}
}

func relate(from common.ElementID, kind string, to common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.DocElementID{ElementRefID: from}, Relationship: kind,
		RefB: common.DocElementID{ElementRefID: to}}
}

// checksum explains what go.sum has of a module, or returns "". It is a comment, since it is no
// hash of a file, which is all that SPDX can express.
func checksum(sum string) string {
	text, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:"))
	if err != nil || len(text) == 0 {
		return ""
	}
	return "go.sum h1 (SHA-256 of the list of files): " + hex.EncodeToString(text)
}
