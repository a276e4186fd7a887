package api

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
)

// Client reads one daemon's interface. It may be used by several goroutines.
type Client struct {
	// HTTP reaches the daemon. Its Timeout must be 0: streams last.
	HTTP *http.Client
	// Base is the scheme, host and port the requests name: "http://127.0.0.1:7380".
	Base string
}

// ErrCut is returned, wrapped, for an answer that ended before it was complete.
var ErrCut = errors.New("the answer was cut off")

// RefusedError is an answer that is none.
type RefusedError struct {
	Status int // of HTTP
	Text   string
}

// Error returns what the daemon said.
func (e *RefusedError) Error() string { return e.Text }

// maxLine bounds a line of an answer, in bytes.
const maxLine = 4 << 20

// Status asks what the daemon is doing.
func (c *Client) Status(ctx context.Context) (*Status, error) {
	body, err := c.get(ctx, "status", nil)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	st := new(Status)
	if err := json.NewDecoder(io.LimitReader(body, maxLine)).Decode(st); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	if st.V != Version {
		return nil, fmt.Errorf("status: the daemon speaks version %d of the interface, this program %d", st.V, Version)
	}
	return st, nil
}

// Flows calls fn for the connections the filter selects, limit at most (0 means
// DefaultFlows), and returns how many there were.
func (c *Client) Flows(ctx context.Context, filter auditlog.Words, limit int, fn func(*Flow) error) (End, error) {
	q := url.Values(maps.Clone(filter))
	if q == nil {
		q = url.Values{}
	}
	if limit != 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	var end *End
	err := c.stream(ctx, "flows", q, func(line []byte) error {
		if bytes.HasPrefix(line, []byte(`{"end":`)) {
			var l control
			if err := json.Unmarshal(line, &l); err != nil {
				return err
			}
			end = l.End
			return nil
		}
		f := new(Flow)
		if err := json.Unmarshal(line, f); err != nil {
			return err
		}
		return fn(f)
	})
	if err != nil {
		return End{}, err
	}
	if end == nil {
		return End{}, fmt.Errorf("flows: %w", ErrCut)
	}
	return *end, nil
}

// Tail says which records of the audit log to stream.
type Tail struct {
	Filter auditlog.Words
	Lines  int // of the past; -1 = all
	Follow bool
	// After resumes behind the record of this number; Heard is when the stream
	// that ended was last alive, by the daemon's clock.
	After uint64
	Heard time.Time
}

// TailFuncs receive a stream; all but Line may be nil.
type TailFuncs struct {
	Line    func(line []byte) error // a line of the log; reused afterwards
	Caught  func() error            // the past is over
	Alive   func(now time.Time) error
	Missing func(Missing) error
}

// Audit streams the audit log. It returns nil when the daemon ended a stream
// that was not to follow; a stream that follows ends with ctx or an error.
func (c *Client) Audit(ctx context.Context, t Tail, fn TailFuncs) error {
	q := url.Values(maps.Clone(t.Filter))
	if q == nil {
		q = url.Values{}
	}
	q.Set("lines", strconv.Itoa(t.Lines))
	q.Set("follow", strconv.FormatBool(t.Follow))
	if t.After > 0 {
		q.Set("after", strconv.FormatUint(t.After, 10))
		if !t.Heard.IsZero() {
			q.Set("heard", t.Heard.UTC().Format(time.RFC3339Nano))
		}
	}
	ended := false
	err := c.stream(ctx, "audit", q, func(line []byte) error {
		if bytes.HasPrefix(line, []byte(`{"v":`)) {
			return fn.Line(line)
		}
		var l struct {
			control
			Raw *string `json:"raw"`
		}
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		switch {
		case l.Raw != nil:
			return fn.Line([]byte(*l.Raw))
		case l.End != nil:
			ended = true
		case l.Failed != "":
			return &RefusedError{http.StatusOK, l.Failed}
		case l.Past && fn.Caught != nil:
			return fn.Caught()
		case l.Missing != nil && fn.Missing != nil:
			return fn.Missing(*l.Missing)
		case l.Alive != nil && fn.Alive != nil:
			return fn.Alive(*l.Alive)
		}
		return nil
	})
	switch {
	case err != nil:
		return err
	case !ended || t.Follow:
		return fmt.Errorf("audit: %w", ErrCut)
	}
	return nil
}

// stream calls fn for each line of an answer. The line is reused afterwards.
func (c *Client) stream(ctx context.Context, what string, q url.Values, fn func([]byte) error) error {
	body, err := c.get(ctx, what, q)
	if err != nil {
		return err
	}
	defer body.Close()
	in := bufio.NewScanner(body)
	in.Buffer(make([]byte, 0, 64<<10), maxLine)
	for in.Scan() {
		if err := fn(in.Bytes()); err != nil {
			return err
		}
	}
	if err := in.Err(); err != nil {
		return fmt.Errorf("%s: %w: %w", what, ErrCut, err)
	}
	return nil
}

func (c *Client) get(ctx context.Context, what string, q url.Values) (io.ReadCloser, error) {
	u := c.Base + Prefix + what
	if len(q) > 0 {
		u += "?" + q.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.HTTP.Do(req)
	if err != nil {
		var wrapped *url.Error
		if errors.As(err, &wrapped) {
			err = wrapped.Err // the URL says nothing to the user
		}
		return nil, err
	}
	kind := resp.Header.Get("Content-Type")
	if resp.StatusCode == http.StatusOK && (kind == jsonType || kind == linesType) {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		return nil, &RefusedError{http.StatusNotFound, "what answers there is not the daemon"}
	}
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // whatever came is said
	var f failure
	if json.Unmarshal(text, &f) == nil && f.Error != "" {
		return nil, &RefusedError{resp.StatusCode, f.Error}
	}
	if resp.StatusCode == http.StatusNotFound {
		return nil, &RefusedError{resp.StatusCode, "what answers there has no such interface: an older daemon, or another program"}
	}
	return nil, &RefusedError{resp.StatusCode, "the daemon answered " + resp.Status}
}
