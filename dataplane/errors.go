package dataplane

import "errors"

// ErrClosed is returned by Driver.Recv after Driver.Close.
var ErrClosed = errors.New("dataplane: driver closed")
