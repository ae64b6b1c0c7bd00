package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"time"
)

// An spdx is a document of SPDX 2.3 (ISO/IEC 5962): what a program is made of.
type spdx struct {
	Version       string         `json:"spdxVersion"`
	License       string         `json:"dataLicense"`
	ID            string         `json:"SPDXID"`
	Name          string         `json:"name"`
	Namespace     string         `json:"documentNamespace"`
	Creation      creation       `json:"creationInfo"`
	Packages      []component    `json:"packages"`
	Relationships []relationship `json:"relationships"`
}

type creation struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type component struct {
	ID        string      `json:"SPDXID"`
	Name      string      `json:"name"`
	Version   string      `json:"versionInfo,omitempty"`
	Location  string      `json:"downloadLocation"`
	Analyzed  bool        `json:"filesAnalyzed"`
	Declared  string      `json:"licenseDeclared"`
	Concluded string      `json:"licenseConcluded"`
	Copyright string      `json:"copyrightText"`
	Comment   string      `json:"comment,omitempty"`
	Refs      []reference `json:"externalRefs,omitempty"`
}

type reference struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	From string `json:"spdxElementId"`
	Type string `json:"relationshipType"`
	To   string `json:"relatedSpdxElement"`
}

const unknown = "NOASSERTION"

var notInID = regexp.MustCompile(`[^A-Za-z0-9.]+`)

// sbom lists what a program is made of, as the Go linker noted it in the program.
func sbom(binary, version, revision string, when time.Time) ([]byte, error) {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("%s does not say what it is made of: %w", binary, err)
	}
	arch := setting(info, "GOARCH")
	root := component{
		ID: "SPDXRef-herald", Name: info.Main.Path, Version: version, Location: "git+https://github.com/heraldvip/herald@" + revision,
		Declared: "Apache-2.0", Concluded: "Apache-2.0", Copyright: unknown, Comment: "linux/" + arch,
		Refs: []reference{purl("pkg:golang/" + info.Main.Path + "@" + version)},
	}
	std := component{
		ID: "SPDXRef-go", Name: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go"), Location: "https://go.dev/dl/",
		Declared: "BSD-3-Clause", Concluded: "BSD-3-Clause", Copyright: unknown,
		Refs: []reference{purl("pkg:golang/stdlib@" + strings.TrimPrefix(info.GoVersion, "go"))},
	}
	d := spdx{
		Version: "SPDX-2.3", License: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: "herald-" + version + "-" + arch,
		Namespace: "https://github.com/heraldvip/herald/spdx/" + version + "/" + revision + "/" + arch,
		Creation:  creation{when.UTC().Format("2006-01-02T15:04:05Z"), []string{"Tool: github.com/heraldvip/herald/manifests/image"}},
		Packages:  []component{root, std},
		Relationships: []relationship{
			{"SPDXRef-DOCUMENT", "DESCRIBES", root.ID},
			{root.ID, "DEPENDS_ON", std.ID},
		},
	}
	for _, m := range info.Deps { // sorted
		if m.Replace != nil {
			m = m.Replace
		}
		c := component{
			ID: "SPDXRef-" + notInID.ReplaceAllString(m.Path+"-"+m.Version, "-"), Name: m.Path, Version: m.Version,
			Location: "https://proxy.golang.org/" + m.Path + "/@v/" + m.Version + ".zip",
			Declared: unknown, Concluded: unknown, Copyright: unknown, Comment: hash(m.Sum),
			Refs: []reference{purl("pkg:golang/" + m.Path + "@" + m.Version)},
		}
		d.Packages = append(d.Packages, c)
		d.Relationships = append(d.Relationships, relationship{root.ID, "DEPENDS_ON", c.ID})
	}
	text, err := json.MarshalIndent(d, "", " ")
	return append(text, '\n'), err
}

func purl(locator string) reference { return reference{"PACKAGE-MANAGER", "purl", locator} }

// hash says what go.sum has of a module. It is no hash of a file, and SPDX has no word for it.
func hash(sum string) string {
	text, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(sum, "h1:"))
	if err != nil || len(text) == 0 {
		return ""
	}
	return "go.sum h1 (SHA-256 of the list of files): " + hex.EncodeToString(text)
}

func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
