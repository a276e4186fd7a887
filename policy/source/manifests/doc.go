// Package manifests reads policies and the world they act on from files: a
// directory of ordinary Kubernetes YAML and JSON, one file, or standard input.
//
//	dir/*.yaml ── Load ──► policy objects, inventory.Snapshot, findings
//	     │
//	     └────── Watch ──► "something changed": load again
//
// # What is read
//
// Every file ending in .yaml, .yml or .json, in sub-directories too, in the order
// of their paths. Names starting with a dot are skipped; that covers editors'
// swap files, .git, and the ..data directories of a mounted ConfigMap, whose
// visible names are symbolic links and are followed. Other names (README.md,
// policy.yaml~, policy.yaml.bak) are not read.
//
// # What is an error
//
// Besides everything package decode refuses: a file without an object (an editor
// that truncates before it writes would otherwise switch a wall off for a
// moment), a directory without a file, a file above [MaxFile] or all above
// [MaxTotal], a file that is not a regular one, a duplicate object.
// A file of nothing but comments is meant, and is a warning. The limits are for daemons;
// what a person reads by hand has none ([Loader].Offline).
//
// # How a change is noticed
//
// Through inotify, within the debounce time. What inotify misses (a symbolic
// link's target elsewhere, a network file system, a watch limit) is found by
// comparing sizes, times and inodes every two seconds.
//
// A file is read as it is at that moment. Whoever writes manifests by program
// should write a temporary file (with a name that is not read) and rename it: a
// file written in two goes can be read between them.
package manifests
