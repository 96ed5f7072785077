// Command checker says of recorded histories whether they are linearizable.
//
//	checker [-timeout 60s] [-report DIR] FILE...
//
// A file is one history: a JSON object a line with client, op, args, call, return (nanoseconds of one clock) and result; without
// return and result the outcome is unknown. A JSON object a line is printed for each: history, verdict (linearizable, illegal or
// unknown), counts, and for an illegal one per volume the first operation whose return nothing can explain, with the
// operations around it. With -report DIR, that and porcupine's picture are written there, as JSON and HTML.
//
// Exit status: 0 all are linearizable, 1 one is illegal, 2 bad input, 3 none is illegal but one took longer than the time-out.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	linearizable = "linearizable"
	illegal      = "illegal"
	undecided    = "unknown"
	contextSize  = 12 // operations shown before the one that nothing explains
)

// Verdict of one history.
type Verdict struct {
	History    string    `json:"history"`
	Verdict    string    `json:"verdict"`
	Operations int       `json:"operations"`
	Unknown    int       `json:"unknown_outcomes"`
	Volumes    int       `json:"volumes"`
	ElapsedMs  int64     `json:"elapsed_ms"`
	Illegal    []Illegal `json:"illegal,omitempty"`
}

// Illegal says where a volume's history stops being explicable: with the return of Operation.
type Illegal struct {
	Volume    string   `json:"volume"`
	Operation string   `json:"operation"`
	Client    int      `json:"client"`
	Call      int64    `json:"call"`
	Return    int64    `json:"return"`
	Before    []string `json:"before"`
	Report    string   `json:"report,omitempty"`
}

func main() {
	timeout := flag.Duration("timeout", time.Minute, "for one volume's part of a history")
	report := flag.String("report", "", "directory for what is illegal")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: checker [-timeout 60s] [-report DIR] FILE...")
		os.Exit(2)
	}
	status := 0
	for _, path := range flag.Args() {
		verdict, err := check(path, *timeout, *report)
		if err != nil {
			fmt.Fprintln(os.Stderr, "error:", err)
			os.Exit(2)
		}
		text, _ := json.Marshal(verdict)
		fmt.Println(string(text))
		switch {
		case verdict.Verdict == illegal:
			status = 1
		case verdict.Verdict == undecided && status == 0:
			status = 3
		}
	}
	os.Exit(status)
}

func check(path string, timeout time.Duration, report string) (Verdict, error) {
	found, err := readHistory(path)
	name := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	verdict := Verdict{
		History: name, Verdict: linearizable, Operations: found.operations, Unknown: found.unknown,
		Volumes: len(found.partitions),
	}
	begin := time.Now()
	for _, volume := range sortedKeys(found.partitions) {
		operations := found.partitions[volume]
		switch porcupine.CheckOperationsTimeout(model, operations, timeout) {
		case porcupine.Unknown:
			if verdict.Verdict == linearizable {
				verdict.Verdict = undecided
			}
		case porcupine.Illegal:
			verdict.Verdict = illegal
			part := explain(volume, operations, timeout)
			if report != "" && err == nil {
				part.Report, err = writeReport(report, name, part, operations, timeout)
			}
			verdict.Illegal = append(verdict.Illegal, part)
		}
	}
	verdict.ElapsedMs = time.Since(begin).Milliseconds()
	return verdict, err
}

// explain finds the first return that makes the history illegal: what came before it, alone, is still linearizable.
func explain(volume string, operations []porcupine.Operation, timeout time.Duration) Illegal {
	returned := byReturn(operations)
	first := sort.Search(len(returned), func(n int) bool {
		return porcupine.CheckOperationsTimeout(model, until(operations, returned[n].Return), timeout) == porcupine.Illegal
	})
	if first == len(returned) { // only if a shorter history took longer than the time-out
		first--
	}
	culprit := returned[first]
	part := Illegal{
		Volume: volume, Operation: model.DescribeOperation(culprit.Input, culprit.Output),
		Client: culprit.ClientId, Call: culprit.Call, Return: culprit.Return,
	}
	for _, earlier := range returned[max(0, first-contextSize):first] {
		text := model.DescribeOperation(earlier.Input, earlier.Output)
		part.Before = append(part.Before, fmt.Sprintf("%d..%d client %d: %s", earlier.Call, earlier.Return, earlier.ClientId, text))
	}
	return part
}

func byReturn(operations []porcupine.Operation) []porcupine.Operation {
	var returned []porcupine.Operation
	for _, one := range operations {
		if one.Output != nil {
			returned = append(returned, one)
		}
	}
	sort.SliceStable(returned, func(i, j int) bool { return returned[i].Return < returned[j].Return })
	return returned
}

// until cuts a history at a moment: what had not returned by then has no outcome.
func until(operations []porcupine.Operation, moment int64) []porcupine.Operation {
	var cut []porcupine.Operation
	for _, one := range operations {
		if one.Call > moment {
			continue
		}
		if one.Return > moment {
			if harmless[one.Input.(command).op] {
				continue
			}
			one.Output, one.Return = nil, unreturned
		}
		cut = append(cut, one)
	}
	return cut
}

func writeReport(
	folder, name string, part Illegal, operations []porcupine.Operation, timeout time.Duration,
) (string, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	base := filepath.Join(folder, name+"."+part.Volume)
	text, err := json.MarshalIndent(part, "", "  ")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(base+".json", append(text, '\n'), 0o644); err != nil {
		return "", err
	}
	_, info := porcupine.CheckOperationsVerbose(model, until(operations, part.Return), timeout)
	return base + ".html", porcupine.VisualizePath(model, info, base+".html")
}
