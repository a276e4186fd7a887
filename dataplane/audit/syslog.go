package audit

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// Syslog per RFC 5424: one message per record, the record as JSON.
//
//	<109>1 2026-01-02T03:04:05.000006Z node-1 tierwall 4711 flow - {"v":1,…}
//
// Facility 13 is "log audit". The severity tells what to look at: errors are
// gaps in the log, warnings are denials, notices would be denials, the rest is
// informational. MSGID is the record's kind.
const (
	syslogFacility = 13
	syslogError    = 3
	syslogWarning  = 4
	syslogNotice   = 5
	syslogInfo     = 6
)

// sendTimeout bounds a send to a receiver that does not take anything.
const sendTimeout = time.Second

// SyslogTarget is where a syslog receiver listens.
type SyslogTarget struct {
	Network string // unixgram, udp or tcp
	Address string
}

// ParseSyslog reads "unix:///dev/log", "udp://host:514" or "tcp://host:601".
// Over TCP messages are framed by octet counts (RFC 6587 §3.4.1).
func ParseSyslog(s string) (SyslogTarget, error) {
	u, err := url.Parse(s)
	if err != nil {
		return SyslogTarget{}, fmt.Errorf("syslog target: %w", err)
	}
	switch {
	case u.Scheme == "unix" && u.Host == "" && strings.HasPrefix(u.Path, "/"):
		return SyslogTarget{"unixgram", u.Path}, nil
	case (u.Scheme == "udp" || u.Scheme == "tcp") && u.Port() != "" && u.Hostname() != "" && (u.Path == "" || u.Path == "/"):
		return SyslogTarget{u.Scheme, u.Host}, nil
	}
	return SyslogTarget{}, fmt.Errorf("syslog target %q: want unix:///dev/log, udp://HOST:514 or tcp://HOST:601", s)
}

func severity(r *Record) int {
	switch {
	case r.Kind == KindLost:
		return syslogError
	case r.Kind == KindPacket || r.Verdict == Drop || r.Verdict == Reject:
		return syslogWarning
	case r.Verdict == WouldDrop || r.Verdict == WouldReject:
		return syslogNotice
	}
	return syslogInfo
}

// headerWord makes s a field of a syslog header: printable ASCII without blanks,
// or "-".
func headerWord(s string, limit int) string {
	clean := strings.Map(func(c rune) rune {
		if c <= ' ' || c > '~' {
			return -1
		}
		return c
	}, s)
	if clean == "" {
		return "-"
	}
	return clean[:min(len(clean), limit)]
}

// syslogLine returns the line function of a syslog feed.
func syslogLine(node string, counted bool, s *stamps) func(b []byte, en *entry, f *facts) []byte {
	host := headerWord(node, 255)
	pid := strconv.Itoa(os.Getpid())
	var msg []byte
	return func(b []byte, en *entry, f *facts) []byte {
		m := append(msg[:0], '<')
		m = strconv.AppendInt(m, int64(syslogFacility*8+severity(&en.proto)), 10)
		m = append(m, ">1 "...)
		// TIME-SECFRAC has at most six digits (RFC 5424 §6).
		stamp := f.time
		if f.until != 0 {
			stamp = f.until
		}
		start := len(m)
		m = s.append(m, stamp/1000*1000)
		m = append(m[:start], m[start+1:len(m)-1]...) // without quotes
		m = append(append(m, ' '), host...)
		m = append(m, " tierwall "...)
		m = append(append(m, pid...), ' ')
		m = append(append(m, en.proto.Kind...), " - "...)
		m = en.appendJSON(m, f, numbering{}, s)
		m = m[:len(m)-1] // the newline
		msg = m
		if counted {
			b = append(strconv.AppendInt(b, int64(len(m)), 10), ' ')
		}
		return append(b, m...)
	}
}

// newSyslog returns a feed to a receiver, which need not be there yet.
func newSyslog(t SyslogTarget, cfg *Config, d *feed) {
	d.line = syslogLine(cfg.Node, t.Network == "tcp", &d.stamps)
	var conn net.Conn
	var notBefore time.Time
	d.close = func() error {
		if conn == nil {
			return nil
		}
		return conn.Close()
	}
	d.send = func(p *parcel) (sent int, err error) {
		if conn == nil {
			if time.Now().Before(notBefore) {
				return 0, errors.New("receiver is away")
			}
			if conn, err = net.DialTimeout(t.Network, t.Address, sendTimeout); err != nil {
				conn, notBefore = nil, time.Now().Add(time.Duration(retryEvery))
				return 0, err
			}
		}
		start := 0
		for _, m := range p.marks {
			_ = conn.SetWriteDeadline(time.Now().Add(sendTimeout)) // fails on a closed connection, as Write will
			if _, err = conn.Write(p.buf[start:m.end]); err != nil {
				// A stream that stopped inside a message cannot be gone on with.
				conn.Close()
				conn, notBefore = nil, time.Now().Add(time.Duration(retryEvery))
				return sent, err
			}
			sent, start = sent+1, m.end
		}
		return sent, nil
	}
}

// newStdout returns a feed of lines to a writer that is not ours to close.
func newStdout(w io.Writer, f Format, d *feed) {
	d.line = func(b []byte, en *entry, x *facts) []byte {
		if f == JSON {
			return en.appendJSON(b, x, numbering{}, &d.stamps)
		}
		r := en.record(x, numbering{})
		return r.appendAntrea(b, f == AntreaV2)
	}
	d.close = func() error { return nil }
	torn := false
	d.send = func(p *parcel) (sent int, err error) {
		if torn {
			if _, err := w.Write([]byte{'\n'}); err != nil {
				return 0, err
			}
			torn = false
		}
		n, err := w.Write(p.buf)
		for _, m := range p.marks {
			if m.end <= n {
				sent++
			}
		}
		if n > 0 && n < len(p.buf) {
			torn = p.buf[n-1] != '\n'
		}
		return sent, err
	}
}
