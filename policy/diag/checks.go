package diag

// Check is a kind of finding, with an ID that stays the same in every version and
// has a section in docs/checks.md. IDs are not used again.
type Check struct {
	ID    string // "TW103"
	Name  string // a word for it, for tools that show one
	Error bool
	Title string // one sentence
}

// Codes of the checks of package lint.
const (
	SelectsNobody   Code = "SelectsNobody"
	MatchesNothing  Code = "MatchesNothing"
	Shadowed        Code = "Shadowed"
	Overridden      Code = "Overridden"
	NoDNS           Code = "NoDNS"
	NoDNSCache      Code = "NoDNSCache"
	NetworkWithPods Code = "NetworkWithPods"
	Misplaced       Code = "Misplaced"
	HalfOpen        Code = "HalfOpen"
)

// NotEnforced is the code of findings about kinds in a cluster that Tierwall does
// not know.
const NotEnforced Code = "NotEnforced"

// checks by code. The two without a code are for findings that have none.
var (
	invalid = Check{"TW001", "InvalidObject", true, "An object cannot be understood, and nothing of it is enforced"}
	suspect = Check{"TW100", "Suspicious", false, "A policy is valid and probably not what was meant"}
	checks  = map[Code]Check{
		UnknownField:     {"TW002", string(UnknownField), true, "A field is unknown: nothing is dropped in silence"},
		UnknownSelector:  {"TW003", string(UnknownSelector), true, "A selector sets no field that is known, and selects nothing"},
		PriorityConflict: {"TW004", string(PriorityConflict), true, "Two policies of equal priority disagree, or may"},
		MixedDialects:    {"TW005", string(MixedDialects), true, "Policies count priority in opposite directions"},
		SelectsNobody:    {"TW101", string(SelectsNobody), false, "A policy selects no pod there is now"},
		MatchesNothing:   {"TW102", string(MatchesNothing), false, "A rule matches nothing, or nobody there is now"},
		Shadowed:         {"TW103", string(Shadowed), false, "A rule never decides: a stronger one matches all it does"},
		Overridden:       {"TW104", string(Overridden), false, "A stronger rule takes away what a NetworkPolicy says"},
		NoDNS:            {"TW105", string(NoDNS), false, "A pod's egress is restricted so that DNS is left out"},
		NetworkWithPods:  {"TW106", string(NetworkWithPods), false, "A network of a policy covers pods, too"},
		Misplaced:        {"TW107", string(Misplaced), false, "An annotation stands where none is read"},
		NoDNSCache:       {"TW108", string(NoDNSCache), false, "A pod's egress reaches DNS pods, and not the DNS cache of its node"},
		HalfOpen:         {"TW110", string(HalfOpen), false, "A rule allows what the other end's policies refuse"},
		NotEnforced:      {"TW109", string(NotEnforced), false, "The cluster has policies of a kind that Tierwall does not enforce"},
	}
)

// Checks lists all checks, by ID.
func Checks() []Check {
	out := []Check{
		invalid, checks[UnknownField], checks[UnknownSelector], checks[PriorityConflict], checks[MixedDialects], suspect,
		checks[SelectsNobody], checks[MatchesNothing], checks[Shadowed], checks[Overridden], checks[NoDNS], checks[NetworkWithPods], checks[Misplaced],
		checks[NoDNSCache], checks[NotEnforced], checks[HalfOpen],
	}
	return out
}

// CheckOf returns what kind of finding a diagnostic is. A code that is an error in
// one place and a warning in another counts as what it is here.
func CheckOf(d *Diagnostic, isError bool) Check {
	if c, ok := checks[d.Code]; ok && c.Error == isError {
		return c
	}
	if isError {
		return invalid
	}
	return suspect
}
