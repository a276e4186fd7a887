// Package flows keeps the flows that the kernel side remembers in step with policy.
//
// Epoch says which of them still count: a change of policy raises the floor, or the
// marks of the cells whose addresses it is about, and a flow counts if no mark is newer
// than its generation. Entries collects what a worker remembers of a batch and writes
// it with one system call per map. Takeover renews, under the first table, the flows
// that an earlier process accepted.
//
// The order of writes matters, and is Epoch's business: a worker reads Current before
// it adds a flow's addresses, and the kernel learns a new generation last.
package flows
