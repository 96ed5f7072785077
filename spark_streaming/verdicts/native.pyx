# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""A batch of the log in C: from its bytes to the hashes of the rows that it changes, and to what the windows count.

It reads the current schema of Batch, written down here once more by hand, and makes no object for an operation: some
six times as fast as ``log_rows`` and ``windows.samples``, which define what comes out (decision 0066). It understands
a well-formed batch of known column families alone, and returns None for all else, so that those two say what is wrong.
Reading never goes beyond the end of the data.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    MOST_FAMILIES = 64
    FIRST_ROWS = 256
    NONCE = 16
    CHAIN = 32
    REQUEST_HASH = 16
    RETRY_KEY = 24  # client_id and call_id, which follow each other
    BUCKET_MASK = 255
    TOMBSTONE = 8
    KNOWN_TEXTS = 1024
    KNOWN_TEXT_BYTES = 128

    PUT = 0
    DELETE = 1
    MERGE = 2
    CHECKPOINT = 3


# ---- XXH64, as its specification gives it


cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>

    #define PRIME_1 0x9E3779B185EBCA87ULL
    #define PRIME_2 0xC2B2AE3D27D4EB4FULL
    #define PRIME_3 0x165667B19E3779F9ULL
    #define PRIME_4 0x85EBCA77C2B2AE63ULL
    #define PRIME_5 0x27D4EB2F165667C5ULL

    static inline uint64_t rotated(uint64_t word, int bits) {
        return word << bits | word >> (64 - bits);
    }

    static inline uint64_t word_of(const uint8_t *at, int bytes) {
        uint64_t word = 0;
        int number;
        for (number = 0; number < bytes; number++)
            word |= (uint64_t)at[number] << (8 * number);
        return word;
    }

    static inline uint64_t rounded(uint64_t sum, uint64_t word) {
        return rotated(sum + word * PRIME_2, 31) * PRIME_1;
    }

    static inline uint64_t joined(uint64_t hash, uint64_t lane) {
        return (hash ^ rounded(0, lane)) * PRIME_1 + PRIME_4;
    }

    static uint64_t xxh64(const uint8_t *at, size_t size, uint64_t seed) {
        const uint8_t *end = at + size;
        uint64_t hash;
        if (size >= 32) {
            uint64_t a = seed + PRIME_1 + PRIME_2, b = seed + PRIME_2, c = seed, d = seed - PRIME_1;
            for (; end - at >= 32; at += 32) {
                a = rounded(a, word_of(at, 8));
                b = rounded(b, word_of(at + 8, 8));
                c = rounded(c, word_of(at + 16, 8));
                d = rounded(d, word_of(at + 24, 8));
            }
            hash = rotated(a, 1) + rotated(b, 7) + rotated(c, 12) + rotated(d, 18);
            hash = joined(joined(joined(joined(hash, a), b), c), d);
        } else {
            hash = seed + PRIME_5;
        }
        hash += size;
        for (; end - at >= 8; at += 8)
            hash = rotated(hash ^ rounded(0, word_of(at, 8)), 27) * PRIME_1 + PRIME_4;
        for (; end - at >= 4; at += 4)
            hash = rotated(hash ^ word_of(at, 4) * PRIME_1, 23) * PRIME_2 + PRIME_3;
        for (; end - at > 0; at++)
            hash = rotated(hash ^ *at * PRIME_5, 11) * PRIME_1;
        hash = (hash ^ hash >> 33) * PRIME_2;
        hash = (hash ^ hash >> 29) * PRIME_3;
        return hash ^ hash >> 32;
    }
    """
    uint64_t xxh64(const uint8_t* at, size_t size, uint64_t seed) nogil


def hash_of(bytes data not None, uint64_t seed):
    """Return XXH64 of ``data``."""
    return xxh64(<const uint8_t*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), seed)


# ---- Reading


cdef struct Source:
    const uint8_t* data
    Py_ssize_t position
    Py_ssize_t size
    bint is_bad


cdef struct Text:
    const uint8_t* data
    Py_ssize_t size


cdef inline uint8_t take_byte(Source* source) noexcept nogil:
    if source.position >= source.size:
        source.is_bad = True
        return 0
    source.position += 1
    return source.data[source.position - 1]


cdef inline uint64_t take_varint(Source* source) noexcept nogil:
    cdef uint64_t read = 0
    cdef int shift = 0
    cdef uint8_t byte
    while True:
        byte = take_byte(source)
        if shift == 63 and byte > 1:
            source.is_bad = True
            return 0
        read |= <uint64_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return read
        shift += 7


cdef inline int64_t take_long(Source* source) noexcept nogil:
    cdef uint64_t read = take_varint(source)
    return <int64_t>(read >> 1) ^ -<int64_t>(read & 1)


cdef inline const uint8_t* take(Source* source, Py_ssize_t size) noexcept nogil:
    if source.is_bad or source.size - source.position < size:
        source.is_bad = True
        return source.data
    source.position += size
    return source.data + source.position - size


cdef inline Text take_bytes(Source* source) noexcept nogil:
    cdef Text found
    cdef uint64_t size = take_varint(source)
    if source.is_bad or size & 1 or size >> 1 > <uint64_t>(source.size - source.position):
        source.is_bad = True
        size = 0
    found.size = <Py_ssize_t>(size >> 1)
    found.data = take(source, found.size)
    return found


cdef inline Text take_ascii(Source* source) noexcept nogil:
    """Take a text; one that is not ASCII may be no UTF-8, and is left to others."""
    cdef Text found = take_bytes(source)
    cdef Py_ssize_t at
    cdef uint8_t seen = 0
    for at in range(found.size):
        seen |= found.data[at]
    if seen & 0x80:
        source.is_bad = True
    return found


cdef inline Py_ssize_t take_count(Source* source) noexcept nogil:
    """Take the number of items in the next block of an array; one with its size in bytes is left to others."""
    cdef uint64_t number = take_varint(source)
    if source.is_bad or number & 1 or number >> 1 > <uint64_t>(source.size - source.position):
        source.is_bad = True
        return 0
    return <Py_ssize_t>(number >> 1)


cdef inline void skip_position(Source* source) noexcept nogil:
    """Skip over a batch's RequestPosition, or none."""
    cdef uint8_t branch = take_byte(source)
    cdef int64_t epoch
    if branch == 2:
        take_long(source)
        epoch = take_long(source)
        if not -0x80000000 <= epoch <= 0x7FFFFFFF:
            source.is_bad = True
        take(source, REQUEST_HASH)
    elif branch:
        source.is_bad = True


cdef inline int64_t take_hash(Source* source) noexcept nogil:
    """Take the hash of the row before an operation, 0 if there was none."""
    cdef uint8_t branch = take_byte(source)
    if branch == 2:
        return take_long(source)
    if branch:
        source.is_bad = True
    return 0


# ---- A batch


cdef struct Family:
    const uint8_t* name
    Py_ssize_t size
    uint64_t seed
    int64_t first


cdef struct Rows:
    int64_t* data  # slot, next, prev; slot, next, prev; …
    Py_ssize_t count
    Py_ssize_t room


cdef int add(Rows* rows, int64_t slot, int64_t after, int64_t before) except -1:
    cdef int64_t* data
    if rows.count == rows.room:
        data = <int64_t*>PyMem_Realloc(rows.data, rows.room * 2 * 3 * sizeof(int64_t))
        if data == NULL:
            raise MemoryError(f"{rows.room * 2} rows of a batch")
        rows.data, rows.room = data, rows.room * 2
    data = rows.data + 3 * rows.count
    data[0], data[1], data[2] = slot, after, before
    rows.count += 1
    return 0


cdef class BatchScanner:
    """Scans the batches of one log; for one thread.

    ``families``: names, in the order of their slots. ``retry_table``: the one of retry rows. ``response_header``: the
    first bytes of a Response in its current version. ``status_of`` returns the result code of any other Response;
    ``longest_ms``: the greatest latency that is counted as it is.
    """

    cdef tuple _names
    cdef Family[MOST_FAMILIES] _families
    cdef int _count
    cdef Family _retries
    cdef bytes _response_header
    cdef object _status_of
    cdef int64_t _longest_ms
    cdef dict _texts
    cdef uint8_t* _scratch
    cdef Py_ssize_t _room

    def __cinit__(
        self, families, str retry_table not None, bytes response_header not None, object status_of, int64_t longest_ms,
        uint64_t seed,
    ):
        self._names = tuple([name.encode() for name in families])
        self._count = len(self._names)
        if self._count > MOST_FAMILIES:
            raise ValueError(f"{self._count} column families; at most {MOST_FAMILIES}")
        for number in range(self._count):
            self._families[number].name = <const uint8_t*>PyBytes_AS_STRING(self._names[number])
            self._families[number].size = PyBytes_GET_SIZE(self._names[number])
            self._families[number].seed = hash_of(self._names[number], seed)
            self._families[number].first = number * (BUCKET_MASK + 1)
        self._retries = self._families[self._names.index(retry_table.encode())]
        self._response_header, self._status_of, self._longest_ms = response_header, status_of, longest_ms
        self._texts = {}

    def __dealloc__(self):
        PyMem_Free(self._scratch)

    def scan(self, bytes value not None, Py_ssize_t position, int64_t appended_ms):
        """Return what a batch holds whose body begins at ``position``, None if others must read it.

        That is (term, nonce, seq, prev_chain, first_index, last_index, timestamp_ms), the rows as bytes (slot, next and
        prev of each as int64), how many puts, deletes, merges, checkpoints, how many of the merges are of
        ``blockTable`` and how many of these tombstones, how many retry rows, requests by (type, result code, latency in
        ms), client and type of the first one.
        """
        cdef Source source
        cdef Rows rows
        source.data = <const uint8_t*>PyBytes_AS_STRING(value)
        source.position, source.size, source.is_bad = position, PyBytes_GET_SIZE(value), position < 0
        rows.count, rows.room = 0, FIRST_ROWS
        rows.data = <int64_t*>PyMem_Malloc(FIRST_ROWS * 3 * sizeof(int64_t))
        if rows.data == NULL:
            raise MemoryError(f"{FIRST_ROWS} rows of a batch")
        try:
            return self.found(&source, &rows, appended_ms)
        finally:
            PyMem_Free(rows.data)

    cdef tuple found(self, Source* source, Rows* rows, int64_t appended_ms):
        cdef int64_t term = take_long(source)
        cdef const uint8_t* nonce = take(source, NONCE)
        cdef int64_t seq = take_long(source)
        cdef const uint8_t* chain = take(source, CHAIN)
        cdef int64_t first_index = take_long(source), last_index = take_long(source), timestamp_ms = take_long(source)
        cdef Py_ssize_t[6] counts
        cdef Py_ssize_t operations
        cdef dict requests
        skip_position(source)
        if source.is_bad:
            return None
        header = (
            term, PyBytes_FromStringAndSize(<const char*>nonce, NONCE), seq,
            PyBytes_FromStringAndSize(<const char*>chain, CHAIN), first_index, last_index, timestamp_ms,
        )
        self.operations(source, rows, counts)
        operations = rows.count
        requests, client, request_type = self.results(source, rows, appended_ms)
        if source.is_bad or source.position != source.size:
            return None
        return (
            header, PyBytes_FromStringAndSize(<const char*>rows.data, rows.count * 3 * sizeof(int64_t)),
            (counts[PUT], counts[DELETE], counts[MERGE], counts[CHECKPOINT]), (counts[4], counts[5]),
            rows.count - operations, requests, client, request_type,
        )

    cdef int operations(self, Source* source, Rows* rows, Py_ssize_t* counts) except -1:
        cdef Py_ssize_t left
        cdef uint8_t branch
        for left in range(6):
            counts[left] = 0
        left = take_count(source)
        while left and not source.is_bad:
            while left and not source.is_bad:
                branch = take_byte(source)
                if branch & 1 or branch >> 1 > CHECKPOINT:
                    source.is_bad = True
                    break
                counts[branch >> 1] += 1
                if branch >> 1 == CHECKPOINT:
                    take_ascii(source)
                else:
                    self.operation(source, rows, branch >> 1, counts)
                left -= 1
            left = take_count(source)
        return 0

    cdef int operation(self, Source* source, Rows* rows, int kind, Py_ssize_t* counts) except -1:
        cdef Family* family = self.family(source)
        cdef Text key = take_bytes(source), value
        cdef int64_t after = 0, before
        cdef uint64_t hashed
        if source.is_bad:
            return 0
        hashed = xxh64(key.data, key.size, family.seed)
        if kind == PUT:
            value = take_bytes(source)
            after = <int64_t>xxh64(value.data, value.size, hashed)
        elif kind == MERGE:
            take_ascii(source)
            value = take_bytes(source)
            if family.size == 10 and memcmp(family.name, b"blockTable", 10) == 0:
                counts[4] += 1
                counts[5] += value.size >= TOMBSTONE and memcmp(value.data, b"\xff\xff\xff\xff\xff\xff\xff\xff", 8) == 0
        before = take_hash(source)
        if kind == MERGE:
            after = take_long(source)
        if source.is_bad:
            return 0
        return add(rows, family.first + <int64_t>(hashed & BUCKET_MASK), after, before)

    cdef Family* family(self, Source* source) noexcept:
        cdef Text name = take_bytes(source)
        cdef int number
        for number in range(self._count):
            if name.size == self._families[number].size and memcmp(name.data, self._families[number].name, name.size) == 0:
                return &self._families[number]
        source.is_bad = True
        return &self._families[0]

    cdef tuple results(self, Source* source, Rows* rows, int64_t appended_ms):
        cdef dict requests = {}
        cdef object client = None, first_type = ""
        cdef Py_ssize_t left
        cdef const uint8_t* key
        cdef const uint8_t* request_hash
        cdef Text request_type, response
        cdef int64_t latency_ms, first_sent_at_ms
        cdef uint8_t recorded
        left = 0 if source.is_bad else take_count(source)
        while left and not source.is_bad:
            while left and not source.is_bad:
                key = take(source, RETRY_KEY)
                request_hash = take(source, REQUEST_HASH)
                first_sent_at_ms = take_long(source)
                request_type = take_ascii(source)
                take_long(source)
                recorded = take_byte(source)
                response = take_bytes(source)
                if source.is_bad or recorded > 1:
                    source.is_bad = True
                    break
                kind = self.text(request_type)
                if client is None:
                    client, first_type = PyBytes_FromStringAndSize(<const char*>key, NONCE), kind
                if recorded:
                    self.add_retry(rows, key, request_hash, response)
                latency_ms = self.latency(appended_ms, first_sent_at_ms)
                group = (kind, self.status(response), latency_ms)
                requests[group] = requests.get(group, 0) + 1
                left -= 1
            left = take_count(source)
        return requests, client, first_type

    cdef int add_retry(self, Rows* rows, const uint8_t* key, const uint8_t* request_hash, Text response) except -1:
        cdef uint64_t hashed = xxh64(key, RETRY_KEY, self._retries.seed)
        cdef Py_ssize_t size = REQUEST_HASH + response.size
        cdef uint8_t* scratch
        if size > self._room:
            scratch = <uint8_t*>PyMem_Realloc(self._scratch, 2 * size)
            if scratch == NULL:
                raise MemoryError(f"{size} bytes of a retry row")
            self._scratch, self._room = scratch, 2 * size
        memcpy(self._scratch, request_hash, REQUEST_HASH)
        memcpy(self._scratch + REQUEST_HASH, response.data, response.size)
        return add(
            rows, self._retries.first + <int64_t>(hashed & BUCKET_MASK), <int64_t>xxh64(self._scratch, size, hashed), 0
        )

    cdef int64_t latency(self, int64_t appended_ms, int64_t first_sent_at_ms) noexcept:
        # When a request was sent is the client's word, and any number of 64 bits.
        if first_sent_at_ms < 0 and appended_ms > INT64_MAX + first_sent_at_ms:
            return self._longest_ms
        if first_sent_at_ms > 0 and appended_ms < INT64_MIN + first_sent_at_ms:
            return -self._longest_ms
        return max(-self._longest_ms, min(self._longest_ms, appended_ms - first_sent_at_ms))

    cdef object status(self, Text response):
        """Return the result code of a response in its current version; all others are left to ``status_of``."""
        cdef Py_ssize_t header = PyBytes_GET_SIZE(self._response_header)
        cdef Source source
        cdef Text status
        cdef int64_t shard
        if response.size >= header and memcmp(response.data, PyBytes_AS_STRING(self._response_header), header) == 0:
            source.data, source.position, source.size, source.is_bad = response.data, header, response.size, False
            take(&source, NONCE)
            take_long(&source)
            shard = take_long(&source)
            take_long(&source)
            status = take_ascii(&source)
            take_ascii(&source)
            skip_result(&source)
            if not source.is_bad and source.position == source.size and -0x80000000 <= shard <= 0x7FFFFFFF:
                return self.text(status)
        return self._status_of(PyBytes_FromStringAndSize(<const char*>response.data, response.size))

    cdef object text(self, Text found):
        """Return a text as one object for all that are alike: there are few types and result codes."""
        cdef bytes key
        if found.size > KNOWN_TEXT_BYTES:  # no word of ours: a record may have megabytes of it
            return PyUnicode_DecodeUTF8(<const char*>found.data, found.size, NULL)
        key = PyBytes_FromStringAndSize(<const char*>found.data, found.size)
        known = self._texts.get(key)
        if known is None:
            known = PyUnicode_DecodeUTF8(<const char*>found.data, found.size, NULL)
            if len(self._texts) < KNOWN_TEXTS:
                self._texts[key] = known
        return known


cdef void skip_result(Source* source) noexcept nogil:
    """Skip over the result of a Response: none, a KeySession, an AllocatedBlock or a CreatedSnapshot."""
    cdef uint8_t branch = take_byte(source)
    cdef Py_ssize_t left
    if branch == 2:
        take_long(source)
        take_long(source)
        left = take_count(source)
        while left and not source.is_bad:
            while left and not source.is_bad:
                skip_block(source)
                left -= 1
            left = take_count(source)
    elif branch == 4:
        skip_block(source)
    elif branch == 6:
        take_ascii(source)
        take_long(source)
    elif branch:
        source.is_bad = True


cdef inline void skip_block(Source* source) noexcept nogil:
    take_long(source)
    take_long(source)
    take_long(source)
    take_long(source)
    take_ascii(source)
    take_long(source)
