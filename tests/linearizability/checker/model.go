package main

import (
	"fmt"
	"sort"
	"strings"

	"github.com/anishathalye/porcupine"
)

// The sequential model: one volume with its buckets, keys and open sessions. Volumes share no state and no operation touches two,
// and linearizability is local, so each volume is checked by itself.
//
// The order of refusals is the one of the Object Manager: the volume, the bucket, the target of a rename, the key or session.
// A committed key is known by its size, which the recorder makes unique; quotas are not used. The bytes of an inline key say that
// size, too: a reader tells what they say. Sessions are a bucket's: they end with it. Names are legal.

const (
	ok                  = "OK"
	volumeNotFound      = "VOLUME_NOT_FOUND"
	volumeAlreadyExists = "VOLUME_ALREADY_EXISTS"
	volumeNotEmpty      = "VOLUME_NOT_EMPTY"
	bucketNotFound      = "BUCKET_NOT_FOUND"
	bucketAlreadyExists = "BUCKET_ALREADY_EXISTS"
	bucketNotEmpty      = "BUCKET_NOT_EMPTY"
	keyNotFound         = "KEY_NOT_FOUND"
	keyAlreadyExists    = "KEY_ALREADY_EXISTS"
)

// Arguments of an operation, as far as it has them.
type Arguments struct {
	Volume  string `json:"volume"`
	Bucket  string `json:"bucket,omitempty"`
	Key     string `json:"key,omitempty"`
	To      string `json:"to,omitempty"`
	Session int64  `json:"session,omitempty"`
	Size    int64  `json:"size,omitempty"`
}

// Result of an operation that returned: the code, and what an OK brings.
type Result struct {
	Code    string           `json:"code"`
	Session int64            `json:"session,omitempty"` // create_key
	Size    int64            `json:"size,omitempty"`    // key_info
	Data    int64            `json:"data,omitempty"`    // key_info of an inline key: the size that its bytes say
	Keys    map[string]int64 `json:"keys,omitempty"`    // list_keys: name to size
	Buckets []string         `json:"buckets,omitempty"` // list_buckets: names in order
	Count   int64            `json:"count,omitempty"`   // bucket_info: keys; volume_info: buckets
	Bytes   int64            `json:"bytes,omitempty"`   // bucket_info: sum of the keys' sizes
}

type command struct {
	op string
	Arguments
}

type session struct {
	key string
}

// What a key has: a size, and whether its bytes are in its row.
type content struct {
	size   int64
	inline bool
}

type bucket struct {
	keys     map[string]content
	sessions map[int64]session
}

type volume struct {
	exists  bool
	buckets map[string]bucket
}

type step func(volume, Arguments) (volume, Result)

// The operations. Each returns the state after it, and its result; what is refused returns the state that it met.
var steps = map[string]step{
	"create_volume": createVolume, "delete_volume": deleteVolume, "volume_info": volumeInfo, "list_buckets": listBuckets,
	"create_bucket": createBucket, "delete_bucket": deleteBucket, "bucket_info": bucketInfo, "list_keys": listKeys,
	"create_key": createKey, "commit_key": commitKey, "delete_key": deleteKey, "rename_key": renameKey, "key_info": keyInfo,
	"put_key": putKey, "reserve_blocks": reserveBlocks, "commit_reserved": commitReserved,
}

// What changes nothing that anyone could see, if its outcome is unknown: reads, and a session that nobody knows.
var harmless = map[string]bool{
	"volume_info": true, "list_buckets": true, "bucket_info": true, "list_keys": true, "key_info": true, "create_key": true,
	"reserve_blocks": true,
}

func createVolume(v volume, _ Arguments) (volume, Result) {
	if v.exists {
		return v, Result{Code: volumeAlreadyExists}
	}
	return volume{exists: true}, Result{Code: ok}
}

func deleteVolume(v volume, _ Arguments) (volume, Result) {
	if !v.exists {
		return v, Result{Code: volumeNotFound}
	}
	if len(v.buckets) > 0 {
		return v, Result{Code: volumeNotEmpty}
	}
	return volume{}, Result{Code: ok}
}

func volumeInfo(v volume, _ Arguments) (volume, Result) {
	if !v.exists {
		return v, Result{Code: volumeNotFound}
	}
	return v, Result{Code: ok, Count: int64(len(v.buckets))}
}

func listBuckets(v volume, _ Arguments) (volume, Result) {
	if !v.exists {
		return v, Result{Code: volumeNotFound}
	}
	return v, Result{Code: ok, Buckets: sortedKeys(v.buckets)}
}

func createBucket(v volume, a Arguments) (volume, Result) {
	if !v.exists {
		return v, Result{Code: volumeNotFound}
	}
	if _, found := v.buckets[a.Bucket]; found {
		return v, Result{Code: bucketAlreadyExists}
	}
	return v.with(a.Bucket, bucket{}), Result{Code: ok}
}

func deleteBucket(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	if len(found.keys) > 0 {
		return v, Result{Code: bucketNotEmpty}
	}
	return volume{exists: true, buckets: without(v.buckets, a.Bucket)}, Result{Code: ok}
}

func bucketInfo(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	result := Result{Code: ok, Count: int64(len(found.keys))}
	for _, one := range found.keys {
		result.Bytes += one.size
	}
	return v, result
}

func listKeys(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	sizes := make(map[string]int64, len(found.keys))
	for key, one := range found.keys {
		sizes[key] = one.size
	}
	return v, Result{Code: code, Keys: sizes}
}

// createKey is given the session that the answer named, as an argument: the model cannot know it.
func createKey(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	if a.Session == 0 { // nobody commits it
		return v, Result{Code: ok}
	}
	found.sessions = with(found.sessions, a.Session, session{key: a.Key})
	return v.with(a.Bucket, found), Result{Code: ok, Session: a.Session}
}

func commitKey(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	opened, open := found.sessions[a.Session]
	if !open || opened.key != a.Key {
		return v, Result{Code: keyNotFound}
	}
	found.sessions = without(found.sessions, a.Session)
	found.keys = with(found.keys, a.Key, content{size: a.Size})
	return v.with(a.Bucket, found), Result{Code: ok}
}

// reserveBlocks makes a reservation of one block: a session without a key's name.
func reserveBlocks(v volume, a Arguments) (volume, Result) {
	a.Key = ""
	return createKey(v, a)
}

// commitReserved makes a key of the block of a reservation, which ends with that.
func commitReserved(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	opened, open := found.sessions[a.Session]
	if !open || opened.key != "" {
		return v, Result{Code: keyNotFound}
	}
	found.sessions = without(found.sessions, a.Session)
	found.keys = with(found.keys, a.Key, content{size: a.Size})
	return v.with(a.Bucket, found), Result{Code: ok}
}

func putKey(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	found.keys = with(found.keys, a.Key, content{size: a.Size, inline: true})
	return v.with(a.Bucket, found), Result{Code: ok}
}

func deleteKey(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	if _, exists := found.keys[a.Key]; !exists {
		return v, Result{Code: keyNotFound}
	}
	found.keys = without(found.keys, a.Key)
	return v.with(a.Bucket, found), Result{Code: ok}
}

func renameKey(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	if _, exists := found.keys[a.To]; exists {
		return v, Result{Code: keyAlreadyExists}
	}
	moved, exists := found.keys[a.Key]
	if !exists {
		return v, Result{Code: keyNotFound}
	}
	found.keys = with(without(found.keys, a.Key), a.To, moved)
	return v.with(a.Bucket, found), Result{Code: ok}
}

func keyInfo(v volume, a Arguments) (volume, Result) {
	found, code := v.find(a.Bucket)
	if code != ok {
		return v, Result{Code: code}
	}
	one, exists := found.keys[a.Key]
	if !exists {
		return v, Result{Code: keyNotFound}
	}
	if one.inline {
		return v, Result{Code: ok, Size: one.size, Data: one.size}
	}
	return v, Result{Code: ok, Size: one.size}
}

func (v volume) find(name string) (bucket, string) {
	found, exists := v.buckets[name]
	switch {
	case exists:
		return found, ok
	case v.exists:
		return found, bucketNotFound
	}
	return found, volumeNotFound
}

func (v volume) with(name string, changed bucket) volume {
	return volume{exists: true, buckets: with(v.buckets, name, changed)}
}

// A state is never changed: these return a changed copy.

func with[K comparable, V any](rows map[K]V, key K, value V) map[K]V {
	changed := make(map[K]V, len(rows)+1)
	for k, v := range rows {
		changed[k] = v
	}
	changed[key] = value
	return changed
}

func without[K comparable, V any](rows map[K]V, key K) map[K]V {
	changed := make(map[K]V, len(rows))
	for k, v := range rows {
		if k != key {
			changed[k] = v
		}
	}
	return changed
}

func sortedKeys[V any](rows map[string]V) []string {
	names := make([]string, 0, len(rows))
	for name := range rows {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

func sameMap[K, V comparable](a, b map[K]V) bool {
	if len(a) != len(b) {
		return false
	}
	for key, value := range a {
		if other, found := b[key]; !found || other != value {
			return false
		}
	}
	return true
}

func sameState(left, right interface{}) bool {
	a, b := left.(volume), right.(volume)
	if a.exists != b.exists || len(a.buckets) != len(b.buckets) {
		return false
	}
	for name, one := range a.buckets {
		other, found := b.buckets[name]
		if !found || !sameMap(one.keys, other.keys) || !sameMap(one.sessions, other.sessions) {
			return false
		}
	}
	return true
}

func sameResult(a, b Result) bool {
	return a.Code == b.Code && a.Session == b.Session && a.Size == b.Size && a.Data == b.Data && a.Count == b.Count &&
		a.Bytes == b.Bytes && sameMap(a.Keys, b.Keys) && strings.Join(a.Buckets, "/") == strings.Join(b.Buckets, "/")
}

// An operation without an outcome may have had its effect at any time after its call, or never: the latter is the same as after
// everything else, so it is enough to let it have its effect, if it can, at any place up to the end.
var model = porcupine.Model{
	Init: func() interface{} { return volume{} },
	Step: func(state, input, output interface{}) (bool, interface{}) {
		c := input.(command)
		after, result := steps[c.op](state.(volume), c.Arguments)
		outcome, known := output.(Result)
		return !known || sameResult(result, outcome), after
	},
	Equal: sameState,
	DescribeOperation: func(input, output interface{}) string {
		return describe(input.(command)) + " -> " + describeOutcome(output)
	},
	DescribeState: func(state interface{}) string { return describeState(state.(volume)) },
}

func describe(c command) string {
	words := []string{c.op, "/" + c.Volume}
	if c.Bucket != "" {
		words[1] += "/" + c.Bucket
	}
	if c.Key != "" {
		words[1] += "/" + c.Key
	}
	if c.To != "" {
		words = append(words, "to "+c.To)
	}
	if c.Size != 0 {
		words = append(words, fmt.Sprintf("size %d", c.Size))
	}
	if c.Session != 0 {
		words = append(words, fmt.Sprintf("session %d", c.Session))
	}
	return strings.Join(words, " ")
}

func describeOutcome(output interface{}) string {
	result, known := output.(Result)
	if !known {
		return "?"
	}
	words := []string{result.Code}
	if result.Code == ok {
		if result.Size != 0 {
			words = append(words, fmt.Sprintf("size %d", result.Size))
		}
		if result.Data != 0 {
			words = append(words, fmt.Sprintf("bytes of %d", result.Data))
		}
		if result.Keys != nil {
			words = append(words, fmt.Sprintf("keys %v", result.Keys))
		}
		if result.Buckets != nil {
			words = append(words, fmt.Sprintf("buckets %v", result.Buckets))
		}
		if result.Count != 0 || result.Bytes != 0 {
			words = append(words, fmt.Sprintf("count %d bytes %d", result.Count, result.Bytes))
		}
	}
	return strings.Join(words, " ")
}

func describeState(v volume) string {
	if !v.exists {
		return "no volume"
	}
	words := []string{"volume"}
	for _, name := range sortedKeys(v.buckets) {
		words = append(words, fmt.Sprintf("%s%v", name, v.buckets[name].keys))
	}
	return strings.Join(words, " ")
}
