package diag

import (
	"fmt"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Escape makes s one line that a terminal shows and does not obey: names of rules,
// values of annotations and the like are whatever their authors wrote. What is not
// printable (control characters, line ends, directional marks, blanks other than
// the ordinary one) becomes an escape of JSON, such as \n or \u001b; what is not
// UTF-8 becomes \ufffd.
func Escape(s string) string {
	for i := range len(s) {
		if s[i] < ' ' || s[i] > '~' {
			return escape(s, i)
		}
	}
	return s
}

func escape(s string, from int) string {
	b := append(make([]byte, 0, len(s)+16), s[:from]...)
	for i := from; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		if unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			b = append(b, s[i:i+size]...)
		} else {
			b = AppendEscape(b, r)
		}
		i += size
	}
	return string(b)
}

// AppendEscape appends a character as Escape writes those that are not printable.
func AppendEscape(b []byte, r rune) []byte {
	switch r {
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	case '\t':
		return append(b, `\t`...)
	}
	if r1, r2 := utf16.EncodeRune(r); r1 != unicode.ReplacementChar {
		return fmt.Appendf(b, `\u%04x\u%04x`, r1, r2)
	}
	return fmt.Appendf(b, `\u%04x`, r)
}
