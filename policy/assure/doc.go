// Package assure asks policies questions about many connections at once: what does
// a change change, is an intent kept, who can reach whom at all.
//
//	manifests, cluster ─► State ─┬─ Open ────► World ── End, Ask ─► []Case
//	                             └─ Compare ─► Diff ─── Changes ──► Change …
//
// It has no evaluator of its own. Every answer is a program of
// [classifier.Table]: what the policies of one pod decide about one other end, for
// all protocols and ports. A comparison groups ends by class (which both tables
// cannot tell apart), leaves out the pairs that [classifier.Report] proves to be
// the same, and reads the programs of the rest side by side. So it is exact: over
// all pods, ports, ICMP messages and outside addresses, and never by samples.
//
// # Ends
//
// [World.End] reads what people write: a pod, a workload (deploy/web, or its name
// alone), svc/web, label selectors, namespaces, addresses, prefixes outside; see
// [EndForms]. What means nothing (an unknown name, a selector that matches no pod)
// is an error that says what there is.
//
//	w, err := assure.Open(assure.State{Snapshot: snap, Set: set})
//	from, err := w.End("shop/frontend", "")
//	to, err := w.End("ns:tier=pci", "")
//	cases, err := w.Ask(from, to, assure.Ports{Last: 65535}) // or ParsePorts("443/TCP")
//	for _, c := range cases { … c.Decision.Verdict, c.Decision.Policy, c.Packet … }
//
// A [Case] stands for all connections between ends of two classes in a range of
// ports: if no case is allowed, nothing is. [Case.Packet] is one of them, for
// [classifier.Table.ExplainVia]. Ask never returns no case without an error.
//
// # Comparing
//
//	d, err := assure.Compare(old, now, assure.Options{})
//	for c := range d.Changes() { … } // opened, closed, then the same answer by another rule
//
// Pods are compared with the pods of the same name; workloads ([Options].Pods is
// false) with the workload of that name, pod by pod, where a change that is not
// about all pods of both is marked [Change.Some]. What only one state has is in
// Added and Removed. Intervals of one pair are disjoint and maximal.
//
// # Proving
//
//	ans, err := w.Prove(&assure.Claim{From: "ns:tier=dev", To: "ns:tier=pci", Ports: …, Expect: "deny"}, assure.DefaultLimit)
//	switch ans.Answer { case assure.Refuted: … ans.Witness.Packet, ans.Witness.Table }
//
// A [Claim] is about every pod that its [Rights] allow, not only those there are:
//
//	rules ─► leaves ─► kinds of pods ─► one pod each, compiled ─► programs of all pairs
//
// A leaf is a selector without alternatives. To policies a pod is which leaves it
// matches, its named ports, the prefixes and sets around its address, and what
// relations compare with the other end. Labels are decided key by key, and
// assignments that no leaf tells apart become one, so the number of kinds follows
// what policies say and not how many labels there could be. Rules that cannot be
// about the two ends make no leaves. The pods of a kind are alike to every rule that
// may decide, so one is asked about for all; what the classifier says of it is the
// answer. A breach is asked about again, with the pods there are, before it is a
// [Witness].
//
// # Everybody at once
//
// World.Matrix answers for every ordered pair of pods, and for pods with addresses
// outside: who can reach whom at which ports, by which rule. Pods of a workload that
// no connection can tell apart are one end.
//
// # What a question leaves open
//
//   - Ports: TCP, UDP and SCTP have 1 to 65535; ICMP has type<<8|code; other
//     protocols have one port, 0. [Other] stands for all protocols that neither
//     table names.
//   - Source ports: [Ask] and [Compare] split by them only where rules do.
//   - Outside addresses: a prefix stands for those of its addresses that no pod
//     and no node has. Addresses of a pod network that no pod has are left out:
//     rules that select pods may be about them or not, and refuse them (reason
//     unknown-peer), while rules about prefixes and nodes decide by the address
//     alone.
//   - Nodes: an address of a node that no host-network pod stands for is an end
//     like an outside one.
//   - Connections are judged as opened to the destination. Through a Service, Ask
//     judges its backends with rules to Services; Compare does not go through
//     Services.
//   - Staged policies do not decide, here as anywhere.
package assure
