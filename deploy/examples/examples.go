// Package examples embeds the example policies, so that the demo and the tests
// use exactly the files people read.
//
//	quickstart   a shop: pods, Services and NetworkPolicies, for explain and matrix
//	demo         policies for the demo's own world
//	broken       mistakes people make, for check
package examples

import "embed"

// FS holds the folders named in the package comment.
//
//go:embed quickstart demo broken
var FS embed.FS
