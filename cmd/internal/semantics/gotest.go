package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
)

// testNumbers reads the test functions of a file. A number is shown by
//
//   - an assertion: an if statement, or a case of a switch or select, that ends in
//     t.Error, t.Fatal or the like; a call of t.Run; a call of a helper that gets
//     t, or of a function of the test that asserts
//   - a row of a table: an element of a list that a loop with an assertion goes
//     over, that an assertion compares with, or that a helper gets
//
// when the number is in a string of it, in a comment on its lines, or in the
// comment right above it. The test's own comment is prose, and so is text of
// several lines, such as a manifest.
func testNumbers(file string, src []byte) (map[string]numbers, error) {
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	out := map[string]numbers{}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || fn.Body == nil || !strings.HasPrefix(fn.Name.Name, "Test") && !strings.HasPrefix(fn.Name.Name, "Fuzz") {
			continue
		}
		first := fn.Pos()
		if fn.Doc != nil {
			first = fn.Doc.Pos()
		}
		t := &testFunc{fset: fset, vars: map[string]bool{}, asserting: map[string]bool{}, ranged: map[string]bool{}, lines: map[int]bool{}}
		t.learn(fn)
		ast.Inspect(fn.Body, t.mark)
		n := newNumbers(string(src[fset.Position(first).Offset:fset.Position(fn.End()).Offset]))
		for _, text := range t.strings(fn.Body) {
			n.show(text)
		}
		for _, c := range f.Comments {
			above := alone(src, fset.Position(c.Pos()).Offset) && t.lines[t.line(c.End())+1]
			if c.Pos() > fn.Body.Pos() && c.End() < fn.End() && (above || t.lines[t.line(c.Pos())]) {
				n.show(c.Text())
			}
		}
		out[fn.Name.Name] = n
	}
	return out, nil
}

// alone reports whether nothing is in front of a place on its line.
func alone(src []byte, offset int) bool {
	line := src[bytes.LastIndexByte(src[:offset], '\n')+1 : offset]
	return len(bytes.TrimSpace(line)) == 0
}

// testFunc is one test function.
type testFunc struct {
	fset      *token.FileSet
	vars      map[string]bool // of *testing.T and the like
	asserting map[string]bool // functions of the test that assert
	ranged    map[string]bool // lists a loop with an assertion goes over, or an assertion compares with
	lines     map[int]bool    // of cases
}

func (t *testFunc) line(p token.Pos) int { return t.fset.Position(p).Line }

// learn fills vars, asserting and ranged.
func (t *testFunc) learn(fn *ast.FuncDecl) {
	ast.Inspect(fn, func(n ast.Node) bool {
		if ft, ok := n.(*ast.FuncType); ok {
			for _, p := range ft.Params.List {
				if isTesting(p.Type) {
					for _, name := range p.Names {
						t.vars[name.Name] = true
					}
				}
			}
		}
		return true
	})
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		a, ok := n.(*ast.AssignStmt)
		if ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 {
			name, isName := a.Lhs[0].(*ast.Ident)
			if lit, ok := a.Rhs[0].(*ast.FuncLit); ok && isName && t.asserts(lit.Body) {
				t.asserting[name.Name] = true
			}
		}
		return true
	})
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.RangeStmt:
			if name, ok := n.X.(*ast.Ident); ok && t.asserts(n.Body) {
				t.ranged[name.Name] = true
			}
		case *ast.IfStmt:
			if t.asserts(n.Body) {
				t.lists(n.Cond)
			}
		case *ast.CallExpr:
			if t.isAssertion(n) {
				for _, a := range n.Args {
					if _, isFunc := a.(*ast.FuncLit); !isFunc {
						t.lists(a)
					}
				}
			}
		}
		return true
	})
}

// lists notes the names in an expression that is asserted.
func (t *testFunc) lists(e ast.Expr) {
	ast.Inspect(e, func(n ast.Node) bool {
		if name, ok := n.(*ast.Ident); ok {
			t.ranged[name.Name] = true
		}
		return true
	})
}

func isTesting(e ast.Expr) bool {
	if star, ok := e.(*ast.StarExpr); ok {
		e = star.X
	}
	sel, ok := e.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := sel.X.(*ast.Ident)
	return ok && pkg.Name == "testing"
}

// asserts reports whether the node has an assertion.
func (t *testFunc) asserts(n ast.Node) bool {
	has := false
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			has = has || t.isAssertion(call)
		}
		return !has
	})
	return has
}

// isAssertion reports whether a call fails the test, or may.
func (t *testFunc) isAssertion(call *ast.CallExpr) bool {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		if t.asserting[f.Name] {
			return true
		}
	case *ast.SelectorExpr:
		if x, ok := f.X.(*ast.Ident); ok && t.vars[x.Name] {
			switch f.Sel.Name {
			case "Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow", "Run", "Fuzz":
				return true
			}
			return false
		}
	}
	for _, a := range call.Args {
		if name, ok := a.(*ast.Ident); ok && t.vars[name.Name] {
			return true
		}
	}
	return false
}

// mark notes the lines of cases.
func (t *testFunc) mark(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ExprStmt:
		if call, ok := n.X.(*ast.CallExpr); ok && t.isAssertion(call) {
			t.add(n.Pos(), t.head(call))
		}
	case *ast.IfStmt:
		if t.asserts(n.Body) || n.Else != nil && t.asserts(n.Else) {
			t.add(n.Pos(), n.Body.Lbrace)
		}
	case *ast.CaseClause:
		if block := (&ast.BlockStmt{List: n.Body}); t.asserts(block) {
			t.add(n.Pos(), n.Colon)
		}
	case *ast.CommClause:
		if block := (&ast.BlockStmt{List: n.Body}); t.asserts(block) {
			t.add(n.Pos(), n.Colon)
		}
	case *ast.RangeStmt:
		if lit, ok := n.X.(*ast.CompositeLit); ok && t.asserts(n.Body) {
			t.rows(lit)
		}
	case *ast.AssignStmt:
		for i, l := range n.Lhs {
			if name, ok := l.(*ast.Ident); ok && t.ranged[name.Name] && i < len(n.Rhs) {
				if lit, ok := n.Rhs[i].(*ast.CompositeLit); ok {
					t.rows(lit)
				}
			}
		}
	}
	return true
}

// head is the end of a call before the functions among its arguments begin.
func (t *testFunc) head(call *ast.CallExpr) token.Pos {
	for _, a := range call.Args {
		if lit, ok := a.(*ast.FuncLit); ok {
			return lit.Body.Lbrace
		}
	}
	return call.End()
}

func (t *testFunc) rows(lit *ast.CompositeLit) {
	switch lit.Type.(type) {
	case *ast.ArrayType, *ast.MapType:
		for _, e := range lit.Elts {
			t.add(e.Pos(), e.End())
		}
	}
}

func (t *testFunc) add(first, last token.Pos) {
	for l := t.line(first); l <= t.line(last); l++ {
		t.lines[l] = true
	}
}

// strings returns the strings of one line that are in cases.
func (t *testFunc) strings(body ast.Node) []string {
	var out []string
	ast.Inspect(body, func(n ast.Node) bool {
		lit, ok := n.(*ast.BasicLit)
		if ok && lit.Kind == token.STRING && !strings.Contains(lit.Value, "\n") && t.lines[t.line(lit.Pos())] {
			out = append(out, lit.Value)
		}
		return true
	})
	return out
}
