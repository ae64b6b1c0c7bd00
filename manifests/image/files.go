package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// users and groups let the image run as nonroot.
const (
	users  = "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"
	groups = "root:x:0:\nnonroot:x:65532:\n"
)

// program is the file name of the program, and alias a link to it, by which kube-vip's manifests name theirs:
// command: ["/kube-vip", "manager"].
const (
	program = "herald"
	alias   = "kube-vip"
)

// fileCapabilities permits the program NET_ADMIN and NET_RAW when another user than root runs it, as "setcap
// cap_net_admin,cap_net_raw+p" does: a struct vfs_cap_data of revision 2 (include/uapi/linux/capability.h) as extended
// attribute in the tar archive. Not effective at once: the kernel would refuse to run it in a container without them.
var fileCapabilities = map[string]string{
	"SCHILY.xattr.security.capability": "\x00\x00\x00\x02" + "\x00\x30\x00\x00" + "\x00\x00\x00\x00" +
		"\x00\x00\x00\x00" + "\x00\x00\x00\x00",
}

// writeBase writes below dir what is in the image in addition to the program.
func writeBase(dir string, license []byte) error {
	var errs []error
	for name, text := range map[string][]byte{
		"etc/group":        []byte(groups),
		"etc/passwd":       []byte(users),
		"licenses/LICENSE": license,
	} {
		file := filepath.Join(dir, name)
		errs = append(errs, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text, 0o644))
	}
	return errors.Join(append(errs, os.Symlink(program, filepath.Join(dir, alias)))...)
}

// archive returns a tar archive of what is below dir, which depends on names, contents and the owner's
// right to execute alone: sorted by name, owned by root, all times being when. The program has fileCapabilities.
func archive(dir string, when time.Time) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err := fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: when,
				Format: tar.FormatUSTAR})
		}
		if d.Type() == fs.ModeSymlink {
			to, err := os.Readlink(filepath.Join(dir, name))
			return errors.Join(err,
				w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777, ModTime: when,
					Format: tar.FormatUSTAR}))
		}
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		mode := int64(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(text)), Mode: mode, ModTime: when,
			Format: tar.FormatUSTAR}
		if name == program {
			header.PAXRecords, header.Format = fileCapabilities, tar.FormatPAX
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	})
	return b.Bytes(), errors.Join(err, w.Close())
}
