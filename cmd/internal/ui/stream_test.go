package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func record(seq int, kind, verdict string, count int) string {
	return fmt.Sprintf(`{"v":1,"kind":%q,"time":"2026-01-02T15:04:05Z","verdict":%q,"count":%d,"seq":%d}`, kind, verdict, count, seq)
}

// Whatever comes, what is shown and what is hidden add up, and losses and refusals come
// before what was allowed.
func TestTickCountsEveryRecord(t *testing.T) {
	var k ticker
	seen := 0
	for i := range 5000 {
		verdict := "Allow"
		if i%500 == 0 {
			verdict = "Drop"
		}
		k.add([]byte(record(i+1, "flow", verdict, 1)))
		seen++
	}
	k.add([]byte(record(5001, "lost", "", 17)))
	k.add([]byte("no record at all"))
	k.add([]byte("\n"))
	seen += 2
	tick := k.take()
	if tick.Seen != seen || tick.Shown+tick.Hidden != seen || tick.Shown != rowsPerTick || len(tick.Records) != rowsPerTick || tick.Lost != 17 {
		t.Errorf("seen %d, shown %d, hidden %d, %d records, lost %d, want %d", tick.Seen, tick.Shown, tick.Hidden, len(tick.Records), tick.Lost, seen)
	}
	if tick.Verdicts["Drop"] != 10 || tick.Verdicts["Allow"] != 4990 || tick.Verdicts["Lost"] != 1 || tick.Verdicts["?"] != 1 {
		t.Errorf("%v", tick.Verdicts)
	}
	order := ""
	for _, r := range tick.Records {
		switch text := string(r); {
		case strings.Contains(text, `"lost"`), strings.Contains(text, `"raw"`):
			order += "l"
		case strings.Contains(text, `"Drop"`):
			order += "d"
		default:
			order += "a"
		}
	}
	if want := "ll" + strings.Repeat("d", 10) + strings.Repeat("a", rowsPerTick-12); order != want {
		t.Errorf("order %s, want %s", order, want)
	}
	if again := k.take(); again.Seen != 0 || len(again.Records) != 0 {
		t.Errorf("counted twice: %+v", again)
	}
}

// At 5,000 records a second, and with a reader that is slow, the sum of all ticks is
// the number of records.
func TestStreamLosesNoCount(t *testing.T) {
	const total = 20_000
	st := &state{source: Source{Records: func(ctx context.Context, q RecordQuestion, line func([]byte) error, note func(string)) error {
		for i := range total {
			if err := line([]byte(record(i+1, "flow", "Allow", 1))); err != nil {
				return err
			}
			if i%1000 == 0 {
				time.Sleep(10 * time.Millisecond) // so that there are several ticks
			}
		}
		note("records 1 to 2 were removed")
		<-ctx.Done()
		return nil
	}}}
	srv := httptest.NewServer(http.HandlerFunc(st.stream))
	defer srv.Close()
	resp, err := http.Get(srv.URL + "/?verdict=Allow")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	in := bufio.NewScanner(resp.Body)
	in.Buffer(nil, 1<<20)
	seen, shown, hidden, notes := 0, 0, 0, 0
	for seen < total || notes == 0 {
		if !in.Scan() {
			t.Fatalf("the stream ended after %d of %d: %v", seen, total, in.Err())
		}
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok {
			continue
		}
		var k Tick
		if err := json.Unmarshal([]byte(data), &k); err != nil {
			t.Fatal(err)
		}
		seen, shown, hidden, notes = seen+k.Seen, shown+k.Shown, hidden+k.Hidden, notes+len(k.Notes)
		if len(k.Records) != k.Shown || k.Shown > rowsPerTick {
			t.Errorf("%d records, shown %d", len(k.Records), k.Shown)
		}
	}
	if seen != total || shown+hidden != total {
		t.Errorf("seen %d, shown %d, hidden %d of %d", seen, shown, hidden, total)
	}
}

func TestStreamRefusesUnknownFilters(t *testing.T) {
	st := &state{source: Source{Records: func(context.Context, RecordQuestion, func([]byte) error, func(string)) error { return nil }}}
	for _, q := range []string{"?verdict=Alow", "?pood=x", "?cidr=300.1.1.1"} {
		w := httptest.NewRecorder()
		st.stream(w, httptest.NewRequest(http.MethodGet, "/"+q, nil))
		if w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", q, w.Code, w.Body)
		}
	}
}
