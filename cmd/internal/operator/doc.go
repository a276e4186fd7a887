// Package operator assembles the controller part: what a cluster has once, not on
// every node. It runs as `tierwalld --controller`, needs no privileges on its node,
// and is optional: daemons enforce the same without it.
//
//	watches ──► view ──┬─► admission.Handler   every replica serves reviews
//	                   └─► status.Reporter  ┐
//	                       default Tiers    ├─ the leader only
//	                       certificates     ┘  (Lease tierwall-controller)
//
// A replica that loses the lead stops writing and waits to lead again. One that
// cannot reach the API server goes on answering from what it knows.
package operator
