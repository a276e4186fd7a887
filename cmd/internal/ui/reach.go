package ui

import (
	"fmt"
	"net/http"
	"net/url"

	"github.com/tierwall/tierwall/cmd/internal/query"
)

// Group is a row or a column of the heat map.
type Group struct {
	Name string `json:"name"` // "namespace", or "namespace/workload"
	Pods int    `json:"pods"`
}

// fewPods is how many pods are shown by workload from the start.
const fewPods = 60

func (s *state) groups(_ *http.Request, q url.Values) (any, error) {
	c, err := s.asked(url.Values{})
	if err != nil {
		return nil, err
	}
	out := struct {
		By     string  `json:"by"` // "namespace" or "workload"
		Groups []Group `json:"groups"`
	}{By: "workload", Groups: []Group{}}
	add := func(list []*query.Pods) {
		for _, p := range list {
			out.Groups = append(out.Groups, Group{p.Name, p.Count})
		}
	}
	namespaces := q["namespace"]
	switch {
	case len(namespaces) == 0 && len(c.in.Table.World().Endpoints) > fewPods:
		out.By = "namespace"
		add(c.groups.Namespaces())
	case len(namespaces) == 0:
		for _, ns := range c.groups.Namespaces() {
			add(c.groups.Workloads(ns.Name))
		}
	default:
		for _, ns := range namespaces {
			if _, err := c.groups.Group(ns); err != nil {
				return nil, err
			}
			add(c.groups.Workloads(ns))
		}
	}
	return out, nil
}

// maxCells bounds the cells of one answer: the page asks for what it shows.
const maxCells = 4096

// reach counts what is allowed between groups. It ends with the request: who scrolls
// on does not wait for what is out of sight.
func (s *state) reach(r *http.Request, q url.Values) (any, error) {
	c, err := s.asked(q)
	if err != nil {
		return nil, err
	}
	p, err := portOf(c, q)
	if err != nil {
		return nil, err
	}
	if len(q["row"])*len(q["col"]) > maxCells {
		return nil, fmt.Errorf("%d cells are asked for: want %d at most", len(q["row"])*len(q["col"]), maxCells)
	}
	rows := make([][]query.Tally, len(q["row"]))
	for i, row := range q["row"] {
		from, err := c.groups.Group(row)
		if err != nil {
			return nil, err
		}
		rows[i] = make([]query.Tally, len(q["col"]))
		for j, col := range q["col"] {
			to, err := c.groups.Group(col)
			if err != nil {
				return nil, err
			}
			if err := r.Context().Err(); err != nil {
				return nil, err
			}
			rows[i][j] = c.groups.Reach(from, to, p)
		}
	}
	return map[string]any{"rows": rows}, nil
}

func portOf(c compiled, q url.Values) (query.Port, error) {
	p, err := query.ParsePort(q.Get("port"))
	if err != nil {
		return p, err
	}
	return p, query.CheckPort(c.in.Table.World().Endpoints, p)
}

// maxDecisions bounds what is listed of one cell.
const maxDecisions = 100

func (s *state) cell(_ *http.Request, q url.Values) (any, error) {
	c, err := s.asked(q)
	if err != nil {
		return nil, err
	}
	p, err := portOf(c, q)
	if err != nil {
		return nil, err
	}
	from, err := c.groups.Group(q.Get("row"))
	if err != nil {
		return nil, err
	}
	to, err := c.groups.Group(q.Get("col"))
	if err != nil {
		return nil, err
	}
	list := c.groups.Decisions(from, to, p)
	return map[string]any{"decisions": list[:min(len(list), maxDecisions)], "total": len(list)}, nil
}
