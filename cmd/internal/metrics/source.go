package metrics

import "github.com/tierwall/tierwall/policy/source/kube"

var (
	refusedObjects = desc("policy_refused_objects", "Policy objects that are not in force as the API server has them: an older version of each, or nothing of it, is.")

	sourceSynced   = desc("kube_synced", "1 once everything has been read from the API server; it stays 1 while the API server is away.")
	sourceSnapshot = desc("kube_snapshot_in_use", "1 while a snapshot on disk stands in for the API server.")
	sourceObjects  = desc("kube_objects", "Objects known, by resource.", "resource")
	sourceRequests = desc("kube_requests_total", "Lists and watches begun, by resource.", "resource")
	sourceErrors   = desc("kube_request_errors_total", "Lists and watches that failed, by resource.", "resource")
	sourceLists    = desc("kube_lists_total", "Times everything of a resource was read.", "resource")
	sourceEvents   = desc("kube_events_total", "Changes the API server told about, by resource.", "resource")
	notUnderstood  = desc("policy_kinds_not_understood", "1 for each policy kind of another project that the cluster has and Tierwall does not enforce, by whether there are objects of it: yes, no, unknown.", "group", "kind", "used")
	sourceContact  = desc("kube_last_contact_timestamp_seconds", "When the API server last said something about a resource, in seconds since the Unix epoch.", "resource")
)

// source reads what a daemon in a cluster knows of its API server.
func (c *Collector) source(s sink, st kube.Status) {
	s.gauge(sourceSynced, oneIf(st.Synced))
	s.gauge(sourceSnapshot, oneIf(!st.Snapshot.IsZero()))
	for i := range st.Resources {
		r := &st.Resources[i]
		s.gauge(sourceObjects, float64(r.Objects), r.Resource)
		s.counter(sourceRequests, r.Requests, r.Resource)
		s.counter(sourceErrors, r.Errors, r.Resource)
		s.counter(sourceLists, r.Lists, r.Resource)
		s.counter(sourceEvents, r.Events, r.Resource)
		s.gauge(sourceContact, seconds(r.LastContact), r.Resource)
	}
	for i := range st.NotUnderstood {
		n := &st.NotUnderstood[i]
		s.gauge(notUnderstood, 1, n.Group, n.Kind, n.Used())
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
