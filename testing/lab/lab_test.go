package lab

import (
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestUp(t *testing.T) {
	l, err := Up(t.Context(), Options{Log: os.Stderr})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		d := time.Now()
		if err := l.Down(); err != nil {
			t.Error(err)
		}
		t.Log("down", time.Since(d))
	}()
	out, err := l.Kubectl(t.Context(), "get", "nodes", "-o", "wide")
	t.Log(out, err)
	p := Pod{Name: "a", Node: "w1", Labels: map[string]string{"app": "x"}}
	s := time.Now()
	if err := l.AddPod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	t.Log("pod", time.Since(s))
	svc := Service("default", "x")
	if _, err := l.Client().CoreV1().Services("default").Create(t.Context(), svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	out, err = l.Kubectl(t.Context(), "get", "pods,svc,endpointslices", "-o", "wide")
	t.Log(out, err)
	out, err = l.Kubectl(t.Context(), "get", "svc", "x", "-o", "jsonpath={.spec.clusterIP}")
	out, err = l.Run(t.Context(), "n1", "curl", "-sS", "-m2", "http://"+strings.TrimSpace(out))
	t.Log(out, err)
	r, err := l.APIRequests(t.Context())
	t.Log(r, err)
}
