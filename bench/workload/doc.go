// Package workload makes clusters to measure with: namespaces, pods, nodes and
// policies of the shapes people write, any number of each, always the same for
// the same [Spec].
//
//	c := workload.New(workload.Small)
//	table, _, err := classifier.Compile(c.Set, c.World, classifier.Options{})
//	keys := c.Keys(1000, 1)
//
// # The cluster
//
// A namespace has five apps in two versions, their pods spread over all nodes.
// Pods carry the labels that templates of Deployments give them; one in ten has
// a label of its own, as StatefulSets have. Namespaces have a team, an
// environment and the name label of the API server.
//
// NetworkPolicies take turns by namespace: default deny, allow within the
// namespace, app to app with ports and a team, egress to DNS and two blocks with
// holes and a database elsewhere, port ranges from "the world except private
// networks". Cluster-wide policies (ClusterNetworkPolicy, tiers Admin and
// Baseline) select namespaces by label and allow, deny or pass pods, networks and
// domain names.
//
// # Three forms
//
// [Cluster] holds the lowered form, which is what the classifier takes.
// [Cluster.WriteManifests] writes the same as manifests; a test keeps the two
// equal. [Cluster.Keys] draws connections.
//
// [Prefixes] is another kind of workload: raw prefix rules in the manner of
// ClassBench, where nothing is known about addresses in advance.
package workload
