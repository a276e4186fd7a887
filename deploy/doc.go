// Package deploy has what puts Tierwall on a cluster. It has no code, only tests
// that keep the parts in step.
//
//	kustomization.yaml   the node daemon: kubectl apply -k deploy/
//	  crds/              definitions of the policy kinds that are ours to define
//	  rbac/              who may read and write policies
//	  daemon/            namespace, ServiceAccount, rights, configuration, DaemonSet
//	controller/          the optional controller part and its webhook
//	monitoring/          PodMonitor and Grafana dashboard
//	charts/tierwall      all of it as a Helm chart
//	Dockerfile           the image
//	config.yaml          every key of the daemon's configuration with its default
//	examples/            policies and worlds to try
//	logging/             shipping the audit log
//	e2e/                 tests against a cluster
package deploy
