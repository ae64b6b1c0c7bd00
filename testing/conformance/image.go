package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/heraldvip/herald/testing/lab"
)

// imageNames are what e2e.test calls the one image that its tests of load balancers start, in this release and
// in earlier ones.
func (s setup) imageNames(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(s.parts, "e2e.test"), "--list-images").Output()
	if err != nil {
		return nil, fmt.Errorf("list the images of e2e.test: %w", err)
	}
	names := slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool {
		return !strings.HasPrefix(name, "registry.k8s.io/e2e-test-images/agnhost:")
	})
	if len(names) == 0 {
		return nil, fmt.Errorf("e2e.test names no image of agnhost: %s", out)
	}
	return names, nil
}

// writeImage writes the image of agnhost: the program, and what tests run in its containers: a shell, curl, nc
// and wget, which are this machine's.
func (s setup) writeImage(ctx context.Context, out string) error {
	names, err := s.imageNames(ctx)
	if err != nil {
		return err
	}
	// GNU wget tries 20 times; that of the image which this one stands for, once.
	files := map[string][]byte{"/tmp/": nil, "/etc/wgetrc": []byte("tries = 1\n")}
	from := map[string]string{"/agnhost": filepath.Join(s.parts, "agnhost")}
	for _, p := range []string{"sh", "cat", "hostname", "curl", "wget"} {
		from["/bin/"+p] = p
	}
	from["/bin/nc"] = "nc.openbsd"
	for inside, program := range from {
		path, err := exec.LookPath(program)
		if err != nil {
			return err
		}
		if files[inside], err = os.ReadFile(path); err != nil {
			return err
		}
		if err := addLibraries(ctx, files, path); err != nil {
			return err
		}
	}
	return lab.WriteImage(out, files, []string{"/agnhost"}, names...)
}

// library matches the path of a library in the output of ldd(1).
var library = regexp.MustCompile(`(/\S+) \(0x`)

// addLibraries adds the libraries that a program is linked with, at the paths where the linker looks for them.
func addLibraries(ctx context.Context, files map[string][]byte, program string) error {
	out, err := exec.CommandContext(ctx, "ldd", program).CombinedOutput()
	if strings.Contains(string(out), "not a dynamic executable") {
		return nil
	}
	if err != nil {
		return fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	for _, m := range library.FindAllStringSubmatch(string(out), -1) {
		if files[m[1]], err = os.ReadFile(m[1]); err != nil {
			return err
		}
	}
	return nil
}
