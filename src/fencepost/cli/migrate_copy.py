"""The copy of partitions to another cluster, every record once and at its own offset.

`core/migration.py` decides the steps. The target's end is the saved position: an interrupted copy goes on from there,
after it has compared the last records on both sides. Nobody else may write to the target meanwhile; a copy that is
answered an unexpected offset stops.

Batches are moved whole where possible (`client/read/resending.py`), with several in flight, also across short gaps
(`OffsetWriter`). Partitions are copied side by side, because a long gap costs round trips to the target.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.targets import describe
from fencepost.client.read.ranges import Range, fetch
from fencepost.client.read.resending import OutgoingBatch, outgoing
from fencepost.client.reader import Reader
from fencepost.client.transactions.coordinator import Transactional
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SentBatch, SharedTransaction
from fencepost.core.migration import CopyStep, HeadStep, RecordsStep, copy_steps
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.kernel import encode_batch, read_header
from fencepost.types import EARLIEST, LATEST, TopicPartition
from fencepost.wire import messages
from fencepost.wire.apis import Key

_WORKERS: Final = 4
"""Partitions that are copied at a time."""
_FETCH_BYTES: Final = 2 << 20
_TRANSACTION_MS: Final = 600_000
_FILLED_AT_ONCE: Final = 500_000
"""Offsets that one transaction uses up, so that each ends within its timeout."""
_FILLED_PER_BATCH: Final = 10_000
_LZ4: Final = 3
_SEQUENCES: Final = 2**30
"""Records after which a partition goes on under another identity, long before sequences wrap."""
_OF_HEADS: Final = 1
"""The identity that uses up the offsets before a log's start. Records begin under the first one in every run, so that
those of an earlier run are refused where its successor has written."""
_MARKERS_AT_ONCE: Final = 64
"""Offsets that are used up by single markers, which are faster than a transaction and hidden from all readers."""
_NOTHING_WRITTEN: Final = frozenset(
    {
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.TRANSACTION_COORDINATOR_FENCED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    }
)
_TAKEN_OVER: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})

FILLER_KEY: Final = b""
FILLER_VALUE: Final = b""
"""Key and value of a record that only uses up an offset."""
_COMPARED: Final = 1000
"""Offsets before the target's end whose records are compared before a copy goes on."""
_MARKER_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.002
_MARKER_VERSION: Final = 1
"""The next one says how strictly the epoch is checked, which matters to coordinators."""
_REFUSED: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
)
"""Nothing was written, and it can be later."""
_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 1.0

T = TypeVar("T")
Advance: TypeAlias = Callable[[int, int], None]
"""Called with the offsets and bytes that were copied."""


class Copied(NamedTuple):
    """The outcome of one partition."""

    records: int
    size: int
    """Bytes of its batches, as they were sent."""


class _Worker:
    """The connections of one thread, and its transactional id for gaps."""

    def __init__(self, writing: Routes, name: str) -> None:
        self.channels = LeaderChannels(writing)
        self.name = name
        self.gaps = Transactional(writing, name)
        self.identity = self.gaps.init(_TRANSACTION_MS)  # ends what an earlier run left open, with its markers
        self._may_write_markers = True

    def new_epoch(self) -> Identity:
        """Return an identity whose sequences begin at 0. Fails if another run has taken the name since."""
        self.identity = self.gaps.init(_TRANSACTION_MS, self.identity)
        return self.identity

    def write_marker(self, where: TopicPartition, who: Identity) -> bool:
        """Write a marker straight to the leader, as coordinators do: in one round trip instead of several, of which one
        waits for the coordinator's own. Return False if nothing was written, because the target or its permissions do
        not allow it.

        `who` is the identity of plain writes. No coordinator asks if an earlier run still writes markers, so the leader
        must know it by what its successor wrote there. And no coordinator has ended a transaction of this identity:
        Apache Kafka refuses a marker whose coordinator's epoch is lower than that of the last one."""
        if not self._may_write_markers:
            return False
        channel = self.channels.to_leader(where)
        if Key.WRITE_TXN_MARKERS not in channel.versions:
            self._may_write_markers = False
            return False
        answer = channel.request(Key.WRITE_TXN_MARKERS, markers(where, who, 1), at_most=_MARKER_VERSION)
        code = ErrorCode.of(answer.markers[0].topics[0].partitions[0].error_code)
        if code in _NOTHING_WRITTEN:
            self._may_write_markers = code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            self.channels.drop(channel)
            return False
        raise_for(code, f"writing a marker to {where.topic}-{where.partition}")
        return True


class OffsetCopier:
    """Copies partitions. Its transactional ids fence an earlier run that may still be alive."""

    def __init__(self, source: ClientSettings, target: ClientSettings, name: str) -> None:
        self._name = name
        self._target = CopyTarget(source, target)
        self._reading = Routes(source)
        self._writing = Routes(target)
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        """Held while the caller is told of progress: it need not expect several threads."""
        self._identities: list[Identity] = []
        """Those of plain writes, shared by all partitions: each counts its own sequences. Guarded by `_lock`."""
        self._identity(0)
        self._workers: SimpleQueue[_Worker] = SimpleQueue()
        self._all = [_Worker(self._writing, f"{name}.gaps-{number}") for number in range(_WORKERS)]
        for worker in self._all:
            self._workers.put(worker)
        self._pool = ThreadPoolExecutor(_WORKERS, "fencepost-migrate")
        self._stopped = False
        """Set when one partition failed, or the user pressed Ctrl-C: the others stop at their next batch."""
        self._failure: Exception | None = None
        """The first one. Guarded by `_lock`."""

    def close(self) -> None:
        self._stopped = True
        self._pool.shutdown(cancel_futures=True)
        for worker in self._all:
            worker.channels.close()
        for each in (self._target, self._reading, self._writing):
            each.close()

    def demand_copies(self, partitions: Iterable[TopicPartition]) -> None:
        """Raise FencepostError if the target has a partition that is not a copy of the source's. Change nothing."""
        self._results([self._pool.submit(self._target.demand_copy, where) for where in partitions])

    def copy(self, topics: Mapping[str, int], advance: Advance) -> Iterator[tuple[str, list[Copied]]]:
        """Copy the committed records that the target lacks, of topics with so many partitions. Yield each topic when it
        is complete. Partitions are copied side by side, those of other topics, too."""
        started = {
            topic: [
                self._pool.submit(self._copy_with_a_worker, TopicPartition(topic, partition), advance)
                for partition in range(partitions)
            ]
            for topic, partitions in topics.items()
        }
        for topic, futures in started.items():
            yield topic, self._results(futures)

    def _results(self, futures: list[Future[T]]) -> list[T]:
        try:
            return [future.result() for future in futures]
        except BaseException as error:
            self._stopped = True
            if self._failure is None or not isinstance(error, Exception):
                raise
            raise self._failure from None  # the other partitions were only stopped because of it

    def _copy_with_a_worker(self, where: TopicPartition, advance: Advance) -> Copied:
        worker = self._workers.get()
        try:
            return self._copy(where, worker, advance)
        except (FencepostError, OSError) as error:
            found: FencepostError | OSError = error
            if isinstance(error, ServerError) and error.code in _TAKEN_OVER:
                found = FencepostError(
                    "another `fencepost migrate` from this source to this target was started, and has taken over: wait "
                    "until it has ended"
                )
            with self._lock:
                self._failure = self._failure or found
            self._stopped = True
            raise found from (None if found is error else error)
        finally:
            self._workers.put(worker)

    def _copy(self, where: TopicPartition, worker: _Worker, advance: Advance) -> Copied:
        first, at, end = self._target.prepare(where)
        copying = _PartitionCopy(where, self._target, worker, self._identity, position=at)
        wanted = Range(where.topic, where.partition, max(at, first), end)
        for step in copy_steps(at, first, copying.runs(self._reading, wanted), end):
            if self._stopped:
                raise FencepostError("stopped")  # nobody sees it: the first failure is reported
            done = copying.carry_out(step)
            with self._telling:
                advance(*done)
        return copying.finish()

    def _identity(self, number: int) -> Identity:
        """Return an identity of plain writes: that of records, of heads, or of partitions with very many records."""
        with self._lock:
            while len(self._identities) <= number:
                name = f"{self._name}.records-{len(self._identities)}"
                self._identities.append(Transactional(self._writing, name).init(_TRANSACTION_MS))
            return self._identities[number]


class _PartitionCopy:
    """The steps of one partition, carried out."""

    def __init__(
        self,
        where: TopicPartition,
        target: CopyTarget,
        worker: _Worker,
        identity: Callable[[int], Identity],
        *,
        position: int,
    ) -> None:
        self._where = where
        self._target = target
        self._worker = worker
        self._identity = identity
        self._position = position
        self._ready: deque[OutgoingBatch] = deque()
        """Batches of the runs that were yielded and not written yet."""
        self._writer: OffsetWriter | None = None
        self._next_identity = 0
        self._takes_markers = False
        """The leader has accepted a marker, so that the next ones go without waiting for what is before them."""
        self._time = -1
        """The time of the newest record: records that only use up an offset must not look newer to retention."""
        self._records = self._size = 0

    def runs(self, reading: Routes, wanted: Range) -> Iterator[RecordsStep]:
        """Read the source, and yield the offsets of each batch that is ready to be written."""
        if wanted.start >= wanted.stop:
            return
        max_bytes = describe(self._target.to, wanted.topic).max_bytes
        fetched = fetch(reading, wanted, fail_on_data_loss=False, max_bytes=_FETCH_BYTES)
        for batch in outgoing((each for answer in fetched for each in answer), wanted, max_bytes):
            self._ready.append(batch)
            yield RecordsStep(batch.start, batch.stop)

    def carry_out(self, step: CopyStep) -> tuple[int, int]:
        """Return the number of offsets and bytes."""
        if isinstance(step, RecordsStep):
            return step.stop - step.start, self._write(step)
        if isinstance(step, HeadStep):
            self._use_up_head(step.offsets)
        else:
            left = step.offsets
            while left:
                part = min(left, _FILLED_AT_ONCE)
                self._use_up(part)
                left -= part
        return step.offsets, 0

    def finish(self) -> Copied:
        if self._writer is not None:
            self._writer.finish()
        self._target.await_end(self._where, self._position)
        return Copied(self._records, self._size)

    def _write(self, run: RecordsStep) -> int:
        batch = self._ready.popleft()
        if self._writer is not None and self._writer.sequences > _SEQUENCES:
            self._writer.finish()
            self._writer = None
        if self._writer is None:
            self._writer = OffsetWriter(self._worker.channels, self._identity(self._next_identity), self._where)
            self._next_identity = max(self._next_identity, _OF_HEADS) + 1
        self._time = max(self._time, read_header(batch.data).max_timestamp)
        self._writer.write_at(run.start, batch.data)
        self._position = run.stop
        self._records += run.stop - run.start
        self._size += len(batch.data)
        return len(batch.data)

    def _use_up(self, offsets: int) -> None:
        """Write markers alone for a few offsets, and for more an aborted transaction."""
        if self._writer is not None and self._takes_markers and offsets <= _MARKERS_AT_ONCE:
            self._writer.write_markers(self._identity(0), offsets)
            self._position += offsets
            return
        if self._writer is not None:
            self._writer.finish()
        while 0 < offsets <= _MARKERS_AT_ONCE and self._worker.write_marker(self._where, self._identity(0)):
            self._takes_markers = True
            self._position += 1
            offsets -= 1
        if offsets:
            self._use_up_by_transaction(offsets)

    def _use_up_by_transaction(self, offsets: int) -> None:
        worker = self._worker
        who = worker.new_epoch() if offsets > 1 else worker.identity
        worker.gaps.add_partitions(who, [self._where])
        if offsets > 1:
            shared = SharedTransaction(worker.name, who)
            _fill(PartitionWriter(worker.channels, shared, self._where, fresh=True), offsets - 1, self._time)
        # librdkafka logs a warning about the abort of a transaction that has no records, but none about its commit.
        worker.gaps.end(who, commit=offsets == 1)
        self._position += offsets
        self._target.await_end(self._where, self._position)

    def _use_up_head(self, offsets: int) -> None:
        shared = SharedTransaction(None, self._identity(_OF_HEADS))
        _fill(PartitionWriter(self._worker.channels, shared, self._where, fresh=True), offsets, -1)
        self._position += offsets
        self._target.await_end(self._where, self._position)
        self._target.delete_before(self._where, self._position)


def _fill(writer: PartitionWriter, records: int, timestamp: int) -> None:
    """Write records that only use up offsets."""
    when = int(time.time() * 1000) if timestamp < 0 else timestamp
    whole = min(records, _FILLED_PER_BATCH)
    template = encode_batch([(FILLER_KEY, FILLER_VALUE, when, None)] * whole, codec=_LZ4)
    while records >= whole > 0:
        writer.write(bytearray(template))  # each its own: it is stamped in place, and kept until it is answered
        records -= whole
    if records:
        writer.write(encode_batch([(FILLER_KEY, FILLER_VALUE, when, None)] * records, codec=_LZ4))
    writer.finish()


# --- writing ---


def markers(where: TopicPartition, who: Identity, count: int) -> dict[str, Any]:
    """Return the request that writes this number of markers to the leader, as coordinators do."""
    marker = {
        "producer_id": who.pid,
        "producer_epoch": who.epoch,
        "transaction_result": True,
        "topics": [{"name": where.topic, "partition_indexes": [where.partition]}],
        "coordinator_epoch": 0,
    }
    return {"markers": [marker] * count}


class _SentMarkers(SentBatch):
    """Markers in flight. They have no records, so no sequence of their own."""

    who: Identity
    number: int


class OffsetWriter(PartitionWriter):
    """Batches and markers to one partition of the target, each at its own offset, several of them in flight.

    A log of transactions has a marker behind every few records, so its copy alternates between batches and markers.
    They go down one connection, where a broker handles one request after the other: so they keep their order without
    waiting for each other's answers.

    A batch has a sequence: it can be sent again, and it fails if the one before it is missing. A marker has none, so an
    answer that does not come cannot be cured, and the run ends: the next one goes on from the target's end. A refusal
    can be cured, because the markers behind a refused batch are refused for the same reason. If one was not, it took
    the offset of a record, and the copy cannot go on.
    """

    def __init__(self, channels: LeaderChannels, identity: Identity, where: TopicPartition) -> None:
        super().__init__(channels, SharedTransaction(None, identity), where, fresh=True)
        self._at = where
        self._expected: dict[int, int] = {}
        """First sequence → offset of the batches without an answer."""

    @property
    def sequences(self) -> int:
        return self._next

    def write_at(self, offset: int, batch: bytearray | memoryview) -> None:
        self._expected[self._next] = offset
        self.write(batch)

    def write_markers(self, who: Identity, count: int) -> None:
        """Send markers behind the batches in flight. The leader must have accepted one of `who` before."""
        sent = _SentMarkers(self._next, self._next - 1, bytearray())
        sent.who, sent.number = who, count
        self._unanswered.append(sent)
        try:
            self._send(sent)
        except FencepostError as error:
            self._recover(error)

    def _send(self, sent: SentBatch) -> None:
        if not isinstance(sent, _SentMarkers):
            super()._send(sent)
            return
        if self._channel is None:
            self._channel = self._channels.to_leader(self._where)
        key, fields = Key.WRITE_TXN_MARKERS, markers(self._where, sent.who, sent.number)

        def encode(version: int) -> list[bytes]:
            return [messages.encode_request(key, version, fields)]

        self._channel.send(key, encode, at_most=_MARKER_VERSION)

    def _receive(self) -> None:
        if not isinstance(self._unanswered[0], _SentMarkers):
            super()._receive()
            return
        assert self._channel is not None
        answer = messages.decode_response(Key.WRITE_TXN_MARKERS, *self._channel.receive())
        for marker in answer.markers:
            code = ErrorCode.of(marker.topics[0].partitions[0].error_code)
            if code is not ErrorCode.NONE:
                raise ServerError(code, f"writing a marker to {self._at.topic}-{self._at.partition}")
        self._unanswered.popleft()

    def _stored(self, sent: SentBatch, offset: int) -> None:
        expected = self._expected.pop(sent.first)
        if offset not in (-1, expected):
            raise FencepostError(
                f"{self._at.topic}-{self._at.partition}: the target gave offset {offset} instead of {expected}, so "
                "another program writes to it. Stop that program, delete the topic on the target, and start again"
            )

    def _recover(self, error: FencepostError) -> None:
        if not any(isinstance(sent, _SentMarkers) for sent in self._unanswered):
            super()._recover(error)
            return
        refusal = self._refusal_of_all(error)
        pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, self._patience)
        while self._unanswered:
            if self._channel is not None:
                self._channels.drop(self._channel)  # and with it the old leader
                self._channel = None
            if not pauses.wait():
                raise refusal
            try:
                while self._unanswered:
                    self._send(self._unanswered[0])
                    self._receive()
            except ServerError as again:
                if again.code not in _REFUSED:
                    raise
                refusal = again

    def _refusal_of_all(self, error: FencepostError) -> ServerError:
        """Return the refusal of all that was in flight. Raise an error if some of it was written, or may have been."""
        if not isinstance(error, ServerError) or error.code not in _REFUSED:
            raise error
        refused = deque([self._unanswered.popleft()])
        while self._unanswered:
            try:
                self._receive()
            except ServerError as also:
                if also.code not in _REFUSED | {ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}:
                    raise
                refused.append(self._unanswered.popleft())
            else:
                raise FencepostError(
                    f"{self._at.topic}-{self._at.partition}: the target refused a part of the copy ({error}), and "
                    "wrote what comes behind it. Delete the topic on the target, and start again"
                ) from error
        self._unanswered = refused
        return error


# --- the target ---


class CopyTarget:
    """Both clusters, for questions about one partition. Threads may share it."""

    def __init__(self, source: ClientSettings, target: ClientSettings) -> None:
        self._source = source
        self._target = target
        self._from = Admin(source)
        self.to = Admin(target)
        self._compared: dict[TopicPartition, int] = {}
        """Partitions whose last records were compared, with the target's end at that time."""

    def close(self) -> None:
        self._from.close()
        self.to.close()

    def demand_copy(self, where: TopicPartition) -> None:
        """Raise FencepostError if the target has a partition that is not a copy of the source's. Change nothing."""
        first, end = _at(self._from, where, EARLIEST), _at(self._from, where, LATEST, committed=True)
        self._demand_same_tail(where, first, self._settled_end(where), end)

    def prepare(self, where: TopicPartition) -> tuple[int, int, int]:
        """Return the source's start, the target's end, and the source's end, of a target that can be continued."""
        first, end = _at(self._from, where, EARLIEST), _at(self._from, where, LATEST, committed=True)
        at = self._settled_end(where)
        self._demand_same_tail(where, first, at, end)
        oldest = _at(self.to, where, EARLIEST)
        if oldest < first <= at and self._has_only_fillers(where, oldest, first):
            self.delete_before(where, first)  # a run was killed when it had written them, and not deleted
        return first, at, end

    def delete_before(self, where: TopicPartition, offset: int) -> None:
        self.to.delete_records(where.topic, {where.partition: offset})

    def await_end(self, where: TopicPartition, position: int) -> None:
        """Wait until markers are in the log: Kafka acknowledges the end of a transaction before it writes them."""
        deadline = time.monotonic() + _MARKER_SECONDS
        while (end := _at(self.to, where, LATEST)) != position:
            if end > position or time.monotonic() > deadline:
                raise _unlike(where, f"it ends at {end} instead of {position}")
            time.sleep(_POLL_SECONDS)

    def _settled_end(self, where: TopicPartition) -> int:
        """Return the target's end once no transaction is open there."""
        deadline = time.monotonic() + _MARKER_SECONDS
        while True:
            end = _at(self.to, where, LATEST)
            if _at(self.to, where, LATEST, committed=True) == end:
                return end
            if time.monotonic() > deadline:
                raise FencepostError(f"{where.topic}-{where.partition} has an open transaction on the target")
            time.sleep(_POLL_SECONDS)

    def _demand_same_tail(self, where: TopicPartition, first: int, at: int, end: int) -> None:
        """Check that the target's last records are the source's. Either side may have removed some of them since."""
        if self._compared.get(where) == at > first:
            return
        self._compare(where, first, at, end)
        self._compared[where] = at

    def _compare(self, where: TopicPartition, first: int, at: int, end: int) -> None:
        if at > end:
            raise _unlike(where, f"it ends at {at}, the source at {end}: programs have written to it")
        oldest = _at(self.to, where, EARLIEST)
        start = max(at - _COMPARED, first, oldest)
        if start >= at:
            # Nothing can be compared, and all that the target has will be deleted, because the source has none of it.
            if not self._has_only_fillers(where, max(at - _COMPARED, oldest), at):
                raise _unlike(where, f"it has records before {at}, and the source starts at {first}")
            return
        ours = _records(self._source, where, start, at)
        theirs = _records(self._target, where, start, at)
        removed = self._removes_keys(where.topic)
        for offset, record in ours.items():
            if theirs.get(offset, record if removed else None) != record:
                raise _unlike(where, f"its record {offset} is missing or another one")
        if removed and ours and not theirs:
            raise _unlike(where, f"it has no record from {start} to {at - 1}")

    def _removes_keys(self, topic: str) -> bool:
        """Tell if the target compacts the topic: it may have removed records that the source still has. A run that was
        killed has left the policy of its copying there; then the source's tells it."""
        configs = (*self.to.topic_configs(topic), *self._from.topic_configs(topic))
        return any(each.name == "cleanup.policy" and "compact" in (each.value or "") for each in configs)

    def _has_only_fillers(self, where: TopicPartition, start: int, stop: int) -> bool:
        there = _records(self._target, where, start, min(stop, start + _COMPARED))
        return all(fields[1:] == (FILLER_KEY, FILLER_VALUE, ()) for fields in there.values())


def _at(admin: Admin, where: TopicPartition, time: int, *, committed: bool = False) -> int:
    found = admin.offsets(where.topic, time, partitions=[where.partition], read_committed=committed)
    return int(found[where.partition].offset)


def _records(settings: ClientSettings, where: TopicPartition, start: int, stop: int) -> dict[int, tuple[object, ...]]:
    if start >= stop:
        return {}
    with Reader(settings, where, start=start, stop=stop) as reader:
        return {each.offset: (each.timestamp, each.key, each.value, tuple(each.headers)) for each in reader}


def _unlike(where: TopicPartition, why: str) -> FencepostError:
    return FencepostError(
        f"{where.topic}-{where.partition} on the target is not a copy that can be continued: {why}. Delete the "
        "topic there and start again, or leave the topic out (--topic)"
    )
