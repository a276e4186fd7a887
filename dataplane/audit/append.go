package audit

// Append appends the record as one line of a format, newline included. Unlike a
// Writer it collects nothing: a record read with [Parse] comes out as it went in.
func (r *Record) Append(b []byte, f Format) ([]byte, error) {
	switch f {
	case AntreaV1:
		return r.appendAntrea(b, false), nil
	case AntreaV2:
		return r.appendAntrea(b, true), nil
	}
	return r.appendJSON(b)
}
