// Prints the blocks of a Terraform file as JSON, their expressions evaluated by the parser of Terraform's own language.
//
//	terraform main.tf NAME=VALUE…     values of variables
//
// Known beside variables: path.module, file and yamlencode. What another function would give is an error.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	ctyyaml "github.com/zclconf/go-cty-yaml"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
	ctyjson "github.com/zclconf/go-cty/cty/json"
)

type block struct {
	Type       string                     `json:"type"`
	Labels     []string                   `json:"labels"`
	Attributes map[string]json.RawMessage `json:"attributes"`
	Blocks     []block                    `json:"blocks"`
}

var readFile = function.New(&function.Spec{
	Params: []function.Parameter{{Name: "path", Type: cty.String}},
	Type:   function.StaticReturnType(cty.String),
	Impl: func(arguments []cty.Value, _ cty.Type) (cty.Value, error) {
		text, err := os.ReadFile(arguments[0].AsString())
		return cty.StringVal(string(text)), err
	},
})

func main() {
	blocks, err := read(os.Args[1], os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	json.NewEncoder(os.Stdout).Encode(blocks)
}

func read(path string, variables []string) ([]block, error) {
	file, problems := hclparse.NewParser().ParseHCLFile(path)
	if problems.HasErrors() {
		return nil, problems
	}
	values := map[string]cty.Value{}
	for _, variable := range variables {
		name, value, _ := strings.Cut(variable, "=")
		values[name] = cty.StringVal(value)
	}
	scope := &hcl.EvalContext{
		Variables: map[string]cty.Value{
			"var":  cty.ObjectVal(values),
			"path": cty.ObjectVal(map[string]cty.Value{"module": cty.StringVal(filepath.Dir(path))}),
		},
		Functions: map[string]function.Function{"file": readFile, "yamlencode": ctyyaml.YAMLEncodeFunc},
	}
	return blocksOf(file.Body.(*hclsyntax.Body), scope)
}

func blocksOf(body *hclsyntax.Body, scope *hcl.EvalContext) ([]block, error) {
	blocks := []block{}
	for _, source := range body.Blocks {
		attributes := map[string]json.RawMessage{}
		for name, attribute := range source.Body.Attributes {
			// The type of a variable is a word of its own language.
			if source.Type == "variable" && name == "type" {
				continue
			}
			value, problems := attribute.Expr.Value(scope)
			if problems.HasErrors() {
				return nil, problems
			}
			text, err := ctyjson.Marshal(value, value.Type())
			if err != nil {
				return nil, err
			}
			attributes[name] = text
		}
		inner, err := blocksOf(source.Body, scope)
		if err != nil {
			return nil, err
		}
		blocks = append(blocks, block{source.Type, source.Labels, attributes, inner})
	}
	return blocks, nil
}
