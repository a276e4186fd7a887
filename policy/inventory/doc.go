// Package inventory is the living world policies select from: pods, namespaces,
// nodes and Services, as immutable values without Kubernetes types.
//
//	v1 objects ── Build ──► Snapshot ── World(node) ──► rule.World
//	(decoded)               sorted,                     what the classifier
//	                        checked                     resolves addresses with
//
// Who hears of changes one by one keeps pods in a [PodEditor] and hands out a
// [View] after each of them: views share what did not change, tell what did, and
// are a Snapshot when one is asked for.
//
// # What is alive
//
// A pod that has finished (phase Succeeded or Failed) is not in the snapshot: its
// address may already be another pod's. A pod without an address is, because
// policies can select it, but it is not in the world made from the snapshot.
// A pod on the host network shares its node's addresses and is never selected.
//
// # What is for tools only
//
// Readiness of pods, node ports, traffic policies and EndpointSlices say where a
// Service leads to. No policy asks: a change of these alone makes no new world.
//
// # What is implied
//
// A pod in a namespace nobody declared creates the namespace, with no label but
// kubernetes.io/metadata.name, which every namespace carries with its own name as
// value, as an API server sees to (S2-106).
//
// # What is refused
//
// Two live pods with one address, addresses and ports that cannot be, an address
// list that contradicts itself. Guessing here would police the wrong pod.
package inventory
