package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/streaming/pkg/httpstream"
)

// Conn is a connection to a port of a pod.
type Conn = net.Conn

// dialTimeout bounds the way through the API server and the kubelet.
const dialTimeout = 15 * time.Second

// reach dials for an http.Transport.
type reach struct {
	dial func(context.Context) (Conn, error)
}

// context gives up on a dial with its context; a port-forward cannot be told to.
func (r *reach) context(ctx context.Context, _, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	type result struct {
		conn Conn
		err  error
	}
	done := make(chan result, 1)
	go func() {
		c, err := r.dial(ctx)
		done <- result{c, err}
	}()
	select {
	case got := <-done:
		return got.conn, got.err
	case <-ctx.Done():
		go func() { // whoever comes late is sent away
			if got := <-done; got.conn != nil {
				got.conn.Close()
			}
		}()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil, fmt.Errorf("port-forward: no connection within %s", dialTimeout)
		}
		return nil, ctx.Err()
	}
}

// dial connects to a port of a pod, through the API server: over a WebSocket, and
// where something on the way does not speak that, over SPDY.
func (c *Cluster) dial(_ context.Context, namespace, pod string, port int) (Conn, error) {
	u := c.Client.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(c.Config)
	if err != nil {
		return nil, fmt.Errorf("port-forward: %w", err)
	}
	old := spdy.NewDialerForStreaming(upgrader, &http.Client{Transport: transport}, http.MethodPost, u)
	websocket, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, c.Config)
	if err != nil {
		return nil, fmt.Errorf("port-forward: %w", err)
	}
	both := portforward.NewFallbackDialerForStreaming(websocket, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	})
	streams, _, err := both.Dial(portforward.PortForwardProtocolV1Name)
	if err != nil {
		return nil, fmt.Errorf("port-forward to pod %s/%s: %w", namespace, pod, err)
	}
	conn, err := open(streams, port)
	if err != nil {
		streams.Close()
		return nil, fmt.Errorf("port-forward to pod %s/%s: %w", namespace, pod, err)
	}
	conn.remote = address(fmt.Sprintf("%s/%s:%d", namespace, pod, port))
	return conn, nil
}

// open makes one connection of a pair of streams: data, and what went wrong.
func open(streams httpstream.Connection, port int) (*forwarded, error) {
	h := http.Header{}
	h.Set(corev1.StreamType, corev1.StreamTypeError)
	h.Set(corev1.PortHeader, strconv.Itoa(port))
	h.Set(corev1.PortForwardRequestIDHeader, "0")
	trouble, err := streams.CreateStream(h)
	if err != nil {
		return nil, err
	}
	trouble.Close() // our half: nothing is written to it
	h.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := streams.CreateStream(h)
	if err != nil {
		return nil, err
	}
	c := &forwarded{streams: streams, data: data, said: make(chan error, 1)}
	go func() {
		text, err := io.ReadAll(io.LimitReader(trouble, 4096))
		switch {
		case len(text) > 0:
			c.said <- errors.New(string(text))
		case err != nil:
			c.said <- err
		}
		close(c.said)
	}()
	return c, nil
}

// forwarded is a connection made of streams. Deadlines have no effect: requests
// end by their context, which closes the connection.
type forwarded struct {
	streams httpstream.Connection
	data    httpstream.Stream
	said    chan error // at most one, then closed
	remote  address
	once    sync.Once
}

func (c *forwarded) Read(p []byte) (int, error) {
	n, err := c.data.Read(p)
	if err == nil || n > 0 {
		return n, nil
	}
	// The kubelet says on the other stream why there is no data: "connection
	// refused", for one. It may take a moment longer than the end of this one.
	select {
	case why, ok := <-c.said:
		if ok && why != nil {
			return 0, fmt.Errorf("port-forward: %w", why)
		}
	case <-time.After(time.Second):
	}
	return 0, err
}

func (c *forwarded) Write(p []byte) (int, error) { return c.data.Write(p) }

func (c *forwarded) Close() error {
	var err error
	c.once.Do(func() {
		_ = c.data.Reset() // what was not read is in the way of the other stream
		err = c.streams.Close()
	})
	return err
}

func (c *forwarded) LocalAddr() net.Addr  { return address("port-forward") }
func (c *forwarded) RemoteAddr() net.Addr { return c.remote }

func (c *forwarded) SetDeadline(time.Time) error      { return nil }
func (c *forwarded) SetReadDeadline(time.Time) error  { return nil }
func (c *forwarded) SetWriteDeadline(time.Time) error { return nil }

// address is a net.Addr in words.
type address string

func (address) Network() string  { return "port-forward" }
func (a address) String() string { return string(a) }
