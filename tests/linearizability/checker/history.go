package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"

	"github.com/anishathalye/porcupine"
)

const (
	maxLineBytes = 1 << 20
	unreturned   = math.MaxInt64 // return time of what has no outcome
)

// Line is one operation of a history. Return and Result are absent together: the outcome is unknown.
type Line struct {
	Client int       `json:"client"`
	Op     string    `json:"op"`
	Args   Arguments `json:"args"`
	Call   *int64    `json:"call"`
	Return *int64    `json:"return"`
	Result *Result   `json:"result"`
	Node   string    `json:"node,omitempty"`
}

// history is what a file holds, by volume.
type history struct {
	operations int
	unknown    int
	partitions map[string][]porcupine.Operation
}

func readHistory(path string) (history, error) {
	file, err := os.Open(path)
	if err != nil {
		return history{}, err
	}
	defer file.Close()
	found := history{partitions: map[string][]porcupine.Operation{}}
	scanner := bufio.NewScanner(file)
	scanner.Buffer(make([]byte, 0, 64*1024), maxLineBytes)
	var lines []Line
	for number := 1; scanner.Scan(); number++ {
		line, err := parse(scanner.Bytes())
		if err != nil {
			return history{}, fmt.Errorf("%s:%d: %w", path, number, err)
		}
		lines = append(lines, line)
	}
	if err := scanner.Err(); err != nil {
		return history{}, fmt.Errorf("%s: %w", path, err)
	}
	committed := map[int64]bool{}
	for _, line := range lines {
		if line.Op == "commit_key" || line.Op == "commit_reserved" {
			committed[line.Args.Session] = true
		}
	}
	for _, line := range lines {
		found.operations++
		if line.Result == nil {
			found.unknown++
			if harmless[line.Op] {
				continue
			}
		}
		found.partitions[line.Args.Volume] = append(found.partitions[line.Args.Volume], operation(line, committed))
	}
	return found, nil
}

func parse(text []byte) (Line, error) {
	var line Line
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&line); err != nil {
		return line, fmt.Errorf("not an operation: %w", err)
	}
	if _, known := steps[line.Op]; !known {
		return line, fmt.Errorf("unknown op %q", line.Op)
	}
	switch {
	case line.Args.Volume == "":
		return line, fmt.Errorf("%s without a volume", line.Op)
	case line.Call == nil:
		return line, fmt.Errorf("%s without a call time", line.Op)
	case (line.Return == nil) != (line.Result == nil):
		return line, fmt.Errorf("%s with only one of return and result", line.Op)
	case line.Return != nil && *line.Return < *line.Call:
		return line, fmt.Errorf("%s returned at %d, before its call at %d", line.Op, *line.Return, *line.Call)
	case line.Result != nil && line.Result.Code == "":
		return line, fmt.Errorf("%s has a result without a code", line.Op)
	}
	return line, nil
}

// operation makes porcupine's form of a line. The session that a create_key or a reserve_blocks was given becomes an argument, if it is
// committed.
func operation(line Line, committed map[int64]bool) porcupine.Operation {
	made := porcupine.Operation{
		ClientId: line.Client, Call: *line.Call, Return: unreturned, Input: command{op: line.Op, Arguments: line.Args},
	}
	if line.Result == nil {
		return made
	}
	made.Return = *line.Return
	result := *line.Result
	if (line.Op == "create_key" || line.Op == "reserve_blocks") && result.Code == ok {
		if !committed[result.Session] {
			result.Session = 0
		}
		arguments := line.Args
		arguments.Session = result.Session
		made.Input = command{op: line.Op, Arguments: arguments}
	}
	if line.Op == "list_buckets" {
		sort.Strings(result.Buckets)
	}
	made.Output = result
	return made
}
