# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Record batches, compiled. `batch_py.py` says the same in plain Python, with the layouts; read that first.

Rules of this file:
- Bytes from outside are read through a pair (at, end) only, by functions that check before they read and answer NULL when
  the bytes are wrong. Each length is read once, checked, then used: a buffer that another thread scribbles over may give
  nonsense, never an over-read.
- Memory is allocated for what the input can hold, not for what it claims.
- While a builder's memory is in use without the GIL, or lent out, `lent` is above zero and whoever wants to change it
  gets a BufferError.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_Check, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from fencepost.errors import CorruptBatch
from fencepost.kernel.codecs import compress
from fencepost.kernel.columns import BytesColumn, HeaderColumn, NumberColumn, RecordColumns
from fencepost.kernel.payload import open_batch
from fencepost.kernel.record import MAX_DECOMPRESSED as _MAX_DECOMPRESSED
from fencepost.kernel.record import Record as _Record

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    object tuple_alloc "PyType_GenericAlloc" (PyTypeObject* kind, Py_ssize_t items)
    void PyObject_GC_UnTrack(void* object)

cdef extern from "_native.h" nogil:
    void prepare_crc32c()
    uint32_t crc32c_of(const uint8_t* data, size_t size, int by_table)
    size_t lz4_bound(size_t size)
    size_t lz4_pack(const uint8_t* data, size_t size, uint8_t* out)

prepare_crc32c()

cdef enum:
    HEADER_SIZE = 61
    LENGTH_PREFIX = 12
    CHECKED_FROM = 21
    CRC_AT = 17
    MAGIC = 2
    CODEC_MASK = 0x07
    LOG_APPEND_TIME = 0x08
    TRANSACTIONAL = 0x10
    CONTROL = 0x20
    LONGEST_VARINT = 10
    NONE = 0
    LZ4 = 3
    LZ4_BLOCK = 65536
    LZ4_FIRST_SLOW_LEVEL = 3
    WORTH_LETTING_GO = 32768    # bytes; below it, getting the GIL back takes longer than the work

# What goes wrong without the GIL is answered as one of these and raised once the GIL is back.
cdef enum Outcome:
    DONE = 0
    NO_MEMORY = 1
    TOO_LARGE = 2
    MALFORMED = 3
    FULL = 4


cdef object RecordType = _Record
cdef tuple NO_HEADERS = ()
cdef const char* LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"    # independent blocks of 64 KiB, no checksums
cdef uint8_t[1] NOTHING


# --- memory that grows ---

cdef struct Memory:
    uint8_t* data
    Py_ssize_t used
    Py_ssize_t capacity


cdef Outcome grow(Memory* memory, Py_ssize_t more) noexcept nogil:
    cdef Py_ssize_t needed = memory.used + more
    cdef Py_ssize_t capacity = memory.capacity * 2
    if capacity < needed:
        capacity = needed
    cdef uint8_t* moved = <uint8_t*> realloc(memory.data, capacity)
    if moved == NULL:
        return NO_MEMORY
    memory.data = moved
    memory.capacity = capacity
    return DONE


cdef inline Outcome reserve(Memory* memory, Py_ssize_t more) noexcept nogil:
    """Room for `more` bytes behind what is used."""
    return DONE if memory.capacity - memory.used >= more else grow(memory, more)


cdef int lend_memory(Py_buffer* view, object owner, Memory* memory, int flags) except -1:
    """A read-only buffer. Nothing yet allocated is lent as no bytes at some address: Arrow aborts on NULL."""
    return PyBuffer_FillInfo(view, owner, memory.data if memory.data != NULL else NOTHING, memory.used, 1, flags)


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
    """Reads a number of 32 bits; where it ends, or NULL if it is cut off or has more bits."""
    cdef uint32_t raw = 0
    cdef int shift = 0
    cdef uint8_t byte
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
    """Reads a number of 64 bits; where it ends, or NULL if it is cut off or has more bits."""
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


# --- spans: bytes that belong to somebody else ---

cdef struct Span:
    const uint8_t* data
    Py_ssize_t size     # −1: null


cdef inline bint is_plain(object data) noexcept:
    """Bytes and text lend their memory without a release; other buffers need one."""
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


cdef int append_span(Memory* memory, object data) except -1:
    """Length and bytes of a key, value or header part at the end of `memory`."""
    cdef Span span
    cdef Py_buffer view
    cdef bint held = False
    if is_plain(data):
        span_of_plain(data, &span)
    else:
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        held = True
        span.data = <const uint8_t*> view.buf
        span.size = view.len
    cdef Outcome outcome = reserve(memory, LONGEST_VARINT + (span.size if span.size > 0 else 0))
    if outcome == DONE:
        memory.used = put_span(memory.data + memory.used, span) - memory.data
    if held:
        PyBuffer_Release(&view)
    if outcome != DONE:
        raise_outcome(outcome)
    return 0


cdef int32_t encode_headers(Memory* memory, object headers) except -1:
    """The headers, without their number, at the end of `memory`; their number is the result."""
    cdef int32_t number = 0
    for name, value in headers:
        if not PyUnicode_Check(name):
            raise TypeError(f"the name of a header is text, not {type(name).__name__}")
        append_span(memory, name)
        append_span(memory, value)
        if memory.used > INT32_MAX:
            raise_outcome(TOO_LARGE)
        number += 1
    return number


# --- columns to encode from ---
#
# Arrow's buffers are trusted to be as long as they say, and nothing else: offsets and row numbers are checked where they
# are used.

cdef struct BytesIn:
    const uint8_t* offsets      # NULL: the column is missing, every row is null
    const uint8_t* data
    const uint8_t* validity
    Py_ssize_t rows
    Py_ssize_t first
    Py_ssize_t data_size
    bint wide


cdef struct NumbersIn:
    const uint8_t* data
    const uint8_t* validity
    Py_ssize_t first


cdef struct HeadersIn:
    const uint8_t* offsets
    const uint8_t* validity
    Py_ssize_t first
    BytesIn names
    BytesIn values


# Arrow does not promise alignment; the compiler makes a plain load of it.
cdef inline int64_t load32(const uint8_t* numbers, Py_ssize_t i) noexcept nogil:
    cdef int32_t number
    memcpy(&number, numbers + 4 * i, 4)
    return number


cdef inline int64_t load64(const uint8_t* numbers, Py_ssize_t i) noexcept nogil:
    cdef int64_t number
    memcpy(&number, numbers + 8 * i, 8)
    return number


cdef inline bint is_valid(const uint8_t* validity, Py_ssize_t i) noexcept nogil:
    return validity == NULL or validity[i >> 3] >> (i & 7) & 1


cdef inline bint bytes_at(BytesIn* column, Py_ssize_t row, Span* span) noexcept nogil:
    """Row `row`, which must exist; False if its offsets point outside."""
    cdef Py_ssize_t i = column.first + row
    cdef int64_t start, stop
    if column.offsets == NULL or not is_valid(column.validity, i):
        span.data = NULL
        span.size = -1
        return True
    if column.wide:
        start, stop = load64(column.offsets, i), load64(column.offsets, i + 1)
    else:
        start, stop = load32(column.offsets, i), load32(column.offsets, i + 1)
    if start < 0 or stop < start or stop > column.data_size:
        return False
    span.data = column.data + start
    span.size = stop - start
    return True


cdef int32_t headers_at(ColumnSource source, Py_ssize_t row, Memory* memory) noexcept nogil:
    """The row's headers, without their number, at the end of `memory`; their number, or an outcome, negated."""
    cdef HeadersIn* column = &source.headers
    cdef Py_ssize_t i = column.first + row
    cdef int64_t start, stop, at
    cdef Span name, value
    cdef Outcome outcome
    if not is_valid(column.validity, i):
        return 0
    start, stop = load32(column.offsets, i), load32(column.offsets, i + 1)
    if start < 0 or stop < start or stop > column.names.rows or stop > column.values.rows:
        return -MALFORMED
    for at in range(start, stop):
        if not bytes_at(&column.names, at, &name) or not bytes_at(&column.values, at, &value) or name.size < 0:
            return -MALFORMED
        outcome = put_into(memory, name)
        if outcome == DONE:
            outcome = put_into(memory, value)
        if outcome != DONE:
            return -outcome
    return <int32_t> (stop - start)


cdef Outcome put_into(Memory* memory, Span span) noexcept nogil:
    if span.size > INT32_MAX or memory.used > INT32_MAX:
        return TOO_LARGE
    if reserve(memory, LONGEST_VARINT + max(span.size, 0)) != DONE:
        return NO_MEMORY
    memory.used = put_span(memory.data + memory.used, span) - memory.data
    return DONE


cdef class Lent:
    """A buffer of somebody else's, kept for as long as this object lives."""

    cdef Py_buffer view

    def __cinit__(self, owner):
        PyObject_GetBuffer(owner, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef class ColumnSource:
    """Columns to encode from; see `columns.py`."""

    cdef readonly Py_ssize_t rows
    cdef BytesIn key
    cdef BytesIn value
    cdef NumbersIn timestamp
    cdef HeadersIn headers
    cdef list lent

    def __cinit__(self, columns):
        self.lent = []
        self.rows = columns.rows
        if self.rows < 0:
            raise ValueError("a negative number of rows")
        if columns.key is not None:
            self.lend_bytes(columns.key, &self.key)
            self.expect_rows(self.key.rows)
        if columns.value is not None:
            self.lend_bytes(columns.value, &self.value)
            self.expect_rows(self.value.rows)
        if columns.timestamp is not None:
            self.expect_rows(columns.timestamp.rows)
            self.timestamp.first = columns.timestamp.first
            self.timestamp.validity = self.lend_validity(columns.timestamp)
            self.timestamp.data = self.lend(columns.timestamp.data, (self.timestamp.first + self.rows) * 8)
        if columns.headers is not None:
            self.expect_rows(columns.headers.rows)
            self.headers.first = columns.headers.first
            self.headers.validity = self.lend_validity(columns.headers)
            self.lend_bytes(columns.headers.names, &self.headers.names)
            self.lend_bytes(columns.headers.values, &self.headers.values)
            if self.rows:
                self.headers.offsets = self.lend(columns.headers.offsets, (self.headers.first + self.rows + 1) * 4)

    cdef int expect_rows(self, Py_ssize_t rows) except -1:
        if rows != self.rows:
            raise ValueError(f"a column of {rows} rows among columns of {self.rows}")
        return 0

    cdef const uint8_t* lend(self, object owner, Py_ssize_t needed) except? NULL:
        cdef Lent lent = Lent(owner)
        if lent.view.len < needed:
            raise ValueError(f"a buffer of {lent.view.len} bytes where {needed} are needed")
        self.lent.append(lent)
        return <const uint8_t*> lent.view.buf

    cdef const uint8_t* lend_validity(self, object column) except? NULL:
        cdef Py_ssize_t first = column.first
        cdef Py_ssize_t rows = column.rows
        if first < 0 or rows < 0 or first > PY_SSIZE_T_MAX // 16 or rows > PY_SSIZE_T_MAX // 16:
            raise ValueError(f"a column of {rows} rows from {first}")
        if column.validity is None:
            return NULL
        return self.lend(column.validity, (first + rows + 7) >> 3)

    cdef int lend_bytes(self, object column, BytesIn* into) except -1:
        cdef Py_ssize_t width = 8 if column.wide else 4
        into.validity = self.lend_validity(column)
        into.rows = column.rows
        into.first = column.first
        into.wide = column.wide
        if into.rows:  # Arrow leaves the offsets of an empty column out
            into.offsets = self.lend(column.offsets, (into.first + into.rows + 1) * width)
            into.data = self.lend(column.data, 0)
            into.data_size = (<Lent> self.lent[len(self.lent) - 1]).view.len
        return 0


# --- encoding ---

# A batch as it stands, and what is to be said of it beyond its records.
cdef struct Frozen:
    const uint8_t* records
    Py_ssize_t size
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int64_t pid
    int32_t base_sequence
    int32_t count
    int16_t epoch
    int16_t attributes


cdef struct Job:
    Frozen batch
    uint8_t* out
    Py_ssize_t size


cdef bint is_native(int codec, object level) except -1:
    """Is this compressed here, without a library that wants the GIL?"""
    return codec == NONE or (codec == LZ4 and (level is None or level < LZ4_FIRST_SLOW_LEVEL))


cdef Py_ssize_t native_bound(int codec, Py_ssize_t size) noexcept nogil:
    """How many bytes so many bytes of records may become at worst."""
    if codec == NONE:
        return size
    return 7 + (size // LZ4_BLOCK + 1) * (4 + lz4_bound(0)) + lz4_bound(size) + 4


cdef Py_ssize_t write_lz4(uint8_t* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """An LZ4 frame as `codecs.py` describes and writes it; its size."""
    cdef uint8_t* at = out
    cdef Py_ssize_t taken, packed
    memcpy(at, LZ4_HEADER, 7)
    at += 7
    while size:
        taken = min(size, LZ4_BLOCK)
        packed = lz4_pack(data, taken, at + 4)
        if packed < taken:
            put_little_endian32(at, <uint32_t> packed)
        else:
            put_little_endian32(at, <uint32_t> taken | <uint32_t> 0x80000000)
            memcpy(at + 4, data, taken)
            packed = taken
        at += 4 + packed
        data += taken
        size -= taken
    put_little_endian32(at, 0)
    return at + 4 - out


cdef int16_t attributes_of(int codec, bint transactional, bint control) noexcept:
    return <int16_t> (codec | (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0))


cdef object room_for(Frozen* frozen):
    """A bytearray that holds the batch at its worst; `write_batch` says what of it was needed."""
    cdef Py_ssize_t size = HEADER_SIZE + native_bound(frozen.attributes & CODEC_MASK, frozen.size)
    if size > INT32_MAX:
        raise_outcome(TOO_LARGE)
    return PyByteArray_FromStringAndSize(NULL, size)


cdef Py_ssize_t write_batch(uint8_t* out, Frozen* frozen) noexcept nogil:
    """The whole batch, compressed by this file's own means; its size."""
    cdef Py_ssize_t size = frozen.size
    if frozen.attributes & CODEC_MASK == LZ4:
        size = write_lz4(out + HEADER_SIZE, frozen.records, frozen.size)
    else:
        memcpy(out + HEADER_SIZE, frozen.records, size)
    write_header(out, size, frozen)
    return HEADER_SIZE + size


cdef object batch_around(object payload, Frozen* frozen):
    """The whole batch around records that a library has compressed."""
    cdef Lent lent = Lent(payload)
    cdef Py_ssize_t size = lent.view.len
    cdef uint8_t* out
    if HEADER_SIZE + size > INT32_MAX:
        raise_outcome(TOO_LARGE)
    batch = PyByteArray_FromStringAndSize(NULL, HEADER_SIZE + size)
    out = <uint8_t*> PyByteArray_AS_STRING(batch)
    memcpy(out + HEADER_SIZE, lent.view.buf, size)
    write_header(out, size, frozen)
    return batch


cdef void write_header(uint8_t* out, Py_ssize_t payload_size, Frozen* frozen) noexcept nogil:
    """The header in front of a payload that is in place, with the checksum of both."""
    cdef uint8_t* at = out
    at = put_big_endian(at, frozen.base_offset, 8)
    at = put_big_endian(at, HEADER_SIZE - LENGTH_PREFIX + payload_size, 4)
    at = put_big_endian(at, <uint64_t> -1, 4)  # the leader's epoch is the broker's to set
    at = put_big_endian(at, MAGIC, 1)
    at += 4  # the checksum comes last
    at = put_big_endian(at, <uint16_t> frozen.attributes, 2)
    at = put_big_endian(at, frozen.count - 1, 4)
    at = put_big_endian(at, frozen.base_timestamp, 8)
    at = put_big_endian(at, frozen.max_timestamp, 8)
    at = put_big_endian(at, frozen.pid, 8)
    at = put_big_endian(at, <uint16_t> frozen.epoch, 2)
    at = put_big_endian(at, <uint32_t> frozen.base_sequence, 4)
    at = put_big_endian(at, frozen.count, 4)
    put_big_endian(
        out + CRC_AT, crc32c_of(out + CHECKED_FROM, HEADER_SIZE - CHECKED_FROM + payload_size, False), 4
    )


cdef class BatchBuilder:
    """One open batch. Not for several threads at once, except that the GIL makes each `append` whole."""

    cdef Memory memory              # the encoded records
    cdef Py_ssize_t first_capacity  # memory is taken at the first append: an idle builder costs nothing
    cdef int lent
    cdef readonly int32_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    def __cinit__(self, Py_ssize_t capacity=16384):
        """`capacity` is a hint; the batch grows as it must."""
        if capacity < 0:
            raise ValueError("capacity is negative")
        self.first_capacity = capacity
        self.base_timestamp = self.max_timestamp = -1

    def __dealloc__(self):
        free(self.memory.data)

    def __len__(self):
        return self.count

    def __getbuffer__(self, Py_buffer* view, int flags):
        """The encoded records, read-only, for the codecs; nothing can be appended while they are lent."""
        lend_memory(view, self, &self.memory, flags)
        self.lent += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.lent -= 1

    @property
    def size(self):
        """Bytes of the batch, were it built now without compression."""
        return HEADER_SIZE + self.memory.used

    def append(self, key, value, int64_t timestamp, headers=None):
        """Encodes one record at the end; the batch's size afterwards. If it raises, nothing was added."""
        cdef Span key_span, value_span, header_span
        cdef Outcome outcome
        if headers is None and is_plain(key) and is_plain(value):
            span_of_plain(key, &key_span)
            span_of_plain(value, &value_span)
            header_span.size = 0
            if self.lent:
                self.refuse_change()
            outcome = self.put(key_span, value_span, timestamp, 0, header_span, INT32_MAX)
            if outcome != DONE:
                raise_outcome(outcome)
        else:
            self.append_anything(key, value, timestamp, headers)
        return HEADER_SIZE + self.memory.used

    cdef int refuse_change(self) except -1:
        raise BufferError("the batch is being built; it cannot change meanwhile")

    cdef int append_anything(self, object key, object value, int64_t timestamp, object headers) except -1:
        """Headers and buffers run foreign code while they are read, so all of it is read before the batch is touched."""
        cdef Memory scratch
        cdef Span key_span, value_span, header_span
        cdef Py_buffer key_view, value_view
        cdef bint key_held = False, value_held = False
        cdef int32_t number_of_headers = 0
        cdef Outcome outcome
        scratch.data = NULL
        scratch.used = scratch.capacity = 0
        try:
            if headers is not None:
                number_of_headers = encode_headers(&scratch, headers)
            if is_plain(key):
                span_of_plain(key, &key_span)
            else:
                PyObject_GetBuffer(key, &key_view, PyBUF_SIMPLE)
                key_held = True
                key_span.data, key_span.size = <const uint8_t*> key_view.buf, key_view.len
            if is_plain(value):
                span_of_plain(value, &value_span)
            else:
                PyObject_GetBuffer(value, &value_view, PyBUF_SIMPLE)
                value_held = True
                value_span.data, value_span.size = <const uint8_t*> value_view.buf, value_view.len
            header_span.data, header_span.size = scratch.data, scratch.used
            if self.lent:
                self.refuse_change()
            outcome = self.put(key_span, value_span, timestamp, number_of_headers, header_span, INT32_MAX)
            if outcome != DONE:
                raise_outcome(outcome)
        finally:
            free(scratch.data)
            if key_held:
                PyBuffer_Release(&key_view)
            if value_held:
                PyBuffer_Release(&value_view)
        return 0

    cdef Outcome put(
        self, Span key, Span value, int64_t timestamp, int32_t number_of_headers, Span headers, Py_ssize_t limit
    ) noexcept nogil:
        """One record at the end. `headers` are encoded already, without their number. FULL: the batch would become larger
        than `limit`, and it has a record already.
        """
        cdef int64_t base_timestamp = self.base_timestamp if self.count else timestamp
        cdef int64_t delta = wrapping_subtract(timestamp, base_timestamp)
        cdef Py_ssize_t body, total
        cdef uint8_t* at
        if key.size > INT32_MAX or value.size > INT32_MAX or headers.size > INT32_MAX:
            return TOO_LARGE
        body = (
            1 + varint_size(delta) + varint_size(self.count) + span_size(key) + span_size(value)
            + varint_size(number_of_headers) + headers.size
        )
        total = varint_size(body) + body
        if HEADER_SIZE + self.memory.used + total > limit and self.count:
            return FULL
        if HEADER_SIZE + self.memory.used + total > INT32_MAX:
            return TOO_LARGE
        if reserve(&self.memory, total if self.memory.data != NULL else max(total, self.first_capacity)) != DONE:
            return NO_MEMORY
        at = put_varint(self.memory.data + self.memory.used, body)
        at[0] = 0
        at = put_varint(at + 1, delta)
        at = put_varint(at, self.count)
        at = put_span(at, key)
        at = put_span(at, value)
        at = put_varint(at, number_of_headers)
        if headers.size:
            memcpy(at, headers.data, headers.size)
        self.memory.used += total
        if not self.count:
            self.base_timestamp = self.max_timestamp = timestamp
        elif timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
        self.count += 1
        return DONE

    def append_columns(
        self,
        ColumnSource source not None,
        Py_ssize_t start,
        Py_ssize_t stop,
        *,
        int64_t timestamp,
        rows=None,
        Py_ssize_t limit=INT32_MAX,
    ):
        """Encodes rows start … stop−1 of the columns, without the GIL, until the batch would grow beyond `limit` bytes (it
        takes its first record however large), and says where it stopped. With `rows`, numbers of 32 bits, it is those rows
        of the columns which stand there from start to stop−1. `timestamp` is for rows that have none. If it raises,
        nothing was added.
        """
        cdef Outcome outcome = DONE
        cdef Py_ssize_t i = start
        cdef Py_ssize_t used = self.memory.used
        cdef int32_t count = self.count
        cdef int64_t base_timestamp = self.base_timestamp, max_timestamp = self.max_timestamp
        cdef Memory scratch
        cdef Py_buffer view
        cdef const uint8_t* picked = NULL
        scratch.data = NULL
        scratch.used = scratch.capacity = 0
        if rows is not None:
            PyObject_GetBuffer(rows, &view, PyBUF_SIMPLE)
            picked = <const uint8_t*> view.buf
        try:
            if not 0 <= start <= stop or stop > (source.rows if rows is None else view.len // 4):
                raise IndexError(f"rows {start} to {stop} of {source.rows if rows is None else view.len // 4}")
            if self.lent:
                self.refuse_change()
            self.lent += 1
            try:
                with nogil:
                    while i < stop:
                        outcome = self.put_row(
                            source, load32(picked, i) if picked != NULL else i, timestamp, limit, &scratch
                        )
                        if outcome != DONE:
                            break
                        i += 1
            finally:
                self.lent -= 1
        finally:
            free(scratch.data)
            if rows is not None:
                PyBuffer_Release(&view)
        if outcome != DONE and outcome != FULL:
            self.memory.used = used
            self.count = count
            self.base_timestamp = base_timestamp
            self.max_timestamp = max_timestamp
            if outcome == MALFORMED:
                raise ValueError(f"row {i}: the columns' buffers do not fit together, or a header has no name")
            raise_outcome(outcome)
        return i

    cdef Outcome put_row(
        self, ColumnSource source, Py_ssize_t row, int64_t timestamp, Py_ssize_t limit, Memory* scratch
    ) noexcept nogil:
        cdef Span key, value, headers
        cdef int32_t number_of_headers = 0
        if not 0 <= row < source.rows:
            return MALFORMED
        if not bytes_at(&source.key, row, &key) or not bytes_at(&source.value, row, &value):
            return MALFORMED
        if source.timestamp.data != NULL and is_valid(source.timestamp.validity, source.timestamp.first + row):
            timestamp = load64(source.timestamp.data, source.timestamp.first + row)
        scratch.used = 0
        if source.headers.offsets != NULL:
            number_of_headers = headers_at(source, row, scratch)
            if number_of_headers < 0:
                return <Outcome> -number_of_headers
        headers.data, headers.size = scratch.data, scratch.used
        return self.put(key, value, timestamp, number_of_headers, headers, limit)

    def records(self):
        """The encoded records, uncompressed."""
        return PyBytes_FromStringAndSize(<const char*> self.memory.data, self.memory.used)

    def build(
        self,
        int codec=0,
        level=None,
        *,
        int64_t pid=-1,
        int16_t epoch=-1,
        int32_t base_sequence=-1,
        bint transactional=False,
        int64_t base_offset=0,
        bint control=False,
    ):
        """The whole batch, compressed and with its checksum. The builder stays as it is."""
        cdef Frozen frozen
        cdef Py_ssize_t size
        cdef uint8_t* out
        frozen.base_offset = base_offset
        frozen.pid = pid
        frozen.epoch = epoch
        frozen.base_sequence = base_sequence
        frozen.attributes = attributes_of(codec, transactional, control)
        self.freeze(&frozen)
        if not is_native(codec, level):
            return batch_around(compress(codec, memoryview(self), level), &frozen)
        batch = room_for(&frozen)
        out = <uint8_t*> PyByteArray_AS_STRING(batch)
        if frozen.size < WORTH_LETTING_GO:
            size = write_batch(out, &frozen)
        else:
            self.lent += 1
            with nogil:
                size = write_batch(out, &frozen)
            self.lent -= 1
        PyByteArray_Resize(batch, size)
        return batch

    cdef int freeze(self, Frozen* frozen) except -1:
        if not self.count:
            raise ValueError("a batch has at least one record")
        frozen.records = self.memory.data
        frozen.size = self.memory.used
        frozen.count = self.count
        frozen.base_timestamp = self.base_timestamp
        frozen.max_timestamp = self.max_timestamp
        return 0

    def clear(self):
        """Makes the builder empty, for the next batch; its memory is kept."""
        if self.lent:
            self.refuse_change()
        self.memory.used = 0
        self.count = 0
        self.base_timestamp = self.max_timestamp = -1


def encode_batch(
    records,
    *,
    int codec=0,
    level=None,
    int64_t pid=-1,
    int16_t epoch=-1,
    int32_t base_sequence=-1,
    bint transactional=False,
    int64_t base_offset=0,
    bint control=False,
):
    """A whole batch of (key, value, timestamp, headers)."""
    cdef BatchBuilder builder = BatchBuilder()
    for key, value, timestamp, headers in records:
        builder.append(key, value, timestamp, headers)
    return builder.build(
        codec,
        level,
        pid=pid,
        epoch=epoch,
        base_sequence=base_sequence,
        transactional=transactional,
        base_offset=base_offset,
        control=control,
    )


def build_batches(jobs, int codec=0, level=None, *, bint transactional=False):
    """Builds the batches of (builder, pid, epoch, base sequence), in order. Where the codec allows it (none, lz4 at its
    default level), the GIL is given up once for all of them, not once for each.
    """
    cdef list listed = list(jobs)
    cdef list built = []
    cdef BatchBuilder builder
    cdef Py_ssize_t number = len(listed), frozen = 0, i
    if not is_native(codec, level):
        for builder, pid, epoch, base_sequence in listed:
            batch = builder.build(
                codec, level, pid=pid, epoch=epoch, base_sequence=base_sequence, transactional=transactional
            )
            built.append(batch)
        return built
    cdef Job* plan = <Job*> malloc(max(number, 1) * sizeof(Job))
    if plan == NULL:
        raise MemoryError
    try:
        for builder, pid, epoch, base_sequence in listed:
            plan[frozen].batch.base_offset = 0
            plan[frozen].batch.pid = pid
            plan[frozen].batch.epoch = epoch
            plan[frozen].batch.base_sequence = base_sequence
            plan[frozen].batch.attributes = attributes_of(codec, transactional, False)
            builder.freeze(&plan[frozen].batch)
            batch = room_for(&plan[frozen].batch)
            plan[frozen].out = <uint8_t*> PyByteArray_AS_STRING(batch)
            built.append(batch)
            builder.lent += 1
            frozen += 1
        with nogil:
            for i in range(number):
                plan[i].size = write_batch(plan[i].out, &plan[i].batch)
        for i in range(number):
            PyByteArray_Resize(built[i], plan[i].size)
    finally:
        for i in range(frozen):
            builder = listed[i][0]
            builder.lent -= 1
        free(plan)
    return built


# --- decoding ---

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
    """Length and bytes of a key, value or header part. `smallest` is −1 where null is allowed, otherwise 0."""
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


cdef const uint8_t* get_record(const uint8_t* at, const uint8_t* end, RawRecord* record) noexcept nogil:
    """The record at `at`, every length in it verified; where it ends, or NULL."""
    cdef int32_t size, i
    cdef Span name, value
    at = get_varint(at, end, &size)
    if at == NULL or size < 1 or size > end - at:
        return NULL
    end = at + size
    at = get_varlong(at + 1, end, &record.timestamp_delta)  # behind the attributes, of which none are defined
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


cdef inline object bytes_of(Span span):
    return None if span.size < 0 else PyBytes_FromStringAndSize(<const char*> span.data, span.size)


cdef tuple headers_of(RawRecord* record):
    cdef const uint8_t* at = record.headers
    cdef Span name, value
    cdef int32_t i
    cdef list headers = []
    for i in range(record.number_of_headers):
        at = get_header(at, record.end, &name, &value)
        if at == NULL:
            raise CorruptBatch("a record changed while it was read")
        # Some clients let users write any bytes as a name; Java shows them with replacement characters, and so do we.
        headers.append((PyUnicode_DecodeUTF8(<const char*> name.data, name.size, "replace"), bytes_of(value)))
    return tuple(headers)


cdef inline object record_of(int64_t offset, int64_t timestamp, object key, object value, object headers):
    """A `Record`, made as tuple.__new__ makes it, without the detour over a tuple of its fields."""
    cdef object record = tuple_alloc(<PyTypeObject*> RecordType, 5)
    cdef object number = offset
    Py_INCREF(number)
    PyTuple_SET_ITEM(record, 0, number)
    number = timestamp
    Py_INCREF(number)
    PyTuple_SET_ITEM(record, 1, number)
    Py_INCREF(key)
    PyTuple_SET_ITEM(record, 2, key)
    Py_INCREF(value)
    PyTuple_SET_ITEM(record, 3, value)
    Py_INCREF(headers)
    PyTuple_SET_ITEM(record, 4, headers)
    PyObject_GC_UnTrack(<void*> record)  # nothing in it can refer back, and a fetch makes many thousands
    return record


def decode_batch(buffer, Py_ssize_t at=0, *, bint check=True, Py_ssize_t max_bytes=_MAX_DECOMPRESSED):
    """The records of the batch at `at`, of control batches too. `check=False` leaves out the checksum only."""
    header, payload = open_batch(buffer, at, check, max_bytes)
    cdef int32_t count = header.count
    cdef int32_t last_offset_delta = header.last_offset_delta
    cdef int64_t base_offset = header.base_offset
    cdef int64_t base_timestamp = header.base_timestamp
    cdef int64_t max_timestamp = header.max_timestamp
    cdef bint log_append_time = header.attributes & LOG_APPEND_TIME
    cdef int32_t i, last_delta = -1
    cdef const uint8_t* here
    cdef const uint8_t* end
    cdef RawRecord record
    cdef Py_buffer view
    cdef list records = []
    PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
    try:
        here = <const uint8_t*> view.buf
        end = here + view.len
        for i in range(count):
            here = get_record(here, end, &record)
            if here == NULL:
                raise_outcome(MALFORMED)
            if not last_delta < record.offset_delta <= last_offset_delta:
                raise CorruptBatch(
                    f"offset delta {record.offset_delta} comes after {last_delta}, the last is {last_offset_delta}"
                )
            last_delta = record.offset_delta
            records.append(
                record_of(
                    base_offset + last_delta,
                    max_timestamp if log_append_time else wrapping_add(base_timestamp, record.timestamp_delta),
                    bytes_of(record.key),
                    bytes_of(record.value),
                    headers_of(&record) if record.number_of_headers else NO_HEADERS,
                )
            )
        if here != end:
            raise CorruptBatch(f"{end - here} bytes behind the last record")
    finally:
        PyBuffer_Release(&view)
    return records


# --- decoding into columns ---

cdef class Block:
    """Memory that was filled here and belongs to whoever holds this object: a read-only buffer."""

    cdef Memory memory

    def __dealloc__(self):
        free(self.memory.data)

    def __len__(self):
        return self.memory.used

    def __getbuffer__(self, Py_buffer* view, int flags):
        lend_memory(view, self, &self.memory, flags)


cdef Block block_of(Memory* memory):
    cdef Block block = Block.__new__(Block)
    block.memory = memory[0]
    memory.data = NULL
    memory.used = memory.capacity = 0
    return block


cdef struct BytesOut:
    Memory offsets
    Memory data
    Memory validity
    Py_ssize_t rows
    Py_ssize_t nulls


cdef inline Outcome push32(Memory* memory, int32_t number) noexcept nogil:
    if reserve(memory, 4) != DONE:
        return NO_MEMORY
    memcpy(memory.data + memory.used, &number, 4)
    memory.used += 4
    return DONE


cdef inline Outcome push64(Memory* memory, int64_t number) noexcept nogil:
    if reserve(memory, 8) != DONE:
        return NO_MEMORY
    memcpy(memory.data + memory.used, &number, 8)
    memory.used += 8
    return DONE


cdef inline Outcome push_bytes(BytesOut* column, Span span) noexcept nogil:
    """One row."""
    cdef uint8_t bit = <uint8_t> (1 << (column.rows & 7))
    if span.size > INT32_MAX - column.data.used:
        return TOO_LARGE
    if column.rows & 7 == 0:
        if reserve(&column.validity, 1) != DONE:
            return NO_MEMORY
        column.validity.data[column.validity.used] = 0
        column.validity.used += 1
    if span.size < 0:
        column.nulls += 1
    else:
        column.validity.data[column.rows >> 3] |= bit
        if reserve(&column.data, span.size) != DONE:
            return NO_MEMORY
        if span.size:
            memcpy(column.data.data + column.data.used, span.data, span.size)
            column.data.used += span.size
    column.rows += 1
    return push32(&column.offsets, <int32_t> column.data.used)


cdef inline Outcome push_name(BytesOut* column, Span name) noexcept nogil:
    """A header's name. Arrow's text must be UTF-8, so what is not becomes it, as in `headers_of`."""
    cdef Py_ssize_t i
    for i in range(name.size):
        if name.data[i] > 0x7F:
            return push_foreign_name(column, name)
    return push_bytes(column, name)


cdef Outcome push_foreign_name(BytesOut* column, Span name) noexcept with gil:
    cdef Span clean
    try:
        text = PyUnicode_DecodeUTF8(<const char*> name.data, name.size, "replace")
        span_of_plain(text, &clean)
        return push_bytes(column, clean)
    except MemoryError:
        return NO_MEMORY


cdef inline void truncate_bytes(BytesOut* column, BytesOut* to) noexcept nogil:
    """Back to the row count and sizes that `to` remembers; the memory may have moved since and stays."""
    column.offsets.used = to.offsets.used
    column.data.used = to.data.used
    column.validity.used = to.validity.used
    column.rows = to.rows
    column.nulls = to.nulls
    if column.rows & 7:
        column.validity.data[column.rows >> 3] &= <uint8_t> ((1 << (column.rows & 7)) - 1)


cdef Outcome begin_bytes(BytesOut* column) noexcept nogil:
    column.rows = column.nulls = 0
    return push32(&column.offsets, 0)


cdef void free_bytes(BytesOut* column) noexcept nogil:
    free(column.offsets.data)
    free(column.data.data)
    free(column.validity.data)


cdef object column_of(BytesOut* column):
    """The column, whose memory is no longer `column`'s."""
    validity = block_of(&column.validity)
    return BytesColumn(
        column.rows, block_of(&column.offsets), block_of(&column.data), validity if column.nulls else None
    )


cdef struct BatchFields:
    int64_t base_offset
    int64_t base_timestamp
    int64_t max_timestamp
    int32_t count
    int32_t last_offset_delta
    bint log_append_time


cdef class ColumnDecoder:
    """Decodes batch after batch into columns; `take` hands them over and begins anew."""

    cdef BytesOut key
    cdef BytesOut value
    cdef BytesOut names
    cdef BytesOut values
    cdef Memory header_offsets
    cdef Memory offset
    cdef Memory timestamp
    cdef Memory timestamp_type
    cdef bint with_headers
    cdef bint busy
    cdef readonly Py_ssize_t rows

    def __cinit__(self, *, bint headers=False):
        self.with_headers = headers
        self.begin()

    def __dealloc__(self):
        free_bytes(&self.key)
        free_bytes(&self.value)
        free_bytes(&self.names)
        free_bytes(&self.values)
        free(self.header_offsets.data)
        free(self.offset.data)
        free(self.timestamp.data)
        free(self.timestamp_type.data)

    cdef int begin(self) except -1:
        """Offsets have a number more than there are rows: the first is 0."""
        self.rows = 0
        if (
            begin_bytes(&self.key) != DONE or begin_bytes(&self.value) != DONE
            or begin_bytes(&self.names) != DONE or begin_bytes(&self.values) != DONE
            or push32(&self.header_offsets, 0) != DONE
        ):
            raise MemoryError
        return 0

    @property
    def size(self):
        """Bytes of keys, values and headers so far."""
        return self.key.data.used + self.value.data.used + self.names.data.used + self.values.data.used

    def add(
        self,
        buffer,
        Py_ssize_t at=0,
        *,
        int64_t start=INT64_MIN,
        int64_t stop=INT64_MAX,
        bint check=True,
        Py_ssize_t max_bytes=_MAX_DECOMPRESSED,
    ):
        """Adds the records of the batch at `at` whose offsets are in start … stop−1, and says how many. A control batch
        has none. If it raises, nothing was added.
        """
        header, payload = open_batch(buffer, at, check, max_bytes)
        cdef Outcome outcome
        cdef Py_ssize_t rows = self.rows
        cdef Py_buffer view
        cdef BatchFields fields
        if header.attributes & CONTROL:
            return 0
        fields.count = header.count
        fields.last_offset_delta = header.last_offset_delta
        fields.base_offset = header.base_offset
        fields.base_timestamp = header.base_timestamp
        fields.max_timestamp = header.max_timestamp
        fields.log_append_time = header.attributes & LOG_APPEND_TIME
        if self.busy:
            raise BufferError("another thread is decoding into these columns")
        self.busy = True
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                outcome = self.decode(<const uint8_t*> view.buf, view.len, &fields, start, stop)
        finally:
            PyBuffer_Release(&view)
            self.busy = False
        if outcome == TOO_LARGE:
            raise OverflowError("a column of bytes holds at most 2 GiB; take what is there first")
        if outcome != DONE:
            raise_outcome(outcome)
        return self.rows - rows

    cdef Outcome decode(
        self, const uint8_t* payload, Py_ssize_t size, BatchFields* fields, int64_t start, int64_t stop
    ) noexcept nogil:
        """All of a batch or nothing."""
        cdef BytesOut key = self.key, value = self.value, names = self.names, values = self.values
        cdef Py_ssize_t rows = self.rows, header_offsets = self.header_offsets.used
        cdef Outcome outcome = self.decode_records(payload, payload + size, fields, start, stop)
        if outcome != DONE:
            truncate_bytes(&self.key, &key)
            truncate_bytes(&self.value, &value)
            truncate_bytes(&self.names, &names)
            truncate_bytes(&self.values, &values)
            self.rows = rows
            self.header_offsets.used = header_offsets
            self.offset.used = self.timestamp.used = 8 * rows
            self.timestamp_type.used = 4 * rows
        return outcome

    cdef Outcome decode_records(
        self, const uint8_t* at, const uint8_t* end, BatchFields* fields, int64_t start, int64_t stop
    ) noexcept nogil:
        cdef RawRecord record
        cdef int32_t i, last_delta = -1
        cdef int64_t offset, timestamp
        cdef Outcome outcome
        for i in range(fields.count):
            at = get_record(at, end, &record)
            if at == NULL or not last_delta < record.offset_delta <= fields.last_offset_delta:
                return MALFORMED
            last_delta = record.offset_delta
            offset = fields.base_offset + record.offset_delta
            if not start <= offset < stop:
                continue
            timestamp = wrapping_add(fields.base_timestamp, record.timestamp_delta)
            outcome = push_bytes(&self.key, record.key)
            if outcome == DONE:
                outcome = push_bytes(&self.value, record.value)
            if outcome == DONE:
                outcome = push64(&self.offset, offset)
            if outcome == DONE:
                outcome = push64(&self.timestamp, fields.max_timestamp if fields.log_append_time else timestamp)
            if outcome == DONE:
                outcome = push32(&self.timestamp_type, 1 if fields.log_append_time else 0)
            if outcome == DONE and self.with_headers:
                outcome = self.push_headers(&record)
            if outcome != DONE:
                return outcome
            self.rows += 1
        return DONE if at == end else MALFORMED

    cdef Outcome push_headers(self, RawRecord* record) noexcept nogil:
        cdef const uint8_t* at = record.headers
        cdef Span name, value
        cdef int32_t i
        cdef Outcome outcome
        if self.names.rows > INT32_MAX - record.number_of_headers:
            return TOO_LARGE
        for i in range(record.number_of_headers):
            at = get_header(at, record.end, &name, &value)
            if at == NULL:
                return MALFORMED
            outcome = push_name(&self.names, name)
            if outcome == DONE:
                outcome = push_bytes(&self.values, value)
            if outcome != DONE:
                return outcome
        return push32(&self.header_offsets, <int32_t> self.names.rows)

    def take(self):
        """The columns so far, which now belong to the caller."""
        if self.busy:
            raise BufferError("another thread is decoding into these columns")
        rows = self.rows
        key, value = column_of(&self.key), column_of(&self.value)
        headers = None
        if self.with_headers:
            names, values = column_of(&self.names), column_of(&self.values)
            headers = HeaderColumn(rows, block_of(&self.header_offsets), names, values)
        else:
            self.names.offsets.used = self.values.offsets.used = self.header_offsets.used = 0
        columns = RecordColumns(
            rows,
            key,
            value,
            NumberColumn(rows, block_of(&self.timestamp)),
            headers,
            NumberColumn(rows, block_of(&self.offset)),
            block_of(&self.timestamp_type),
        )
        self.begin()
        return columns


# --- partitioning ---

cdef int32_t hash_key(const uint8_t* key, Py_ssize_t size) noexcept nogil:
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


cdef int32_t hash_object(object key) except? -1:
    cdef Py_buffer view
    cdef int32_t hashed
    if PyBytes_CheckExact(key):
        return hash_key(<const uint8_t*> PyBytes_AS_STRING(key), PyBytes_GET_SIZE(key))
    PyObject_GetBuffer(key, &view, PyBUF_SIMPLE)
    hashed = hash_key(<const uint8_t*> view.buf, view.len)
    PyBuffer_Release(&view)
    return hashed


def murmur2(key):
    """Kafka's hash of a key: MurmurHash2, 32 bit, signed, with the seed that Kafka's clients share."""
    return hash_object(key)


def partition_for_key(key, int32_t partitions):
    """The partition that Kafka's default partitioner gives a record with this key."""
    if partitions <= 0:
        raise ValueError("a topic has at least one partition")
    return (hash_object(key) & 0x7FFFFFFF) % partitions


def partition_rows(ColumnSource source not None, int32_t partitions, *, int32_t keyless=-1):
    """The partition of every row by its key, as `partition_for_key` gives it, in numbers of 32 bits. Rows without a
    key get `keyless`.
    """
    cdef Memory memory
    cdef Outcome outcome = DONE
    cdef Py_ssize_t row
    cdef Span key
    if partitions <= 0:
        raise ValueError("a topic has at least one partition")
    memory.data = NULL
    memory.used = memory.capacity = 0
    with nogil:
        outcome = reserve(&memory, 4 * source.rows)
        for row in range(source.rows if outcome == DONE else 0):
            if not bytes_at(&source.key, row, &key):
                outcome = MALFORMED
                break
            push32(
                &memory, keyless if key.size < 0 else (hash_key(key.data, key.size) & 0x7FFFFFFF) % partitions
            )
    if outcome != DONE:
        free(memory.data)
        if outcome == MALFORMED:
            raise ValueError(f"row {row}: the columns' buffers do not fit together")
        raise_outcome(outcome)
    return block_of(&memory)


def group_rows(chosen, int32_t partitions):
    """Row numbers, of 32 bits, ordered by partition and within one as they were, and where each partition's begin; the
    list has a number more than there are partitions. `chosen` is a partition per row, of 32 bits.
    """
    cdef Lent lent = Lent(chosen)
    cdef const uint8_t* given = <const uint8_t*> lent.view.buf
    cdef Py_ssize_t rows = lent.view.len // 4
    cdef Py_ssize_t row, place, total = 0
    cdef int64_t partition
    cdef bint outside = False
    cdef Block order = Block.__new__(Block)
    cdef Block starts = Block.__new__(Block)
    cdef Py_ssize_t* start
    if partitions <= 0:
        raise ValueError("a topic has at least one partition")
    if rows > INT32_MAX:
        raise ValueError("row numbers have 32 bits")
    cdef Py_ssize_t table = (<Py_ssize_t> partitions + 1) * sizeof(Py_ssize_t)
    if reserve(&order.memory, 4 * rows) != DONE or reserve(&starts.memory, table) != DONE:
        raise MemoryError
    start = <Py_ssize_t*> starts.memory.data
    with nogil:
        # A counting sort: how many of each, where each begins, then every row to its place. Partitions that another
        # thread changes between the two passes give nonsense, not an overrun.
        memset(start, 0, table)
        for row in range(rows):
            partition = load32(given, row)
            if not 0 <= partition < partitions:
                outside = True
                break
            start[partition] += 1
        if not outside:
            for partition in range(partitions + 1):
                place = start[partition]
                start[partition] = total
                total += place
            for row in range(rows):
                partition = load32(given, row)
                if not 0 <= partition < partitions or start[partition] >= rows:
                    outside = True
                    break
                place = start[partition]
                start[partition] += 1
                (<int32_t*> order.memory.data)[place] = <int32_t> row
    if outside:
        raise ValueError(f"row {row} is for partition {partition} of {partitions}")
    order.memory.used = 4 * rows
    # Every beginning has moved to its end, which is where the next partition begins.
    return order, [0] + [start[partition] for partition in range(partitions)]


# --- for the tests ---

def checksum_of(data, *, bint by_table=False):
    """CRC-32C, by the processor's instruction or by table."""
    cdef Lent lent = Lent(data)
    return crc32c_of(<const uint8_t*> lent.view.buf, lent.view.len, by_table)
