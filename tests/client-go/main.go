// A program that uses client-go as controllers do: it watches nodes with a shared informer, and two candidates elect
// a leader by a Lease. It prints what it saw, one line each, and ends.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	// Protobuf, as the components of Kubernetes themselves have it.
	config := &rest.Config{Host: os.Args[1], QPS: 1000, Burst: 1000, ContentConfig: rest.ContentConfig{
		ContentType:        "application/vnd.kubernetes.protobuf",
		AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
	}}
	client, err := kubernetes.NewForConfig(config)
	check(err)
	inform(ctx, client)
	elect(ctx, client)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Lists all nodes into a cache, and waits for a change of one of them.
func inform(ctx context.Context, client kubernetes.Interface) {
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes()
	changed := make(chan string, 16)
	_, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, now any) {
			if node := now.(*corev1.Node); node.Labels["seen"] == "yes" {
				changed <- node.Name
			}
		},
	})
	check(err)
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), nodes.Informer().HasSynced) {
		check(fmt.Errorf("the nodes could not be listed in time"))
	}
	names := nodes.Informer().GetStore().ListKeys()
	fmt.Println("nodes", len(names))
	patch := []byte(`{"metadata":{"labels":{"seen":"yes"}}}`)
	_, err = client.CoreV1().Nodes().Patch(ctx, names[0], types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	check(err)
	select {
	case name := <-changed:
		fmt.Println("changed", name == names[0])
	case <-ctx.Done():
		check(ctx.Err())
	}
}

// Two candidates, of which the first gives way to the second.
func elect(ctx context.Context, client kubernetes.Interface) {
	candidate := func(name string, leads context.CancelFunc) (context.CancelFunc, chan struct{}) {
		own, resign := context.WithCancel(ctx)
		ended := make(chan struct{})
		lock := &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Name: "election", Namespace: "default"},
			Client:     client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: name},
		}
		go func() {
			defer close(ended)
			leaderelection.RunOrDie(own, leaderelection.LeaderElectionConfig{
				Lock: lock, ReleaseOnCancel: true,
				LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 200 * time.Millisecond,
				Callbacks: leaderelection.LeaderCallbacks{
					OnStartedLeading: func(context.Context) { fmt.Println("leads", name); leads() },
					OnStoppedLeading: func() {},
				},
			})
		}()
		return resign, ended
	}
	for _, name := range []string{"one", "two"} {
		leading, leads := context.WithCancel(ctx)
		resign, ended := candidate(name, leads)
		<-leading.Done()
		resign()
		<-ended
	}
	lease, err := client.CoordinationV1().Leases("default").Get(ctx, "election", metav1.GetOptions{})
	check(err)
	fmt.Println("transitions", *lease.Spec.LeaseTransitions)
}
