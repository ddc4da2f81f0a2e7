# Part of _batch.pyx: records as columns. `columns_py.py` is the twin in plain Python; `record.py` has the layout.

# --- columns to encode from ---
#
# Only the lengths of Arrow's buffers are trusted: offsets and row numbers are checked on use.

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


cdef inline bint is_valid(const uint8_t* validity, Py_ssize_t i) noexcept nogil:
    return validity == NULL or validity[i >> 3] >> (i & 7) & 1


cdef inline bint bytes_at(BytesIn* column, Py_ssize_t row, Span* span) noexcept nogil:
    """Read row `row`, which must exist; return False if its offsets point outside the data."""
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


cdef class Lent:
    """A borrowed buffer, held as long as this object lives."""

    cdef Py_buffer view

    def __cinit__(self, owner):
        PyObject_GetBuffer(owner, &self.view, PyBUF_SIMPLE)

    def __dealloc__(self):
        PyBuffer_Release(&self.view)


cdef class ColumnSource:
    """The columns to encode from; see `record.py`."""

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
            raise ValueError("the number of rows must not be negative")
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
            raise ValueError(f"a buffer of {lent.view.len} bytes, but {needed} are needed")
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
        if into.rows:  # an empty Arrow column may have no offsets
            into.offsets = self.lend(column.offsets, (into.first + into.rows + 1) * width)
            into.data = self.lend(column.data, 0)
            into.data_size = (<Lent> self.lent[len(self.lent) - 1]).view.len
        return 0


cdef inline bint is_worth_letting_go(ColumnSource source) noexcept nogil:
    return source.rows * RECORD_OVERHEAD + source.key.data_size + source.value.data_size >= WORTH_LETTING_GO_COLUMNS


cdef int32_t headers_at(ColumnSource source, Py_ssize_t row, Memory* memory) noexcept nogil:
    """Append the row's headers to `memory`, without their number; return the number, or a negated outcome."""
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
        outcome = append_span(memory, name)
        if outcome == DONE:
            outcome = append_span(memory, value)
        if outcome != DONE:
            return -outcome
    return <int32_t> (stop - start)


# --- decoding into columns ---

cdef class Block:
    """Memory that this object owns: a buffer, read-only unless it was created to be filled."""

    cdef Memory memory
    cdef bint writable

    def __dealloc__(self):
        release(&self.memory)

    def __len__(self):
        return self.memory.used

    def __getbuffer__(self, Py_buffer* view, int flags):
        lend_memory(view, self, self.memory.data, self.memory.used, flags, not self.writable)


cdef Block room_of(Py_ssize_t size):
    """Return memory of `size` bytes, to be filled."""
    cdef Block block = Block.__new__(Block)
    if size < 0:
        raise ValueError("the number of bytes must not be negative")
    if reserve(&block.memory, size) != DONE:
        raise MemoryError
    block.memory.used = size
    block.writable = True
    return block


def room(Py_ssize_t size):
    """Return memory of `size` bytes with undefined content, for callers that fill all of it."""
    return room_of(size)


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
    put32(memory, number)
    return DONE


cdef inline void put32(Memory* memory, int32_t number) noexcept nogil:
    """Append without a check; the caller has reserved room."""
    memcpy(memory.data + memory.used, &number, 4)
    memory.used += 4


cdef inline void put64(Memory* memory, int64_t number) noexcept nogil:
    memcpy(memory.data + memory.used, &number, 8)
    memory.used += 8


cdef inline Outcome reserve_rows(BytesOut* column, Py_ssize_t rows) noexcept nogil:
    if reserve(&column.offsets, 4 * rows) != DONE or reserve(&column.validity, (rows + 7) // 8 + 1) != DONE:
        return NO_MEMORY
    return DONE


cdef inline Outcome push_bytes(BytesOut* column, Span span) noexcept nogil:
    """Append one row."""
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
    """Append a header's name. Arrow requires UTF-8, so invalid bytes are replaced, as in `headers_of`."""
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
    """Restore the row count and sizes of `to`; the memory, which may have moved, stays."""
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
    release(&column.offsets)
    release(&column.data)
    release(&column.validity)


cdef object column_of(BytesOut* column):
    """Return the column and take its memory away from `column`."""
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


# A checksum that is computed while the records are decoded.
cdef struct Checksum:
    bint is_due
    uint32_t state
    uint32_t expected


cdef inline void begin_checksum(Checksum* checksum, const uint8_t* batch, uint32_t expected) noexcept nogil:
    """Sum the header; the records follow."""
    checksum.state = crc32c_add(CRC_START, batch + CHECKED_FROM, HEADER_SIZE - CHECKED_FROM)
    checksum.expected = expected


# The rows that a decoder fills, and how far it is in a batch.
cdef struct RowsOut:
    BytesOut* key
    BytesOut* value
    Memory* offset
    Memory* timestamp
    Memory* timestamp_type
    int64_t start           # records with other offsets are left out
    int64_t stop
    int32_t seen
    int32_t last_delta


cdef tuple open_unchecked(object buffer, Py_ssize_t at, bint check):
    """Open the batch without its checksum, which the caller computes if `check`."""
    try:
        return open_packed(buffer, at, False)
    except CorruptBatch:
        if check:
            check_batch(buffer, at)  # a wrong checksum says more than what it leads to
        raise


cdef class ColumnDecoder:
    """A decoder of batches into columns; `take` returns the columns and starts over."""

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
        release(&self.header_offsets)
        release(&self.offset)
        release(&self.timestamp)
        release(&self.timestamp_type)

    cdef int begin(self) except -1:
        """Start the offsets with 0: there is one more offset than there are rows."""
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
        """The bytes of keys, values and headers so far."""
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
        """Add the records with offsets start … stop−1 of the batch at `at`, and return their number; 0 for a control
        batch. If it raises, nothing was added.
        """
        header, payload = open_unchecked(buffer, at, check)
        cdef Outcome outcome
        cdef Py_ssize_t rows = self.rows
        cdef Py_buffer view
        cdef BatchFields fields
        cdef Checksum checksum
        cdef Lent lent
        checksum.is_due = check and header.attributes & (CODEC_MASK | CONTROL) == NONE
        if checksum.is_due:
            lent = Lent(buffer)
            begin_checksum(&checksum, <const uint8_t*> lent.view.buf + at, header.crc)
        elif check:
            check_batch(buffer, at)
        if header.attributes & CONTROL:
            return 0
        try:
            payload = unpacked(header, payload, max_bytes, unpack)
        except CorruptBatch:
            if checksum.is_due:
                check_batch(buffer, at)
            raise
        read_fields(header, &fields)
        if self.busy:
            raise BufferError("another thread is decoding into these columns")
        self.busy = True
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if view.len < WORTH_LETTING_GO_COLUMNS:
                outcome = self.decode(<const uint8_t*> view.buf, view.len, &fields, start, stop, &checksum)
            else:
                with nogil:
                    outcome = self.decode(<const uint8_t*> view.buf, view.len, &fields, start, stop, &checksum)
        finally:
            PyBuffer_Release(&view)
            self.busy = False
        if outcome == TOO_LARGE:
            raise OverflowError("a column of bytes holds at most 2 GiB; call `take` more often")
        if outcome == MALFORMED and checksum.is_due:
            check_batch(buffer, at)
        if outcome != DONE:
            raise_outcome(outcome)
        return self.rows - rows

    cdef Outcome decode(
        self,
        const uint8_t* payload,
        Py_ssize_t size,
        BatchFields* fields,
        int64_t start,
        int64_t stop,
        Checksum* checksum,
    ) noexcept nogil:
        """Add all records of a batch, or none."""
        cdef BytesOut key = self.key, value = self.value, names = self.names, values = self.values
        cdef Py_ssize_t rows = self.rows, header_offsets = self.header_offsets.used
        cdef Outcome outcome = self.decode_records(payload, payload + size, fields, start, stop, checksum)
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
        self,
        const uint8_t* at,
        const uint8_t* end,
        BatchFields* fields,
        int64_t start,
        int64_t stop,
        Checksum* checksum,
    ) noexcept nogil:
        cdef RawRecord record
        cdef int32_t timestamp_type = 1 if fields.log_append_time else 0
        cdef int64_t offset
        cdef const uint8_t* upto = end
        cdef const uint8_t* summed = at
        cdef RowsOut out
        cdef Outcome outcome
        # `open_batch` has checked that the payload can hold this many records, so the input limits this memory.
        if (
            reserve(&self.offset, 8 * <Py_ssize_t> fields.count) != DONE
            or reserve(&self.timestamp, 8 * <Py_ssize_t> fields.count) != DONE
            or reserve(&self.timestamp_type, 4 * <Py_ssize_t> fields.count) != DONE
            or reserve_rows(&self.key, fields.count) != DONE
            or reserve_rows(&self.value, fields.count) != DONE
            or reserve(&self.value.data, end - at) != DONE
        ):
            return NO_MEMORY
        out.key, out.value, out.offset = &self.key, &self.value, &self.offset
        out.timestamp, out.timestamp_type = &self.timestamp, &self.timestamp_type
        out.start, out.stop, out.seen, out.last_delta = start, stop, 0, -1
        cdef bint plain = not self.with_headers and self.key.data.used + self.value.data.used <= INT32_MAX - (end - at)
        while out.seen < fields.count:
            if checksum.is_due:
                if at >= summed:
                    upto = summed + min(<Py_ssize_t> SUMMED_AT_ONCE, end - summed)
                    checksum.state = crc32c_add(checksum.state, summed, upto - summed)
                    summed = upto
            if plain:
                at = take_rows(at, upto, end, fields, &out)
                self.rows = self.key.rows
                if out.seen == fields.count or upto <= at < end:
                    continue
            at = get_record(at, end, &record)
            if at == NULL or not out.last_delta < record.offset_delta <= fields.last_offset_delta:
                return MALFORMED
            out.last_delta = record.offset_delta
            out.seen += 1
            offset = fields.base_offset + record.offset_delta
            if not start <= offset < stop:
                continue
            outcome = push_bytes(&self.key, record.key)
            if outcome == DONE:
                outcome = push_bytes(&self.value, record.value)
            if outcome == DONE and self.with_headers:
                outcome = self.push_headers(&record)
            if outcome != DONE:
                return outcome
            put64(&self.offset, offset)
            put64(&self.timestamp, time_of(fields, &record))
            put32(&self.timestamp_type, timestamp_type)
            self.rows += 1
        if at != end:
            return MALFORMED
        if checksum.is_due and ~crc32c_add(checksum.state, summed, end - summed) != checksum.expected:
            return MALFORMED
        return DONE

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
        """Return the columns so far, which then belong to the caller."""
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
