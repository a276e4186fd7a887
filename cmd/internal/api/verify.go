package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
)

// verify checks the hash chain of the audit log where it is.
func (s *server) verify(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if err := known(q, "known"); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	if s.cfg.AuditFile == "" {
		fail(w, http.StatusConflict, s.cfg.NoAudit)
		return
	}
	_ = http.NewResponseController(w).SetWriteDeadline(s.cfg.Now().Add(verifyTimeout)) // fails in tests only
	ctx, cancel := context.WithTimeout(r.Context(), verifyTimeout)
	defer cancel()
	v, err := auditlog.Verify(ctx, s.cfg.AuditFile, q.Get("known"))
	if err != nil {
		fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", jsonType)
	_ = json.NewEncoder(w).Encode(v) // the reader is gone: nobody to tell
}

// Verify lets the daemon check its audit log; see auditlog.Verify.
func (c *Client) Verify(ctx context.Context, known string) (*auditlog.Verification, error) {
	q := url.Values{}
	if known != "" {
		q.Set("known", known)
	}
	body, err := c.get(ctx, "verify", q)
	if err != nil {
		return nil, err
	}
	defer body.Close()
	v := new(auditlog.Verification)
	if err := json.NewDecoder(io.LimitReader(body, maxLine)).Decode(v); err != nil {
		return nil, fmt.Errorf("verify: %w", err)
	}
	return v, nil
}
