package audit

import (
	"encoding/json"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// The encoder writes what encoding/json would write for a Record, without
// escaping HTML, byte for byte, but for characters that are not printable: each is
// an escape, so that no reader of a line obeys what somebody wrote into a name. A
// fuzz target holds it to that. It exists for
// its speed: reflection costs several microseconds a record, which is the whole
// budget of a core at 200,000 records a second.

// appendJSON appends the record as one line. It fails for what JSON cannot say:
// a time beyond year 9999, a priority that is not a number.
func (r *Record) appendJSON(b []byte) ([]byte, error) {
	if p := r.Priority; p != nil && (math.IsNaN(*p) || math.IsInf(*p, 0)) {
		_, err := json.Marshal(*p)
		return b, err
	}
	start := len(b)
	b = append(b, `{"v":`...)
	b = strconv.AppendInt(b, int64(r.V), 10)
	b = append(b, `,"kind":`...)
	b = appendString(b, r.Kind)
	b = append(b, `,"time":`...)
	b, err := appendTime(b, r.Time)
	if err == nil && r.Until != nil {
		b = append(b, `,"until":`...)
		b, err = appendTime(b, *r.Until)
	}
	if err != nil {
		return b[:start], err
	}
	b = r.appendHead(b)
	if r.Source != nil {
		b = appendEndpoint(append(b, `,"source":{`...), r.Source)
	}
	if r.Destination != nil {
		b = appendEndpoint(append(b, `,"destination":{`...), r.Destination)
	}
	b = optString(b, `,"protocol":`, r.Protocol)
	if r.ICMPType != nil {
		b = optUint(b, `,"icmpType":`, uint64(*r.ICMPType), true)
	}
	if r.ICMPCode != nil {
		b = optUint(b, `,"icmpCode":`, uint64(*r.ICMPCode), true)
	}
	if r.Ports != nil {
		b = appendPorts(b, *r.Ports)
	}
	b = optString(b, `,"tcpFlags":`, r.TCPFlags)
	b = optUint(b, `,"length":`, uint64(r.Length), false)
	b = optString(b, `,"interface":`, r.Interface)
	b = optString(b, `,"backend":`, r.Backend)
	b = optUint(b, `,"tableGeneration":`, r.TableGeneration, false)
	b = optString(b, `,"connection":`, r.Connection)
	b = optUint(b, `,"count":`, r.Count, true)
	b = optUint(b, `,"seq":`, r.Seq, false)
	b = optUint(b, `,"events":`, r.Events, false)
	b = optString(b, `,"prev":`, r.Prev)
	return append(b, '}', '\n'), nil
}

// appendHead appends the fields from node to reason: those that depend on the
// decision and not on the packet.
func (r *Record) appendHead(b []byte) []byte {
	b = optString(b, `,"node":`, r.Node)
	b = optString(b, `,"verdict":`, r.Verdict)
	b = optString(b, `,"stage":`, r.Stage)
	b = optString(b, `,"direction":`, r.Direction)
	b = optString(b, `,"band":`, r.Band)
	if r.Tier != 0 {
		b = append(b, `,"tier":`...)
		b = strconv.AppendInt(b, int64(r.Tier), 10)
	}
	if r.Priority != nil {
		b = append(b, `,"priority":`...)
		b = appendFloat(b, *r.Priority)
	}
	if r.Policy != nil {
		b = append(b, `,"policy":`...)
		b = appendPolicy(b, r.Policy)
	}
	if r.Rule != nil {
		b = append(b, `,"rule":{`...)
		if r.Rule.Name != "" {
			b = append(b, `"name":`...)
			b = append(appendString(b, r.Rule.Name), ',')
		}
		b = append(b, `"index":`...)
		b = strconv.AppendInt(b, int64(r.Rule.Index), 10)
		b = optString(b, `,"action":`, r.Rule.Action)
		b = append(b, '}')
	}
	b = optString(b, `,"label":`, r.Label)
	if len(r.Isolations) > 0 {
		b = append(b, `,"isolations":[`...)
		for i := range r.Isolations {
			if i > 0 {
				b = append(b, ',')
			}
			b = appendPolicy(b, &r.Isolations[i])
		}
		b = append(b, ']')
	}
	b = optString(b, `,"reason":`, r.Reason)
	return optString(b, `,"service":`, r.Service)
}

func appendPolicy(b []byte, p *Policy) []byte {
	b = append(b, '{')
	if p.Group != "" {
		b = append(b, `"group":`...)
		b = append(appendString(b, p.Group), ',')
	}
	b = append(b, `"kind":`...)
	b = appendString(b, p.Kind)
	b = optString(b, `,"namespace":`, p.Namespace)
	b = append(b, `,"name":`...)
	b = appendString(b, p.Name)
	if p.Generation != 0 {
		b = append(b, `,"generation":`...)
		b = strconv.AppendInt(b, p.Generation, 10)
	}
	return append(b, '}')
}

// appendEndpoint appends what follows the opening brace, the closing one included.
func appendEndpoint(b []byte, e *Endpoint) []byte {
	b = append(b, `"ip":`...)
	b = appendIP(b, e.IP)
	b = optUint(b, `,"port":`, uint64(e.Port), false)
	return append(e.appendNames(b), '}')
}

func appendIP(b []byte, ip netip.Addr) []byte {
	switch {
	case ip.Zone() != "": // any text
		return appendString(b, ip.String())
	case !ip.IsValid():
		return append(b, '"', '"')
	}
	b = append(b, '"')
	return append(ip.AppendTo(b), '"')
}

// appendNames appends the fields of an endpoint that depend on its address alone.
func (e *Endpoint) appendNames(b []byte) []byte {
	b = optString(b, `,"namespace":`, e.Namespace)
	b = optString(b, `,"pod":`, e.Pod)
	b = optString(b, `,"node":`, e.Node)
	if e.Service {
		b = append(b, `,"service":true`...)
	}
	if len(e.Labels) > 0 {
		keys := make([]string, 0, len(e.Labels))
		for k := range e.Labels {
			keys = append(keys, k)
		}
		slices.Sort(keys)
		b = append(b, `,"labels":{`...)
		for i, k := range keys {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, k), ':')
			b = appendString(b, e.Labels[k])
		}
		b = append(b, '}')
	}
	return b
}

func appendPorts(b []byte, p Ports) []byte {
	b = append(b, `,"ports":{"first":`...)
	b = strconv.AppendUint(b, uint64(p.First), 10)
	b = append(b, `,"last":`...)
	b = strconv.AppendUint(b, uint64(p.Last), 10)
	return append(b, '}')
}

func optString(b []byte, name, s string) []byte {
	if s == "" {
		return b
	}
	return appendString(append(b, name...), s)
}

func optUint(b []byte, name string, n uint64, always bool) []byte {
	if n == 0 && !always {
		return b
	}
	return strconv.AppendUint(append(b, name...), n, 10)
}

// plain says which bytes stand for themselves in a JSON string.
var plain = func() (t [256]bool) {
	for c := 0x20; c < 0x7f; c++ {
		t[c] = c != '"' && c != '\\'
	}
	return t
}()

const hexDigits = "0123456789abcdef"

// appendString appends s quoted. What is not UTF-8 becomes U+FFFD; what is not
// printable is escaped.
func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if plain[c] {
			i++
			continue
		}
		if c < utf8.RuneSelf {
			b = append(b, s[start:i]...)
			switch c {
			case '"', '\\':
				b = append(b, '\\', c)
			case '\b':
				b = append(b, '\\', 'b')
			case '\f':
				b = append(b, '\\', 'f')
			case '\n':
				b = append(b, '\\', 'n')
			case '\r':
				b = append(b, '\\', 'r')
			case '\t':
				b = append(b, '\\', 't')
			default:
				b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
			}
			i++
			start = i
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			b = append(append(b, s[start:i]...), `\ufffd`...)
			start = i + size
		case !unicode.IsPrint(r):
			b = append(b, s[start:i]...)
			if high, low := utf16.EncodeRune(r); high != utf8.RuneError {
				b = appendUnit(appendUnit(b, high), low)
			} else {
				b = appendUnit(b, r)
			}
			start = i + size
		}
		i += size
	}
	return append(append(b, s[start:]...), '"')
}

// appendUnit appends a UTF-16 code unit as an escape.
func appendUnit(b []byte, r rune) []byte {
	return append(b, '\\', 'u', hexDigits[r>>12&15], hexDigits[r>>8&15], hexDigits[r>>4&15], hexDigits[r&15])
}

// appendFloat appends f as encoding/json does. f is a number.
func appendFloat(b []byte, f float64) []byte {
	abs := math.Abs(f)
	if abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		text, err := json.Marshal(f)
		if err != nil {
			return append(b, '0') // NaN and infinities were refused
		}
		return append(b, text...)
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64)
}

// appendTime appends t quoted, as RFC 3339 with as many decimals as it needs.
func appendTime(b []byte, t time.Time) ([]byte, error) {
	if t.Location() != time.UTC || t.Year() < 0 || t.Year() > 9999 {
		text, err := t.MarshalJSON()
		return append(b, text...), err
	}
	b = append(b, '"')
	return append(t.AppendFormat(b, time.RFC3339Nano), '"'), nil
}

// stamps formats times given in Unix nanoseconds, remembering the last second:
// the calendar is computed once per second of log, not once per line.
type stamps struct {
	second int64
	text   []byte // "2006-01-02T15:04:05
}

// append appends the time quoted, in UTC; years beyond 9999 do not occur in
// 64-bit nanoseconds.
func (s *stamps) append(b []byte, ns int64) []byte {
	sec, frac := ns/1e9, ns%1e9
	if frac < 0 {
		sec, frac = sec-1, frac+1e9
	}
	if sec != s.second || s.text == nil {
		s.second = sec
		s.text = time.Unix(sec, 0).UTC().AppendFormat(append(s.text[:0], '"'), "2006-01-02T15:04:05")
	}
	b = append(b, s.text...)
	if frac != 0 {
		var d [10]byte
		d[0] = '.'
		for i := 9; i > 0; i-- {
			d[i] = byte('0' + frac%10)
			frac /= 10
		}
		n := 10
		for d[n-1] == '0' {
			n--
		}
		b = append(b, d[:n]...)
	}
	return append(b, 'Z', '"')
}
