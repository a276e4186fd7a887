package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
)

// docs has the documentation of types and fields: "pkg.Type" and
// "pkg.Type.Field", pkg being the last element of the import path.
type docs map[string]string

// readDocs reads the packages in folders dirs below root.
func readDocs(root string, dirs ...string) (docs, error) {
	d := docs{}
	for _, dir := range dirs {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			return nil, fmt.Errorf("read the documentation of %s: %w", dir, err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
			if err != nil {
				return nil, fmt.Errorf("read the documentation of %s: %w", dir, err)
			}
			for _, node := range f.Decls {
				decl, ok := node.(*ast.GenDecl)
				if !ok || decl.Tok != token.TYPE {
					continue
				}
				for _, spec := range decl.Specs {
					d.addType(f.Name.Name, decl, spec.(*ast.TypeSpec))
				}
			}
		}
	}
	return d, nil
}

func (d docs) addType(pkg string, decl *ast.GenDecl, spec *ast.TypeSpec) {
	key := pkg + "." + spec.Name.Name
	d[key] = sentence(decl.Doc.Text())
	st, ok := spec.Type.(*ast.StructType)
	if !ok {
		return
	}
	for _, f := range st.Fields.List {
		text := f.Doc.Text()
		if text == "" {
			text = f.Comment.Text()
		}
		for _, n := range f.Names {
			d[key+"."+n.Name] = sentence(text)
		}
	}
}

// numbers are references to the meaning's documents, which readers of kubectl
// explain do not have.
var numbers = regexp.MustCompile(`\s*\([SX]\d*-\d+[^)]*\)`)

var brackets = regexp.MustCompile(`\[([\w.]+)\]`)

func sentence(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	return brackets.ReplaceAllString(numbers.ReplaceAllString(s, ""), "$1")
}

// ofType and ofField look a description up. Types of Kubernetes carry theirs in a
// method, by JSON name, with the type's own under "".
// No docs at all say nothing at all.
func (d docs) ofType(t reflect.Type) string {
	if d == nil {
		return ""
	}
	if s, ok := swagger(t)[""]; ok {
		return s
	}
	return d[typeKey(t)]
}

func (d docs) ofField(t reflect.Type, f reflect.StructField, name string) string {
	if d == nil || t == selectorType || t == requirementType { // everybody knows those, and there are dozens
		return ""
	}
	if s, ok := swagger(t)[name]; ok {
		return s
	}
	return d[typeKey(t)+"."+f.Name]
}

func swagger(t reflect.Type) map[string]string {
	if s, ok := reflect.Zero(t).Interface().(interface{ SwaggerDoc() map[string]string }); ok {
		return s.SwaggerDoc()
	}
	return nil
}

// typeKey names a type without the arguments of a generic one.
func typeKey(t reflect.Type) string {
	name, _, _ := strings.Cut(t.Name(), "[")
	return t.PkgPath()[strings.LastIndexByte(t.PkgPath(), '/')+1:] + "." + name
}
