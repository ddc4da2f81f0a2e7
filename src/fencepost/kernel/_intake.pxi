# The fast path of a record from the caller's thread into the open batch of its partition: one call, no lock, no Python.
#
# Included by _batch.pyx; `intake_py.py` is the twin. The GIL is the lock: nothing between reading a slot and appending to
# its builder can release the GIL. So another thread closes the slot either before or after both. That is why the ticket
# is created first: creating it may start the garbage collector.

cdef extern from *:
    """
    #include <time.h>

    static long long read_clock_ms(long long *left_ns) {
        struct timespec now;
        timespec_get(&now, TIME_UTC);
        *left_ns = 1000000 - now.tv_nsec % 1000000;
        return (long long) now.tv_sec * 1000 + now.tv_nsec / 1000000;
    }

    /* The clock is the most expensive thing that `send` would do. The processor counts ticks at a constant rate, which
     * are cheaper to read, and tell for how long the last answer holds. The rate is not known, but it is above one tick
     * in two nanoseconds: a millisecond takes some forty looks at the clock, for any number of records. */
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    #include <cpuid.h>
    #include <x86intrin.h>
    static int has_steady_ticks = 0;
    static void prepare_clock(void) {
        unsigned int a, b, c, d;
        has_steady_ticks = __get_cpuid(0x80000007, &a, &b, &c, &d) && (d & 1u << 8);
    }
    static inline long long now_ms(void) {  /* the GIL guards what it keeps */
        static long long kept_ms = 0;
        static unsigned long long kept_at = 0, holds_for = 0;
        unsigned long long ticks;
        long long left_ns;
        if (!has_steady_ticks) return read_clock_ms(&left_ns);
        ticks = __rdtsc();
        if (ticks - kept_at >= holds_for) {
            kept_ms = read_clock_ms(&left_ns);
            kept_at = ticks;  /* of before: a pause between the two shortens what is left */
            holds_for = (unsigned long long) left_ns / 2;
        }
        return kept_ms;
    }
    #else
    static void prepare_clock(void) {}
    static inline long long now_ms(void) {
        long long left_ns;
        return read_clock_ms(&left_ns);
    }
    #endif

    static PyObject *bare(PyTypeObject *kind, PyObject *arguments, PyObject *keywords) {
        return kind->tp_new(kind, arguments, keywords);  /* without __init__ */
    }
    static PyMethodDef send_method = {"send", NULL, METH_FASTCALL | METH_KEYWORDS,
        "send($self, topic, value, *, key=None, headers=None, partition=None, timestamp=None)\\n--\\n\\n"
        "Accept one record and return at once. The ticket is settled when the server has answered."};
    """
    void prepare_clock()
    int64_t now_ms()
    object bare(PyTypeObject* kind, object arguments, PyObject* keywords)
    ctypedef struct PyMethodDef:
        void* ml_meth
    PyMethodDef send_method
    object PyCFunction_New(PyMethodDef* method, object self)
    Py_ssize_t references "Py_REFCNT" (object of)
    PyTypeObject* kind_of "Py_TYPE" (PyObject* of)
    PyObject* item_of "PyList_GET_ITEM" (object items, Py_ssize_t at)
    PyObject* name_at "PyTuple_GET_ITEM" (PyObject* names, Py_ssize_t at)
    Py_ssize_t names_in "PyTuple_GET_SIZE" (PyObject* names)
    long long whole_number "PyLong_AsLongLongAndOverflow" (object number, int* is_huge) except? -1

prepare_clock()

cdef enum:
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
    """The memory that all topics of a producer share."""

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

    def append(self, TopicSlots topic not None, key, value, int64_t timestamp, headers=None):
        """Append as `BatchBuilder.append` does, charge slot and topic, and return the record's index in the batch."""
        cdef BatchBuilder builder = self.builder
        cdef Py_ssize_t before = builder.filled()
        self.busy = True
        try:
            builder.append(key, value, timestamp, headers)
        finally:
            self.busy = False
        topic.take(builder.filled() - before, self)
        return builder.count - 1


cdef class TopicSlots:
    """The slots of one topic, and the memory that the topic holds."""

    cdef readonly Py_ssize_t held
    cdef readonly Py_ssize_t active
    cdef readonly list slots
    cdef readonly Budget budget
    cdef public Slot undesignated
    cdef public bint takes_keys     # into `undesignated`, while the partitions are unknown
    cdef object slot_kind  # the type of the last slot: most have the same, so a comparison tells that it is one

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

    cdef inline Slot slot_for(self, key, Span* span, partition):
        """Return the slot of a record; None if that is for the slow path to find out."""
        cdef Py_ssize_t number = len(self.slots), at = 0
        cdef uint32_t hashed
        cdef int is_huge = 0
        cdef PyObject* found
        if partition is not None:
            if type(partition) is not int:
                return None
            at = whole_number(partition, &is_huge)
            if is_huge or not 0 <= at < number:
                return None
        elif number != 1:
            if key is None or (not number and self.takes_keys):
                return self.undesignated
            if not number:
                return None
            hashed = <uint32_t> hash_key(span.data, span.size) & 0x7FFFFFFF
            at = hashed & (number - 1) if number & (number - 1) == 0 else hashed % <uint32_t> number
        found = item_of(self.slots, at)
        if <PyObject*> kind_of(found) != <PyObject*> self.slot_kind:
            if <object> found is None:
                return None
            self.slot_kind = type(<Slot?> <object> found)
        return <Slot> found

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
        if slot is None or len(self.slots) <= 1:
            return self.held + 2 * size <= free
        if self.held + 2 * size <= free and (slot.held == 0 or 2 * slot.held + 4 * size + self.held <= free):
            return True
        active = self.active + (slot.held == 0)
        return (slot.held + size) * RESERVE * active <= free - size


@cython.final
cdef class Intake:
    """`send` with a fast path into the open batch; all other cases go to `slowly`."""

    cdef dict topics  # by name; only grows, and a topic keeps its slots
    cdef object ticket_type
    cdef public object slowly
    cdef Py_ssize_t batch_size
    cdef Gate gate
    cdef object topic  # of the record before, and its slots: most records go to the same topic as the one before
    cdef TopicSlots slots
    cdef Place ticket  # the latest, which is used again if its caller has not kept it

    def __init__(
        self, dict topics not None, ticket_type not None, slowly not None, Py_ssize_t batch_size, Gate gate=None
    ):
        if not issubclass(ticket_type, Place):
            raise TypeError("ticket_type must be a subclass of Place")
        self.topics = topics
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

    @property
    def send(self):
        """The method, as the interpreter calls it with the least effort."""
        return PyCFunction_New(&send_method, self)

    cdef inline TopicSlots slots_of(self, topic):
        if topic is self.topic:
            return self.slots
        found = self.topics.get(topic)
        if found is None:
            return None
        self.slots = <TopicSlots?> found
        self.topic = topic
        return self.slots

    cdef object accept(self, topic, value, key, headers, partition, timestamp):
        cdef TopicSlots slots = self.slots_of(topic)
        cdef Slot slot
        cdef Place ticket
        cdef Span key_span, value_span
        cdef int64_t time
        cdef Py_ssize_t size, before
        cdef BatchBuilder builder
        if slots is None or not self.gate.is_open or headers is not None or not is_plain(key) or not is_plain(value):
            return self.slowly(topic, value, key, headers, partition, timestamp)
        span_of_plain(key, &key_span)
        span_of_plain(value, &value_span)
        if timestamp is None:
            time = now_ms()
        elif type(timestamp) is int:
            time = timestamp
            if time < EARLIEST_AT_ONCE:
                return self.slowly(topic, value, key, headers, partition, timestamp)
        else:
            return self.slowly(topic, value, key, headers, partition, timestamp)
        ticket = self.ticket
        if ticket is None or references(ticket) > 2:  # here and in the field, so nobody else has it
            ticket = self.ticket = <Place> bare(<PyTypeObject*> self.ticket_type, NOTHING, NULL)
        # From here on nothing may release the GIL.
        slot = slots.slot_for(key, &key_span, partition)
        if slot is not None:
            builder = slot.builder
            size = RECORD_OVERHEAD + max(key_span.size, 0) + max(value_span.size, 0)
            if (
                builder is not None
                and builder.lent == 0
                and not slot.busy
                and slots.admits(size, slot)
            ):
                before = builder.filled()
                if builder.put(key_span, value_span, time, 0, NO_SPAN, self.batch_size) == DONE:
                    slots.take(builder.filled() - before, slot)
                    ticket.index = builder.count - 1
                    ticket.timestamp = time
                    if ticket.settlement is not slot.batch:
                        ticket.settlement = slot.batch
                    return ticket
        return self.slowly(topic, value, key, headers, partition, timestamp)


# Explicit times before April 1970 are left to Python, which rejects those that were meant in seconds.
cdef int64_t EARLIEST_AT_ONCE = 10_000_000_000
cdef tuple NOTHING = ()
cdef Span NO_SPAN
NO_SPAN.data, NO_SPAN.size = NULL, 0
cdef tuple NAMES = ("topic", "value", "key", "headers", "partition", "timestamp")
cdef PyObject* KEY = <PyObject*> NAMES[2]


cdef object send(PyObject* self, PyObject** arguments, Py_ssize_t number, PyObject* names):
    """Accept a record as `Intake.send`: the usual forms of the call are told apart by a comparison or two."""
    cdef Intake intake = <Intake> self
    if number == 2:
        if names == NULL:
            return intake.accept(<object> arguments[0], <object> arguments[1], None, None, None, None)
        if names_in(names) == 1 and name_at(names, 0) == KEY:
            return intake.accept(<object> arguments[0], <object> arguments[1], <object> arguments[2], None, None, None)
    return send_named(intake, arguments, number, names)


cdef object send_named(Intake intake, PyObject** arguments, Py_ssize_t number, PyObject* names):
    cdef PyObject* given[6]
    cdef Py_ssize_t i, at, count = 0 if names == NULL else names_in(names)
    for at in range(6):
        given[at] = NULL
    if number > 2:
        raise TypeError(f"send() takes 2 positional arguments but {number} were given")
    for at in range(number):
        given[at] = arguments[at]
    for i in range(count):
        at = 0
        while at < 6 and <PyObject*> NAMES[at] != name_at(names, i):
            at += 1
        if at == 6:
            name = <object> name_at(names, i)
            if name not in NAMES:
                raise TypeError(f"send() got an unexpected keyword argument {name!r}")
            at = NAMES.index(name)
        if given[at] != NULL:
            raise TypeError(f"send() got multiple values for argument {NAMES[at]!r}")
        given[at] = arguments[number + i]
    if given[0] == NULL or given[1] == NULL:
        raise TypeError(f"send() misses the argument {NAMES[0 if given[0] == NULL else 1]!r}")
    return intake.accept(
        <object> given[0],
        <object> given[1],
        None if given[2] == NULL else <object> given[2],
        None if given[3] == NULL else <object> given[3],
        None if given[4] == NULL else <object> given[4],
        None if given[5] == NULL else <object> given[5],
    )


send_method.ml_meth = <void*> send
