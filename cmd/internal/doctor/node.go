package doctor

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/tierwall/tierwall/dataplane"
)

// node is what files say about a node.
type node struct {
	root    string
	release string
	config  map[string]string // CONFIG_X: y, m or a value; nil if there is no such file
	source  string            // where config is from
	builtin map[string]bool   // modules that are part of the kernel; nil if not known
	found   map[string]bool   // modules there are files of; nil if not known
}

func readNode(root string) node {
	n := node{root: root, release: dataplane.KernelRelease()}
	for _, path := range []string{"proc/config.gz", "boot/config-" + n.release, "lib/modules/" + n.release + "/config"} {
		if text, err := n.read(path); err == nil {
			n.config, n.source = parseConfig(text), "/"+path
			break
		}
	}
	dir := "lib/modules/" + n.release + "/"
	if text, err := n.read(dir + "modules.builtin"); err == nil {
		n.builtin = moduleNames(text)
	}
	if text, err := n.read(dir + "modules.dep"); err == nil {
		n.found = moduleNames(text)
	}
	return n
}

// read returns a file of the node, unpacked.
func (n *node) read(path string) (string, error) {
	b, err := os.ReadFile(filepath.Join(n.root, path))
	if err != nil {
		return "", err
	}
	if strings.HasSuffix(path, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(b))
		if err != nil {
			return "", err
		}
		if b, err = io.ReadAll(z); err != nil {
			return "", err
		}
	}
	return string(b), nil
}

// value returns a file of one value, "" if there is none.
func (n *node) value(path string) string {
	text, err := n.read(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(text)
}

func (n *node) exists(path string) bool {
	_, err := os.Lstat(filepath.Join(n.root, path))
	return err == nil
}

// parseConfig reads a kernel's build options.
func parseConfig(text string) map[string]string {
	options := map[string]string{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok && strings.HasPrefix(name, "CONFIG_") {
			options[name] = value
		}
	}
	return options
}

// moduleNames reads the files in modules.builtin and modules.dep.
func moduleNames(text string) map[string]bool {
	names := map[string]bool{}
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		path, _, _ := strings.Cut(lines.Text(), ":")
		name, _, _ := strings.Cut(filepath.Base(path), ".")
		names[strings.ReplaceAll(name, "-", "_")] = true
	}
	return names
}

// option returns the state of a build option: OK for built in, Loadable for a module,
// Missing, or "" if that is not known.
func (n *node) option(name string) State {
	if n.config == nil {
		return ""
	}
	switch n.config[name] {
	case "":
		return Missing
	case "m":
		return Loadable
	}
	return OK
}

// module returns the state of a module, or "" if that is not known.
func (n *node) module(name, option string) State {
	switch {
	case n.exists("sys/module/" + name), n.builtin[name]:
		return OK
	case n.found[name]:
		return Loadable
	}
	switch s := n.option(option); {
	case s == Loadable && n.found != nil:
		return Missing // the kernel has it as a module, and the file is not there
	case s != "":
		return s
	case n.found != nil && n.builtin != nil:
		return Missing
	}
	return ""
}
