package cli

import (
	"errors"
	"fmt"
)

// Exit codes of every command; see the package comment.
const (
	ExitOK      = 0
	ExitFinding = 1
	ExitUsage   = 2
	// ExitUndecided is of claims that were neither proved nor refuted.
	ExitUndecided = 3
)

// FindingError says that the command worked and found something wrong. Shown
// tells that the findings were printed already, so that only the exit code is
// left to deliver.
type FindingError struct {
	Err   error
	Shown bool
	// Undecided says that it is no finding: there is no answer within the bounds.
	Undecided bool
}

// Error returns the wrapped error's text.
func (e *FindingError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *FindingError) Unwrap() error { return e.Err }

// Finding builds a FindingError whose text is still to be printed.
func Finding(format string, args ...any) error {
	return &FindingError{Err: fmt.Errorf(format, args...)}
}

// UsageError says that the command line cannot be understood. Command is the
// full name of the command whose help explains it.
type UsageError struct {
	Command string
	Err     error
}

// Error returns the wrapped error's text.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *UsageError) Unwrap() error { return e.Err }

// Code maps an error of a command to the process exit code.
func Code(err error) int {
	var finding *FindingError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &finding):
		if finding.Undecided {
			return ExitUndecided
		}
		return ExitFinding
	}
	return ExitUsage
}

// Shown reports whether everything about err has been printed already.
func Shown(err error) bool {
	var finding *FindingError
	return errors.As(err, &finding) && finding.Shown
}
