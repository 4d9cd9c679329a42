// Everything of a node in one executable, chosen by the name it is called by.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	kubeproxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	switch name := filepath.Base(os.Args[0]); name {
	case "kubelet":
		os.Exit(cli.Run(kubelet.NewKubeletCommand(context.Background())))
	case "kube-proxy":
		os.Exit(cli.Run(kubeproxy.NewProxyCommand()))
	case "device-plugin":
		os.Exit(serveDevices())
	default:
		fmt.Fprintf(os.Stderr, "%s: call this through a link named kubelet, kube-proxy or device-plugin\n", name)
		os.Exit(2)
	}
}
