// Package decode turns YAML and JSON into API objects, and refuses to guess.
//
// Every source of objects shares it, so that a manifest that works in a
// directory works in a cluster and the other way round:
//
//	bytes ── documents ── (kind: List, XxxList) ── one object ── typed value
//	         YAML or JSON                          strict walk against the Go type
//
// A policy that is read wrongly is a hole in a wall, and the usual decoders read
// wrongly in silence: they drop unknown fields, accept matchlabels for
// matchLabels or drop it too, keep the last of two equal keys. A selector that
// loses its only condition selects everything. So nothing is dropped here:
//
//   - an unknown or misplaced field, a field in the wrong case, a duplicate key, a
//     value of the wrong type or out of range is an error, with file, line,
//     object, field path, and a hint;
//   - all errors of a document are reported, not just the first, and an object
//     with an error is not returned at all;
//   - an object of a policy API this version does not know is an error; an object
//     that has nothing to do with policy is a warning.
//
// Values are read as kubectl reads them: words such as yes and on are booleans
// (YAML 1.1), so a label value written like that has to be quoted; y and n alone
// are strings. Numbers are written in decimal. null means absent, except in a
// list or a map of strings, where it is an error; [api.Object].Raw keeps the
// difference. Anchors work, within a bound; merge keys and custom tags are
// refused.
//
// The objects that describe the world (v1 Pod, Namespace, Node, Service) are
// decoded by the same code, with one difference: an API server newer than this
// version prints fields it does not know, so a field that looks like nothing we
// know is a warning there. A near miss of a known field stays an error.
//
// Where several APIs share group, version and kind with different shapes, the kind's
// Select chooses the shape from the document before it is walked.
//
// What the decoder leaves to others: whether the values make sense together
// (each dialect's Validate), and what they mean.
package decode
