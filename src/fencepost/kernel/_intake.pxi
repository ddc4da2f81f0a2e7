# The fast path of a record from the caller's thread into the open batch of its partition: one call, no lock, no Python.
#
# Included by _batch.pyx; `intake_py.py` is the twin. The GIL is the lock: nothing between reading a slot and appending to
# its builder can release the GIL. So another thread closes the slot either before or after both. That is why the ticket
# is created first: creating it may start the garbage collector.

cdef extern from *:
    """
    #include <time.h>
    static long long now_ms(void) {
        struct timespec now;
        timespec_get(&now, TIME_UTC);
        return (long long) now.tv_sec * 1000 + now.tv_nsec / 1000000;
    }
    static PyObject *bare(PyTypeObject *kind, PyObject *arguments, PyObject *keywords) {
        return kind->tp_new(kind, arguments, keywords);  /* without __init__ */
    }
    """
    int64_t now_ms() nogil
    object bare(PyTypeObject* kind, object arguments, PyObject* keywords)

cdef enum:
    RECORD_OVERHEAD = 36
    RESERVE = 8  # core/producers/sharing.py


cdef class Place:
    """The position of a record: its batch and its index there. Tickets derive from it."""

    cdef public object settlement
    cdef public Py_ssize_t index
    cdef public int64_t timestamp

    def __init__(self, settlement, Py_ssize_t index, int64_t timestamp):
        self.settlement = settlement
        self.index = index
        self.timestamp = timestamp


cdef class Budget:
    """The memory that all lanes of a producer share."""

    cdef readonly Py_ssize_t limit
    cdef readonly Py_ssize_t held

    def __init__(self, Py_ssize_t limit):
        self.limit = limit


cdef class Gate:
    """The switch of the fast path, shared by the senders and the thread that sets it."""

    cdef public bint is_open


cdef class Slot:
    """The open batch of one partition, if any, and the memory that the partition holds."""

    cdef readonly object batch
    cdef readonly BatchBuilder builder
    cdef readonly Py_ssize_t held
    cdef bint busy  # an append on the slow path is running, which may run foreign code

    def begin(self, batch, BatchBuilder builder not None):
        self.batch = batch
        self.builder = builder

    def end(self):
        """Close the slot: nothing is appended any more."""
        self.builder = None
        self.batch = None

    def append(self, Lane lane not None, key, value, int64_t timestamp, headers=None):
        """Append as `BatchBuilder.append` does, charge slot and lane, and return the record's index in the batch."""
        cdef BatchBuilder builder = self.builder
        cdef Py_ssize_t before = builder.filled()
        self.busy = True
        try:
            builder.append(key, value, timestamp, headers)
        finally:
            self.busy = False
        lane.take(builder.filled() - before, self)
        return builder.count - 1


cdef class Lane:
    """The slots of one topic, and the memory that the topic holds."""

    cdef readonly Py_ssize_t held
    cdef readonly Py_ssize_t active
    cdef readonly list slots
    cdef readonly Budget budget
    cdef public Slot undesignated

    def __init__(self, Budget budget not None):
        self.budget = budget
        self.slots = []

    def set_slots(self, list slots not None):
        """Set one slot per partition, None for a partition without records so far; empty while they are unknown."""
        self.slots = slots

    def charge(self, Py_ssize_t size, Slot slot=None):
        """Charge `size` bytes, or release them if negative; in one call, because two threads must not add at once. No
        slot: for records without a partition."""
        self.take(size, slot)

    def move(self, Py_ssize_t size, Slot source not None, Slot target not None):
        """Move a charge from one slot to another."""
        self.hold(-size, source)
        self.hold(size, target)

    def has_room_for(self, Py_ssize_t size, Slot slot=None):
        """Apply the rule of `core/producers/sharing.py`; without a slot, of the topic alone."""
        return self.admits(size, slot)

    cdef inline void take(self, Py_ssize_t size, Slot slot) noexcept:
        self.held += size
        self.budget.held += size
        if slot is not None:
            self.hold(size, slot)

    cdef inline void hold(self, Py_ssize_t size, Slot slot) noexcept:
        self.active -= slot.held != 0
        slot.held += size
        self.active += slot.held != 0

    cdef inline bint admits(self, Py_ssize_t size, Slot slot) noexcept:
        cdef Py_ssize_t free = self.budget.limit - self.budget.held
        cdef Py_ssize_t active
        if slot is None or len(self.slots) == 1:
            return self.held + 2 * size <= free
        if self.held + 2 * size <= free and (slot.held == 0 or 2 * slot.held + 4 * size + self.held <= free):
            return True
        active = self.active + (slot.held == 0)
        return (slot.held + size) * RESERVE * active <= free - size


cdef class Intake:
    """`send` with a fast path into the open batch; all other cases go to `slowly`."""

    cdef dict lanes
    cdef object ticket_type
    cdef public object slowly
    cdef Py_ssize_t batch_size
    cdef Gate gate

    def __init__(
        self, dict lanes not None, ticket_type not None, slowly not None, Py_ssize_t batch_size, Gate gate=None
    ):
        if not issubclass(ticket_type, Place):
            raise TypeError("ticket_type must be a subclass of Place")
        self.lanes = lanes
        self.ticket_type = ticket_type
        self.slowly = slowly
        self.batch_size = batch_size
        self.gate = Gate() if gate is None else gate

    @property
    def is_open(self):
        return self.gate.is_open

    @is_open.setter
    def is_open(self, bint is_open):
        self.gate.is_open = is_open

    def send(self, topic, value, *, key=None, headers=None, partition=None, timestamp=None):
        cdef Lane lane
        cdef Slot slot
        cdef Place ticket
        cdef Span key_span, value_span, no_headers
        cdef int64_t time
        cdef Py_ssize_t number, size, before
        cdef BatchBuilder builder
        found = self.lanes.get(topic)
        if found is None or not self.gate.is_open or headers is not None or not is_plain(key) or not is_plain(value):
            return self.slowly(topic, value, key, headers, partition, timestamp)
        lane = <Lane?> found
        number = len(lane.slots)
        span_of_plain(key, &key_span)
        span_of_plain(value, &value_span)
        slot = None
        if partition is not None:
            if type(partition) is int and 0 <= partition < number:
                slot = lane.slots[<Py_ssize_t> partition]
        elif number == 1:
            slot = lane.slots[0]
        elif number:
            if key is None:
                slot = lane.undesignated
            else:
                slot = lane.slots[(hash_key(key_span.data, key_span.size) & 0x7FFFFFFF) % number]
        if slot is not None and slot.builder is not None and (timestamp is None or type(timestamp) is int):
            time = now_ms() if timestamp is None else timestamp
            ticket = <Place> bare(<PyTypeObject*> self.ticket_type, NOTHING, NULL)
            builder = slot.builder
            size = RECORD_OVERHEAD
            if key_span.size > 0:
                size += key_span.size
            if value_span.size > 0:
                size += value_span.size
            if (
                builder is not None
                and builder.lent == 0
                and not slot.busy
                and lane.admits(size, slot)
            ):
                no_headers.size = 0
                before = builder.filled()
                if builder.put(key_span, value_span, time, 0, no_headers, self.batch_size) == DONE:
                    lane.take(builder.filled() - before, slot)
                    ticket.settlement = slot.batch
                    ticket.index = builder.count - 1
                    ticket.timestamp = time
                    return ticket
        return self.slowly(topic, value, key, headers, partition, timestamp)


cdef tuple NOTHING = ()
