package doctor

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// matrix reads what ran on which kernel: by series, the backends with no wrong verdict.
func matrix(t *testing.T) map[string]map[string]bool {
	t.Helper()
	text, err := os.ReadFile("../../../docs/conformance/kernels.tsv")
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]string{} // by cell
	ran := map[string]map[string]bool{}
	for line := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 {
			t.Fatalf("%q: %d fields", line, len(f))
		}
		cell, step, result := f[0], f[2], f[3]
		switch step {
		case "kernel":
			if s := regexp.MustCompile(`^[0-9]+\.[0-9]+`).FindString(result); s != "" {
				series[cell] = s
				if ran[s] == nil {
					ran[s] = map[string]bool{}
				}
			}
		case "nfqueue", "afxdp", "auto":
			if s := series[cell]; s != "" && result != "wrong" && result != "refused" && result != "skipped" {
				ran[s][step] = true
			}
		}
		if result == "wrong" {
			t.Errorf("the matrix has a wrong cell: %s", line)
		}
	}
	return ran
}

// kernelVersion is a Linux version in the page's text. Policy APIs and Go have others.
var kernelVersion = regexp.MustCompile(`\b([4-9]\.[0-9]+)\b`)

// Every kernel version in docs/compatibility.md ran in the matrix, or is said not to have
// been tried, in the same cell of a table or the same paragraph; and what the page says
// each backend was tried on is what the matrix has.
func TestVersionsOfThePageWereTried(t *testing.T) {
	b, err := os.ReadFile("../../../docs/compatibility.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := matrix(t)
	page := string(b)
	if n := untriedVersions(page, ran); len(n) > 0 {
		t.Errorf("neither tried (docs/conformance/kernels.tsv) nor said not to be:\n%s", strings.Join(n, "\n"))
	}
	for _, backend := range []string{"nfqueue", "afxdp"} {
		row := regexp.MustCompile("(?m)^\\| `" + backend + "` \\| ([0-9., ]+) tried; (?:refused on ([0-9., ]+);)?").FindStringSubmatch(page)
		if row == nil {
			t.Fatalf("no row of %s that begins with what was tried", backend)
		}
		said := strings.Split(row[1], ", ")
		var want, refused []string
		for _, s := range slices.Sorted(maps.Keys(ran)) {
			if ran[s][backend] {
				want = append(want, s)
			} else {
				refused = append(refused, s)
			}
		}
		slices.Sort(said)
		if !slices.Equal(said, want) || row[2] != strings.Join(refused, ", ") {
			t.Errorf("%s: the page says tried %v, refused on %q; the matrix has %v, refused %v", backend, said, row[2], want, refused)
		}
	}
}

// untriedVersions lists versions of a page that nothing is known of.
func untriedVersions(page string, ran map[string]map[string]bool) (found []string) {
	for _, paragraph := range regexp.MustCompile(`\n\n|\n- |\n\|`).Split(page, -1) {
		for _, part := range strings.Split(paragraph, "|") {
			for _, m := range kernelVersion.FindAllStringIndex(part, -1) {
				version := part[m[0]:m[1]]
				after := strings.Join(strings.Fields(part[m[1]:min(len(part), m[1]+40)]), " ")
				if ran[version] == nil && !strings.Contains(after, "not tried") {
					found = append(found, version+": "+strings.Join(strings.Fields(part[max(0, m[0]-40):min(len(part), m[1]+20)]), " "))
				}
			}
		}
	}
	return found
}

// The check above bites.
func TestUntriedVersionsAreFound(t *testing.T) {
	ran := map[string]map[string]bool{"6.1": {}}
	for text, want := range map[string]int{
		"Linux 6.1 does":        0,
		"Linux 6.2 does":        1,
		"since 6.2 (not tried)": 0,
		"| 6.2 | not tried |":   1, // in another cell
	} {
		if got := untriedVersions(text, ran); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}
