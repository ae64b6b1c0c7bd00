package manifest

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/heraldvip/herald/pkg/vip"
)

// Import returns the ConfigMap of pools with this data, and for each Service one with just these annotations, for
// "kubectl apply --server-side". notes become a comment before them.
func Import(source string, name vip.Key, data map[string]string, annotations map[vip.Key]map[string]string,
	notes []string) ([]byte, error) {
	var b strings.Builder
	line := func(text string) { b.WriteString(strings.TrimRight("# "+text, " ") + "\n") }
	line("Made by: herald import " + source)
	line("Apply it before Herald takes over: kubectl apply --server-side --field-manager=herald-import -f FILE")
	for i, n := range notes {
		if i == 0 {
			line("")
			line("To be looked at:")
		}
		line("- " + strings.Join(strings.Fields(n), " "))
	}
	objects := []any{&corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}, Data: data,
	}}
	for _, k := range slices.SortedFunc(maps.Keys(annotations), vip.Key.Compare) {
		objects = append(objects, &metav1.PartialObjectMetadata{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
			ObjectMeta: metav1.ObjectMeta{Namespace: k.Namespace, Name: k.Name, Annotations: annotations[k]},
		})
	}
	return write(b.String(), objects...)
}
