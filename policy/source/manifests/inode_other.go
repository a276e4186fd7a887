//go:build !linux

package manifests

import "io/fs"

// inode is not available here: size, time and mode have to do.
func inode(fs.FileInfo) string { return "" }
