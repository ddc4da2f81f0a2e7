# Work ahead: a thread without Python compresses full batches while their records' sender goes on.
#
# Included by _batch.pyx. The send thread needs the GIL for all else it does, and a caller that sends in a tight loop
# gives it away once per batch. If the send thread compressed, it would wait for the GIL after each batch. This thread
# never has it.
#
# `guard` guards the list and the states. It is held for moments, by threads with and without the GIL. A builder whose
# work has not begun when it is finished does the work itself, so nobody waits for a thread that could not be started. The
# thread ends when it had nothing to do for a while. A forked child has none, and forgets its parent's list.

cdef extern from "pythread.h" nogil:
    ctypedef void* PyThread_type_lock
    PyThread_type_lock PyThread_allocate_lock()
    void PyThread_free_lock(PyThread_type_lock lock)
    int PyThread_acquire_lock(PyThread_type_lock lock, int waits)
    int PyThread_acquire_lock_timed(PyThread_type_lock lock, long long microseconds, int interruptible)
    void PyThread_release_lock(PyThread_type_lock lock)
    unsigned long PyThread_start_new_thread(void (*work)(void*) noexcept nogil, void* argument)
    const unsigned long PYTHREAD_INVALID_THREAD_ID

cdef enum Stage:
    LISTED
    BEGUN
    ENDED
    ABANDONED   # begun, and its builder is gone


cdef struct Ahead:
    Ahead* next
    Stage stage
    PyThread_type_lock ended    # locked until the thread has ended the work
    int codec
    const uint8_t* records
    Py_ssize_t size
    Memory packed               # with room for the header in front
    uint32_t summed             # the checksum's state after the packed records, from the state 0
    Memory inherited            # the memory of an abandoned builder


cdef enum:
    IDLE_MICROSECONDS = 2000000

cdef PyThread_type_lock guard = PyThread_allocate_lock()
cdef PyThread_type_lock wake_up = PyThread_allocate_lock()
PyThread_acquire_lock(wake_up, True)
cdef Ahead* first_ahead = NULL
cdef bint has_worker = False
cdef bint worker_sleeps = False


cdef void pack(Ahead* work) noexcept nogil:
    """Compress the records, and compute the checksum of what that gives."""
    cdef Memory small
    work.packed.data = take_memory(
        HEADER_SIZE + native_bound(work.codec, work.size), <size_t*> &work.packed.capacity
    )
    if work.packed.data == NULL:
        return
    work.packed.used = HEADER_SIZE + write_lz4(work.packed.data + HEADER_SIZE, work.records, work.size)
    work.summed = crc32c_add(0, work.packed.data + HEADER_SIZE, work.packed.used - HEADER_SIZE)
    if work.packed.used <= work.packed.capacity // 2:  # move it into memory of its size
        small.used = work.packed.used
        small.data = take_memory(small.used, <size_t*> &small.capacity)
        if small.data != NULL:
            memcpy(small.data, work.packed.data, small.used)
            give_memory(work.packed.data, work.packed.capacity)
            work.packed = small


cdef void work_ahead(void* nothing) noexcept nogil:
    """Work until there has been nothing to do for a while."""
    global first_ahead, has_worker, worker_sleeps
    cdef Ahead* work
    PyThread_acquire_lock(guard, True)
    while True:
        while first_ahead != NULL:
            work = first_ahead
            first_ahead = work.next
            work.stage = BEGUN
            PyThread_release_lock(guard)
            pack(work)
            PyThread_acquire_lock(guard, True)
            if work.stage == ABANDONED:
                dispose(work)
            else:
                work.stage = ENDED
                PyThread_release_lock(work.ended)
        worker_sleeps = True
        PyThread_release_lock(guard)
        if PyThread_acquire_lock_timed(wake_up, IDLE_MICROSECONDS, False) == 1:
            PyThread_acquire_lock(guard, True)
            continue
        PyThread_acquire_lock(guard, True)
        if worker_sleeps:
            worker_sleeps = has_worker = False
            PyThread_release_lock(guard)
            return
        PyThread_acquire_lock(wake_up, True)  # somebody has released it just now


cdef void dispose(Ahead* work) noexcept nogil:
    release(&work.packed)
    release(&work.inherited)
    PyThread_free_lock(work.ended)
    free(work)


cdef void unlist(Ahead* work) noexcept nogil:
    """Take it out of the list; with `guard` held. A forked child does not find what its parent listed."""
    global first_ahead
    cdef Ahead** at = &first_ahead
    while at[0] != NULL and at[0] != work:
        at = &at[0].next
    if at[0] == work:
        at[0] = work.next


cdef Ahead* begin_ahead(int codec, const uint8_t* records, Py_ssize_t size) noexcept:
    """Have the records packed. They must not change until `end_ahead` or `abandon`. Return NULL without memory."""
    global has_worker, worker_sleeps
    cdef Ahead* work = <Ahead*> malloc(sizeof(Ahead))
    cdef Ahead** at = &first_ahead
    if work == NULL:
        return NULL
    memset(work, 0, sizeof(Ahead))
    work.ended = PyThread_allocate_lock()
    if work.ended == NULL:
        free(work)
        return NULL
    PyThread_acquire_lock(work.ended, True)
    work.stage, work.codec, work.records, work.size = LISTED, codec, records, size
    PyThread_acquire_lock(guard, True)
    while at[0] != NULL:
        at = &at[0].next
    at[0] = work
    if not has_worker:
        has_worker = PyThread_start_new_thread(work_ahead, NULL) != PYTHREAD_INVALID_THREAD_ID
    elif worker_sleeps:
        worker_sleeps = False
        PyThread_release_lock(wake_up)
    PyThread_release_lock(guard)
    return work


cdef bint has_ended(Ahead* work) noexcept nogil:
    cdef bint ended
    PyThread_acquire_lock(guard, True)
    ended = work.stage == ENDED
    PyThread_release_lock(guard)
    return ended


cdef void end_ahead(Ahead* work) noexcept nogil:
    """Wait for the end of the work; do it here if it has not begun."""
    cdef Stage stage
    PyThread_acquire_lock(guard, True)
    stage = work.stage
    if stage == LISTED:
        unlist(work)
        work.stage = ENDED
    PyThread_release_lock(guard)
    if stage == LISTED:
        pack(work)
    elif stage == BEGUN:
        PyThread_acquire_lock(work.ended, True)
        PyThread_acquire_lock(guard, True)  # so long as the thread has it, it is not done with `ended`
        PyThread_release_lock(guard)


cdef void abandon(Ahead* work, Memory* memory) noexcept nogil:
    """Let go of work whose result nobody needs. If it has begun, its thread gets the builder's memory, and frees it."""
    PyThread_acquire_lock(guard, True)
    if work.stage == BEGUN:
        work.stage = ABANDONED
        work.inherited = memory[0]
        memory.data = NULL
        memory.used = memory.capacity = 0
        PyThread_release_lock(guard)
        return
    if work.stage == LISTED:
        unlist(work)
    PyThread_release_lock(guard)
    dispose(work)


def _forget_worker():
    """In a forked child: there is no such thread. What it was at stays as it is, since its builders are the parent's."""
    global guard, wake_up, first_ahead, has_worker, worker_sleeps
    guard = PyThread_allocate_lock()
    wake_up = PyThread_allocate_lock()
    PyThread_acquire_lock(wake_up, True)
    first_ahead = NULL
    has_worker = worker_sleeps = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_worker)
