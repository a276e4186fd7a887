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
	// EndpointSlices are where Services lead to, for tools that ask; nil where they
	// were not read. Nothing that is enforced depends on them.
	EndpointSlices []EndpointSlice
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

	// What the Service proxy asks of a backend. No policy does: a change of these
	// alone is no change (SamePod), and snapshots on disk do without.
	Unready, Terminating bool `json:"-"`
	// Workload is what made the pod, as far as its owner references tell; for a
	// pod nobody made, the pod itself. Policy does not see it (SamePod), but a
	// snapshot on disk keeps it: questions about a restored world name workloads.
	Workload Workload `json:",omitzero"`
	// MadeUp is set for the pods that Options.Workloads makes.
	MadeUp bool `json:"-"`
	// MadeUpIPs is set where IPs come from Options.AssignAddresses.
	MadeUpIPs bool `json:"-"`
}

// Workload names the object that pods belong to, in the namespace of the pods.
type Workload struct {
	Kind string // "Deployment", "StatefulSet", …; "Pod" for a pod by itself
	Name string
}

// Node is a cluster node.
type Node struct {
	Name     string
	Labels   map[string]string
	Addrs    []netip.Addr
	PodCIDRs []netip.Prefix
	// DeviceAddrs are further addresses of the node that its annotations tell: of the
	// network plugin's devices, and those it sends pods' traffic from. Selectors of
	// nodes mean them (S2-95). They are not in Addrs: who may annotate a Node must
	// not be able to make an address its own, which reaches its pods.
	DeviceAddrs []netip.Addr `json:",omitempty"`
	File        string
}

// Service is the part of a Service policy can see.
type Service struct {
	Namespace, Name string
	ClusterIPs      []netip.Addr // empty when headless, or not assigned yet
	// ExternalIPs are the other addresses the Service proxy answers for:
	// spec.externalIPs and load balancer addresses of mode VIP.
	ExternalIPs []netip.Addr
	Selector    map[string]string
	Labels      map[string]string // the Service's own
	Ports       []ServicePort
	File        string

	// ExternalLocal and InternalLocal are the traffic policies Local;
	// PublishNotReady counts pods that are not ready as ready. For explain only.
	ExternalLocal, InternalLocal, PublishNotReady bool `json:",omitzero"`
	// Headless says that the Service has no address by intention (clusterIP: None):
	// clients reach its pods' own addresses and ports. For explain only, too.
	Headless bool `json:",omitzero"`
}

// ServicePort maps a Service port to its backends' port.
type ServicePort struct {
	Name       string
	Proto      string // "TCP", "UDP", "SCTP"
	Port       uint16
	TargetPort uint16 // 0 when TargetName is set
	TargetName string // named container port
	NodePort   uint16 `json:",omitzero"` // 0 when there is none
}

// EndpointSlice is a part of a Service's backends, of one address family.
type EndpointSlice struct {
	Namespace, Name string
	Service         string
	Ports           []EndpointPort
	Endpoints       []Endpoint
}

// EndpointPort is the number a port of the Service has at all endpoints of a slice.
type EndpointPort struct {
	Name  string // of the Service's port
	Proto string
	Port  uint16 // 0: as the client asked
}

// Endpoint is a backend. Conditions that are absent have their default values.
type Endpoint struct {
	Addr                        netip.Addr
	Node                        string
	Ready, Serving, Terminating bool
}
