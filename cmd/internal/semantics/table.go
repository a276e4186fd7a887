package main

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Seed is one document and how many numbered lines its part of the
// specification has.
type Seed struct {
	Prefix string
	Title  string
	Lines  int
}

// Seeds are the documents in the order of the table. X has the contradictions
// among them.
var Seeds = []Seed{
	{"S0", "KEP AdminNetworkPolicy", 90},
	{"S1", "KEP ClusterNetworkPolicy", 49},
	{"S2", "Antrea, about v1.6", 119},
	{"S3", "Cilium ordered policy", 44},
	{"S4", "Antrea, newer", 28},
	{"X", "contradictions", 67},
}

// Number is a line's number as written: "S0-07", "X-40".
type Number string

// number formats as the specification does: two digits, three from 100 on.
func number(prefix string, n int) Number { return Number(fmt.Sprintf("%s-%02d", prefix, n)) }

// split takes a number apart.
func (n Number) split() (prefix string, line int) {
	prefix, digits, _ := strings.Cut(string(n), "-")
	line, _ = strconv.Atoi(digits)
	return prefix, line
}

// State is what Tierwall does about a line.
type State string

// States; see the package documentation.
const (
	Enforced      State = "enforced"
	Refused       State = "refused"
	Informational State = "informational"
	NotYet        State = "not yet"
)

func (s State) needsProof() bool { return s == Enforced || s == Refused }

// Row is one line of the table.
type Row struct {
	Number Number
	Text   string
	State  State
	Reason string  // behind the state's colon
	Proofs []Proof // in the order written
	Line   int     // in the document, from 1
}

// Proof names a test or a fixture.
type Proof struct {
	Package string // folder of the test's package, "" for a fixture
	Test    string
	Fixture string // path of a txtar file, "" for a test
}

// String is the form the table has.
func (p Proof) String() string {
	if p.Fixture != "" {
		return p.Fixture
	}
	return p.Package + ":" + p.Test
}

var (
	numbered = regexp.MustCompile(`^\| *((?:S[0-4]|X)-\d+) *\|`)
	span     = regexp.MustCompile("`([^`]+)`")
)

// Parse reads the rows of the document. What looks like a row and is none is an
// error; everything else is prose.
func Parse(doc string) ([]Row, []error) {
	var rows []Row
	var errs []error
	for i, line := range strings.Split(doc, "\n") {
		if !numbered.MatchString(line) {
			continue
		}
		r, err := parseRow(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", i+1, err))
			continue
		}
		r.Line = i + 1
		rows = append(rows, r)
	}
	return rows, errs
}

func parseRow(line string) (Row, error) {
	cells := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, "\x00"), "| "), "|")
	for i := range cells {
		cells[i] = strings.TrimSpace(strings.ReplaceAll(cells[i], "\x00", "|"))
	}
	if len(cells) == 3 {
		cells = append(cells, "") // an empty last cell
	}
	if len(cells) != 4 {
		return Row{}, fmt.Errorf("%d columns, want 4", len(cells))
	}
	state, reason, _ := strings.Cut(cells[2], ":")
	r := Row{Number: Number(cells[0]), Text: cells[1], State: State(strings.TrimSpace(state)), Reason: strings.TrimSpace(reason)}
	for _, m := range span.FindAllStringSubmatch(cells[3], -1) {
		p, err := parseProof(m[1])
		if err != nil {
			return Row{}, err
		}
		r.Proofs = append(r.Proofs, p)
	}
	if len(r.Proofs) == 0 && cells[3] != "" {
		return Row{}, fmt.Errorf("the proof %q is not in backquotes", cells[3])
	}
	return r, nil
}

func parseProof(s string) (Proof, error) {
	if strings.HasSuffix(s, ".txtar") {
		return Proof{Fixture: s}, nil
	}
	pkg, test, ok := strings.Cut(s, ":")
	if !ok || !strings.HasPrefix(test, "Test") && !strings.HasPrefix(test, "Fuzz") {
		return Proof{}, fmt.Errorf("%q is neither package:TestName nor a .txtar file", s)
	}
	return Proof{Package: pkg, Test: test}, nil
}

// Problems is what is wrong with the rows themselves: numbers missing, twice or
// unknown, a state no line can have, a proof or a reason that is missing.
func Problems(rows []Row) []error {
	var errs []error
	bad := func(r Row, format string, args ...any) {
		errs = append(errs, fmt.Errorf("line %d: %s: %s", r.Line, r.Number, fmt.Sprintf(format, args...)))
	}
	seen := map[Number]int{}
	for _, r := range rows {
		if other, ok := seen[r.Number]; ok {
			bad(r, "is on line %d already", other)
		}
		seen[r.Number] = r.Line
		if r.Text == "" {
			bad(r, "says nothing")
		}
		switch r.State {
		case Enforced, Refused:
			if len(r.Proofs) == 0 {
				bad(r, "%s without a proof", r.State)
			}
		case Informational, NotYet:
			if r.Reason == "" {
				bad(r, "%s without a reason", r.State)
			}
			if len(r.Proofs) > 0 {
				bad(r, "%s, and has a proof", r.State)
			}
		default:
			bad(r, "unknown state %q", r.State)
		}
	}
	for _, s := range Seeds {
		for n := 1; n <= s.Lines; n++ {
			if _, ok := seen[number(s.Prefix, n)]; !ok {
				errs = append(errs, fmt.Errorf("%s is missing", number(s.Prefix, n)))
			}
			delete(seen, number(s.Prefix, n))
		}
	}
	for n, line := range seen {
		errs = append(errs, fmt.Errorf("line %d: no document has %s", line, n))
	}
	return errs
}
