package antrea

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Number is an integer that may also be written in hexadecimal, as IGMP types
// are: 17, 0x11 or "0x11". Leading zeros are refused: readers of YAML disagree on
// whether they mean octal. It is printed in decimal.
type Number int32

// UnmarshalJSON reads a number or a string with one.
func (n *Number) UnmarshalJSON(data []byte) error {
	text := string(data)
	if strings.HasPrefix(text, `"`) {
		if err := json.Unmarshal(data, &text); err != nil {
			return err
		}
	}
	digits, base := text, 10
	if rest, ok := strings.CutPrefix(strings.ToLower(text), "0x"); ok {
		digits, base = rest, 16
	}
	v, err := strconv.ParseUint(digits, base, 31)
	if err != nil || base == 10 && len(digits) > 1 && digits[0] == '0' {
		return fmt.Errorf("%q is not a number; write it in decimal, or in hexadecimal with 0x in front", text)
	}
	*n = Number(v)
	return nil
}
