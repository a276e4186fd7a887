// Package crds has the CustomResourceDefinitions of the policy APIs whose
// definition is ours to ship, as files and embedded.
//
//	antrea   Tier, ClusterNetworkPolicy, NetworkPolicy, ClusterGroup and Group of
//	         crd.antrea.io
//	kep      AdminNetworkPolicy in the shape of KEP-2091 and in the two released
//	         ones; ClusterNetworkPolicy and ClusterDefaultNetworkPolicy of the KEP
//	         as it stood in 2021
//
// Released upstream APIs (ClusterNetworkPolicy v1alpha2, BaselineAdminNetworkPolicy)
// are upstream's to install; docs/install.md has the command.
//
// Command gen writes the files and explains what is in them.
package crds

import "embed"

//go:generate go run ./gen

// FS has the files: antrea/*.yaml and kep/*.yaml.
//
//go:embed antrea/*.yaml kep/*.yaml
var FS embed.FS
