package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
)

// Path is where reviews are posted.
const Path = "/validate"

const (
	// maxReview bounds a request in bytes: an object and its old version, each up to
	// the API server's limit of 3 MiB for a request.
	maxReview = 8 << 20
	// reviewTimeout is when a review is given up, below the 5 s the configuration
	// gives us.
	reviewTimeout = 4 * time.Second
	// maxReviews is how many run at a time; more wait, and the API server's timeout
	// ends them.
	maxReviews = 4
)

// Handler serves AdmissionReviews (admission.k8s.io/v1).
type Handler struct {
	Checker *Checker
	Logger  *slog.Logger // nil means slog.Default

	running                chan struct{}
	allowed, denied, wrong atomic.Uint64
}

// NewHandler returns a handler for a checker.
func NewHandler(c *Checker, log *slog.Logger) *Handler {
	return &Handler{Checker: c, Logger: log, running: make(chan struct{}, maxReviews)}
}

// Counts returns how many reviews were allowed, denied, and could not be read.
func (h *Handler) Counts() (allowed, denied, unreadable uint64) {
	return h.allowed.Load(), h.denied.Load(), h.wrong.Load()
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		http.Error(w, "POST an AdmissionReview", http.StatusMethodNotAllowed)
		return
	}
	var review admissionv1.AdmissionReview
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReview))
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err == nil && (review.APIVersion != admissionv1.SchemeGroupVersion.String() || review.Kind != "AdmissionReview" || review.Request == nil) {
		err = fmt.Errorf("want an AdmissionReview of %s with a request", admissionv1.SchemeGroupVersion)
	}
	if err != nil {
		h.wrong.Add(1)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx := r.Context()
	select {
	case h.running <- struct{}{}:
		defer func() { <-h.running }()
	case <-ctx.Done():
		return
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	answer := h.Checker.Review(ctx, review.Request)
	answer.UID = review.Request.UID
	if answer.Allowed {
		h.allowed.Add(1)
	} else {
		h.denied.Add(1)
		log := h.Logger
		if log == nil {
			log = slog.Default()
		}
		log.Info("admission denied", "operation", string(review.Request.Operation), "kind", review.Request.Kind.Kind,
			"namespace", review.Request.Namespace, "name", review.Request.Name, "user", review.Request.UserInfo.Username,
			"reason", answer.Result.Message)
	}
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(&review) // a caller that has gone needs no answer
}
