# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Record batches, compiled. `batch_py.py` is the same in plain Python, with the layouts; read that first.

One module of seven files, so that the compiler can inline across them: `_bytes.pxi` reads and writes bytes,
`_columns.pxi` has records as columns, `_rows.pxi` the fast loops from and to columns, `_intake.pxi` is a producer's fast
path into its open batches, `_ahead.pxi` compresses full ones on a thread of its own, `_walk.pxi` scans batches without
creating objects, and this file has the batches.

While a builder's memory is lent out, or in use without the GIL, `lent` is above zero, and changing the builder raises
BufferError.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_FromStringAndSize, PyByteArray_Resize
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_SET_ITEM
from cpython.unicode cimport PyUnicode_Check, PyUnicode_DecodeUTF8
from libc.stdint cimport INT32_MAX, INT64_MAX, INT64_MIN, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memmove, memset

import os
from os import urandom as os_urandom

from fencepost.errors import CorruptBatch
from fencepost.kernel.codecs import compress, decompress, most_blocks
from fencepost.kernel.record import BytesColumn, HeaderColumn, NumberColumn, RecordColumns
from fencepost.kernel.header import check_batch
from fencepost.kernel.codecs import open_batch, open_packed, unpacked
from fencepost.kernel.record import MAX_DECOMPRESSED as _MAX_DECOMPRESSED
from fencepost.kernel.record import Record as _Record
from fencepost.kernel.record import Scan as _Scan
from fencepost.kernel.record import Sifted as _Sifted

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size) except NULL
    object tuple_alloc "PyType_GenericAlloc" (PyTypeObject* kind, Py_ssize_t items)
    void PyObject_GC_UnTrack(void* object)

cdef extern from "_native.h" nogil:
    void prepare_memory()
    uint8_t* take_memory(size_t size, size_t* capacity)
    void give_memory(uint8_t* data, size_t capacity)
    void prepare_crc32c()
    uint32_t crc32c_of(const uint8_t* data, size_t size, int by_table)
    const uint32_t CRC_START "FENCEPOST_CRC_START"
    uint32_t crc32c_add(uint32_t state, const uint8_t* data, size_t size)
    uint32_t crc32c_join(uint32_t state, uint32_t piece, size_t size)
    void prefetch(const void* at)
    size_t lz4_bound(size_t size)
    size_t lz4_pack(const uint8_t* data, size_t size, uint8_t* out)
    Py_ssize_t lz4_unpack(const uint8_t* data, size_t size, uint8_t* out, size_t room)

prepare_memory()
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
    NONE = 0
    LZ4 = 3
    LZ4_BLOCK = 65536
    LZ4_HEADER_SIZE = 7
    LZ4_RATIO = 255             # the most bytes that a byte of LZ4 can become
    LZ4_FIRST_SLOW_LEVEL = 3
    # The GIL is released from this many bytes on. A thread that releases it while another calls `send` in a tight loop
    # waits for sys.getswitchinterval(), 5 ms, to get it back: too long for every checksum.
    WORTH_LETTING_GO = 32768        # to compress
    WORTH_LETTING_GO_PLAIN = 2097152    # only to checksum or copy, at some 20 GB/s
    WORTH_LETTING_GO_COLUMNS = 524288   # to turn records into columns and back, at 1 to 10 GB/s
    WORTH_WORKING_AHEAD = 65536         # to have another thread compress
    RECORD_OVERHEAD = 36

cdef object RecordType = _Record
cdef object ScanType = _Scan
cdef object SiftedType = _Sifted
cdef tuple NO_HEADERS = ()
cdef tuple NO_HEAD = ()
cdef const char* LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"    # independent blocks of 64 KiB, no checksums

include "_bytes.pxi"
include "_columns.pxi"
include "_walk.pxi"
include "_rows.pxi"


# --- encoding ---

cdef int append_object(Memory* memory, object data) except -1:
    """Append a key, value or header part to `memory`."""
    cdef Span span
    cdef Lent lent
    if is_plain(data):
        span_of_plain(data, &span)
    else:
        lent = Lent(data)
        span.data, span.size = <const uint8_t*> lent.view.buf, lent.view.len
    cdef Outcome outcome = append_span(memory, span)
    if outcome != DONE:
        raise_outcome(outcome)
    return 0


cdef int32_t encode_headers(Memory* memory, object headers) except -1:
    """Append the headers to `memory`, without their number; return the number."""
    cdef int32_t number = 0
    for name, value in headers:
        if not PyUnicode_Check(name):
            raise TypeError(f"a header's name must be a str, not {type(name).__name__}")
        append_object(memory, name)
        append_object(memory, value)
        number += 1
    return number


# A batch's records and the fields of its header.
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
    uint32_t summed         # the checksum's state after the first `summed_size` bytes of the records, from the state 0
    Py_ssize_t summed_size


cdef bint is_native(int codec, object level) except -1:
    """Return whether this module compresses the codec itself, without a library that needs the GIL."""
    return codec == NONE or (codec == LZ4 and (level is None or level < LZ4_FIRST_SLOW_LEVEL))


cdef Py_ssize_t native_bound(int codec, Py_ssize_t size) noexcept nogil:
    """Return the largest size of `size` bytes of records after compression."""
    if codec == NONE:
        return size
    return LZ4_HEADER_SIZE + (size // LZ4_BLOCK + 1) * (4 + lz4_bound(0)) + lz4_bound(size) + 4


cdef Py_ssize_t write_lz4(uint8_t* out, const uint8_t* data, Py_ssize_t size) noexcept nogil:
    """Write an LZ4 frame in the layout of `codecs.py`; return its size."""
    cdef uint8_t* at = out
    cdef Py_ssize_t taken, packed
    memcpy(at, LZ4_HEADER, LZ4_HEADER_SIZE)
    at += LZ4_HEADER_SIZE
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
    """Return a bytearray for the batch in the worst case; `write_batch` returns the size it used."""
    cdef Py_ssize_t size = HEADER_SIZE + native_bound(frozen.attributes & CODEC_MASK, frozen.size)
    if size > INT32_MAX:
        raise_outcome(TOO_LARGE)
    return PyByteArray_FromStringAndSize(NULL, size)


cdef Py_ssize_t write_batch(uint8_t* out, Frozen* frozen) noexcept nogil:
    """Write the whole batch with a native codec; return its size."""
    cdef Py_ssize_t size = frozen.size
    if frozen.attributes & CODEC_MASK == LZ4:
        size = write_lz4(out + HEADER_SIZE, frozen.records, frozen.size)
    else:
        memcpy(out + HEADER_SIZE, frozen.records, size)
    write_header(out, size, frozen)
    return HEADER_SIZE + size


cdef object batch_around(object payload, Frozen* frozen):
    """Return the whole batch around records that a library has compressed."""
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
    """Write the header in front of the payload, with the checksum of both."""
    cdef bint is_plain_payload = not frozen.attributes & CODEC_MASK
    write_header_of_summed(out, payload_size, frozen.summed, frozen.summed_size if is_plain_payload else 0, frozen)


cdef void write_header_of_summed(
    uint8_t* out, Py_ssize_t payload_size, uint32_t summed, Py_ssize_t summed_size, Frozen* frozen
) noexcept nogil:
    """Do the same with a payload whose first `summed_size` bytes take the checksum's state from 0 to `summed`."""
    cdef uint32_t state
    write_fields(out, payload_size, frozen)
    state = crc32c_add(CRC_START, out + CHECKED_FROM, HEADER_SIZE - CHECKED_FROM)
    state = crc32c_join(state, summed, summed_size) if summed_size else state
    state = crc32c_add(state, out + HEADER_SIZE + summed_size, payload_size - summed_size)
    put_big_endian(out + CRC_AT, ~state, 4)


cdef void write_fields(uint8_t* out, Py_ssize_t payload_size, Frozen* frozen) noexcept nogil:
    cdef uint8_t* at = out
    at = put_big_endian(at, frozen.base_offset, 8)
    at = put_big_endian(at, HEADER_SIZE - LENGTH_PREFIX + payload_size, 4)
    at = put_big_endian(at, <uint64_t> -1, 4)  # the broker sets the leader epoch
    at = put_big_endian(at, MAGIC, 1)
    at += 4  # the checksum
    at = put_big_endian(at, <uint16_t> frozen.attributes, 2)
    at = put_big_endian(at, frozen.count - 1, 4)
    at = put_big_endian(at, frozen.base_timestamp, 8)
    at = put_big_endian(at, frozen.max_timestamp, 8)
    at = put_big_endian(at, frozen.pid, 8)
    at = put_big_endian(at, <uint16_t> frozen.epoch, 2)
    at = put_big_endian(at, <uint32_t> frozen.base_sequence, 4)
    put_big_endian(at, frozen.count, 4)


include "_ahead.pxi"


cdef class BatchBuilder:
    """One open batch. Not thread-safe, except that the GIL makes each `append` atomic."""

    cdef Memory memory              # room for the header, then the encoded records; empty before the first record
    cdef Py_ssize_t first_capacity  # allocated at the first append, so that an idle builder costs nothing
    cdef int lent
    cdef Ahead* ahead               # the thread that works ahead reads the memory, or has compressed it
    cdef uint32_t summed            # the checksum's state after the bytes up to `summed_to`, from the state 0
    cdef Py_ssize_t summed_to       # 0: none
    cdef readonly int32_t count
    cdef readonly int64_t base_timestamp
    cdef readonly int64_t max_timestamp

    def __cinit__(self, Py_ssize_t capacity=16384):
        """`capacity` is a hint; the batch grows as needed."""
        if capacity < 0:
            raise ValueError("capacity must not be negative")
        self.first_capacity = capacity
        self.base_timestamp = self.max_timestamp = -1

    def __dealloc__(self):
        if self.ahead != NULL:
            abandon(self.ahead, &self.memory)
        release(&self.memory)

    def __len__(self):
        return self.count

    cdef inline Py_ssize_t filled(self) noexcept nogil:
        """Bytes of header and records."""
        return self.memory.used if self.memory.used else HEADER_SIZE

    def __getbuffer__(self, Py_buffer* view, int flags):
        """Lend the encoded records read-only to the codecs; nothing can be appended meanwhile."""
        lend_memory(
            view,
            self,
            NULL if self.memory.data == NULL else self.memory.data + HEADER_SIZE,
            self.filled() - HEADER_SIZE,
            flags,
            True,
        )
        self.lent += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.lent -= 1

    @property
    def size(self):
        """The batch's size in bytes if it were built now, uncompressed."""
        return self.filled()

    def append(self, key, value, int64_t timestamp, headers=None):
        """Append one record and return the batch's new size. If it raises, nothing was added."""
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
        return self.filled()

    cdef int refuse_change(self) except -1:
        raise BufferError("the batch is being built or its memory is lent; it cannot change meanwhile")

    cdef int append_anything(self, object key, object value, int64_t timestamp, object headers) except -1:
        """Append a record with headers or buffers. Reading them may run foreign code: read all before changing the batch."""
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
            release(&scratch)
            if key_held:
                PyBuffer_Release(&key_view)
            if value_held:
                PyBuffer_Release(&value_view)
        return 0

    @cython.final
    cdef inline Outcome put(
        self, Span key, Span value, int64_t timestamp, int32_t number_of_headers, Span headers, Py_ssize_t limit
    ) noexcept nogil:
        """Append one record. `headers` are already encoded, without their number. Return FULL if the batch would exceed
        `limit` and already has a record.
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
        if self.filled() + total > limit and self.count:
            return FULL
        if self.filled() + total > INT32_MAX:
            return TOO_LARGE
        if self.memory.used:
            if reserve(&self.memory, total) != DONE:
                return NO_MEMORY
        else:
            if reserve(&self.memory, max(HEADER_SIZE + total, self.first_capacity)) != DONE:
                return NO_MEMORY
            self.memory.used = HEADER_SIZE
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
        bint checksum=False,
    ):
        """Append rows start … stop−1 of the columns, without the GIL if they are many, until the batch would exceed `limit`
        bytes (the first record may have any size), and return the next row. With `rows`, a buffer of 32-bit row numbers, append
        the rows that rows[start:stop] names. `timestamp` is for rows without one. If it raises, nothing was added.
        With `checksum`, sum the records while they are in the processor's cache: for a batch without compression.
        """
        cdef Outcome outcome = DONE
        cdef Py_ssize_t i = start
        cdef Py_ssize_t used = self.memory.used, summed_to = self.summed_to
        cdef uint32_t summed = self.summed
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
                if is_worth_letting_go(source):
                    with nogil:
                        outcome = self.put_columns(source, picked, &i, stop, timestamp, limit, checksum, &scratch)
                else:
                    outcome = self.put_columns(source, picked, &i, stop, timestamp, limit, checksum, &scratch)
            finally:
                self.lent -= 1
        finally:
            release(&scratch)
            if rows is not None:
                PyBuffer_Release(&view)
        if outcome != DONE and outcome != FULL:
            self.memory.used = used
            self.summed = summed
            self.summed_to = summed_to
            self.count = count
            self.base_timestamp = base_timestamp
            self.max_timestamp = max_timestamp
            if outcome == MALFORMED:
                raise ValueError(f"row {i}: the columns' buffers are inconsistent, or a header has no name")
            raise_outcome(outcome)
        return i

    cdef Outcome put_columns(
        self,
        ColumnSource source,
        const uint8_t* picked,
        Py_ssize_t* i,
        Py_ssize_t stop,
        int64_t timestamp,
        Py_ssize_t limit,
        bint checksum,
        Memory* scratch,
    ) noexcept nogil:
        """Append rows from `i` on, and leave in it the first that is not appended."""
        cdef Outcome outcome
        while i[0] < stop:
            outcome = self.put_row(
                source, load32(picked, i[0]) if picked != NULL else i[0], timestamp, limit, scratch
            )
            if outcome != DONE:
                return outcome
            i[0] = self.put_plain_rows(source, picked, i[0] + 1, stop, timestamp, limit, checksum)
        return DONE

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

    cdef Py_ssize_t put_plain_rows(
        self,
        ColumnSource source,
        const uint8_t* picked,
        Py_ssize_t i,
        Py_ssize_t stop,
        int64_t timestamp,
        Py_ssize_t limit,
        bint checksum,
    ) noexcept nogil:
        """Append rows as long as they are plain and there is room; return the first that is not appended. The batch must
        have a record already."""
        cdef RowsIn rows
        cdef BatchRows batch
        if source.headers.offsets != NULL or i >= stop:
            return i
        rows.key, rows.value, rows.timestamp = &source.key, &source.value, &source.timestamp
        rows.rows, rows.picked, rows.now = source.rows, picked, timestamp
        batch.data = self.memory.data
        batch.used = self.memory.used
        batch.room = min(self.memory.capacity, limit)
        batch.capacity = self.memory.capacity
        batch.count = self.count
        batch.base_timestamp, batch.max_timestamp = self.base_timestamp, self.max_timestamp
        batch.sums = checksum and (self.summed_to != 0 or self.count == 1)
        batch.summed = self.summed if self.summed_to else 0
        batch.summed_to = self.summed_to if self.summed_to else HEADER_SIZE
        i = put_rows(&rows, &batch, i, stop)
        self.memory.used, self.count, self.max_timestamp = batch.used, batch.count, batch.max_timestamp
        if batch.sums:
            self.summed, self.summed_to = batch.summed, batch.summed_to
        return i

    def records(self):
        """Return the encoded records, uncompressed."""
        if not self.memory.used:
            return b""
        return PyBytes_FromStringAndSize(
            <const char*> self.memory.data + HEADER_SIZE, self.memory.used - HEADER_SIZE
        )

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
        """Return the whole batch, compressed and with its checksum. The builder does not change."""
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

    def finish(
        self,
        int codec=0,
        level=None,
        *,
        int64_t pid=-1,
        int16_t epoch=-1,
        int32_t base_sequence=-1,
        bint transactional=False,
    ):
        """Return the batch as `build` does, writable (for stamps), and empty the builder. Without compression the batch
        takes the builder's memory over; otherwise the memory is kept for the next builder.
        """
        cdef Frozen frozen
        cdef Block block
        frozen.base_offset = 0
        frozen.pid = pid
        frozen.epoch = epoch
        frozen.base_sequence = base_sequence
        frozen.attributes = attributes_of(codec, transactional, False)
        self.freeze(&frozen)
        if self.ahead != NULL and (self.ahead.codec != codec or not is_native(codec, level)):
            dispose(self.end_work_ahead())
        if not is_native(codec, level):
            batch = memoryview(batch_around(compress(codec, memoryview(self), level), &frozen))
            self.clear()
            return batch
        if self.lent > (self.ahead != NULL):
            self.refuse_change()
        if codec == NONE:
            block = block_of(&self.memory)
            block.writable = True
            if frozen.size < WORTH_LETTING_GO_PLAIN:
                write_header(block.memory.data, frozen.size, &frozen)
            else:
                with nogil:
                    write_header(block.memory.data, frozen.size, &frozen)
        else:
            block = self.finish_packed(&frozen) if self.ahead == NULL else self.finish_ahead(&frozen)
            release(&self.memory)
        self.summed_to = 0
        self.count = 0
        self.base_timestamp = self.max_timestamp = -1
        return memoryview(block)

    def work_ahead(self, int codec=0, level=None):
        """Begin to compress as `finish` will, on a thread without the GIL. Nothing can be appended any more. Do nothing
        if that is not worth it."""
        cdef Py_ssize_t size = self.filled() - HEADER_SIZE
        if codec == NONE or size < WORTH_WORKING_AHEAD or not is_native(codec, level) or self.lent:
            return
        if HEADER_SIZE + native_bound(codec, size) > INT32_MAX:
            return
        self.ahead = begin_ahead(codec, self.memory.data + HEADER_SIZE, size)
        if self.ahead != NULL:
            self.lent += 1

    cdef Ahead* end_work_ahead(self) noexcept:
        """Return what `work_ahead` began, when it has ended and nobody reads the memory any more."""
        cdef Ahead* work = self.ahead
        self.ahead = NULL  # now, in case that another thread comes while this one waits; it finds the memory lent
        if not has_ended(work):
            with nogil:
                end_ahead(work)
        self.lent -= 1
        return work

    cdef Block finish_ahead(self, Frozen* frozen):
        cdef Ahead* work = self.end_work_ahead()
        cdef Block block
        cdef Py_ssize_t size
        if work.packed.data == NULL:
            dispose(work)
            raise_outcome(NO_MEMORY)
        block = block_of(&work.packed)
        block.writable = True
        size = block.memory.used - HEADER_SIZE
        write_header_of_summed(block.memory.data, size, work.summed, size, frozen)
        dispose(work)
        return block

    cdef Block finish_packed(self, Frozen* frozen):
        """Pack into memory for the worst case, and move a small result into memory of its size."""
        cdef Py_ssize_t bound = HEADER_SIZE + native_bound(frozen.attributes & CODEC_MASK, frozen.size)
        cdef Block widest, block
        if bound > INT32_MAX:
            raise_outcome(TOO_LARGE)
        widest = room_of(bound)
        if frozen.size < WORTH_LETTING_GO:
            widest.memory.used = write_batch(widest.memory.data, frozen)
        else:
            self.lent += 1
            with nogil:
                widest.memory.used = write_batch(widest.memory.data, frozen)
            self.lent -= 1
        if widest.memory.used > widest.memory.capacity // 2:
            return widest
        block = room_of(widest.memory.used)
        memcpy(block.memory.data, widest.memory.data, widest.memory.used)
        return block

    cdef int freeze(self, Frozen* frozen) except -1:
        if not self.count:
            raise ValueError("a batch must have at least one record")
        frozen.records = self.memory.data + HEADER_SIZE
        frozen.size = self.memory.used - HEADER_SIZE
        frozen.count = self.count
        frozen.base_timestamp = self.base_timestamp
        frozen.max_timestamp = self.max_timestamp
        frozen.summed = self.summed
        frozen.summed_size = self.summed_to - HEADER_SIZE if self.summed_to else 0
        return 0

    def clear(self):
        """Empty the builder for the next batch; keep its memory."""
        if self.lent:
            self.refuse_change()
        self.memory.used = 0
        self.summed_to = 0
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
    """Return a whole batch of (key, value, timestamp, headers) records."""
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


# --- decoding ---

cdef inline uint32_t get_little_endian32(const uint8_t* at) noexcept nogil:
    return at[0] | <uint32_t> at[1] << 8 | <uint32_t> at[2] << 16 | <uint32_t> at[3] << 24


# One block of an LZ4 frame.
cdef struct PackedBlock:
    const uint8_t* data
    Py_ssize_t size
    Py_ssize_t bound        # the largest size when unpacked
    bint stored


cdef const uint8_t* next_lz4_block(const uint8_t* at, const uint8_t* end, PackedBlock* block) noexcept nogil:
    """Read the block at `at`; its `data` is NULL for the end mark. Return the block's end, or NULL if it is invalid."""
    cdef uint32_t size
    if end - at < 4:
        return NULL
    size = get_little_endian32(at)
    at += 4
    block.data = at if size else NULL
    block.stored = size >> 31
    block.size = size & 0x7FFFFFFF
    if block.size > LZ4_BLOCK or block.size > end - at:
        return NULL
    block.bound = block.size if block.stored else min(block.size * LZ4_RATIO, <Py_ssize_t> LZ4_BLOCK)
    return at + block.size


cdef Py_ssize_t bound_of_lz4(const uint8_t* at, Py_ssize_t size, Py_ssize_t most_blocks) noexcept nogil:
    """Return the largest size of these frames when unpacked; −1 if they do not have the frame header that we, Java and
    librdkafka write, are incomplete, or have too many blocks.
    """
    cdef const uint8_t* end = at + size
    cdef PackedBlock block
    cdef Py_ssize_t bound = 0
    while at != end:
        if end - at < LZ4_HEADER_SIZE or memcmp(at, LZ4_HEADER, LZ4_HEADER_SIZE) != 0:
            return -1
        at += LZ4_HEADER_SIZE
        while True:
            at = next_lz4_block(at, end, &block)
            most_blocks -= 1
            if at == NULL or most_blocks < 0:
                return -1
            if block.data == NULL:
                break
            bound += block.bound
    return bound


cdef Py_ssize_t unpack_lz4(const uint8_t* at, Py_ssize_t size, uint8_t* out, Py_ssize_t room) noexcept nogil:
    """Unpack frames that `bound_of_lz4` has accepted into `out`. Return the size; −1 if they are damaged or do not fit."""
    cdef const uint8_t* end = at + size
    cdef PackedBlock block
    cdef Py_ssize_t filled = 0, taken
    while at != end:
        if end - at < LZ4_HEADER_SIZE:
            return -1
        at += LZ4_HEADER_SIZE
        while True:
            at = next_lz4_block(at, end, &block)
            if at == NULL:
                return -1
            if block.data == NULL:
                break
            if block.stored:
                if block.size > room - filled:
                    return -1
                memcpy(out + filled, block.data, block.size)
                taken = block.size
            else:
                taken = lz4_unpack(block.data, block.size, out + filled, min(block.bound, room - filled))
                if taken < 0:
                    return -1
            filled += taken
    return filled


def unpack(int codec, data, Py_ssize_t max_bytes):
    """Decompress as `codecs.decompress` does, but LZ4 natively, into reused memory."""
    cdef Lent lent
    cdef Block block
    cdef Py_ssize_t bound
    if codec == LZ4:
        lent = Lent(data)
        bound = bound_of_lz4(<const uint8_t*> lent.view.buf, lent.view.len, most_blocks(max_bytes))
        if bound >= 0:
            block = room_of(min(bound, max_bytes))
            with nogil:
                bound = unpack_lz4(
                    <const uint8_t*> lent.view.buf, lent.view.len, block.memory.data, block.memory.used
                )
            if bound < 0:
                raise CorruptBatch(f"lz4: the records are damaged, or larger than the {max_bytes} bytes allowed")
            block.memory.used = bound
            return block
    return decompress(codec, data, max_bytes)


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
        # Some clients accept any bytes as a name. Java shows them with replacement characters, and so do we.
        headers.append((PyUnicode_DecodeUTF8(<const char*> name.data, name.size, "replace"), bytes_of(value)))
    return tuple(headers)


cdef inline object record_of(
    object kind, tuple head, int64_t offset, object timestamp, object key, object value, object headers
):
    """Create a tuple of type `kind` as tuple.__new__ does, but without first creating a tuple of its fields."""
    cdef Py_ssize_t place, first = len(head)
    cdef object record = tuple_alloc(<PyTypeObject*> kind, first + 5)
    cdef object number = offset
    for place in range(first):
        field = head[place]
        Py_INCREF(field)
        PyTuple_SET_ITEM(record, place, field)
    Py_INCREF(number)
    PyTuple_SET_ITEM(record, first, number)
    Py_INCREF(timestamp)
    PyTuple_SET_ITEM(record, first + 1, timestamp)
    Py_INCREF(key)
    PyTuple_SET_ITEM(record, first + 2, key)
    Py_INCREF(value)
    PyTuple_SET_ITEM(record, first + 3, value)
    Py_INCREF(headers)
    PyTuple_SET_ITEM(record, first + 4, headers)
    PyObject_GC_UnTrack(<void*> record)  # it cannot be part of a cycle, and a fetch creates many thousands
    return record


def decode_batch(buffer, Py_ssize_t at=0, *, bint check=True, Py_ssize_t max_bytes=_MAX_DECOMPRESSED):
    """Return the records of the batch at `at`, also of a control batch. `check=False` skips the checksum only."""
    return decode_as(RecordType, NO_HEAD, buffer, at, check, max_bytes, INT64_MIN, INT64_MAX)


def decode_rows(buffer, type kind not None, tuple head not None, *, int64_t start=INT64_MIN, int64_t stop=INT64_MAX):
    """Return the records with offsets start … stop−1 of a batch, as tuples of type `kind`: the fields of `head` (str or
    int), then those of a `Record`.
    """
    if not issubclass(kind, tuple) or kind.__itemsize__ != tuple.__itemsize__ or kind.__basicsize__ != tuple.__basicsize__:
        raise TypeError(f"{kind.__name__} must be a plain subclass of tuple, without fields of its own")
    for field in head:
        if type(field) is not str and type(field) is not int:
            raise TypeError("the head of a row must consist of str and int")
    return decode_as(kind, head, buffer, 0, True, _MAX_DECOMPRESSED, start, stop)


cdef list decode_as(
    object kind,
    tuple head,
    object buffer,
    Py_ssize_t at,
    bint check,
    Py_ssize_t max_bytes,
    int64_t start,
    int64_t stop,
):
    header, payload = open_batch(buffer, at, check, max_bytes, unpack)
    cdef int32_t count = header.count
    cdef int32_t last_offset_delta = header.last_offset_delta
    cdef int64_t base_offset = header.base_offset
    cdef int64_t base_timestamp = header.base_timestamp
    cdef int64_t time = header.max_timestamp
    cdef object timestamp = time  # created only when it changes: neighbours often share it
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
                    f"offset delta {record.offset_delta} follows {last_delta}; the header's last is {last_offset_delta}"
                )
            last_delta = record.offset_delta
            if not start <= base_offset + last_delta < stop:
                continue
            if not log_append_time and wrapping_add(base_timestamp, record.timestamp_delta) != time:
                time = wrapping_add(base_timestamp, record.timestamp_delta)
                timestamp = time
            records.append(
                record_of(
                    kind,
                    head,
                    base_offset + last_delta,
                    timestamp,
                    bytes_of(record.key),
                    bytes_of(record.value),
                    headers_of(&record) if record.number_of_headers else NO_HEADERS,
                )
            )
        if here != end:
            raise CorruptBatch(f"{end - here} bytes left after the last record")
    finally:
        PyBuffer_Release(&view)
    return records


# --- partitioning ---

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
    """Return Kafka's hash of a key: MurmurHash2, 32 bit, signed, with the seed that Kafka's clients share."""
    return hash_object(key)


def partition_for_key(key, int32_t partitions):
    """Return the partition that Kafka's default partitioner assigns to this key."""
    if partitions <= 0:
        raise ValueError("a topic must have at least one partition")
    return (hash_object(key) & 0x7FFFFFFF) % partitions


# --- for the tests ---

def checksum_of(data, *, bint by_table=False):
    """Return the CRC-32C, by the processor's instruction or by table."""
    cdef Lent lent = Lent(data)
    return crc32c_of(<const uint8_t*> lent.view.buf, lent.view.len, by_table)


include "_intake.pxi"
