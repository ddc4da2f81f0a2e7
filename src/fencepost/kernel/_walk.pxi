# Part of _batch.pyx: walks over the records of a batch, without Python objects and without the GIL. `walk_py.py` is the
# twin in plain Python.

cdef enum:
    # A walk over small records runs at some 2 GB/s: from this size on, release the GIL for other threads.
    WORTH_LETTING_GO_WALKING = 1048576
    FEWEST_SLOTS = 1024


cdef int read_fields(object header, BatchFields* fields) except -1:
    fields.count = header.count
    fields.last_offset_delta = header.last_offset_delta
    fields.base_offset = header.base_offset
    fields.base_timestamp = header.base_timestamp
    fields.max_timestamp = header.max_timestamp
    fields.log_append_time = header.attributes & LOG_APPEND_TIME
    return 0


cdef inline const uint8_t* next_record(
    const uint8_t* at, const uint8_t* end, BatchFields* fields, int32_t* last_delta, RawRecord* record
) noexcept nogil:
    """Read the record at `at`, whose offset must be above the last one's; return its end, or NULL."""
    at = get_record(at, end, record)
    if at == NULL or not last_delta[0] < record.offset_delta <= fields.last_offset_delta:
        return NULL
    last_delta[0] = record.offset_delta
    return at


cdef inline int64_t time_of(BatchFields* fields, RawRecord* record) noexcept nogil:
    if fields.log_append_time:
        return fields.max_timestamp
    return wrapping_add(fields.base_timestamp, record.timestamp_delta)


# --- validation ---

cdef struct Tally:
    int64_t earliest
    int64_t latest
    int32_t keyless
    int32_t seen            # records so far
    int32_t last_delta
    bint timed              # a flag, because every number is a valid time


cdef inline void begin_tally(Tally* tally) noexcept nogil:
    tally.earliest = tally.latest = tally.last_delta = -1
    tally.keyless = tally.seen = 0
    tally.timed = False


cdef inline void note_time(Tally* tally, int64_t time) noexcept nogil:
    tally.latest = max(tally.latest, time)
    if time != -1 and (not tally.timed or time < tally.earliest):
        tally.earliest = time
        tally.timed = True


cdef const uint8_t* tally_records(
    const uint8_t* at, const uint8_t* end, BatchFields* fields, Tally* tally
) noexcept nogil:
    """Tally the records from `at` on; return the end of the last one that is whole and valid."""
    cdef RawRecord record
    cdef const uint8_t* behind
    while True:
        at = tally_rows(at, end, fields, tally)
        if tally.seen >= fields.count:
            break
        behind = next_record(at, end, fields, &tally.last_delta, &record)
        if behind == NULL:
            break
        at = behind
        note_time(tally, time_of(fields, &record))
        if record.key.size < 0:
            tally.keyless += 1
        tally.seen += 1
    return at


cdef inline bint is_cut_off(const uint8_t* at, const uint8_t* end) noexcept nogil:
    """Return whether the record at `at` may only need more bytes."""
    cdef int32_t size
    cdef const uint8_t* body = get_varint(at, end, &size)
    if body == NULL:
        return end - at < LONGEST_VARINT
    return size > end - body


cdef Outcome tally_lz4(
    const uint8_t* at, Py_ssize_t size, Py_ssize_t max_bytes, BatchFields* fields, Tally* tally, Py_ssize_t* inflated
) noexcept nogil:
    """Tally the records in frames that `bound_of_lz4` has accepted, block by block: the few blocks in use stay in the
    processor's cache, and a large batch needs no more memory than its largest record. Return FULL if the frames are
    damaged or inflate to more than `max_bytes`.
    """
    cdef const uint8_t* end = at + size
    cdef const uint8_t* behind
    cdef PackedBlock block
    cdef Memory window          # what is not tallied yet
    cdef Py_ssize_t taken, room
    cdef Outcome outcome = DONE
    window.data = NULL
    window.used = window.capacity = 0
    inflated[0] = 0
    while at != end and outcome == DONE:
        at += LZ4_HEADER_SIZE
        while True:
            at = next_lz4_block(at, end, &block)
            if block.data == NULL:
                break
            room = min(block.bound, max_bytes - inflated[0])
            if reserve(&window, block.bound) != DONE:
                outcome = NO_MEMORY
                break
            if block.stored:
                taken = block.size if block.size <= room else -1
                if taken > 0:
                    memcpy(window.data + window.used, block.data, taken)
            else:
                taken = lz4_unpack(block.data, block.size, window.data + window.used, room)
            if taken < 0:
                outcome = FULL
                break
            inflated[0] += taken
            window.used += taken
            behind = tally_records(window.data, window.data + window.used, fields, tally)
            taken = window.used - (behind - window.data)
            if taken and (tally.seen == fields.count or not is_cut_off(behind, window.data + window.used)):
                outcome = MALFORMED
                break
            if behind != window.data:
                memmove(window.data, behind, taken)
                window.used = taken
    if outcome == DONE and (window.used or tally.seen != fields.count):
        outcome = MALFORMED
    release(&window)
    return outcome


def scan_batch(buffer, Py_ssize_t at=0, *, header=None, bint check=True, Py_ssize_t max_bytes=_MAX_DECOMPRESSED):
    """Read every length, offset and time of the batch at `at`; raise CorruptBatch if it cannot be decoded. With a
    `header`, which the caller has read and checked, the checksum is not computed again.
    """
    cdef Lent lent
    cdef const uint8_t* records
    cdef const uint8_t* behind
    cdef Py_ssize_t size, inflated
    cdef BatchFields fields
    cdef Tally tally
    cdef Outcome outcome
    begin_tally(&tally)
    if header is not None and not header.attributes & CODEC_MASK:
        lent = Lent(buffer)
        size = header.batch_length + LENGTH_PREFIX
        read_fields(header, &fields)
        if (
            at < 0 or size < HEADER_SIZE or size > lent.view.len - at or fields.count < 0
            or fields.last_offset_delta < fields.count - 1
            or fields.base_offset > INT64_MAX - max(fields.last_offset_delta, 0)
        ):
            raise_outcome(MALFORMED)
        records = <const uint8_t*> lent.view.buf + at + HEADER_SIZE
        size -= HEADER_SIZE
    else:
        header, payload = open_packed(buffer, at, check and header is None)
        read_fields(header, &fields)
        lent = Lent(payload)
        records = <const uint8_t*> lent.view.buf
        size = lent.view.len
        if header.attributes & CODEC_MASK == LZ4 and size and bound_of_lz4(records, size, most_blocks(max_bytes)) >= 0:
            with nogil:
                outcome = tally_lz4(records, size, max_bytes, &fields, &tally, &inflated)
            if outcome == FULL:
                raise CorruptBatch(f"lz4: the records are damaged, or larger than the {max_bytes} bytes allowed")
            if outcome != DONE:
                raise_outcome(outcome)
            return ScanType(inflated, tally.earliest, tally.latest, tally.keyless)
        lent = Lent(unpacked(header, payload, max_bytes, unpack))
        records = <const uint8_t*> lent.view.buf
        size = lent.view.len
    if size < WORTH_LETTING_GO_WALKING:
        behind = tally_records(records, records + size, &fields, &tally)
    else:
        with nogil:
            behind = tally_records(records, records + size, &fields, &tally)
    if behind != records + size or tally.seen != fields.count:
        raise_outcome(MALFORMED)
    return ScanType(size, tally.earliest, tally.latest, tally.keyless)


# --- by time ---

def find_time(
    buffer,
    Py_ssize_t at=0,
    *,
    int64_t timestamp,
    int64_t start=INT64_MIN,
    bint check=True,
    Py_ssize_t max_bytes=_MAX_DECOMPRESSED,
):
    """Return offset and time of the first record from offset `start` on that is not older than `timestamp`, or None."""
    header, payload = open_batch(buffer, at, check, max_bytes, unpack)
    cdef Lent lent = Lent(payload)
    cdef const uint8_t* here = <const uint8_t*> lent.view.buf
    cdef const uint8_t* end = here + lent.view.len
    cdef BatchFields fields
    cdef RawRecord record
    cdef int32_t i, last_delta = -1
    cdef int64_t offset = 0, time = 0
    cdef bint found = False
    read_fields(header, &fields)
    with nogil:
        for i in range(fields.count):
            here = next_record(here, end, &fields, &last_delta, &record)
            if here == NULL:
                break
            if found or fields.base_offset + record.offset_delta < start or time_of(&fields, &record) < timestamp:
                continue
            offset, time = fields.base_offset + record.offset_delta, time_of(&fields, &record)
            found = True
    if here != end:
        raise_outcome(MALFORMED)
    return (offset, time) if found else None


# --- the last record of each key ---

cdef struct KeySlot:
    uint64_t high
    uint64_t low
    int64_t offset      # −1: unused


cdef struct Sieve:
    int64_t start_offset
    bint drop_tombstones
    Memory stays            # a bit per record
    int32_t count
    int32_t kept
    int32_t tombstones
    int64_t latest


cdef inline uint64_t rotate(uint64_t number, int bits) noexcept nogil:
    return (number << bits) | (number >> (64 - bits))


cdef inline uint64_t load_word(const uint8_t* at) noexcept nogil:
    cdef uint64_t word = 0
    cdef int i
    for i in range(8):
        word |= <uint64_t> at[i] << (8 * i)
    return word


cdef inline void sip_rounds(uint64_t* v, int rounds) noexcept nogil:
    cdef int i
    for i in range(rounds):
        v[0] += v[1]
        v[1] = rotate(v[1], 13) ^ v[0]
        v[0] = rotate(v[0], 32)
        v[2] += v[3]
        v[3] = rotate(v[3], 16) ^ v[2]
        v[0] += v[3]
        v[3] = rotate(v[3], 21) ^ v[0]
        v[2] += v[1]
        v[1] = rotate(v[1], 17) ^ v[2]
        v[2] = rotate(v[2], 32)


cdef inline void digest_key(Span key, uint64_t first, uint64_t second, KeySlot* into) noexcept nogil:
    """Compute SipHash-2-4 with 128 bits: without the secret nobody can construct two keys with the same digest."""
    cdef uint64_t v[4]
    cdef const uint8_t* at = key.data
    cdef Py_ssize_t left = key.size
    cdef uint64_t word
    cdef int i
    v[0] = first ^ <uint64_t> 0x736F6D6570736575
    v[1] = second ^ <uint64_t> 0x646F72616E646F6D ^ 0xEE
    v[2] = first ^ <uint64_t> 0x6C7967656E657261
    v[3] = second ^ <uint64_t> 0x7465646279746573
    while left >= 8:
        word = load_word(at)
        v[3] ^= word
        sip_rounds(v, 2)
        v[0] ^= word
        at += 8
        left -= 8
    word = <uint64_t> (key.size & 0xFF) << 56
    for i in range(<int> left):
        word |= <uint64_t> at[i] << (8 * i)
    v[3] ^= word
    sip_rounds(v, 2)
    v[0] ^= word
    v[2] ^= 0xEE
    sip_rounds(v, 4)
    into.high = v[0] ^ v[1] ^ v[2] ^ v[3]
    v[1] ^= 0xDD
    sip_rounds(v, 4)
    into.low = v[0] ^ v[1] ^ v[2] ^ v[3]


cdef class KeyOffsets:
    """The last offset of each key. A hash table, at most half full, holds 24 bytes per key: digest and offset."""

    cdef Memory slots
    cdef Py_ssize_t mask
    cdef Py_ssize_t count
    cdef Py_ssize_t max_keys
    cdef uint64_t first
    cdef uint64_t second
    cdef bint busy

    def __cinit__(self, Py_ssize_t max_keys, *, bytes secret=None):
        if secret is None:
            secret = os_urandom(16)
        if len(secret) != 16:
            raise ValueError("the secret must have 16 bytes")
        self.first = load_word(<const uint8_t*> PyBytes_AS_STRING(secret))
        self.second = load_word(<const uint8_t*> PyBytes_AS_STRING(secret) + 8)
        self.max_keys = max_keys
        if make_slots(&self.slots, FEWEST_SLOTS) != DONE:
            raise MemoryError
        self.mask = FEWEST_SLOTS - 1

    def __dealloc__(self):
        release(&self.slots)

    def __len__(self):
        return self.count

    @property
    def is_full(self):
        return self.count >= self.max_keys

    def note(self, buffer, Py_ssize_t at=0, *, Py_ssize_t max_bytes=_MAX_DECOMPRESSED):
        """Note the keys of the batch at `at`, whose checksum is already verified."""
        header, payload = open_batch(buffer, at, False, max_bytes, unpack)
        cdef Lent lent = Lent(payload)
        cdef const uint8_t* records = <const uint8_t*> lent.view.buf
        cdef BatchFields fields
        cdef Outcome outcome
        read_fields(header, &fields)
        self.begin()
        with nogil:
            outcome = self.note_records(records, records + lent.view.len, &fields)
        self.busy = False
        if outcome != DONE:
            raise_outcome(outcome)

    def digest(self, bytes key not None):
        """Return the digest of a key."""
        cdef Span span
        cdef KeySlot slot
        span_of_plain(key, &span)
        digest_key(span, self.first, self.second, &slot)
        return (<object> slot.high).to_bytes(8, "little") + (<object> slot.low).to_bytes(8, "little")

    def is_replaced(self, bytes key not None, int64_t offset):
        """Return whether the key was written again after `offset`."""
        cdef Span span
        span_of_plain(key, &span)
        self.begin()
        cdef bint replaced = self.has_later(span, offset)
        self.busy = False
        return replaced

    def sift(
        self,
        buffer,
        Py_ssize_t at=0,
        *,
        int64_t start_offset,
        bint drop_tombstones,
        horizon=None,
        Py_ssize_t max_bytes=_MAX_DECOMPRESSED,
    ):
        """Remove from the batch at `at` the records that were replaced, that lie before `start_offset` or have no key,
        and, if asked, tombstones. If tombstones remain and there is a `horizon`, write times relative to it.

        `records` is None if nothing has to be written, because all records remain unchanged or none remains.
        """
        header, payload = open_batch(buffer, at, False, max_bytes, unpack)
        cdef Lent lent = Lent(payload)
        cdef const uint8_t* records = <const uint8_t*> lent.view.buf
        cdef BatchFields fields
        cdef Sieve sieve
        cdef Outcome outcome
        cdef int64_t new_base = 0 if horizon is None else horizon
        cdef bint has_horizon = horizon is not None
        cdef Block block = Block.__new__(Block)
        read_fields(header, &fields)
        sieve.start_offset, sieve.drop_tombstones = start_offset, drop_tombstones
        sieve.stays.data = NULL
        sieve.stays.used = sieve.stays.capacity = 0
        self.begin()
        with nogil:
            outcome = self.choose(records, records + lent.view.len, &fields, &sieve)
            has_horizon = has_horizon and sieve.tombstones > 0
            if outcome == DONE and sieve.kept and (has_horizon or sieve.kept < fields.count):
                outcome = write_kept(
                    records,
                    records + lent.view.len,
                    &sieve,
                    wrapping_subtract(fields.base_timestamp, new_base) if has_horizon else 0,
                    has_horizon,
                    &block.memory,
                )
            release(&sieve.stays)
        self.busy = False
        if outcome != DONE:
            raise_outcome(outcome)
        return SiftedType(
            sieve.kept, sieve.tombstones > 0, sieve.latest, block if block.memory.data != NULL else None
        )

    cdef int begin(self) except -1:
        if self.busy:
            raise BufferError("another thread is using these keys")
        self.busy = True
        return 0

    cdef KeySlot* slot_of(self, KeySlot* wanted) noexcept nogil:
        """Return the key's slot, or the free slot for it."""
        cdef KeySlot* slots = <KeySlot*> self.slots.data
        cdef Py_ssize_t place = <Py_ssize_t> (wanted.low & <uint64_t> self.mask)
        while slots[place].offset >= 0 and (slots[place].high != wanted.high or slots[place].low != wanted.low):
            place = (place + 1) & self.mask
        return &slots[place]

    cdef Outcome widen(self) noexcept nogil:
        cdef Memory old = self.slots
        cdef Py_ssize_t place, slots = self.mask + 1
        cdef KeySlot* moving
        if make_slots(&self.slots, 2 * slots) != DONE:
            self.slots = old
            return NO_MEMORY
        self.mask = 2 * slots - 1
        for place in range(slots):
            moving = <KeySlot*> old.data + place
            if moving.offset >= 0:
                self.slot_of(moving)[0] = moving[0]
        release(&old)
        return DONE

    cdef Outcome note_records(self, const uint8_t* at, const uint8_t* end, BatchFields* fields) noexcept nogil:
        cdef RawRecord record
        cdef KeySlot wanted
        cdef KeySlot* slot
        cdef int32_t i, last_delta = -1
        for i in range(fields.count):
            at = next_record(at, end, fields, &last_delta, &record)
            if at == NULL:
                return MALFORMED
            if record.key.size < 0:
                continue
            digest_key(record.key, self.first, self.second, &wanted)
            slot = self.slot_of(&wanted)
            if slot.offset < 0:
                if 2 * self.count > self.mask:
                    if self.widen() != DONE:
                        return NO_MEMORY
                    slot = self.slot_of(&wanted)
                self.count += 1
            wanted.offset = fields.base_offset + record.offset_delta
            slot[0] = wanted
        return DONE if at == end else MALFORMED

    cdef bint has_later(self, Span key, int64_t offset) noexcept nogil:
        cdef KeySlot wanted
        digest_key(key, self.first, self.second, &wanted)
        return self.slot_of(&wanted).offset > offset

    cdef Outcome choose(self, const uint8_t* at, const uint8_t* end, BatchFields* fields, Sieve* sieve) noexcept nogil:
        """Mark the records that remain."""
        cdef RawRecord record
        cdef int32_t i, last_delta = -1
        cdef int64_t offset
        sieve.kept = sieve.tombstones = 0
        sieve.latest = INT64_MIN
        if reserve(&sieve.stays, (<Py_ssize_t> fields.count + 7) // 8) != DONE:
            return NO_MEMORY
        sieve.stays.used = (<Py_ssize_t> fields.count + 7) // 8
        if sieve.stays.used:
            memset(sieve.stays.data, 0, sieve.stays.used)
        sieve.count = fields.count
        for i in range(fields.count):
            at = next_record(at, end, fields, &last_delta, &record)
            if at == NULL:
                return MALFORMED
            offset = fields.base_offset + record.offset_delta
            if record.key.size < 0 or offset < sieve.start_offset or self.has_later(record.key, offset):
                continue
            if record.value.size < 0:
                if sieve.drop_tombstones:
                    continue
                sieve.tombstones += 1
            sieve.kept += 1
            sieve.stays.data[i >> 3] |= <uint8_t> (1 << (i & 7))
            sieve.latest = max(sieve.latest, time_of(fields, &record))
        return DONE if at == end else MALFORMED


cdef Outcome make_slots(Memory* memory, Py_ssize_t slots) noexcept nogil:
    memory.data = NULL
    memory.used = memory.capacity = 0
    if reserve(memory, slots * sizeof(KeySlot)) != DONE:
        return NO_MEMORY
    memory.used = slots * sizeof(KeySlot)
    memset(memory.data, 0xFF, memory.used)
    return DONE


cdef Outcome write_kept(
    const uint8_t* at, const uint8_t* end, Sieve* sieve, int64_t shift, bint shifts, Memory* out
) noexcept nogil:
    """Write the marked records one after the other, with `shift` added to their times."""
    cdef const uint8_t* begin
    cdef const uint8_t* body
    cdef const uint8_t* behind
    cdef int32_t i, size
    cdef int64_t delta
    cdef Py_ssize_t rest
    if reserve(out, end - at) != DONE:
        return NO_MEMORY
    for i in range(sieve.count):
        begin = at
        body = get_varint(at, end, &size)
        if body == NULL or size < 1 or size > end - body:
            return MALFORMED
        at = body + size
        if not sieve.stays.data[i >> 3] >> (i & 7) & 1:
            continue
        if not shifts:
            if reserve(out, at - begin) != DONE:
                return NO_MEMORY
            memcpy(out.data + out.used, begin, at - begin)
            out.used += at - begin
            continue
        behind = get_varlong(body + 1, at, &delta)
        if behind == NULL:
            return MALFORMED
        delta = wrapping_add(delta, shift)
        rest = at - behind
        if reserve(out, 2 * LONGEST_VARINT + 1 + rest) != DONE:
            return NO_MEMORY
        out.used = put_varint(out.data + out.used, 1 + varint_size(delta) + rest) - out.data
        out.data[out.used] = body[0]
        out.used = put_varint(out.data + out.used + 1, delta) - out.data
        memcpy(out.data + out.used, behind, rest)
        out.used += rest
    return DONE
