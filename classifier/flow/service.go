package flow

import "fmt"

// Service is where a connection was opened to before the node's Service proxy
// chose a backend: the destination of the original tuple. The protocol is the
// connection's own. The zero value says that nothing was translated, or that
// nobody knows of it. Comparable; usable as a map key.
type Service struct {
	Addr Addr
	Port uint16 // host order
}

// IsZero reports whether s names no Service.
func (s Service) IsZero() bool { return s == Service{} }

// String is "10.96.0.10:80", "" for the zero value.
func (s Service) String() string {
	if s.IsZero() {
		return ""
	}
	a := s.Addr.Netip()
	if a.Is6() {
		return fmt.Sprintf("[%s]:%d", a, s.Port)
	}
	return fmt.Sprintf("%s:%d", a, s.Port)
}
