// Finds the health of an object as Flux (kstatus) and Argo CD (its Lua health check) do.
//
//	health kstatus < object.json
//	health lua SCRIPT < object.json
package main

import (
	"fmt"
	"io"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

func main() {
	var object unstructured.Unstructured
	text, err := io.ReadAll(os.Stdin)
	if err != nil {
		fail(err)
	}
	if err := object.UnmarshalJSON(text); err != nil {
		fail(err)
	}
	if os.Args[1] == "kstatus" {
		found, err := status.Compute(&object)
		if err != nil {
			fail(err)
		}
		fmt.Println(found.Status)
		return
	}
	state := lua.NewState()
	defer state.Close()
	state.SetGlobal("obj", value(state, object.Object))
	if err := state.DoFile(os.Args[2]); err != nil {
		fail(err)
	}
	health := state.Get(-1).(*lua.LTable)
	fmt.Println(health.RawGetString("status"))
}

// value turns JSON into Lua as Argo CD does.
func value(state *lua.LState, found any) lua.LValue {
	switch typed := found.(type) {
	case bool:
		return lua.LBool(typed)
	case float64:
		return lua.LNumber(typed)
	case int64:
		return lua.LNumber(typed)
	case string:
		return lua.LString(typed)
	case []any:
		list := state.CreateTable(len(typed), 0)
		for _, item := range typed {
			list.Append(value(state, item))
		}
		return list
	case map[string]any:
		table := state.CreateTable(0, len(typed))
		for key, item := range typed {
			table.RawSetString(key, value(state, item))
		}
		return table
	}
	return lua.LNil
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}
