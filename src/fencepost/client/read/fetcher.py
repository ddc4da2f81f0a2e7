"""The reader's engine: fetches from all leaders at once and keeps a bounded amount ready. It has no thread of its own.

`run_once` is one turn of the loop. The reader's caller drives it while no records are ready. Each leader has one
request in flight, for all partitions that need more. The next request leaves as soon as an answer arrives, before that
is decoded, so that server and network work while the caller does.

The output are chunks: whole batches of one partition, not decoded, without markers and aborted transactions. A chunk
says where the partition goes on. A partition is done when that position reaches the stop; counting records would not
do, because markers and compaction leave gaps.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

from fencepost.client.cluster.addresses import Address
from fencepost.client.cluster.brokers import Brokers
from fencepost.client.cluster.connection import BrokerConnection
from fencepost.client.cluster.interrupts import Outcome, interrupted, is_mine
from fencepost.client.cluster.metadata import NO_LEADER, Metadata, question
from fencepost.client.cluster.owner_connection import OwnerConnection
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import Network
from fencepost.client.read.scan import visible_batches
from fencepost.clock import Clock
from fencepost.core.own.lease import Lease
from fencepost.core.own.ownership import OwnedResource
from fencepost.errors import (
    LEADER_IN_DOUBT,
    Closed,
    CorruptBatch,
    ErrorCode,
    Fenced,
    FencepostError,
    ServerError,
    TimedOut,
    TopicRecreated,
    Unreachable,
)
from fencepost.types import Offset, TopicPartition
from fencepost.wire import hot
from fencepost.wire.apis import FETCH_BY_ID, FETCH_BY_NAME, Key

T = TypeVar("T")

_SECONDS_TO_READ: Final = 0.1
"""Longest time in seconds that closing waits for another thread that reads answers."""
_TRY_ELSEWHERE: Final = LEADER_IN_DOUBT | {
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}


@dataclass(frozen=True, slots=True)
class FetchOptions:
    read_committed: bool = True
    partition_bytes: int = 2 << 20
    """Most bytes of one partition in one answer."""
    request_bytes: int = 32 << 20
    prefetch_bytes: int = 64 << 20
    """Most bytes that are fetched and not yet handed to the caller."""
    max_wait: float = 0.5
    """Seconds that a server may delay an answer while there is nothing new."""
    patience: float = 60.0
    """Seconds without an answer for a partition before the reader gives up; until then it retries. Time in which the
    partition is not requested, because enough is ready or the caller is busy, does not count."""


class Chunk(NamedTuple):
    partition: TopicPartition
    batches: list[memoryview]
    start: Offset
    """Records before it are dropped: a server sends the whole batch that holds the requested offset."""
    stop: Offset | None
    next: Offset
    """The offset after this chunk."""
    size: int


class PartitionRead:
    """The state of one partition that is being read."""

    __slots__ = (
        "asked_since",
        "done",
        "error",
        "fetching",
        "is_new",
        "is_paused",
        "name",
        "not_before",
        "position",
        "ready",
        "stop",
    )

    def __init__(self, name: TopicPartition, position: Offset, stop: Offset | None, now: float) -> None:
        self.name = name
        self.position = position
        """The offset of the next fetch."""
        self.stop = stop
        self.ready = 0
        """Bytes in chunks that the caller has not taken yet."""
        self.fetching = False
        self.not_before = now
        self.asked_since: float | None = None
        """When it was first requested since its last answer, or would have been with a leader."""
        self.done = stop is not None and position >= stop
        self.is_paused = False
        self.is_new = True
        """It has not been answered yet: it does not wait behind a request that the server holds back."""
        self.error: FencepostError | None = None
        """Why it is read no further. It goes with this state when the caller moves the position."""


def _nobody_to_tell(cause: Fenced) -> None:
    """Do nothing: nothing is owned."""


class Fetcher:
    def __init__(
        self,
        settings: ClientSettings,
        options: FetchOptions,
        network: Network,
        clock: Clock,
        partitions: Mapping[TopicPartition, tuple[Offset, Offset | None]],
        lease: Lease | None = None,
    ) -> None:
        """`lease`: of what the reader owns; other threads look at it, too."""
        self._settings = settings
        self._options = options
        self._network = network
        self._clock = clock
        self._metadata = Metadata(backoff=settings.retry_backoff)
        self.brokers = Brokers(settings, network, clock, self._metadata, on_kept_out=self._kept_out)
        self.owner = OwnerConnection(
            self.brokers,
            self._metadata,
            clock,
            settings.request_timeout,
            self._lost_what_it_owned,
            Lease() if lease is None else lease,
        )
        self.brokers.on_lost = self.owner.lost
        # Held while the state is used. The caller drives it alone, until it may lose what it owns: `read_answers`.
        # Reentrant only to know who holds it: a signal handler must not take a turn within another one.
        self._turn = threading.RLock()
        self._is_closed = self._is_shut = False
        self._calls: deque[Callable[[], None]] = deque()
        self._partitions: dict[TopicPartition, PartitionRead] = {}
        self.topic_ids: dict[TopicPartition, UUID] = {}
        """The ids of the topics in which the positions are, since a name may come to mean another topic. They outlive
        `drop`: a position that is not read any more may still be committed."""
        self._ready: deque[Chunk] = deque()
        self._ready_bytes = 0
        self._busy: set[BrokerConnection] = set()
        self._error: FencepostError | None = None
        """Why nothing is read any more."""
        self._failed: dict[TopicPartition, PartitionRead] = {}
        self.on_fenced: Callable[[Fenced], None] = _nobody_to_tell
        self._turned = clock.monotonic()
        """When the last turn ended that could fetch."""
        self.begin(partitions)

    def begin(self, partitions: Mapping[TopicPartition, tuple[Offset, Offset | None]]) -> None:
        """Read these partitions from now on, and drop what was fetched before."""
        now = self._clock.monotonic()
        self._partitions = {name: PartitionRead(name, start, stop, now) for name, (start, stop) in partitions.items()}
        for name in self._partitions:
            self._metadata.want(name.topic, now)
        self.topic_ids.clear()
        self._failed.clear()
        self._ready.clear()
        self._ready_bytes = 0

    def add(self, partitions: Mapping[TopicPartition, tuple[Offset, Offset | None]]) -> None:
        """Read these partitions, too; one that is read already starts over there. What was fetched of it is dropped."""
        with self._turn:
            now = self._clock.monotonic()
            self.drop(partitions)
            for name, (start, stop) in partitions.items():
                self._partitions[name] = PartitionRead(name, start, stop, now)
                self._metadata.want(name.topic, now)

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Read these no more, and drop what was fetched of them. Answers to earlier requests are ignored."""
        with self._turn:
            gone = {name for name in partitions if self._partitions.pop(name, None) is not None}
            if not gone:
                return
            for name in gone:
                self._failed.pop(name, None)
            for topic in {name.topic for name in gone} - {name.topic for name in self._partitions}:
                self._metadata.forget(topic)
            self._ready = deque(chunk for chunk in self._ready if chunk.partition not in gone)
            self._ready_bytes = sum(chunk.size for chunk in self._ready)

    def stop_of(self, name: TopicPartition) -> Offset | None:
        return self._partitions[name].stop

    def seek(self, name: TopicPartition, position: Offset, *, paused: bool) -> None:
        """Go on at this position, or stay there while the partition is paused."""
        with self._turn:
            known = self._partitions[name]
            self.add({name: (position, known.stop)})
            self._partitions[name].is_paused = paused

    def take(self) -> Chunk | None:
        """Return the next chunk, or None if none is ready. Raise the error of a partition after its last chunk."""
        if is_mine(self._turn):
            raise interrupted("reader")
        with self._turn:
            for failed in self._failed.values():
                if failed.error is not None and not failed.ready:
                    raise failed.error.fresh()
            if not self._ready:
                if self._error is not None:
                    raise self._error.fresh()
                return None
            chunk = self._ready.popleft()
            self._ready_bytes -= chunk.size
            self._partitions[chunk.partition].ready -= chunk.size
            return chunk

    @property
    def partitions(self) -> frozenset[TopicPartition]:
        return frozenset(self._partitions)

    @property
    def is_done(self) -> bool:
        """True if every partition has reached its stop and all chunks were taken."""
        return not self._ready and all(fetched.done for fetched in self._partitions.values())

    def run_once(self, timeout: float | None = None, *, fetches: bool = True) -> None:
        """Take one turn: wait until something happens, for at most `timeout` seconds."""
        self.with_turn(lambda: self._take_turn(timeout, fetches=fetches))

    def with_turn(self, work: Callable[[], T]) -> T:
        """Do something with the connections. Raise in a signal handler that has interrupted such work."""
        if is_mine(self._turn):
            raise interrupted("reader")
        with self._turn:
            try:
                if self._is_closed:
                    raise Closed("the reader is closed")
                return work()
            finally:
                self._shut_if_closed()  # by a signal handler meanwhile

    def read_answers(self) -> None:
        """From any thread: read the answers that have arrived, unless the caller's thread is about to do so. The caller
        may have worked since, and a lease must not end because an answer lies unread."""
        if not is_mine(self._turn) and self._turn.acquire(blocking=False):
            try:
                if not self._is_closed:
                    self._network.poll(0.0)
            finally:
                self._turn.release()

    def _take_turn(self, timeout: float | None, *, fetches: bool) -> None:
        self._network.before_work()
        while self._calls:
            self._calls.popleft()()
        now = self._clock.monotonic()
        self._refresh_metadata(now)
        moment = self.owner.turn(now)
        if fetches:
            moment = min(moment, self._fetch(now))
        if not self._metadata.due(now):
            moment = min(moment, self._metadata.ask_at())
        moment = min(moment, self.brokers.next_moment(now))
        patience = max(0.0, moment - now)
        self._network.poll(patience if timeout is None else min(timeout, patience))
        now = self._clock.monotonic()
        if fetches:
            self._turned = now
        self.brokers.check_deadlines(now)

    def run_until(self, outcome: Outcome[Any], longer: float = 0.0) -> None:
        """Take turns without fetching until `outcome` is known. Raise TimedOut after the request timeout."""
        deadline = self._clock.monotonic() + self._settings.request_timeout + longer
        while not outcome.done():
            left = deadline - self._clock.monotonic()
            if left <= 0:
                last = self.brokers.last_error
                raise TimedOut("no answer in time" + (f": {last}" if last is not None else ""))
            self.run_once(left, fetches=False)

    def ask(self, key: int, fields: Mapping[str, Any], at_most: int | None) -> Any:
        """Send one request over the owner's connection and return its answer."""
        outcome: Outcome[Any] = Outcome()

        def lost(error: FencepostError, left: bool) -> None:
            outcome.set_exception(error)

        self.with_turn(lambda: self.owner.ready().ask(key, fields, outcome.set_result, lost, at_most=at_most))
        self.run_until(outcome)
        if self.owner.fenced is not None:
            raise self.owner.fenced.fresh()
        return outcome.result()

    def call_soon(self, what: Callable[[], None]) -> None:
        """Have the next turn call `what`. For other threads."""
        self._calls.append(what)
        self._network.wake()

    def close(self) -> None:
        """Close the connections. In a signal handler that has interrupted a turn, have that turn do so at its end."""
        self._is_closed = True
        if is_mine(self._turn):
            self._network.wake()
            return
        took = self._turn.acquire(timeout=_SECONDS_TO_READ)  # `read_answers` may be at work, for a moment
        try:
            self._shut_if_closed()
        finally:
            if took:
                self._turn.release()

    def _shut_if_closed(self) -> None:
        if self._is_closed and not self._is_shut:
            self._is_shut = True
            self.owner.close()
            self.brokers.close()
            self._network.close()

    def forget_sockets(self) -> None:
        """Close the copies of the parent's sockets in a forked child."""
        self._network.forget_sockets()

    def _lost_what_it_owned(self, cause: Fenced, lost: Mapping[tuple[str, str], OwnedResource]) -> None:
        """Drop what was fetched and not handed out: it belongs to the next owner (OWN-9)."""
        self._ready.clear()
        self._ready_bytes = 0
        self._error = cause
        self.on_fenced(cause)

    # --- asking ---

    def _refresh_metadata(self, now: float) -> None:
        if not self._metadata.due(now):
            return
        fields = question(self._metadata.wanted() or ())

        def answered(answer: Any) -> None:
            self._metadata.answered(answer, self._clock.monotonic())

        def lost(error: FencepostError, left: bool) -> None:
            self._metadata.failed(self._clock.monotonic())

        try:
            if self.brokers.ask_any(Key.METADATA, fields, answered, lost) is not None:
                self._metadata.asked()
        except FencepostError as error:
            self._metadata.asked()
            self._fail(error)

    def _fetch(self, now: float) -> float:
        """Ask every leader that has no request in flight. Return when to look again."""
        moment = float("inf")
        known = len(self._failed), self._error
        wanted: dict[int, list[PartitionRead]] = {}
        if now - self._turned >= self._options.patience:
            # The caller was busy for so long that requests may have timed out for no other reason.
            for fetched in self._partitions.values():
                fetched.asked_since = None
        if self._ready_bytes >= self._options.prefetch_bytes:
            return moment
        for fetched in self._partitions.values():
            if fetched.done or fetched.fetching or fetched.is_paused or fetched.ready > self._options.partition_bytes:
                continue
            if fetched.asked_since is not None:
                give_up_at = fetched.asked_since + self._options.patience
                if now >= give_up_at:
                    self._fail(self._unheard(fetched), fetched)
                    return now
                moment = min(moment, give_up_at)
            if now < fetched.not_before:
                moment = min(moment, fetched.not_before)
                continue
            wanted.setdefault(self._metadata.leader(*fetched.name), []).append(fetched)
        for leader, partitions in wanted.items():
            connection = None if leader == NO_LEADER else self.brokers.of_node(leader)
            if connection is not None and connection in self._busy:
                partitions = [fetched for fetched in partitions if fetched.is_new]
                connection = self.brokers.beside(connection) if partitions else None
                if connection is None or connection in self._busy:
                    continue
            for fetched in partitions:
                if fetched.asked_since is None:
                    fetched.asked_since = now
                    moment = min(moment, now + self._options.patience)
            if leader == NO_LEADER:
                self._metadata.distrust()
            elif connection is not None:
                self._ask(connection, partitions)
        return moment if (len(self._failed), self._error) == known else now  # the caller gets a new error at once

    def _unheard(self, fetched: PartitionRead) -> FencepostError:
        known = self._metadata.topics.get(fetched.name.topic)
        if known is not None and known.error is not ErrorCode.NONE:
            return ServerError(known.error, f"reading {fetched.name}")
        last = self.brokers.last_error
        return Unreachable(f"{fetched.name} could not be read for {self._options.patience:g} s: {last or 'no leader'}")

    def _ask(self, connection: BrokerConnection, partitions: list[PartitionRead]) -> None:
        options = self._options
        by_topic: dict[str, list[hot.FetchPartition]] = {}
        ids: dict[str, UUID | None] = {}
        for fetched in partitions:
            fetched.fetching = True
            topic_id = ids[fetched.name.topic] = self._metadata.topics[fetched.name.topic].topic_id
            if topic_id is not None and topic_id != self.topic_ids.setdefault(fetched.name, topic_id):
                self._fail(TopicRecreated(fetched.name, fetched.position), fetched)
                continue
            # With the epoch a broker that is no longer the leader rejects it; without, a follower would answer.
            epoch = self._metadata.leader_epoch(*fetched.name)
            asked = hot.FetchPartition(fetched.name.partition, fetched.position, options.partition_bytes, epoch)
            by_topic.setdefault(fetched.name.topic, []).append(asked)
        if not by_topic:
            return
        request = hot.FetchRequest(
            max_wait_ms=int(options.max_wait * 1000),
            min_bytes=1,
            max_bytes=options.request_bytes,
            isolation_level=int(options.read_committed),
            topics=[hot.FetchTopic(topic, ids[topic], asked) for topic, asked in by_topic.items()],
        )
        waiting = {fetched.name: fetched for fetched in partitions if fetched.error is None}
        names = {topic_id: topic for topic, topic_id in ids.items()}

        def answered(version: int, body: memoryview) -> None:
            self._busy.discard(connection)
            self._hear(waiting, hot.decode_fetch_response(version, body), names)

        def lost(error: FencepostError, left: bool) -> None:
            self._busy.discard(connection)
            for fetched in waiting.values():
                self._later(fetched)

        try:
            version = connection.version(Key.FETCH, FETCH_BY_NAME if None in names else FETCH_BY_ID)
        except FencepostError as error:
            self._fail(error)
            return
        self._busy.add(connection)
        body = hot.encode_fetch_request(version, request)
        connection.request(Key.FETCH, version, [body], answered, lost, timeout=self._settings.request_timeout)

    # --- hearing ---

    def _hear(
        self,
        waiting: dict[TopicPartition, PartitionRead],
        response: hot.FetchResponse,
        names: Mapping[UUID | None, str],
    ) -> None:
        if response.error_code:
            self._fail(ServerError(ErrorCode.of(response.error_code), "fetching"))
            return
        for topic in response.topics:
            for part in topic.partitions:
                name = topic.name or names.get(topic.topic_id, "")
                fetched = waiting.pop(TopicPartition(name, part.index), None)
                if fetched is None:
                    continue
                code = ErrorCode.of(part.error_code)
                if code is ErrorCode.NONE:
                    fetched.fetching = fetched.is_new = False
                    fetched.asked_since = None
                    self._chunk(fetched, part)
                elif code in _TRY_ELSEWHERE:
                    self._metadata.distrust()
                    self._later(fetched)
                elif code.retriable:
                    self._later(fetched)
                elif self._partitions.get(fetched.name) is fetched:
                    self._fail(self._refused(fetched, part, code), fetched)
        for fetched in waiting.values():
            self._later(fetched)

    def _chunk(self, fetched: PartitionRead, part: hot.FetchedPartition) -> None:
        if self._partitions.get(fetched.name) is not fetched:
            return  # requested before `begin` started over
        try:
            found, position = visible_batches(part, fetched.position, fetched.stop)
        except FencepostError as error:
            self._fail(error, fetched)
            return
        if position == fetched.position:
            if part.records and any(len(buffer) for buffer in part.records):
                self._fail(CorruptBatch(f"{fetched.name} at {position}: the answer holds no complete batch"), fetched)
            return
        start, fetched.position = fetched.position, Offset(position)
        batches, size = [batch.data for batch in found], sum(batch.header.size for batch in found)
        fetched.done = fetched.stop is not None and position >= fetched.stop
        fetched.ready += size
        self._ready_bytes += size
        self._ready.append(Chunk(fetched.name, batches, start, fetched.stop, fetched.position, size))

    def _refused(self, fetched: PartitionRead, part: hot.FetchedPartition, code: ErrorCode) -> ServerError:
        if code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return ServerError(
                code,
                f"{fetched.name} has no offset {fetched.position}"
                + (f"; it begins at {part.log_start_offset}" if part.log_start_offset >= 0 else "")
                + ": it was deleted or never written; seek to another place, or choose another start",
            )
        return ServerError(code, f"reading {fetched.name}")

    def _kept_out(self, address: Address | None, error: FencepostError) -> None:
        waiting = [fetched for fetched in self._partitions.values() if not fetched.done]
        leaders = {self._metadata.brokers.get(self._metadata.leader(*fetched.name)) for fetched in waiting}
        if address is None or address in leaders:
            self._fail(error)

    def _later(self, fetched: PartitionRead) -> None:
        fetched.fetching = False
        fetched.not_before = self._clock.monotonic() + self._settings.retry_backoff

    def _fail(self, error: FencepostError, fetched: PartitionRead | None = None) -> None:
        """Remember the error, of one partition or of all, for the caller, who gets it after all chunks before it."""
        if fetched is not None:
            fetched.fetching, fetched.error = True, error  # not requested again
            self._failed[fetched.name] = fetched
        elif self._error is None:
            self._error = error
