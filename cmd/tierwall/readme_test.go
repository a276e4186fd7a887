package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeCommands runs the README's commands that need no privilege.
func TestReadmeCommands(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^\$ go run \./cmd/tierwall (.*)$`).FindAllStringSubmatch(string(text), -1)
	if len(lines) < 3 {
		t.Fatalf("only %d commands found", len(lines))
	}
	for _, l := range lines {
		args := strings.Fields(strings.ReplaceAll(l[1], "deploy/examples", "../../deploy/examples"))
		if got := tierwall(t, "", args...); got.code != 0 {
			t.Errorf("%s: exit %d\n%s%s", l[1], got.code, got.out, got.err)
		}
	}
}
