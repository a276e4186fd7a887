package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// stream sends records as JSON lines to whoever connects to a local socket, from
// that moment on. Nobody waits for a reader: one that does not keep up is
// disconnected, and can tell so by the end of file. Nothing is resent; whoever
// needs every record reads the file.
type stream struct {
	path     string
	listener *net.UnixListener
	log      *slog.Logger
	stamps   stamps
	buf      []byte // the writer's: lines not yet passed on
	active   atomic.Int32
	dropped  atomic.Uint64
	wg       sync.WaitGroup

	mu      sync.Mutex
	readers map[*streamReader]struct{}
	closed  bool
}

type streamReader struct {
	conn  net.Conn
	queue chan []byte // shared, read only
}

const (
	// streamQueue is how many writes of lines a reader may be behind: at least
	// as many milliseconds at low rates, some megabytes at high ones.
	streamQueue   = 256
	maxReaders    = 32
	streamTimeout = 5 * time.Second
)

// newStream listens on path, which a socket of an earlier run may still occupy.
func newStream(path string, log *slog.Logger) (*stream, error) {
	if st, err := os.Lstat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
		if c, err := net.Dial("unix", path); err == nil {
			c.Close()
			return nil, fmt.Errorf("audit: stream: somebody listens on %s", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("audit: stream: %w", err)
		}
	}
	// Bound under another name and moved once its mode is right: at no moment
	// may somebody connect whom the mode keeps out.
	tmp := path + ".new"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("audit: stream: %w", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: tmp, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("audit: stream: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(tmp, 0o600), os.Rename(tmp, path)); err != nil {
		l.Close()
		return nil, fmt.Errorf("audit: stream: %w", err)
	}
	s := &stream{path: path, listener: l, log: log, readers: map[*streamReader]struct{}{}}
	s.wg.Go(s.accept)
	return s, nil
}

func (s *stream) accept() {
	for {
		c, err := s.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			s.log.Warn("audit stream does not accept", "error", err)
			time.Sleep(100 * time.Millisecond) // out of descriptors: do not spin
			continue
		}
		r := &streamReader{conn: c, queue: make(chan []byte, streamQueue)}
		s.mu.Lock()
		if s.closed || len(s.readers) >= maxReaders {
			s.mu.Unlock()
			c.Close()
			continue
		}
		s.readers[r] = struct{}{}
		s.active.Store(int32(len(s.readers)))
		s.mu.Unlock()
		s.wg.Go(func() { s.serve(r) })
		s.wg.Go(func() { s.watch(r) })
	}
}

// serve writes to a reader until its queue is closed or it fails.
func (s *stream) serve(r *streamReader) {
	defer r.conn.Close()
	for b := range r.queue {
		_ = r.conn.SetWriteDeadline(time.Now().Add(streamTimeout)) // fails on a closed connection, as Write will
		if _, err := r.conn.Write(b); err != nil {
			slow := errors.Is(err, os.ErrDeadlineExceeded)
			if !slow && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, net.ErrClosed) {
				s.log.Debug("audit stream reader failed", "error", err)
			}
			s.remove(r, slow)
			return
		}
	}
}

// watch notices that a reader hangs up although there is nothing to write.
func (s *stream) watch(r *streamReader) {
	var b [64]byte
	for {
		if _, err := r.conn.Read(b[:]); err != nil {
			s.remove(r, false)
			return
		}
	}
}

func (s *stream) remove(r *streamReader, slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removeLocked(r, slow)
}

func (s *stream) removeLocked(r *streamReader, slow bool) {
	if _, ok := s.readers[r]; !ok {
		return
	}
	delete(s.readers, r)
	s.active.Store(int32(len(s.readers)))
	close(r.queue)
	if slow {
		s.dropped.Add(1)
		r.conn.Close() // also ends a Write that waits
	}
}

// put adds a line, if anybody listens.
func (s *stream) put(en *entry, f *facts) {
	if s.active.Load() == 0 {
		return
	}
	s.buf = en.appendJSON(s.buf, f, numbering{}, &s.stamps)
	if len(s.buf) >= flushAt {
		s.flush()
	}
}

// flush passes the lines on to every reader that has room for them.
func (s *stream) flush() {
	if len(s.buf) == 0 {
		return
	}
	b := append([]byte(nil), s.buf...) // the readers' from here on
	s.buf = s.buf[:0]
	s.mu.Lock()
	defer s.mu.Unlock()
	for r := range s.readers {
		select {
		case r.queue <- b:
		default:
			s.removeLocked(r, true)
		}
	}
}

// close ends the stream: readers get what is queued for them, for a while.
func (s *stream) close() error {
	s.flush()
	err := s.listener.Close()
	s.mu.Lock()
	s.closed = true
	for r := range s.readers {
		delete(s.readers, r)
		close(r.queue)
	}
	s.active.Store(0)
	s.mu.Unlock()
	s.wg.Wait()
	if rerr := os.Remove(s.path); rerr != nil && !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}
