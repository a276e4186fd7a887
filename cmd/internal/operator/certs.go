package operator

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/tierwall/tierwall/policy/admission"
)

// certificates keeps the Secret, the serving certificate and the authority in the
// webhook configuration in step. Every replica runs it: updates name the version
// they are about, so two replicas cannot undo each other's.
type certificates struct {
	client    kubernetes.Interface
	namespace string
	cfg       WebhookConfig
	log       *slog.Logger
	now       func() time.Time

	serving atomic.Pointer[tls.Certificate]
}

// When certificates are looked at again, and after a failure.
const (
	certsEvery = 10 * time.Minute
	certsRetry = 2 * time.Second
)

func (c *certificates) names() []string {
	s := c.cfg.Service + "." + c.namespace
	names := []string{s + ".svc", c.cfg.Service, s, s + ".svc.cluster.local"}
	return append(names, strings.FieldsFunc(c.cfg.Names, func(r rune) bool { return r == ',' || r == ' ' })...)
}

// run looks until ctx ends.
func (c *certificates) run(ctx context.Context) {
	for {
		wait := certsEvery
		if err := c.ensure(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("webhook certificates", "error", err)
			wait = certsRetry
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// ensure does one round.
func (c *certificates) ensure(ctx context.Context) error {
	data, err := c.secret(ctx)
	if err != nil {
		return err
	}
	// The authority first: once it is served, it must be trusted.
	if err := c.trust(ctx, data[admission.KeyCA]); err != nil {
		return err
	}
	pair, err := admission.Serving(data)
	if err != nil {
		return err
	}
	if old := c.serving.Swap(pair); old == nil || !bytes.Equal(old.Certificate[0], pair.Certificate[0]) {
		c.log.Info("webhook certificate", "until", pair.Leaf.NotAfter)
	}
	return nil
}

// secret returns the Secret's data after renewing what has to be.
func (c *certificates) secret(ctx context.Context) (map[string][]byte, error) {
	secrets := c.client.CoreV1().Secrets(c.namespace)
	for range 5 {
		s, err := secrets.Get(ctx, c.cfg.Secret, metav1.GetOptions{})
		missing := apierrors.IsNotFound(err)
		if err != nil && !missing {
			return nil, fmt.Errorf("secret %s: %w", c.cfg.Secret, err)
		}
		if missing {
			s = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: c.cfg.Secret, Namespace: c.namespace}, Type: corev1.SecretTypeOpaque}
		}
		data, changed, err := admission.Renew(s.Data, c.names(), c.now())
		if err != nil {
			return nil, err
		}
		if !changed {
			return data, nil
		}
		s.Data = data
		if missing {
			_, err = secrets.Create(ctx, s, metav1.CreateOptions{FieldManager: fieldManager})
		} else {
			_, err = secrets.Update(ctx, s, metav1.UpdateOptions{FieldManager: fieldManager})
		}
		switch {
		case err == nil:
			c.log.Info("webhook certificates renewed", "secret", c.cfg.Secret)
			return data, nil
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err): // another replica was faster
		default:
			return nil, fmt.Errorf("secret %s: %w", c.cfg.Secret, err)
		}
	}
	return nil, fmt.Errorf("secret %s: changed too often meanwhile", c.cfg.Secret)
}

// trust puts the authorities into the webhook configuration, if there is one.
func (c *certificates) trust(ctx context.Context, bundle []byte) error {
	hooks := c.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	v, err := hooks.Get(ctx, c.cfg.Configuration, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no ValidatingWebhookConfiguration %s: nothing is checked at admission", c.cfg.Configuration)
	}
	if err != nil {
		return fmt.Errorf("webhook configuration: %w", err)
	}
	var patch []map[string]any
	text := base64.StdEncoding.EncodeToString(bundle)
	for i := range v.Webhooks {
		if bytes.Equal(v.Webhooks[i].ClientConfig.CABundle, bundle) {
			continue
		}
		path := fmt.Sprintf("/webhooks/%d", i)
		patch = append(patch, map[string]any{"op": "test", "path": path + "/name", "value": v.Webhooks[i].Name},
			map[string]any{"op": "add", "path": path + "/clientConfig/caBundle", "value": text})
	}
	if len(patch) == 0 {
		return nil
	}
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("webhook configuration: %w", err)
	}
	if _, err := hooks.Patch(ctx, v.Name, types.JSONPatchType, body, metav1.PatchOptions{FieldManager: fieldManager}); err != nil {
		return fmt.Errorf("webhook configuration: %w", err)
	}
	c.log.Info("webhook authority written", "configuration", v.Name)
	return nil
}

// get serves TLS.
func (c *certificates) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if pair := c.serving.Load(); pair != nil {
		return pair, nil
	}
	return nil, errors.New("there is no certificate yet")
}
