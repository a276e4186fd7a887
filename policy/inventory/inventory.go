package inventory

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/rule"
)

// Snapshot is the cluster at one moment. It is immutable once published; all
// slices are sorted by namespace and name.
type Snapshot struct {
	Namespaces []Namespace
	Pods       []Pod
	Nodes      []Node
	Services   []Service
}

// Namespace carries its own name as the label kubernetes.io/metadata.name, as
// the API server guarantees (S2-106).
type Namespace struct {
	Name        string
	Labels      map[string]string
	Annotations map[string]string
	File        string // where it was read, "" when implied by a pod
}

// Pod is the part of a Pod policy can see.
type Pod struct {
	Namespace, Name string
	Labels          map[string]string
	ServiceAccount  string // "default" when the object names none
	Node            string
	HostNetwork     bool
	IPs             []netip.Addr // unmapped
	Ports           []rule.NamedPort
	File            string
}

// Node is a cluster node.
type Node struct {
	Name     string
	Labels   map[string]string
	Addrs    []netip.Addr
	PodCIDRs []netip.Prefix
	File     string
}

// Service is the part of a Service policy can see.
type Service struct {
	Namespace, Name string
	ClusterIPs      []netip.Addr // empty when headless
	// ExternalIPs are the other addresses the Service proxy answers for:
	// spec.externalIPs and load balancer addresses of mode VIP.
	ExternalIPs []netip.Addr
	Selector    map[string]string
	Labels      map[string]string // the Service's own
	Ports       []ServicePort
	File        string
}

// ServicePort maps a Service port to its backends' port.
type ServicePort struct {
	Name       string
	Proto      string // "TCP", "UDP", "SCTP"
	Port       uint16
	TargetPort uint16 // 0 when TargetName is set
	TargetName string // named container port
}
