package main

import (
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
)

// found matches the place of a golden finding: file and line.
var found = regexp.MustCompile(`(?m)^(?:error|warning|info): (\S+\.yaml):(\d+): `)

// fixtureNumbers reads a txtar fixture. A number is shown by
//
//   - a connection of the section expect, on its line: the verdict depends on it
//   - a manifest's line that a finding names
//   - the line `metadata: …` or `name: …` of an object that a finding is about:
//     such objects are named after what is wrong with them
func fixtureNumbers(data []byte) numbers {
	n := newNumbers(string(data))
	archive := txtar.Parse(data)
	findings := map[string]bool{} // "file:line"
	for _, f := range archive.Files {
		if f.Name == "findings" || strings.HasSuffix(f.Name, ".want") {
			for _, m := range found.FindAllStringSubmatch(string(f.Data), -1) {
				findings[m[1]+":"+m[2]] = true
			}
		}
	}
	for _, f := range archive.Files {
		switch {
		case f.Name == "expect":
			for _, line := range strings.Split(string(f.Data), "\n") {
				if text, comment, ok := strings.Cut(line, "#"); ok && strings.TrimSpace(text) != "" {
					n.show(comment)
				}
			}
		case strings.HasSuffix(f.Name, ".yaml"):
			manifestNumbers(n, f.Name, string(f.Data), findings)
		}
	}
	return n
}

var named = regexp.MustCompile(`^(?:metadata:|  name:)`)

func manifestNumbers(n numbers, file, text string, findings map[string]bool) {
	var names []string // lines that name the object
	judged := false    // a finding is about it
	end := func() {
		for _, line := range names {
			if judged {
				n.show(line)
			}
		}
		names, judged = nil, false
	}
	for i, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "---") {
			end()
			continue
		}
		_, comment, _ := strings.Cut(line, "#")
		if findings[file+":"+strconv.Itoa(i+1)] {
			judged = true
			n.show(comment)
		}
		if named.MatchString(line) {
			names = append(names, comment)
		}
	}
	end()
}
