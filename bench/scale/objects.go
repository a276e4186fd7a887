package scale

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/bench/workload"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Size says how large a simulated cluster is.
type Size struct {
	Nodes    int `json:"nodes"`
	Pods     int `json:"pods"`
	Services int `json:"services"`
	// Policies of all languages together: of a hundred, some 90 are
	// NetworkPolicies, 5 Antrea's and 5 Cilium's. ClusterNetworkPolicies (54) come
	// on top.
	Policies int `json:"policies"`
}

// custom are the policy APIs installed beside NetworkPolicy.
func custom() []*resource {
	return []*resource{
		{group: "policy.networking.k8s.io", version: "v1alpha2", plural: "clusternetworkpolicies", kind: "ClusterNetworkPolicy"},
		{group: "crd.antrea.io", version: "v1beta1", plural: "networkpolicies", kind: "NetworkPolicy", namespaced: true},
		{group: "cilium.io", version: "v2", plural: "ciliumnetworkpolicies", kind: "CiliumNetworkPolicy", namespaced: true},
	}
}

// simulated is a cluster on a simulated API server.
type simulated struct {
	*Server
	size       Size
	workload   *workload.Cluster
	namespaces []string
}

// newSimulated makes a cluster of a size. node is the address of its first node,
// whose pods the daemon polices.
func newSimulated(size Size, node netip.Addr) (*simulated, error) {
	antrea, cilium := size.Policies/20, size.Policies/20
	perNode := (size.Pods + size.Nodes - 1) / size.Nodes
	w := workload.New(workload.Spec{
		Pods: size.Pods, Policies: size.Policies - antrea - cilium, Admin: 50, Baseline: 4, Domains: 50, PerNode: perNode, Seed: 1,
	})
	c := &simulated{Server: newServer(custom()...), size: size, workload: w}
	w.World.Nodes[0].Addrs = []netip.Addr{node}
	for i := range w.World.Nodes {
		c.put("nodes", nodeObject(&w.World.Nodes[i]))
	}
	seen := map[string]bool{}
	for i := range w.World.Endpoints {
		e := &w.World.Endpoints[i]
		if !seen[e.Namespace] {
			seen[e.Namespace] = true
			c.namespaces = append(c.namespaces, e.Namespace)
			c.put("namespaces", &corev1.Namespace{
				ObjectMeta: metav1.ObjectMeta{Name: e.Namespace, Labels: e.NamespaceLabels, UID: uid(i, 1), CreationTimestamp: created},
				Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
			})
		}
		c.put("pods", podObject(e, i))
	}
	for i := range size.Services {
		c.put("services", serviceObject(c.namespaces[i%len(c.namespaces)], i))
	}
	var text bytes.Buffer
	if err := w.WritePolicies(&text); err != nil {
		return nil, err
	}
	for i := range antrea {
		fmt.Fprintf(&text, "\n---\n"+antreaPolicy, c.namespaces[i%len(c.namespaces)], i, 1+i%100)
	}
	for i := range cilium {
		fmt.Fprintf(&text, "\n---\n"+ciliumPolicy, c.namespaces[(i*3)%len(c.namespaces)], i, 6000+i%1000)
	}
	for doc := range strings.SplitSeq(text.String(), "\n---\n") {
		if err := c.apply(doc); err != nil {
			return nil, err
		}
	}
	return c, nil
}

const antreaPolicy = `apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {namespace: %s, name: antrea-%d}
spec:
  priority: %d
  appliedTo: [{podSelector: {matchLabels: {app: db}}}]
  ingress:
  - {name: from-api, action: Allow, from: [{podSelector: {matchLabels: {app: api}}}], ports: [{protocol: TCP, port: 5432}]}
  - {name: not-from-web, action: Drop, from: [{podSelector: {matchLabels: {app: web}}}]}
`

const ciliumPolicy = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {namespace: %s, name: cilium-%d}
spec:
  endpointSelector: {matchLabels: {app: cache}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: api}}]
    toPorts: [{ports: [{port: "%d", protocol: TCP}]}]
`

// apply puts a policy written as YAML, with the bookkeeping that an API server adds.
func (c *simulated) apply(doc string) error {
	u := &unstructured.Unstructured{}
	b, err := yaml.YAMLToJSON([]byte(doc))
	if err != nil {
		return err
	}
	if err := u.UnmarshalJSON(b); err != nil {
		return err
	}
	u.SetUID(types.UID("00000000-0000-4000-9000-" + fmt.Sprintf("%012x", c.version)))
	u.SetCreationTimestamp(created)
	u.SetGeneration(1)
	u.SetManagedFields([]metav1.ManagedFieldsEntry{{
		Manager: "kubectl-client-side-apply", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: u.GetAPIVersion(), Time: &created,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(policyFields),
	}})
	u.SetAnnotations(map[string]string{corev1.LastAppliedConfigAnnotation: string(b)})
	gv, err := schema.ParseGroupVersion(u.GetAPIVersion())
	if err != nil {
		return err
	}
	for _, r := range c.resources {
		if r.group == gv.Group && r.version == gv.Version && r.kind == u.GetKind() {
			c.put(r.name(), u)
			return nil
		}
	}
	return fmt.Errorf("%s %s is not served", u.GetAPIVersion(), u.GetKind())
}

var created = metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))

func uid(i, kind int) types.UID { return types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", kind, i)) }

func managed(manager, subresource, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Subresource: subresource, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &created,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(fields),
	}
}

func ptr[T any](v T) *T { return &v }

// podObject is an endpoint as an API server has its Pod: what controllers, kubelet
// and admission write included, which is most of it.
func podObject(e *rule.Endpoint, i int) *corev1.Pod {
	set := fmt.Sprintf("%s-%s", e.Labels["app"], e.Labels["pod-template-hash"])
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: e.Name, GenerateName: set + "-", UID: uid(i, 2), CreationTimestamp: created, Generation: 1,
			Labels:          maps.Clone(e.Labels),
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: set, UID: uid(i, 3), Controller: ptr(true), BlockOwnerDeletion: ptr(true)}},
			ManagedFields:   []metav1.ManagedFieldsEntry{managed("kube-controller-manager", "", podFields), managed("kubelet", "status", podStatusFields)},
		},
		Spec: corev1.PodSpec{
			NodeName: e.Node, ServiceAccountName: e.ServiceAccount, DeprecatedServiceAccount: e.ServiceAccount,
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, SchedulerName: "default-scheduler",
			TerminationGracePeriodSeconds: ptr(int64(30)), EnableServiceLinks: ptr(true), Priority: ptr(int32(0)),
			SecurityContext: &corev1.PodSecurityContext{}, HostNetwork: e.HostNetwork,
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr(int64(300))},
				{Key: "node.kubernetes.io/unreachable", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: ptr(int64(300))},
			},
			Volumes: []corev1.Volume{{Name: "kube-api-access-s5vdc", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
				DefaultMode: ptr(int32(420)),
				Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: ptr(int64(3607)), Path: "token"}},
					{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
				},
			}}}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: "192.0.2.1", HostIPs: []corev1.HostIP{{IP: "192.0.2.1"}}, StartTime: &created, QOSClass: corev1.PodQOSBurstable,
			ContainerStatuses: []corev1.ContainerStatus{{
				Name: "main", Ready: true, Started: ptr(true), Image: "images.example.com/shop/" + e.Labels["app"] + ":v1.2.3",
				ImageID:     "images.example.com/shop/" + e.Labels["app"] + "@sha256:7b7897e550c151c8578edadfd916e2c646054118be9a693d0c2abd6272c5acb6",
				ContainerID: "containerd://c07c10d7d6027b81859861ac74d6b3574735ca826846cae555dee4d9b12964eb",
				State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: created}},
			}},
		},
	}
	main := corev1.Container{
		Name: "main", Image: "images.example.com/shop/" + e.Labels["app"] + ":v1.2.3", ImagePullPolicy: corev1.PullIfNotPresent,
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		Args: []string{"--config=/etc/shop/config.yaml", "--listen=:8080", "--log-format=json"},
		Env: []corev1.EnvVar{
			{Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}},
			{Name: "DATABASE_URL", Value: "postgres://db." + e.Namespace + ".svc:5432/shop"},
			{Name: "GOMEMLIMIT", Value: "256MiB"},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "kube-api-access-s5vdc", ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}},
	}
	for _, np := range e.Ports {
		main.Ports = append(main.Ports, corev1.ContainerPort{Name: np.Name, ContainerPort: int32(np.Port), Protocol: corev1.Protocol(np.Proto.String())})
	}
	p.Spec.Containers = []corev1.Container{main}
	for _, t := range []corev1.PodConditionType{"PodReadyToStartContainers", corev1.PodInitialized, corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: created})
	}
	for _, a := range e.Addrs {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	p.Status.PodIP = p.Status.PodIPs[0].IP
	return p
}

func nodeObject(n *rule.Node) *corev1.Node {
	o := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: n.Name, UID: uid(0, 4), CreationTimestamp: created,
			Labels: map[string]string{
				"kubernetes.io/hostname": n.Name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
				"topology.kubernetes.io/zone": "zone-a", "node.kubernetes.io/instance-type": "bare-metal",
			},
			Annotations:   map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
			ManagedFields: []metav1.ManagedFieldsEntry{managed("kubelet", "status", podStatusFields)},
		},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{
			MachineID: "7b7897e550c151c8578edadfd916e2c6", KernelVersion: "6.18.0", OSImage: "Linux", ContainerRuntimeVersion: "containerd://2.1.4", KubeletVersion: "v1.36.3",
		}},
	}
	for _, p := range n.PodCIDRs {
		o.Spec.PodCIDRs = append(o.Spec.PodCIDRs, p.String())
	}
	o.Spec.PodCIDR = o.Spec.PodCIDRs[0]
	o.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: n.Name}}
	for _, a := range n.Addrs {
		o.Status.Addresses = append(o.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
	}
	for _, t := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeReady} {
		o.Status.Conditions = append(o.Status.Conditions, corev1.NodeCondition{
			Type: t, Status: corev1.ConditionFalse, LastHeartbeatTime: created, LastTransitionTime: created, Reason: "KubeletHasSufficient", Message: "kubelet has sufficient resources available",
		})
	}
	for i := range 30 { // the kubelet lists up to 50 images
		o.Status.Images = append(o.Status.Images, corev1.ContainerImage{SizeBytes: 123456789, Names: []string{
			fmt.Sprintf("images.example.com/shop/image-%02d@sha256:7b7897e550c151c8578edadfd916e2c646054118be9a693d0c2abd6272c5acb6", i),
			fmt.Sprintf("images.example.com/shop/image-%02d:v1.2.3", i),
		}})
	}
	return o
}

func serviceObject(namespace string, i int) *corev1.Service {
	ip := netip.AddrFrom4([4]byte{10, 255, byte(i >> 8), byte(i)}).String()
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("service-%d", i), UID: uid(i, 5), CreationTimestamp: created,
			ManagedFields: []metav1.ManagedFieldsEntry{managed("kubectl-client-side-apply", "", policyFields)},
		},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, ClusterIPs: []string{ip}, Type: corev1.ServiceTypeClusterIP, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// What API servers note about who set which field: about this long, and of no
// interest to a daemon.
const (
	podFields = `{"f:metadata":{"f:generateName":{},"f:labels":{".":{},"f:app":{},"f:pod-template-hash":{},"f:tier":{},"f:version":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"0b9b0432-53cd-436e-9d18-1b1a959599e3\"}":{}}},` +
		`"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:args":{},"f:env":{".":{},"k:{\"name\":\"POD_NAME\"}":{".":{},"f:name":{},"f:valueFrom":{".":{},"f:fieldRef":{}}},"k:{\"name\":\"DATABASE_URL\"}":{".":{},"f:name":{},"f:value":{}}},` +
		`"f:image":{},"f:imagePullPolicy":{},"f:name":{},"f:ports":{".":{},"k:{\"containerPort\":8080,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}},"k:{\"containerPort\":9090,\"protocol\":\"TCP\"}":{".":{},"f:containerPort":{},"f:name":{},"f:protocol":{}}},` +
		`"f:resources":{},"f:terminationMessagePath":{},"f:terminationMessagePolicy":{}}},"f:dnsPolicy":{},"f:enableServiceLinks":{},"f:restartPolicy":{},"f:schedulerName":{},"f:securityContext":{},"f:serviceAccount":{},"f:serviceAccountName":{},"f:terminationGracePeriodSeconds":{}}}`
	podStatusFields = `{"f:status":{"f:conditions":{"k:{\"type\":\"ContainersReady\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Initialized\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},` +
		`"k:{\"type\":\"PodReadyToStartContainers\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}},"k:{\"type\":\"Ready\"}":{".":{},"f:lastProbeTime":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}},` +
		`"f:containerStatuses":{},"f:hostIP":{},"f:hostIPs":{},"f:phase":{},"f:podIP":{},"f:podIPs":{".":{},"k:{\"ip\":\"10.244.1.2\"}":{".":{},"f:ip":{}}},"f:startTime":{}}}`
	policyFields = `{"f:metadata":{"f:annotations":{".":{},"f:kubectl.kubernetes.io/last-applied-configuration":{}}},"f:spec":{"f:egress":{},"f:ingress":{},"f:podSelector":{},"f:policyTypes":{}}}`
)
