# Part of _batch.pyx: reading and writing bytes without the GIL: growing memory, numbers, spans, the fields of a record.
#
# `batch_py.py` has the layouts. Two rules make the compiled kernel safe on untrusted bytes:
# - They are read only through a pair (at, end), by functions that check before they read and return NULL for invalid
#   bytes. Each length is read once, checked, then used: a buffer that another thread overwrites may yield wrong values,
#   but never an over-read.
# - Memory is allocated for what the input can hold, not for what it claims.

cdef enum:
    LONGEST_VARINT = 10

# Errors without the GIL are returned as one of these, and raised once the GIL is held again.
cdef enum Outcome:
    DONE = 0
    NO_MEMORY = 1
    TOO_LARGE = 2
    MALFORMED = 3
    FULL = 4


# --- memory that grows ---

cdef const char* NOWHERE = b""


cdef struct Memory:
    uint8_t* data
    Py_ssize_t used
    Py_ssize_t capacity


cdef inline Outcome grow(Memory* memory, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t needed = memory.used + more
    cdef size_t capacity = max(memory.capacity * 2, needed)
    cdef uint8_t* moved = take_memory(capacity, &capacity)
    if moved == NULL:
        return NO_MEMORY
    if memory.used:
        memcpy(moved, memory.data, memory.used)
    give_memory(memory.data, memory.capacity)
    memory.data = moved
    memory.capacity = capacity
    return DONE


cdef inline void release(Memory* memory) noexcept nogil:
    """Free the memory and reset its size."""
    give_memory(memory.data, memory.capacity)
    memory.data = NULL
    memory.used = memory.capacity = 0


cdef inline Outcome reserve(Memory* memory, Py_ssize_t more) noexcept nogil:
    """Make room for `more` bytes after those in use."""
    return DONE if memory.capacity - memory.used >= more else grow(memory, more)


cdef inline int lend_memory(
    Py_buffer* view, object owner, const uint8_t* data, Py_ssize_t size, int flags, bint read_only
) except -1:
    """Fill in a buffer view. Unallocated memory is lent as zero bytes at a valid address: Arrow aborts on NULL."""
    return PyBuffer_FillInfo(view, owner, <void*> data if data != NULL else <void*> NOWHERE, size, read_only, flags)


cdef int raise_outcome(Outcome outcome) except -1:
    if outcome == NO_MEMORY:
        raise MemoryError
    if outcome == TOO_LARGE or outcome == FULL:
        raise ValueError("the record does not fit into a batch")
    raise CorruptBatch("a record's lengths do not fit its bytes")


# --- varints and big-endian fields ---

cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return (<uint64_t> number << 1) ^ <uint64_t> (number >> 63)


cdef inline int varint_size(int64_t number) noexcept nogil:
    cdef uint64_t rest = zigzag(number)
    cdef int size = 1
    while rest > 0x7F:
        rest >>= 7
        size += 1
    return size


cdef inline uint8_t* put_varint(uint8_t* at, int64_t number) noexcept nogil:
    cdef uint64_t rest = zigzag(number)
    while rest > 0x7F:
        at[0] = <uint8_t> (rest | 0x80)
        at += 1
        rest >>= 7
    at[0] = <uint8_t> rest
    return at + 1


cdef inline const uint8_t* get_varint(const uint8_t* at, const uint8_t* end, int32_t* number) noexcept nogil:
    """Read a 32-bit number; return its end, or NULL if it is truncated or has more bits."""
    cdef uint32_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    if end - at >= 2:  # most numbers have one byte or two
        raw = at[0]
        if raw < 0x80:
            number[0] = <int32_t> (raw >> 1) ^ -<int32_t> (raw & 1)
            return at + 1
        if at[1] < 0x80:
            raw = (raw & 0x7F) | <uint32_t> at[1] << 7
            number[0] = <int32_t> (raw >> 1) ^ -<int32_t> (raw & 1)
            return at + 2
        raw = 0
    while at < end:
        byte = at[0]
        at += 1
        if shift == 28 and byte > 0x0F:
            return NULL
        raw |= <uint32_t> (byte & 0x7F) << shift
        if byte < 0x80:
            number[0] = <int32_t> (raw >> 1) ^ -<int32_t> (raw & 1)
            return at
        shift += 7
    return NULL


cdef inline const uint8_t* get_varlong(const uint8_t* at, const uint8_t* end, int64_t* number) noexcept nogil:
    """Read a 64-bit number; return its end, or NULL if it is truncated or has more bits."""
    cdef uint64_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
    while at < end:
        byte = at[0]
        at += 1
        if shift == 63 and byte > 0x01:
            return NULL
        raw |= <uint64_t> (byte & 0x7F) << shift
        if byte < 0x80:
            number[0] = <int64_t> (raw >> 1) ^ -<int64_t> (raw & 1)
            return at
        shift += 7
    return NULL


cdef inline uint8_t* put_big_endian(uint8_t* at, uint64_t number, int size) noexcept nogil:
    cdef int i
    for i in range(size):
        at[i] = <uint8_t> (number >> (8 * (size - 1 - i)))
    return at + size


cdef inline void put_little_endian32(uint8_t* at, uint32_t number) noexcept nogil:
    cdef int i
    for i in range(4):
        at[i] = <uint8_t> (number >> (8 * i))


cdef inline int64_t wrapping_add(int64_t a, int64_t b) noexcept nogil:
    return <int64_t> (<uint64_t> a + <uint64_t> b)


cdef inline int64_t wrapping_subtract(int64_t a, int64_t b) noexcept nogil:
    return <int64_t> (<uint64_t> a - <uint64_t> b)


# Arrow does not guarantee alignment; the compiler turns this into a plain load.
cdef inline int64_t load32(const uint8_t* numbers, Py_ssize_t i) noexcept nogil:
    cdef int32_t number
    memcpy(&number, numbers + 4 * i, 4)
    return number


cdef inline int64_t load64(const uint8_t* numbers, Py_ssize_t i) noexcept nogil:
    cdef int64_t number
    memcpy(&number, numbers + 8 * i, 8)
    return number


# --- spans: borrowed bytes ---

cdef struct Span:
    const uint8_t* data
    Py_ssize_t size     # −1: null


cdef inline bint is_plain(object data) noexcept:
    """Return whether `data` is None, bytes or str, whose memory can be read without a release; other buffers need one."""
    return data is None or PyBytes_CheckExact(data) or PyUnicode_Check(data)


cdef inline int span_of_plain(object data, Span* span) except -1:
    if data is None:
        span.data = NULL
        span.size = -1
    elif PyBytes_CheckExact(data):
        span.data = <const uint8_t*> PyBytes_AS_STRING(data)
        span.size = PyBytes_GET_SIZE(data)
    else:
        span.data = <const uint8_t*> PyUnicode_AsUTF8AndSize(data, &span.size)
    return 0


cdef inline uint8_t* put_span(uint8_t* at, Span span) noexcept nogil:
    at = put_varint(at, span.size)
    if span.size > 0:
        memcpy(at, span.data, span.size)
        at += span.size
    return at


cdef inline Py_ssize_t span_size(Span span) noexcept nogil:
    return varint_size(span.size) + (span.size if span.size > 0 else 0)


cdef inline Outcome append_span(Memory* memory, Span span) noexcept nogil:
    """Append length and bytes of a key, value or header part to `memory`."""
    if span.size > INT32_MAX or memory.used > INT32_MAX:
        return TOO_LARGE
    if reserve(memory, LONGEST_VARINT + max(span.size, 0)) != DONE:
        return NO_MEMORY
    memory.used = put_span(memory.data + memory.used, span) - memory.data
    return DONE


# --- records ---

cdef struct RawRecord:
    int64_t timestamp_delta
    int32_t offset_delta
    Span key
    Span value
    int32_t number_of_headers
    const uint8_t* headers      # read with get_span, up to `end`
    const uint8_t* end


cdef inline const uint8_t* get_span(
    const uint8_t* at, const uint8_t* end, int32_t smallest, Span* span
) noexcept nogil:
    """Read length and bytes of a key, value or header part. `smallest` is −1 if null is allowed, otherwise 0."""
    cdef int32_t size
    at = get_varint(at, end, &size)
    if at == NULL or size < smallest or size > end - at:
        return NULL
    span.data = at
    span.size = size
    return at + size if size > 0 else at


cdef inline const uint8_t* get_header(const uint8_t* at, const uint8_t* end, Span* name, Span* value) noexcept nogil:
    at = get_span(at, end, 0, name)
    return at if at == NULL else get_span(at, end, -1, value)


cdef inline const uint8_t* get_record(const uint8_t* at, const uint8_t* end, RawRecord* record) noexcept nogil:
    """Read the record at `at` and check every length in it; return its end, or NULL."""
    cdef int32_t size, i
    cdef Span name, value
    at = get_varint(at, end, &size)
    if at == NULL or size < 1 or size > end - at:
        return NULL
    end = at + size
    at = get_varlong(at + 1, end, &record.timestamp_delta)  # after the attributes, none of which are defined
    if at == NULL:
        return NULL
    at = get_varint(at, end, &record.offset_delta)
    if at == NULL:
        return NULL
    at = get_span(at, end, -1, &record.key)
    if at == NULL:
        return NULL
    at = get_span(at, end, -1, &record.value)
    if at == NULL:
        return NULL
    at = get_varint(at, end, &record.number_of_headers)
    if at == NULL or record.number_of_headers < 0:
        return NULL
    record.headers = at
    record.end = end
    for i in range(record.number_of_headers):
        at = get_header(at, end, &name, &value)
        if at == NULL:
            return NULL
    return at if at == end else NULL


# --- keys ---

cdef inline int32_t hash_key(const uint8_t* key, Py_ssize_t size) noexcept nogil:
    """Return Kafka's murmur2 hash."""
    cdef uint32_t mix = 0x5BD1E995
    cdef uint32_t hashed = <uint32_t> 0x9747B28C ^ <uint32_t> size
    cdef uint32_t word
    while size >= 4:
        word = key[0] | <uint32_t> key[1] << 8 | <uint32_t> key[2] << 16 | <uint32_t> key[3] << 24
        word *= mix
        word ^= word >> 24
        hashed = hashed * mix ^ word * mix
        key += 4
        size -= 4
    if size == 3:
        hashed ^= <uint32_t> key[2] << 16
    if size >= 2:
        hashed ^= <uint32_t> key[1] << 8
    if size >= 1:
        hashed = (hashed ^ key[0]) * mix
    hashed ^= hashed >> 13
    hashed *= mix
    hashed ^= hashed >> 15
    return <int32_t> hashed
