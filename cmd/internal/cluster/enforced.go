package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	policyapi "github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/enforcement"
	"github.com/tierwall/tierwall/policy/lower"
)

// Version is one version of a policy object, to ask nodes about.
type Version struct {
	enforcement.Object
	ResourceVersion uint64
	// Staged is set for a policy that nodes record and do not enforce.
	Staged bool
}

// Find resolves KIND/NAME or KIND/NAMESPACE/NAME as kubectl does (kind, plural or short name, with the
// group behind it if it is not unique: "networkpolicy/db", "acnp/web",
// "clusternetworkpolicies.policy.networking.k8s.io/web") and returns the object's
// present version.
func (c *Cluster) Find(ctx context.Context, ref string) (Version, error) {
	parts := strings.Split(cli.PolicyPath(ref), "/")
	if len(parts) < 2 || len(parts) > 3 || slices.Contains(parts, "") {
		return Version{}, fmt.Errorf("%q: want KIND/NAME, such as networkpolicy/db (-n says in which namespace), or KIND/NAMESPACE/NAME", ref)
	}
	kind, name := parts[0], parts[len(parts)-1]
	found := memory.NewMemCacheClient(c.Client.Discovery())
	mapper := restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(found), found, nil)
	resource, group, _ := strings.Cut(kind, ".")
	asked := schema.GroupVersionResource{Group: group, Resource: strings.ToLower(resource)}
	gvrs, err := mapper.ResourcesFor(asked)
	if meta.IsNoMatchError(err) {
		return Version{}, fmt.Errorf("the cluster has no kind %q", kind)
	}
	if err != nil {
		return Version{}, fmt.Errorf("find kind %q: %w", kind, err)
	}
	if groups := groupsOf(gvrs); len(groups) > 1 {
		return Version{}, fmt.Errorf("%q is in several APIs: say %s", kind, strings.Join(groups, " or "))
	}
	gvr := gvrs[0]
	gvk, err := mapper.KindFor(gvr)
	if err != nil {
		return Version{}, fmt.Errorf("find kind %q: %w", kind, err)
	}
	if !slices.ContainsFunc(lower.Kinds(), func(k policyapi.Kind) bool { return k.Group == gvk.Group && k.Kind == gvk.Kind }) {
		return Version{}, fmt.Errorf("%s is no policy that daemons enforce", gvr.GroupResource())
	}
	m, err := mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		return Version{}, fmt.Errorf("find kind %q: %w", kind, err)
	}
	client, err := dynamic.NewForConfig(c.Config)
	if err != nil {
		return Version{}, err
	}
	v := Version{Object: enforcement.Object{Resource: gvr.GroupResource().String(), Name: name}}
	api := dynamic.ResourceInterface(client.Resource(gvr))
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		v.Namespace = c.Namespace
		if len(parts) == 3 {
			v.Namespace = parts[1]
		}
		api = client.Resource(gvr).Namespace(v.Namespace)
	} else if len(parts) == 3 {
		return Version{}, fmt.Errorf("%q: %s is cluster-wide: want KIND/NAME", ref, gvr.GroupResource())
	}
	o, err := api.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Version{}, err
	}
	v.Staged = lower.Staged(o.GetAnnotations())
	v.ResourceVersion, err = enforcement.ParseVersion(o.GetResourceVersion())
	return v, err
}

func groupsOf(gvrs []schema.GroupVersionResource) []string {
	var out []string
	for _, g := range gvrs {
		if s := g.GroupResource().String(); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// NodeState is what one node does about an object.
type NodeState struct {
	Node  string            `json:"node"`
	State enforcement.State `json:"state"`
	Why   string            `json:"why,omitempty"`
}

// NoReport is the state of a node that says nothing, or nothing recent.
const NoReport enforcement.State = "no-report"

// States says what every node does about an object, by the reports in the Leases
// of the daemons' namespace. Nodes without a report are in it if the user may
// list nodes; certain is false if not, and such nodes may be missing.
func (d *Daemons) States(ctx context.Context, v Version, now time.Time) (states []NodeState, certain bool, err error) {
	leases, err := d.Cluster.Client.CoordinationV1().Leases(d.namespace()).List(ctx, metav1.ListOptions{
		LabelSelector: enforcement.Label + "=" + enforcement.LabelValue,
	})
	if err != nil {
		return nil, false, fmt.Errorf("read the nodes' reports: %w", err)
	}
	byNode := map[string]NodeState{}
	for i := range leases.Items {
		r, err := enforcement.Decode(&leases.Items[i])
		if err != nil {
			continue // a Lease of that label that is no report: its node has none
		}
		byNode[r.Node] = stateOf(r, v, now)
	}
	nodes, err := d.Cluster.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	certain = err == nil
	switch {
	case certain:
		all := map[string]NodeState{}
		for i := range nodes.Items {
			name := nodes.Items[i].Name
			s, ok := byNode[name]
			if !ok {
				s = NodeState{name, NoReport, "no report of this node"}
			}
			all[name] = s
		}
		byNode = all // reports of nodes that are gone do not count
	case !apierrors.IsForbidden(err):
		return nil, false, fmt.Errorf("list the nodes: %w", err)
	}
	for _, s := range byNode {
		states = append(states, s)
	}
	slices.SortFunc(states, func(a, b NodeState) int { return strings.Compare(a.Node, b.Node) })
	return states, certain, nil
}

// AskStates says the same by asking every daemon, for users who may reach them
// and not read their Leases.
func (d *Daemons) AskStates(ctx context.Context, v Version, now time.Time) ([]NodeState, error) {
	list, err := d.List(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]NodeState, len(list))
	Each(ctx, list, 32, func(ctx context.Context, i int, one Daemon) {
		s := NodeState{one.Node, NoReport, one.Why}
		if one.Why == "" {
			client, done := d.Client(one)
			defer done()
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			st, err := client.Status(ctx)
			switch {
			case err != nil:
				s.Why = err.Error()
			case st.Enforced == nil:
				s.Why = "this daemon does not read the cluster"
			default:
				st.Enforced.Time = now // it was asked now
				s = stateOf(st.Enforced, v, now)
			}
		}
		out[i] = s
	})
	return out, nil
}

func stateOf(r *enforcement.Report, v Version, now time.Time) NodeState {
	if r.StaleAt(now) {
		return NodeState{r.Node, NoReport, fmt.Sprintf("the last report is %s old", now.Sub(r.Time).Round(time.Second))}
	}
	s, why := r.State(v.Object, v.ResourceVersion)
	return NodeState{r.Node, s, why}
}

// ErrNoNodes is returned when nobody says anything about any node.
var ErrNoNodes = errors.New("no node reports anything: are daemons running, and reading this cluster?")
