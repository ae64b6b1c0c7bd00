package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/heraldvip/herald/pkg/config"
	"github.com/heraldvip/herald/pkg/kube"
	"github.com/heraldvip/herald/pkg/manifest"
	"github.com/heraldvip/herald/pkg/migrate"
	"github.com/heraldvip/herald/pkg/pool"
	"github.com/heraldvip/herald/pkg/vip"
)

func importCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "import", Short: "Turn the pools of another load balancer into Herald's",
		Long: "Read the pools of MetalLB, of Cilium's LB IPAM or of kube-vip's cloud provider, and the Services, from\n" +
			"the cluster or files. Print the ConfigMap of pools that makes Herald give the same addresses, and the\n" +
			"annotations by which Services keep those that they have; --apply writes them. What can't be carried over is\n" +
			"said in comments at the top.",
	}
	for _, source := range migrate.Sources {
		c.AddCommand(importFromCommand(source))
	}
	return c
}

func importFromCommand(source string) *cobra.Command {
	i := importer{source: source}
	c := &cobra.Command{
		Use: source + " [FILE...]",
		Short: "Turn the pools of " + map[string]string{"metallb": "MetalLB", "cilium": "Cilium's LB IPAM",
			"kube-vip": "kube-vip's cloud provider"}[source] + " into Herald's",
		Long: "Without FILE the objects are read from the cluster. A FILE has YAML or JSON documents, as kubectl get -o " +
			"yaml writes them;\n" +
			"- is standard input. Services among them are pinned to the addresses in their status.",
	}
	if source == "kube-vip" {
		c.Long += "\nOf several ConfigMaps the one that --from and --from-namespace name has the pools."
	}
	i.access = addConnectFlags(c)
	c.Flags().StringVar(&i.pools.Name, "pools", "kubevip", "The ConfigMap of pools (svc_pools)")
	c.Flags().StringVar(&i.pools.Namespace, "pools-namespace", "kube-system", "Its namespace (svc_pools_namespace)")
	c.Flags().BoolVar(&i.apply, "apply", false, "Write the ConfigMap and the annotations instead of printing them")
	i.from = vip.Key{Namespace: "kube-system", Name: "kubevip"}
	if source == "kube-vip" {
		c.Flags().StringVar(&i.from.Name, "from", i.from.Name, "The provider's ConfigMap (KUBEVIP_CONFIG_MAP)")
		c.Flags().StringVar(&i.from.Namespace, "from-namespace", i.from.Namespace, "Its namespace (KUBEVIP_NAMESPACE)")
	}
	c.RunE = func(c *cobra.Command, files []string) error {
		ctx, cancel := context.WithTimeout(c.Context(), 5*time.Minute)
		defer cancel()
		return i.run(ctx, files, c.InOrStdin(), c.OutOrStdout())
	}
	return c
}

type importer struct {
	source string
	access *accessFlags
	pools  vip.Key // Herald's
	from   vip.Key // of kube-vip's provider
	apply  bool
}

// run reads objects of files or the cluster, and prints or applies the result.
func (i *importer) run(ctx context.Context, files []string, stdin io.Reader, out io.Writer) error {
	objects, err := i.read(ctx, files, stdin)
	if err != nil {
		return err
	}
	r, err := migrate.From(i.source, objects)
	if err != nil {
		return err
	}
	i.dropRefused(&r)
	if !i.apply {
		text, err := manifest.Import(i.source, i.pools, r.Data, r.Pins, r.Notes)
		_, writeErr := out.Write(text)
		return errors.Join(err, writeErr)
	}
	return i.write(ctx, r, out)
}

// dropRefused notes and takes out keys that Herald's pools can't have; those of kube-vip's provider stay, to be mended.
// A pool whose Services can't be told is offered to none.
func (i *importer) dropRefused(r *migrate.Result) {
	_, problems := pool.Parse(nil, r.Data)
	for _, p := range problems {
		r.Notes = append(r.Notes, "Key "+p.Key+": "+strings.TrimRight(p.Message, "."))
		if p.Warning || i.source == "kube-vip" {
			continue
		}
		delete(r.Data, p.Key)
		name, attribute, isAttribute := strings.Cut(p.Key, ".")
		switch {
		case !isAttribute:
			maps.DeleteFunc(r.Data, func(k, _ string) bool { return strings.HasPrefix(k, name+".") })
		case attribute == "namespaces" || attribute == "services":
			r.Data[name+".namespaces"] = migrate.NoNamespace
		}
	}
}

func readInput(name string, stdin io.Reader) ([]byte, error) {
	if name == "-" {
		return io.ReadAll(stdin)
	}
	return os.ReadFile(name)
}

func (i *importer) read(ctx context.Context, files []string, stdin io.Reader) (objects []json.RawMessage, err error) {
	for _, name := range files {
		text, err := readInput(name, stdin)
		if err != nil {
			return nil, err
		}
		some, err := config.Documents(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		objects = append(objects, some...)
	}
	if len(files) > 0 {
		return i.withoutOtherConfigMaps(objects)
	}
	access, err := i.access.connect()
	if err != nil {
		return nil, err
	}
	collections := migrate.Collections(i.source)
	if i.source == "kube-vip" {
		collections = append(collections,
			migrate.Collection{Kind: "ConfigMap", Path: "/api/v1/namespaces/" + i.from.Namespace + "/configmaps/" + i.from.Name})
	}
	for _, c := range collections {
		some, err := kube.ReadObjects(ctx, access, c.Kind, c.Path)
		if err != nil {
			return nil, err
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

// withoutOtherConfigMaps drops ConfigMaps that are not kube-vip's provider's; it is an error if none of several is.
func (i *importer) withoutOtherConfigMaps(objects []json.RawMessage) ([]json.RawMessage, error) {
	found := 0
	kept := slices.DeleteFunc(slices.Clone(objects), func(text json.RawMessage) bool {
		var o struct {
			Kind     string
			Metadata struct{ Name, Namespace string }
		}
		if err := json.Unmarshal(text, &o); err != nil || o.Kind != "ConfigMap" {
			return false // what can't be read is an error of migrate.From
		}
		found++
		return o.Metadata.Name != i.from.Name || o.Metadata.Namespace != "" && o.Metadata.Namespace != i.from.Namespace
	})
	switch {
	case i.source != "kube-vip" || found < 2:
		return objects, nil
	case len(kept) == len(objects)-found:
		return nil, fmt.Errorf("none of the %d ConfigMaps is %s: name that of the provider by --from and --from-namespace",
			found, i.from)
	}
	return kept, nil
}

// write writes the annotations, and then the ConfigMap: so it is known which addresses are in use.
func (i *importer) write(ctx context.Context, r migrate.Result, out io.Writer) error {
	access, err := i.access.connect()
	if err != nil {
		return err
	}
	writePools, err := kube.AddPools(ctx, access, i.pools, r.Data)
	if err != nil {
		return fmt.Errorf("nothing was written: %w", err)
	}
	for _, n := range r.Notes {
		fmt.Fprintln(out, "- "+strings.Join(strings.Fields(n), " "))
	}
	var errs []error
	for _, k := range slices.SortedFunc(maps.Keys(r.Pins), vip.Key.Compare) {
		errs = append(errs, kube.AnnotateService(ctx, access, k, r.Pins[k]))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("the pools are not written: %w", err)
	}
	if err := writePools(); err != nil {
		return err
	}
	fmt.Fprintf(out, "ConfigMap %s written, %d Services annotated\n", i.pools, len(r.Pins))
	return nil
}
