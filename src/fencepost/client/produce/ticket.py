"""Tickets: what `send` returns, one per record, settled with the record's batch.

There is one ticket per record, so it is small: a batch, an index and a timestamp. Events, callbacks and errors belong
to the batch. Any thread may call everything here; only who has the send thread's turn settles batches.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Generator
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, SupportsIndex, TypeAlias

from fencepost.errors import FencepostError, Persisted, SendFailed, TimedOut
from fencepost.kernel import Place, group_rows
from fencepost.types import NO_TIMESTAMP, Milliseconds

if TYPE_CHECKING:
    import asyncio

    from _typeshed import ReadableBuffer

log = logging.getLogger("fencepost.producer")

Callback: TypeAlias = Callable[["Ticket"], object]
Callbacks: TypeAlias = list[tuple[Callback, "Ticket"]]
Futures: TypeAlias = "dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Delivered], Ticket]]]"

UNKNOWN_OFFSET: Final = -1

_CAUSES_KEPT: Final = 5
_FAILURES_KEPT: Final = 1000


class Delivered(NamedTuple):
    """The place of a record in the log."""

    topic: str
    partition: int
    offset: int
    """−1: the server has the record but no longer knows its offset."""
    timestamp: Milliseconds


_here: Final = threading.local()


def settle_here(lock: threading.RLock | None) -> None:
    """Make this the thread that settles the batches with this lock; None: it settles none any more."""
    _here.settles = lock


def check_thread(lock: threading.RLock, what: str) -> None:
    """Raise if this thread would wait for itself: it settles the batches that have this lock."""
    if getattr(_here, "settles", None) is lock:
        raise FencepostError(
            f"{what} was called on the send thread, in a callback or a serializer, and would wait for itself: "
            "call it on another thread"
        )


class Settlement:
    """The outcome of the records that share a batch. Pending until `deliver` or `fail` is called, once."""

    __slots__ = (
        "_callbacks",
        "_futures",
        "_lock",
        "_seen",
        "_waiting",
        "append_time",
        "base_offset",
        "error",
        "moved",
        "settled",
    )

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock  # guards the next four fields; all batches of a producer share it
        self._waiting: list[threading.Lock] | None = None
        """One lock per waiting thread, released when it is settled. An Event takes longer, and a signal handler that
        raises could leave it locked."""
        self._callbacks: Callbacks | None = None
        self._futures: Futures | None = None
        self._seen: set[int] | None = None
        self.settled = False
        self.moved: Moved | None = None
        """Set before it is settled, if its records have moved to batches of their partitions."""
        self.error: FencepostError | None = None
        self.base_offset = UNKNOWN_OFFSET
        self.append_time = NO_TIMESTAMP

    # Set by subclasses.
    topic_name: str
    partition: int
    count: int

    def deliver(self, base_offset: int, append_time: Milliseconds = NO_TIMESTAMP) -> None:
        self.base_offset = base_offset
        self.append_time = append_time
        self._settle()

    def fail(self, error: FencepostError) -> None:
        self.error = error
        self._settle()

    def leave_to_parent(self) -> None:
        """In a forked child: fail a pending batch, quietly. Those who wait for it, or want to be called, are in the
        parent."""
        if not self.settled:
            self._waiting = self._callbacks = self._futures = None
            self.error = SendFailed(
                "only the parent process learns the outcome, and this one was forked from it",
                persisted="unknown",
                topic=self.topic_name,
                count=self.count,
            )
            self.settled = True

    @property
    def unseen(self) -> int:
        """Failed records whose ticket nobody has asked for its outcome."""
        if self.error is None:
            return 0
        return self.count - (len(self._seen) if self._seen else 0)

    def look_at(self, start: int, stop: int) -> None:
        """Mark these records as seen: a caller has asked for their outcome."""
        if self.error is not None:
            with self._lock:
                if self._seen is None:
                    self._seen = set()
                self._seen.update(range(start, stop))

    def outcome(self, ticket: Ticket) -> Delivered | FencepostError:
        if self.error is not None:
            self.look_at(ticket.index, ticket.index + 1)
            return self.error
        offset = self.base_offset + ticket.index if self.base_offset >= 0 else UNKNOWN_OFFSET
        timestamp = self.append_time if self.append_time != NO_TIMESTAMP else ticket.timestamp
        return Delivered(self.topic_name, self.partition, offset, timestamp)

    def wait(self, timeout: float | None) -> bool:
        with self._lock:
            if self.settled:
                return True
            mine = threading.Lock()
            mine.acquire()
            if self._waiting is None:
                self._waiting = []
            self._waiting.append(mine)
        if timeout is None:
            return mine.acquire()
        if not mine.acquire(timeout=min(timeout, threading.TIMEOUT_MAX)):
            with self._lock:
                if self._waiting is not None:
                    self._waiting.remove(mine)
        return self.settled

    def trouble(self) -> str:
        """Return the last connection error, for a message about a timeout; usually empty."""
        return ""

    def call_back(self, callback: Callback, ticket: Ticket) -> bool:
        """Register a callback. Return False if already settled: the caller then calls it."""
        with self._lock:
            if self.settled:
                return False
            if self._callbacks is None:
                self._callbacks = []
            self._callbacks.append((callback, ticket))
            return True

    def resolve(self, future: asyncio.Future[Delivered], ticket: Ticket) -> bool:
        """Register a future. Return False if already settled: the caller then resolves it."""
        with self._lock:
            if self.settled:
                return False
            if self._futures is None:
                self._futures = {}
            self._futures.setdefault(future.get_loop(), []).append((future, ticket))
        return True

    def _close(self) -> tuple[Callbacks, Futures]:
        """Mark as settled, wake waiting threads, and return whom to notify."""
        with self._lock:
            self.settled = True
            waiting, callbacks, futures = self._waiting, self._callbacks, self._futures
            self._waiting = self._callbacks = self._futures = None
        for each in waiting or ():
            each.release()
        return callbacks or [], futures or {}

    def _settle(self) -> None:
        callbacks, futures = self._close()
        for callback, ticket in callbacks:
            _call_and_go_on(callback, ticket)
        for loop, waiting in futures.items():
            _tell(loop, waiting)  # one wake-up per loop and batch

    def follow(self, ticket: Ticket) -> None:
        """Give the ticket of a record that has moved its new place."""
        with self._lock:
            if ticket.settlement is self and self.moved is not None:
                settlement, ticket.index = self.moved.place(ticket.index)
                ticket.settlement = settlement

    def tell_moved(self) -> None:
        """Hand all callbacks and futures over to the batches that the records are in now."""
        callbacks, futures = self._close()
        for callback, ticket in callbacks:
            if not ticket.where().call_back(callback, ticket):
                _call_and_go_on(callback, ticket)
        for waiting in futures.values():
            for future, ticket in waiting:
                if not ticket.where().resolve(future, ticket):
                    _tell(future.get_loop(), [(future, ticket)])


class Run(NamedTuple):
    """Records of a batch that are side by side in their new one, too."""

    start: int
    stop: int
    settlement: Settlement
    at: int
    """Index of the first one there."""


class Moved:
    """The present places of a batch's records that had no partition when they were accepted."""

    __slots__ = ("_places", "order", "runs")

    def __init__(self, runs: list[Run], order: ReadableBuffer | None = None) -> None:
        self.runs = runs
        self.order = order
        """The records' numbers in the order of the runs, 32 bits each; None: they are in order."""
        self._places: memoryview | None = None

    def place(self, index: int) -> tuple[Settlement, int]:
        if self.order is not None:
            if self._places is None:
                # Each number occurs once, so sorting them gives the inverse of the order.
                self._places = memoryview(group_rows(self.order, self.runs[-1].stop)[0]).cast("i")
            index = self._places[index]
        run = self.runs[bisect_right(self.runs, index, key=_start) - 1]
        return run.settlement, run.at + index - run.start


def _start(run: Run) -> int:
    return run.start


class Unplaced(Settlement):
    """A placeholder for the batch of records that are to be serialized. They move before it is settled."""

    __slots__ = ("_before_waiting", "_trouble", "count", "topic_name")

    partition = -1

    def __init__(
        self,
        lock: threading.RLock,
        topic_name: str,
        trouble: Callable[[], str],
        before_waiting: Callable[[], object],
    ) -> None:
        super().__init__(lock)
        self.topic_name = topic_name
        self.count = 0
        self._trouble = trouble
        self._before_waiting = before_waiting

    def trouble(self) -> str:
        return self._trouble()

    def wait(self, timeout: float | None) -> bool:
        if not self.settled and timeout != 0:
            self._before_waiting()
        return super().wait(timeout)


class Ticket(Place):
    """A record that `send` accepted. It is settled when the server has answered."""

    __slots__ = ()

    settlement: Settlement

    def where(self) -> Settlement:
        """Return the batch that the record is in now."""
        while (settlement := self.settlement).moved is not None:
            settlement.follow(self)
        return settlement

    def done(self) -> bool:
        settlement = self.where()
        return settlement.settled and settlement.moved is None

    def result(self, timeout: float | None = None) -> Delivered:
        """Wait for the answer. Return the record's place, or raise the error, which says whether it is persisted."""
        outcome = self._outcome(timeout)
        if isinstance(outcome, FencepostError):
            raise outcome.fresh()
        return outcome

    def exception(self, timeout: float | None = None) -> FencepostError | None:
        outcome = self._outcome(timeout)
        return outcome.fresh() if isinstance(outcome, FencepostError) else None

    def add_done_callback(self, callback: Callback) -> None:
        """Call `callback(ticket)` when settled: on the send thread, so keep it short; or here and now if settled
        already."""
        if getattr(callback, "__module__", None) == "asyncio.tasks":  # no loop would notice that it was called
            raise TypeError("asyncio.wait takes futures, and no tickets: make one with asyncio.ensure_future(ticket)")
        if not (settlement := self.where()).call_back(callback, self):
            if settlement.moved is not None:  # between the two
                self.add_done_callback(callback)
            else:
                _call(callback, self)

    def __await__(self) -> Generator[Any, None, Delivered]:
        from asyncio import get_running_loop  # here, so that programs without asyncio do not load it

        future: asyncio.Future[Delivered] = get_running_loop().create_future()
        while not self.where().resolve(future, self):
            if self.done():
                _resolve_all([(future, self)])
                break
        return future.__await__()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError("a ticket cannot be pickled or copied: its producer is in this process. Pass its result() on")

    def __repr__(self) -> str:
        if not self.done():
            return "<Ticket pending>"
        error = self.settlement.error
        if error is not None:
            return f"<Ticket failed: {error}>"
        return f"<Ticket {self.settlement.outcome(self)}>"

    def _outcome(self, timeout: float | None) -> Delivered | FencepostError:
        deadline = None if timeout is None else monotonic() + timeout
        while True:
            settlement = self.where()
            left = None if deadline is None else max(0.0, deadline - monotonic())
            if not settlement.wait(left):
                why = settlement.trouble()
                raise TimedOut(f"the record was not settled within {timeout:g} s; it still may be{why}")
            if settlement.moved is None:
                return settlement.outcome(self)


def _call(callback: Callback, ticket: Ticket) -> None:
    try:
        callback(ticket)
    except Exception:
        log.exception("a callback of a ticket raised")


def _call_and_go_on(callback: Callback, ticket: Ticket) -> None:
    """Call it on the send thread, which goes on even after `sys.exit`: otherwise the other records of the answer would
    never be settled."""
    try:
        callback(ticket)
    except BaseException:
        log.exception("a callback of a ticket raised")


def _tell(loop: asyncio.AbstractEventLoop, waiting: list[tuple[asyncio.Future[Delivered], Ticket]]) -> None:
    from asyncio import _get_running_loop  # loaded already: there is a future

    if loop is _get_running_loop():
        _resolve_all(waiting)
        return
    try:
        loop.call_soon_threadsafe(_resolve_all, waiting)
    except RuntimeError:  # that loop is closed, so nobody waits
        log.debug("an event loop was closed before its records were settled")


def _resolve_all(waiting: list[tuple[asyncio.Future[Delivered], Ticket]]) -> None:
    for future, ticket in waiting:
        if future.done():  # cancelled, or told twice
            continue
        outcome = ticket.settlement.outcome(ticket)
        if isinstance(outcome, FencepostError):
            future.set_exception(outcome.fresh())
        else:
            future.set_result(outcome)


class Unseen(NamedTuple):
    """Failed records whose tickets nobody has asked."""

    records: int
    causes: tuple[FencepostError, ...]
    """The first ones."""
    persisted: Persisted
    """Of all of them."""


class Failures:
    """Failed batches whose tickets nobody has asked, kept until `flush` reports them."""

    def __init__(self, lock: threading.RLock) -> None:
        """`lock`: of the tickets."""
        self._lock = lock
        self._kept: deque[Settlement] = deque()
        self._older: Counter[str] = Counter()
        """Records per topic."""
        self._causes: list[FencepostError] = []
        self._persisted: Persisted = "no"

    def note(self, settlement: Settlement) -> None:
        with self._lock:
            self._kept.append(settlement)
            if len(self._kept) > _FAILURES_KEPT:  # the caller never flushes
                self._fold(self._kept.popleft())

    def take(self) -> Unseen:
        """Return what is known of them, and forget them."""
        return self._take()[1]

    def take_by_topic(self) -> Counter[str]:
        """Return the number of them per topic, and forget them."""
        return self._take()[0]

    def _take(self) -> tuple[Counter[str], Unseen]:
        with self._lock:
            for settlement in self._kept:
                self._fold(settlement)
            taken = self._older, Unseen(self._older.total(), tuple(self._causes), self._persisted)
            self._kept, self._older, self._causes, self._persisted = deque(), Counter(), [], "no"
        return taken

    def _fold(self, settlement: Settlement) -> None:
        unseen = settlement.unseen
        if unseen and settlement.error is not None:
            self._older[settlement.topic_name] += unseen
            # Other errors are of records that failed before they were sent.
            if isinstance(settlement.error, SendFailed) and settlement.error.persisted != "no":
                self._persisted = "unknown"
            if len(self._causes) < _CAUSES_KEPT:
                self._causes.append(settlement.error)
