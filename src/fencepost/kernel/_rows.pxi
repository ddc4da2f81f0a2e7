# Part of _batch.pyx: the fast loops between columns and records. They handle plain records and stop at any other, which
# the general code then handles; so they may refuse whatever is rare. A plain record has no headers, and short lengths.
#
# What makes them fast: positions are local variables (a byte that is stored could otherwise have changed them), short
# values are copied in steps of a fixed size beyond their end, and the checksum is computed while the bytes are in the
# processor's first cache.

cdef enum:
    STEP = 32               # copies read and write up to this much beyond the end
    MOST_STEPPED = 1024     # bytes; larger copies are left to memcpy
    SHORT = 1048576         # the largest key or value of a plain record
    MOST_FIELDS = 64        # bytes of all that is neither key nor value in a plain record, rounded up
    SUMMED_AT_ONCE = 12288  # a multiple of the three stretches of crc32c_by_instruction
    ROWS_AHEAD = 12         # how far ahead rows are prefetched that are picked from here and there


cdef inline void copy_short(uint8_t* to, const uint8_t* data, Py_ssize_t size, const uint8_t* end) noexcept nogil:
    """Copy to memory that has STEP bytes more than needed, from memory that ends at `end`."""
    cdef const uint8_t* stop = data + size
    if size <= MOST_STEPPED and end - stop >= STEP:
        while data < stop:
            memcpy(to, data, STEP)
            to += STEP
            data += STEP
    elif size > 0:
        memcpy(to, data, size)


# --- from columns ---

cdef struct RowsIn:
    BytesIn* key
    BytesIn* value
    NumbersIn* timestamp
    Py_ssize_t rows
    const uint8_t* picked       # NULL: all rows in order
    int64_t now                 # for rows without a timestamp


cdef struct BatchRows:
    uint8_t* data
    Py_ssize_t used
    Py_ssize_t room             # where the batch must end
    Py_ssize_t capacity
    int32_t count
    int64_t base_timestamp
    int64_t max_timestamp
    bint sums
    uint32_t summed
    Py_ssize_t summed_to


cdef inline int width_of(uint32_t raw) noexcept nogil:
    return 1 + (raw > 0x7F) + (raw > 0x3FFF) + (raw > 0x1FFFFF) + (raw > 0xFFFFFFF)


cdef inline uint8_t* put_raw(uint8_t* at, uint32_t raw) noexcept nogil:
    """Write a number that is zigzag-encoded already."""
    if raw <= 0x7F:
        at[0] = <uint8_t> raw
        return at + 1
    at[0] = <uint8_t> (raw | 0x80)
    if raw <= 0x3FFF:
        at[1] = <uint8_t> (raw >> 7)
        return at + 2
    at[1] = <uint8_t> (raw >> 7 | 0x80)
    if raw <= 0x1FFFFF:
        at[2] = <uint8_t> (raw >> 14)
        return at + 3
    at[2] = <uint8_t> (raw >> 14 | 0x80)
    if raw <= 0xFFFFFFF:
        at[3] = <uint8_t> (raw >> 21)
        return at + 4
    at[3] = <uint8_t> (raw >> 21 | 0x80)
    at[4] = <uint8_t> (raw >> 28)
    return at + 5


cdef inline uint32_t raw_size(Py_ssize_t size) noexcept nogil:
    """Return the zigzag-encoded size of a key or value; −1 is null."""
    return <uint32_t> size << 1 if size >= 0 else 1


cdef inline void fetch_ahead(BytesIn* column, Py_ssize_t row) noexcept nogil:
    cdef Py_ssize_t i = column.first + row
    cdef const uint8_t* data
    if column.offsets != NULL:
        data = column.data + (load64(column.offsets, i) if column.wide else load32(column.offsets, i))
        prefetch(data)
        prefetch(data + 64)


cdef Py_ssize_t put_rows(RowsIn* rows, BatchRows* batch, Py_ssize_t i, Py_ssize_t stop) noexcept nogil:
    """Append the rows from `i` on to a batch that has a record; return the first that is not plain or does not fit."""
    cdef BytesIn keys = rows.key[0], values = rows.value[0]
    cdef NumbersIn times = rows.timestamp[0]
    cdef const uint8_t* picked = rows.picked
    cdef const uint8_t* keys_end = keys.data + keys.data_size
    cdef const uint8_t* values_end = values.data + values.data_size
    cdef Py_ssize_t number_of_rows = rows.rows, row, ahead
    cdef uint8_t* at = batch.data + batch.used
    cdef uint8_t* unsummed = batch.data + batch.summed_to
    cdef uint8_t* room = batch.data + batch.room
    cdef uint8_t* capacity = batch.data + batch.capacity
    cdef uint32_t summed = batch.summed
    cdef int32_t count = batch.count
    cdef int64_t base_timestamp = batch.base_timestamp, max_timestamp = batch.max_timestamp
    cdef int64_t timestamp = rows.now, delta = wrapping_subtract(timestamp, base_timestamp)
    cdef uint32_t raw_delta = 0, raw_key, raw_value, body, total
    cdef bint sums = batch.sums, timed = times.data != NULL
    cdef Span key, value
    if not timed:
        if not -(1 << 30) < delta < (1 << 30):
            return i
        raw_delta = <uint32_t> zigzag(delta)
        max_timestamp = max(max_timestamp, timestamp)
    while i < stop:
        row = i
        if picked != NULL:
            row = load32(picked, i)
            if not 0 <= row < number_of_rows:
                break
            if i + ROWS_AHEAD < stop:
                ahead = load32(picked, i + ROWS_AHEAD)
                if 0 <= ahead < number_of_rows:
                    fetch_ahead(&keys, ahead)
                    fetch_ahead(&values, ahead)
        if not bytes_at(&keys, row, &key) or not bytes_at(&values, row, &value):
            break
        if key.size > SHORT or value.size > SHORT:
            break
        if timed:
            timestamp = rows.now
            if is_valid(times.validity, times.first + row):
                timestamp = load64(times.data, times.first + row)
            delta = wrapping_subtract(timestamp, base_timestamp)
            if not -(1 << 30) < delta < (1 << 30):
                break
            raw_delta = <uint32_t> zigzag(delta)
        raw_key, raw_value = raw_size(key.size), raw_size(value.size)
        body = (
            2 + width_of(raw_delta) + width_of(<uint32_t> count << 1) + width_of(raw_key) + width_of(raw_value)
            + (<uint32_t> key.size if key.size > 0 else 0) + (<uint32_t> value.size if value.size > 0 else 0)
        )
        total = width_of(body << 1) + body
        if room - at < total or capacity - at < total + STEP:
            break
        at = put_raw(at, body << 1)
        at[0] = 0
        at = put_raw(at + 1, raw_delta)
        at = put_raw(at, <uint32_t> count << 1)
        at = put_raw(at, raw_key)
        if key.size > 0:
            copy_short(at, key.data, key.size, keys_end)
            at += key.size
        at = put_raw(at, raw_value)
        if value.size > 0:
            copy_short(at, value.data, value.size, values_end)
            at += value.size
        at[0] = 0
        at += 1
        if timestamp > max_timestamp:
            max_timestamp = timestamp
        count += 1
        i += 1
        if sums and at - unsummed >= SUMMED_AT_ONCE:
            summed = crc32c_add(summed, unsummed, SUMMED_AT_ONCE)
            unsummed += SUMMED_AT_ONCE
    if sums:
        batch.summed = crc32c_add(summed, unsummed, at - unsummed)
        batch.summed_to = at - batch.data
    if count != batch.count:
        batch.max_timestamp = max_timestamp
    batch.used = at - batch.data
    batch.count = count
    return i


# --- to columns ---

cdef inline const uint8_t* get_raw(const uint8_t* at, uint32_t* raw) noexcept nogil:
    """Read a number of up to three bytes, which must be readable; return NULL if it is longer."""
    cdef uint32_t first = at[0]
    if first < 0x80:
        raw[0] = first
        return at + 1
    if at[1] < 0x80:
        raw[0] = (first & 0x7F) | <uint32_t> at[1] << 7
        return at + 2
    if at[2] < 0x80:
        raw[0] = (first & 0x7F) | <uint32_t> (at[1] & 0x7F) << 7 | <uint32_t> at[2] << 14
        return at + 3
    return NULL


cdef inline int32_t signed_of(uint32_t raw) noexcept nogil:
    return <int32_t> (raw >> 1) ^ -<int32_t> (raw & 1)


cdef struct PlainRecord:
    int32_t timestamp_delta
    int32_t offset_delta
    Span key
    Span value


cdef inline const uint8_t* get_plain(const uint8_t* at, const uint8_t* end, PlainRecord* record) noexcept nogil:
    """Read the record at `at`, with MOST_FIELDS bytes or more up to `end`; return its end, or NULL if it is not plain."""
    cdef uint32_t size, delta, offset_delta, key_size, value_size
    cdef const uint8_t* behind
    at = get_raw(at, &size)
    if at == NULL or size & 1 or (size >> 1) > end - at:
        return NULL
    behind = at + (size >> 1)
    at = get_raw(at + 1, &delta)        # after the attributes
    if at == NULL:
        return NULL
    at = get_raw(at, &offset_delta)
    if at == NULL:
        return NULL
    at = get_raw(at, &key_size)
    if at == NULL:
        return NULL
    record.timestamp_delta, record.offset_delta = signed_of(delta), signed_of(offset_delta)
    record.key.data, record.key.size = at, signed_of(key_size)
    if record.key.size > 0:
        # Behind the key, the length of the value must be readable without a look at the end.
        if record.key.size > behind - at or end - at - record.key.size < 4:
            return NULL
        at += record.key.size
    elif record.key.size < -1:
        return NULL
    at = get_raw(at, &value_size)
    if at == NULL:
        return NULL
    record.value.data, record.value.size = at, signed_of(value_size)
    if record.value.size > 0:
        if record.value.size > behind - at:
            return NULL
        at += record.value.size
    elif record.value.size < -1:
        return NULL
    return behind if behind - at == 1 and at[0] == 0 else NULL      # no headers


cdef const uint8_t* take_rows(
    const uint8_t* at, const uint8_t* upto, const uint8_t* end, BatchFields* fields, RowsOut* out
) noexcept nogil:
    """Read the plain records that begin before `upto`, of bytes that end at `end`; return the begin of the first that was
    not read. `out` has room for all of the batch's rows."""
    cdef BytesOut keys = out.key[0], values = out.value[0]
    cdef int32_t* key_ends = <int32_t*> (keys.offsets.data + keys.offsets.used)
    cdef int32_t* value_ends = <int32_t*> (values.offsets.data + values.offsets.used)
    cdef int64_t* offsets = <int64_t*> (out.offset.data + out.offset.used)
    cdef int64_t* timestamps = <int64_t*> (out.timestamp.data + out.timestamp.used)
    cdef int32_t* kinds = <int32_t*> (out.timestamp_type.data + out.timestamp_type.used)
    cdef uint8_t* key_bits = keys.validity.data
    cdef uint8_t* value_bits = values.validity.data
    cdef int64_t start = out.start, stop = out.stop, base_offset = fields.base_offset, time = fields.max_timestamp
    cdef int64_t base_timestamp = fields.base_timestamp
    cdef bint log_append_time = fields.log_append_time
    cdef int32_t seen = out.seen, count = fields.count, last = out.last_delta, last_allowed = fields.last_offset_delta
    cdef int32_t kind = 1 if log_append_time else 0
    cdef Py_ssize_t row = keys.rows, rows = 0
    cdef const uint8_t* behind
    cdef PlainRecord record
    cdef Span key, value
    cdef uint8_t bit
    while at < upto and seen < count and end - at >= MOST_FIELDS:
        behind = get_plain(at, end, &record)
        if behind == NULL or not last < record.offset_delta <= last_allowed:
            break
        if not start <= base_offset + record.offset_delta < stop:
            break
        key, value = record.key, record.value
        if (
            keys.data.capacity - keys.data.used < key.size + STEP and key.size > 0
            or values.data.capacity - values.data.used < value.size + STEP
        ):
            break
        last = record.offset_delta
        bit = <uint8_t> (1 << (row & 7))
        if row & 7 == 0:
            key_bits[row >> 3] = value_bits[row >> 3] = 0
        if key.size >= 0:
            key_bits[row >> 3] |= bit
            if key.size:
                copy_short(keys.data.data + keys.data.used, key.data, key.size, end)
                keys.data.used += key.size
        else:
            keys.nulls += 1
        if value.size >= 0:
            value_bits[row >> 3] |= bit
            copy_short(values.data.data + values.data.used, value.data, value.size, end)
            values.data.used += value.size
        else:
            values.nulls += 1
        key_ends[rows] = <int32_t> keys.data.used
        value_ends[rows] = <int32_t> values.data.used
        offsets[rows] = base_offset + record.offset_delta
        timestamps[rows] = time if log_append_time else wrapping_add(base_timestamp, record.timestamp_delta)
        kinds[rows] = kind
        rows += 1
        row += 1
        seen += 1
        at = behind
    keys.offsets.used += 4 * rows
    values.offsets.used += 4 * rows
    keys.rows = values.rows = row
    keys.validity.used = values.validity.used = (row + 7) >> 3
    out.key[0], out.value[0] = keys, values
    out.offset.used += 8 * rows
    out.timestamp.used += 8 * rows
    out.timestamp_type.used += 4 * rows
    out.seen, out.last_delta = seen, last
    return at


# --- without columns ---

cdef const uint8_t* tally_rows(
    const uint8_t* at, const uint8_t* end, BatchFields* fields, Tally* tally
) noexcept nogil:
    """Tally the plain records from `at` on; return the begin of the first that was not read."""
    cdef Tally sums = tally[0]
    cdef BatchFields batch = fields[0]
    cdef PlainRecord record
    cdef const uint8_t* behind
    cdef int64_t time
    while sums.seen < batch.count and end - at >= MOST_FIELDS:
        behind = get_plain(at, end, &record)
        if behind == NULL or not sums.last_delta < record.offset_delta <= batch.last_offset_delta:
            break
        sums.last_delta = record.offset_delta
        time = batch.max_timestamp
        if not batch.log_append_time:
            time = wrapping_add(batch.base_timestamp, record.timestamp_delta)
        note_time(&sums, time)
        sums.keyless += record.key.size < 0
        sums.seen += 1
        at = behind
    tally[0] = sums
    return at


# --- partitioning ---

cdef Outcome choose_partitions(
    ColumnSource source, int32_t partitions, int32_t keyless, Memory* chosen, Py_ssize_t* row
) noexcept nogil:
    cdef Outcome outcome = reserve(chosen, 4 * source.rows)
    cdef Span key
    if outcome != DONE:
        return outcome
    while row[0] < source.rows:
        if not bytes_at(&source.key, row[0], &key):
            return MALFORMED
        put32(chosen, keyless if key.size < 0 else (hash_key(key.data, key.size) & 0x7FFFFFFF) % partitions)
        row[0] += 1
    return DONE


def partition_rows(ColumnSource source not None, int32_t partitions, *, int32_t keyless=-1):
    """Return the partition of every row as 32-bit numbers: by its key, as `partition_for_key` does, or `keyless`."""
    cdef Memory memory
    cdef Outcome outcome
    cdef Py_ssize_t row = 0
    if partitions <= 0:
        raise ValueError("a topic must have at least one partition")
    memory.data = NULL
    memory.used = memory.capacity = 0
    if is_worth_letting_go(source):
        with nogil:
            outcome = choose_partitions(source, partitions, keyless, &memory, &row)
    else:
        outcome = choose_partitions(source, partitions, keyless, &memory, &row)
    if outcome != DONE:
        release(&memory)
        if outcome == MALFORMED:
            raise ValueError(f"row {row}: the columns' buffers are inconsistent")
        raise_outcome(outcome)
    return block_of(&memory)


cdef Py_ssize_t sort_rows(
    const uint8_t* chosen, Py_ssize_t rows, int32_t partitions, Py_ssize_t* start, int32_t* order
) noexcept nogil:
    """Do a counting sort: count the rows of each partition, compute the starts, then place every row. Return −1, or the
    first row whose partition does not exist. If another thread changes the partitions between the two passes the result
    is wrong, but there is no overrun."""
    cdef Py_ssize_t row, place, total = 0
    cdef int64_t partition
    for row in range(rows):
        partition = load32(chosen, row)
        if not 0 <= partition < partitions:
            return row
        start[partition] += 1
    for partition in range(partitions + 1):
        place = start[partition]
        start[partition] = total
        total += place
    for row in range(rows):
        partition = load32(chosen, row)
        if not 0 <= partition < partitions or start[partition] >= rows:
            return row
        place = start[partition]
        start[partition] += 1
        order[place] = <int32_t> row
    return -1


def group_rows(chosen, int32_t partitions):
    """Return the row numbers (32 bits), stably sorted by partition, and the list of each partition's start, with one more
    element for the end. `chosen` has a 32-bit partition per row.
    """
    cdef Lent lent = Lent(chosen)
    cdef const uint8_t* given = <const uint8_t*> lent.view.buf
    cdef Py_ssize_t rows = lent.view.len // 4
    cdef Py_ssize_t row
    cdef int64_t partition
    cdef Block order = Block.__new__(Block)
    cdef Block starts = Block.__new__(Block)
    cdef Py_ssize_t* start
    if partitions <= 0:
        raise ValueError("a topic must have at least one partition")
    if rows > INT32_MAX:
        raise ValueError("row numbers have 32 bits")
    cdef Py_ssize_t table = (<Py_ssize_t> partitions + 1) * sizeof(Py_ssize_t)
    if reserve(&order.memory, 4 * rows) != DONE or reserve(&starts.memory, table) != DONE:
        raise MemoryError
    start = <Py_ssize_t*> starts.memory.data
    memset(start, 0, table)
    if 4 * rows < WORTH_LETTING_GO_COLUMNS:
        row = sort_rows(given, rows, partitions, start, <int32_t*> order.memory.data)
    else:
        with nogil:
            row = sort_rows(given, rows, partitions, start, <int32_t*> order.memory.data)
    if row >= 0:
        raise ValueError(f"row {row} names partition {load32(given, row)} of {partitions}")
    order.memory.used = 4 * rows
    # Every start has moved to the partition's end, which is the start of the next one.
    return order, [0] + [start[partition] for partition in range(partitions)]
