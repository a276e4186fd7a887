// Command tierwall-cni is an optional CNI plugin, chained behind the one that makes pods'
// networks. It tells the daemon the pod's addresses and returns when policy is in force for
// them, so that the pod need not wait until the API server has heard of them. What the
// daemon does not know it drops with or without this plugin.
//
//	{"type": "tierwall-cni", "socket": "/run/tierwall/cni.sock", "timeout": "2s", "onTimeout": "start"}
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/cmd/internal/admit"
)

// conf is the plugin's entry of the network configuration.
type conf struct {
	types.PluginConf
	Socket    string          `json:"socket"`
	Timeout   metav1.Duration `json:"timeout"`
	OnTimeout string          `json:"onTimeout"` // start or fail
}

// podArgs are the arguments that kubelets' runtimes pass.
type podArgs struct {
	types.CommonArgs
	K8S_POD_NAMESPACE types.UnmarshallableString // the arguments' own names
	K8S_POD_NAME      types.UnmarshallableString
}

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: func(*skel.CmdArgs) error { return nil }},
		version.PluginSupports("0.3.1", "0.4.0", "1.0.0", "1.1.0"), "tierwall-cni: waits until policy is in force for a pod")
}

// parse reads the configuration, and whose network it is. A network that is no pod's of a
// Kubernetes cluster has no name.
func parse(args *skel.CmdArgs) (c conf, pod admit.Request, err error) {
	c = conf{Socket: "/run/tierwall/cni.sock", Timeout: metav1.Duration{Duration: 2 * time.Second}, OnTimeout: "start"}
	if err := json.Unmarshal(args.StdinData, &c); err != nil {
		return c, pod, types.NewError(types.ErrDecodingFailure, "tierwall-cni: network configuration", err.Error())
	}
	if c.OnTimeout != "start" && c.OnTimeout != "fail" {
		return c, pod, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("tierwall-cni: onTimeout %q: want start or fail", c.OnTimeout), "")
	}
	if c.Timeout.Duration <= 0 {
		return c, pod, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("tierwall-cni: timeout %v: want a positive duration such as 2s", c.Timeout.Duration), "")
	}
	a := podArgs{CommonArgs: types.CommonArgs{IgnoreUnknown: true}}
	if err := types.LoadArgs(args.Args, &a); err != nil {
		return c, pod, types.NewError(types.ErrInvalidEnvironmentVariables, "tierwall-cni: CNI_ARGS", err.Error())
	}
	return c, admit.Request{Namespace: string(a.K8S_POD_NAMESPACE), Name: string(a.K8S_POD_NAME), Sandbox: args.ContainerID}, nil
}

func add(args *skel.CmdArgs) error {
	c, pod, err := parse(args)
	if err != nil {
		return err
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "tierwall-cni: prevResult", err.Error())
	}
	if c.PrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "tierwall-cni: no prevResult: chain it behind the plugin that makes the pod's network", "")
	}
	result, err := current.NewResultFromResult(c.PrevResult)
	if err != nil {
		return err
	}
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			pod.Addresses = append(pod.Addresses, a.Unmap())
		}
	}
	if pod.Name != "" && len(pod.Addresses) > 0 {
		if err := ask(c, pod); err != nil && c.OnTimeout == "fail" {
			return types.NewError(types.ErrTryAgainLater, "tierwall-cni: policy is not in force for the pod", err.Error())
		} else if err != nil {
			fmt.Fprintf(os.Stderr, "tierwall-cni: the pod starts before policy knows it: %v\n", err)
		}
	}
	return types.PrintResult(c.PrevResult, c.CNIVersion)
}

// del never fails: nothing is left of a network that the daemon has not heard about.
func del(args *skel.CmdArgs) error {
	c, pod, err := parse(args)
	if err == nil && pod.Name != "" {
		err = ask(c, pod)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "tierwall-cni: %v\n", err)
	}
	return nil
}

func ask(c conf, pod admit.Request) error {
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout.Duration)
	defer cancel()
	return admit.Ask(ctx, c.Socket, pod)
}
