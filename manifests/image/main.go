// Command image writes Herald's container image as an OCI archive, without a
// daemon, a registry or a base image: the static binary, a list of users, and the license.
//
// The same commit gives the same digest, as long as the Go version is the same: every time stamp is
// that of the commit, and nothing is taken from the machine.
//
// It is a module of its own, since nothing but the image needs what writes it.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// repository is where released images are.
const repository = "ghcr.io/heraldvip/herald"

func main() {
	out := flag.String("o", "bin/herald.oci.tar", "file to write")
	version := flag.String("version", "devel", "version of Herald")
	names := flag.String("name", "", "names of the image, with commas between; without it "+repository+
		":VERSION and :latest")
	platforms := flag.String("platform", "linux/amd64,linux/arm64", "platforms, with commas between")
	root := flag.String("source", ".", "Herald's repository")
	flag.Parse()
	if *names == "" {
		*names = repository + ":" + strings.NewReplacer("+", "-", "/", "-").Replace(*version) + "," + repository + ":latest"
	}
	d, err := run(*root, *out, *version, strings.Split(*names, ","), strings.Split(*platforms, ","))
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
	fmt.Printf("%s\n%s\n", *out, d)
}

// run builds the image of the repository at root into the file out. It returns the image's digest.
func run(root, out, version string, names, platforms []string) (string, error) {
	work, err := os.MkdirTemp("", "herald-image-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	revision, when, err := commit(root)
	if err != nil {
		return "", err
	}
	license, err := os.ReadFile(filepath.Join(root, "LICENSE"))
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return "", err
	}
	labels := imageLabels(version, revision, when)
	var images []mutate.IndexAddendum
	for _, name := range platforms {
		platform, err := v1.ParsePlatform(name)
		if err != nil || platform.OS != "linux" || platform.Architecture == "" {
			return "", fmt.Errorf("platform %q: must be linux/amd64 or the like", name)
		}
		arch := platform.Architecture
		base, top := filepath.Join(work, arch, "base"), filepath.Join(work, arch, "program")
		binary := filepath.Join(top, program)
		if err := compile(root, binary, arch, version); err != nil {
			return "", err
		}
		if err := writeBase(base, license); err != nil {
			return "", err
		}
		image, err := newImage(*platform, labels, when, base, top)
		if err != nil {
			return "", err
		}
		images = append(images, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	return writeArchive(out, images, names, labels, when)
}

// compile builds the program for linux and arch.
func compile(root, binary, arch, version string) error {
	c := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.version="+
		version, "-o", binary, "./cmd/herald")
	c.Dir = root
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOFLAGS=", "GOWORK=off")
	if text, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("go build for %s: %w\n%s", arch, err, text)
	}
	return nil
}

// commit returns the commit that root is at and its time. If root is no Git repository, it returns no
// commit, and the time SOURCE_DATE_EPOCH (reproducible-builds.org), or 1970 if that is not set.
func commit(root string) (revision string, when time.Time, err error) {
	if text, err := exec.Command("git", "-C", root, "log", "-1", "--format=%H %ct").Output(); err == nil {
		hash, seconds, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
		n, err := strconv.ParseInt(seconds, 10, 64)
		if err != nil {
			return "", time.Time{}, fmt.Errorf("git log: %w", err)
		}
		return hash, time.Unix(n, 0).UTC(), nil
	}
	n, err := strconv.ParseInt(cmp.Or(os.Getenv("SOURCE_DATE_EPOCH"), "0"), 10, 64)
	if err != nil {
		return "", time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	return "", time.Unix(n, 0).UTC(), nil
}

// imageLabels returns the labels and annotations of the image (OCI image-spec, annotations.md).
func imageLabels(version, revision string, when time.Time) map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title":       "herald",
		prefix + "description": "Virtual IPs for Kubernetes on bare metal",
		prefix + "source":      "https://github.com/heraldvip/herald",
		prefix + "licenses":    "Apache-2.0",
		prefix + "version":     version,
		prefix + "revision":    revision,
		prefix + "created":     when.Format(time.RFC3339),
	}
}
