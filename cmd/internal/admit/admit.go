// Package admit is how the CNI plugin tierwall-cni tells the daemon of its node about a
// pod's addresses before the pod's containers run: one JSON document there and one back,
// over a Unix socket that only root may use.
package admit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Request is about the network of one pod's sandbox. Without Addresses it is gone.
type Request struct {
	Namespace string       `json:"namespace"`
	Name      string       `json:"name"`
	Sandbox   string       `json:"sandbox"` // CNI_CONTAINERID
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// Reply says why the request failed; "" when policy is in force for the addresses.
type Reply struct {
	Error string `json:"error,omitempty"`
}

const (
	maxRequest = 64 << 10
	// patience bounds a request whose sender has gone away.
	patience = 30 * time.Second
)

// Ask sends a request and waits for the reply until ctx ends.
func Ask(ctx context.Context, socket string, r Request) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("reach the daemon: %w", err)
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		return fmt.Errorf("ask the daemon: %w", err)
	}
	var reply Reply
	if err := json.NewDecoder(io.LimitReader(conn, maxRequest)).Decode(&reply); err != nil {
		return fmt.Errorf("hear from the daemon: %w", err)
	}
	if reply.Error != "" {
		return errors.New(reply.Error)
	}
	return nil
}

// Listen makes the socket, for root alone. One that an earlier run left is replaced.
func Listen(socket string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		return nil, err
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(socket, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Serve answers requests until ctx ends. handle returns when policy is in force for the
// pod, or ctx ends.
func Serve(ctx context.Context, l net.Listener, log *slog.Logger, handle func(context.Context, Request) error) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := l.Accept()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			log.Error("socket for the CNI plugin failed", "error", err)
			time.Sleep(100 * time.Millisecond)
			continue
		}
		wg.Go(func() {
			defer conn.Close()
			ctx, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			if err := serve(ctx, conn, handle); err != nil {
				log.Warn("request of the CNI plugin failed", "error", err)
			}
		})
	}
}

func serve(ctx context.Context, conn net.Conn, handle func(context.Context, Request) error) error {
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var r Request
	d := json.NewDecoder(io.LimitReader(conn, maxRequest))
	d.DisallowUnknownFields()
	err := d.Decode(&r)
	if err == nil && (r.Namespace == "" || r.Name == "") {
		err = errors.New("namespace and name: want those of a pod")
	}
	if err == nil {
		err = handle(ctx, r)
	}
	var reply Reply
	if err != nil {
		reply.Error = err.Error()
		err = fmt.Errorf("pod %s/%s: %w", r.Namespace, r.Name, err)
	}
	return errors.Join(err, json.NewEncoder(conn).Encode(reply))
}
