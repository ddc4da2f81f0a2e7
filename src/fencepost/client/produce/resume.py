"""Saved ids at work: open each partition before the first record, and leave out what its log already has (IDEM-4,
IDEM-5).

It is on for a producer that resumes from ids, and for a named one from the moment its `ids` are read. A partition that
gets its first record is opened in three steps, each on a temporary thread:

    look     the topic's id, the end of the log, and the server's H(P), which the fence will reset
    fence    Add the partition to a transaction that is aborted at once. The abort marker carries this run's epoch into
             the partition's log, and from there on nothing of an older run is appended: a bare InitProducerId does not
             prevent that on Kafka, where a partition learns of an epoch only by a write. For a partition that the ids
             do not name, the place is then looked up in the topic `__fencepost_ids`, or written there (`ids_topic.py`).
    read     From the place to the end of the log. The caller sends the name's records there again first. They are
             compared, acknowledged, and not sent.

`core/producers/recollection.py` has the rules, and why they are enough.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from fencepost.client.admin.offsets import PartitionAdmin
from fencepost.client.cluster.metadata import BrokerNode
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.identity import IdentityRequests
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.produce.ids_topic import IdsTopic
from fencepost.client.produce.partition_queue import PartitionQueue, ProducerBatch
from fencepost.client.produce.settling import Settling
from fencepost.client.produce.state import SendState
from fencepost.client.read.ranges import Range, fetch
from fencepost.client.transactions.coordinator import Steps
from fencepost.core.producers.inflight import Flight
from fencepost.core.producers.pid import Identity, PidState
from fencepost.core.producers.recollection import NOWHERE, Known, PartitionFence, Recollection, SavedPlace, Taken
from fencepost.errors import (
    ConfigError,
    ErrorCode,
    Fenced,
    FencepostError,
    SendFailed,
    ServerError,
    TimedOut,
    Unreachable,
)
from fencepost.kernel import Record, check_batch, decode_batch
from fencepost.types import LATEST, Offset, Pid, Sequence, TopicPartition

log = logging.getLogger("fencepost.producer")

T = TypeVar("T")

NOW = float("-inf")
IN_PROGRESS = float("inf")


class LookBefore(NamedTuple):
    """A partition's state before the fence."""

    topic_id: str | None
    end: Offset
    remembered: Mapping[Pid, tuple[int, int]]


class FencedPartition(NamedTuple):
    look: LookBefore
    fence: PartitionFence
    place: SavedPlace


class NoWriting(NamedTuple):
    """Why nothing may be written to a partition."""

    message: str


Found = list[Known] | NoWriting | None
"""None: the log has to be fenced and read once more."""


class Resumption:
    """The partitions of a producer that saves ids. Only the send thread uses it, except where said."""

    def __init__(
        self,
        settings: ClientSettings,
        name: str,
        ids: ProducerIds | None,
        steps: Steps,
        state: SendState,
        settling: Settling,
        identity: IdentityRequests,
        now_ms: Callable[[], int],
    ) -> None:
        self._settings = settings
        self._name = name
        self._steps = steps
        self._state = state
        self._settling = settling
        self._identity = identity
        self._now_ms = now_ms
        self.is_on = ids is not None
        """The ids were read, or given."""
        self._pids = frozenset() if ids is None else ids.pids
        """All pids of the name. A temporary thread replaces it."""
        self._places: dict[TopicPartition, SavedPlace] = {} if ids is None else dict(ids.partitions)
        """Behind the last record that was acknowledged before the save, or left out since."""
        self._begun: set[TopicPartition] = set()
        """Written to before the ids were first read, and written down."""
        self._to_look: dict[TopicPartition, float] = {}
        """When to look."""
        self._looked: dict[TopicPartition, LookBefore] = {}
        self._to_read: dict[TopicPartition, FencedPartition] = {}
        self._read_at: dict[TopicPartition, float] = {}
        self._known: dict[TopicPartition, deque[Known] | NoWriting] = {}
        """Open partitions: the records in the log that were not sent again yet."""
        identity.on_pid = self._note_pid

    # --- ids ---

    def begin(self, who: Identity, written: Mapping[TopicPartition, SavedPlace]) -> None:
        """Begin to save ids, before they are first read; on the caller's thread. Raise ConfigError if a producer of
        this name has saved ids before: without those, this one could write its records again. Write down what this
        producer has `written` so far, so that its successors need their ids."""
        with Routes(self._settings) as routes:
            topic = IdsTopic(routes, self._name)
            pids, places = topic.exchange(who.pid, self._now_ms(), is_new=True)
            ids = {name: _topic_id_now(routes, name) for name, _ in places}
            gone = {where: None for where, place in places.items() if ids[where.topic] != place.topic_id}
            if left := sorted(places.keys() - gone.keys() - self._begun):
                raise ConfigError(
                    f"a producer of the name {self._name!r} has saved ids and written to {left[0]} before: resume from "
                    "its newest saved ids with ids=, or use a new name"
                )
            self._begun |= written.keys()
            topic.write_places({**gone, **written}, self._now_ms())
        self._pids = frozenset(pids)

    def ids(self, cluster_id: str | None, queues: Iterable[PartitionQueue]) -> ProducerIds:
        """Return the ids to save. Everything is settled."""
        if not self.is_on:
            self._turn_on(queues)
        places = dict(self._places)
        for queue in queues:
            flight, place = queue.flight, places.get(queue.name)
            if flight is not None and flight.identity is not None and self.is_caught_up(queue.name):
                assert place is not None
                places[queue.name] = place.written_on(flight.last_acknowledged, flight.identity, flight.next_sequence)
        return ProducerIds(cluster_id, self._name, self._pids, places)

    def _turn_on(self, queues: Iterable[PartitionQueue]) -> None:
        """Save ids from now on. What this producer has written so far needs no fence: nobody wrote before it."""
        written = self.written(queues)
        if written.keys() - self._begun:
            raise FencepostError("another thread has sent records meanwhile: flush first, then read the ids")
        self._places = written
        self._known = {partition: deque() for partition in written}
        self._state.queues.needs_partitions = True
        self.is_on = True

    def written(self, queues: Iterable[PartitionQueue]) -> dict[TopicPartition, SavedPlace]:
        """Return where this producer has written, although its ids were not read before. Everything is settled."""
        places: dict[TopicPartition, SavedPlace] = {}
        for queue in queues:
            flight = queue.flight
            if flight is None or flight.identity is None:
                continue
            if flight.last_acknowledged is None and flight.next_sequence:
                raise FencepostError(
                    f"{queue.name}: the server does not say where the records are, so there is no place to save: read "
                    "the ids once before the first record"
                )
            if flight.last_acknowledged is None:
                continue
            offset = Offset(flight.last_acknowledged + 1)
            topic_id = _topic_id(self._state.metadata.topics[queue.topic.name])
            places[queue.name] = SavedPlace(topic_id, offset, flight.identity, flight.next_sequence)
        return places

    # --- opening partitions ---

    def admits(self, partition: TopicPartition) -> bool:
        """Return whether the partition is open; if not, start with it."""
        if partition in self._known:
            return True
        if partition not in self._looked and partition not in self._to_read:
            self._to_look.setdefault(partition, NOW)
        return False

    def is_caught_up(self, partition: TopicPartition) -> bool:
        """Return whether a record may be written without asking `without_known`."""
        return not self.is_on or self._known.get(partition) == deque()

    def go_on(self, now: float) -> None:
        """Take the next steps, in every turn."""
        for partitions in self._due(self._to_look, now):
            self._look(partitions)
        self._fence()
        for partitions in self._due(self._read_at, now):
            self._read(partitions)

    def _due(self, moments: dict[TopicPartition, float], now: float) -> list[list[TopicPartition]]:
        """Return the partitions whose moment has come, by leader: a dead one delays only its own (PROD-6)."""
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition, at in moments.items():
            if at <= now:
                by_leader.setdefault(self._state.metadata.leader(*partition), []).append(partition)
            else:
                self._state.due(at, now)
        for partitions in by_leader.values():
            moments.update(dict.fromkeys(partitions, IN_PROGRESS))
        return list(by_leader.values())

    def _run_in_thread(
        self, work: Callable[[Routes], T], then: Callable[[T], None], failed: Callable[[FencepostError], None]
    ) -> None:
        """Have a temporary thread do `work`, over connections of its own: it may outlast the producer."""

        def run() -> T:
            with Routes(self._settings) as routes:
                return work(routes)

        def answered(outcome: T | FencepostError) -> None:
            if isinstance(outcome, FencepostError):
                failed(outcome)
            else:
                then(outcome)

        self._state.thread_calls.run_in_thread(run, answered)

    def _look(self, partitions: list[TopicPartition]) -> None:
        def looked(found: dict[TopicPartition, LookBefore]) -> None:
            for partition in found:
                del self._to_look[partition]
            self._looked.update(found)

        def failed(error: FencepostError) -> None:
            self._failed(partitions, self._to_look, error)

        self._run_in_thread(lambda routes: look(routes, partitions), looked, failed)

    def _failed(
        self, partitions: Iterable[TopicPartition], moments: dict[TopicPartition, float], error: FencepostError
    ) -> None:
        """Try again later, unless the server has refused."""
        if isinstance(error, Unreachable | TimedOut) or error.retriable:
            self._state.metadata.distrust()
            again = self._state.now() + self._state.options.retry_backoff
            moments.update(dict.fromkeys(partitions, again))
            return
        for partition in partitions:
            moments.pop(partition, None)
            self._known[partition] = NoWriting(f"the log cannot be checked for earlier records: {error}")

    def _fence(self) -> None:
        identity = self._state.identity
        who = identity.current
        if who is None or identity.state is not PidState.READY or not self._looked:
            return
        looked, self._looked = self._looked, {}

        def fence(routes: Routes) -> tuple[Identity, dict[TopicPartition, SavedPlace] | FencepostError]:
            self._steps.add_partitions(who, looked)
            now = self._identity.next_epoch(self._steps, who)  # aborts the transaction that was just begun
            try:
                return now, self._places_of(routes, looked, now)
            except FencepostError as error:
                return now, error

        def fenced(outcome: tuple[Identity, dict[TopicPartition, SavedPlace] | FencepostError]) -> None:
            now, places = outcome
            self._identity.answered(now)
            if isinstance(places, FencepostError):
                self._failed(looked, self._to_look, places)
                return
            for partition, seen in looked.items():
                place = places[partition]
                self._to_read[partition] = FencedPartition(seen, PartitionFence(who, now, seen.end), place)
                self._read_at[partition] = NOW

        def failed(error: FencepostError) -> None:
            self._identity.answered(error)
            self._to_look.update(dict.fromkeys(looked, NOW))

        self._state.renew_identity()
        identity.asked()
        self._run_in_thread(fence, fenced, failed)

    def _places_of(
        self, routes: Routes, looked: Mapping[TopicPartition, LookBefore], now: Identity
    ) -> dict[TopicPartition, SavedPlace]:
        """Return where to begin to read; on a temporary thread, after the fence. A partition that neither the ids nor
        an earlier run names is written down: the name begins there."""
        places = {partition: place for partition in looked if (place := self._places.get(partition)) is not None}
        unsaved = looked.keys() - places.keys()
        if unsaved:
            topic = IdsTopic(routes, self._name)
            written_down = topic.exchange(now.pid, self._now_ms())
            self._pids |= written_down.pids
            new = {
                partition: SavedPlace(looked[partition].topic_id, looked[partition].end, now, Sequence(0))
                for partition in unsaved - written_down.places.keys()
            }
            topic.write_places(new, self._now_ms())
            places |= new | {partition: written_down.places[partition] for partition in unsaved - new.keys()}
        return places

    def _note_pid(self, pid: Pid) -> None:
        """Write down a pid that the ids do not name, before anything is written under it; on a temporary thread."""
        if self.is_on and pid not in self._pids:
            with Routes(self._settings) as routes:
                written_down = IdsTopic(routes, self._name).exchange(pid, self._now_ms())
            self._pids |= written_down.pids | {pid}

    def _read(self, partitions: list[TopicPartition]) -> None:
        fenced = {partition: self._to_read[partition] for partition in partitions}
        pids = self._pids

        def read_all(routes: Routes) -> dict[TopicPartition, Found | FencepostError]:
            found: dict[TopicPartition, Found | FencepostError] = {}
            for partition, end, leader in ends_now(routes, partitions):
                try:
                    found[partition] = read(routes, partition, fenced[partition], pids, end, leader)
                except FencepostError as error:
                    found[partition] = error
            return found

        def done(found: dict[TopicPartition, Found | FencepostError]) -> None:
            for partition, outcome in found.items():
                if isinstance(outcome, Fenced):
                    self._settling.fence(ErrorCode.PRODUCER_FENCED)
                elif isinstance(outcome, FencepostError):
                    self._failed([partition], self._read_at, outcome)
                else:
                    self._opened(partition, outcome)

        self._run_in_thread(read_all, done, lambda error: self._failed(partitions, self._read_at, error))

    def _opened(self, partition: TopicPartition, found: Found) -> None:
        del self._read_at[partition]
        place = self._to_read.pop(partition).place
        if found is None:
            self._to_look[partition] = self._state.now() + self._state.options.retry_backoff
        elif isinstance(found, NoWriting):
            self._known[partition] = found
        else:
            self._places[partition] = place
            self._known[partition] = deque(found)

    # --- records that are there already ---

    def without_known(self, flight: Flight[ProducerBatch], batch: ProducerBatch) -> ProducerBatch | None:
        """Deliver the records of a batch that are in the log already; return a batch of the others, or None."""
        partition = batch.queue.name
        known = self._known[partition]
        if isinstance(known, NoWriting):
            self._settling.fail(batch, SendFailed(known.message, persisted="no", **batch.where))
            return None
        place = self._places[partition]
        if flight.last_acknowledged is None and place.offset > 0:
            flight.last_acknowledged = Offset(place.offset - 1)
        if not known:
            return batch
        assert batch.builder is not None
        records = decode_batch(batch.builder.build())
        shares: list[list[Record]] = []
        offsets: list[Offset] = []  # of the shares that are in the log
        left_out = 0
        for record in records:
            if not known or known[0].content not in (None, content_of(record)):
                break
            there = known.popleft()
            if there.offset != NOWHERE:
                flight.last_acknowledged = there.offset
            place = self._places[partition] = there.behind(place)
            if not offsets or not _goes_on(offsets[-1], len(shares[-1]), there.offset):
                shares.append([])
                offsets.append(there.offset)
            shares[-1].append(record)
            left_out += 1
        if left_out < len(records):
            shares.append(records[left_out:])
        parts = [batch] if len(shares) == 1 else self._state.queues.divide(batch, shares)
        for part, offset in zip(parts, offsets, strict=False):
            self._settling.deliver(part, offset, -1)
        if len(parts) == len(offsets):
            return None
        if known:
            self._settling.fail(parts[-1], _different(batch, known[0].offset))
            return None
        return parts[-1]


def content_of(record: Record) -> int:
    return hash((record.key, record.value, record.headers))


# --- on a temporary thread ---


def look(routes: Routes, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LookBefore]:
    """Look at partitions before the fence. The end comes before H(P), so H(P) covers all that is before the end."""
    admin = PartitionAdmin(routes)
    found: dict[TopicPartition, LookBefore] = {}
    for topic, wanted in _by_topic(partitions).items():
        topic_id = _topic_id(routes.retried(lambda topic=topic: routes.topic(topic))[1])  # type: ignore[misc]
        ends = admin.offsets(topic, LATEST, partitions=wanted)
        remembered: dict[int, dict[Pid, tuple[int, int]]] = {}
        for state in _producers(admin, topic, wanted):
            remembered.setdefault(state.partition, {})[state.pid] = (state.epoch, state.last_sequence)
        for index in wanted:
            found[TopicPartition(topic, index)] = LookBefore(topic_id, ends[index].offset, remembered.get(index, {}))
    return found


def _producers(admin: PartitionAdmin, topic: str, partitions: list[int]) -> Iterable[Any]:
    try:
        return admin.producers(topic, partitions=partitions)
    except FencepostError as error:
        if isinstance(error, Unreachable | TimedOut) or error.retriable:
            raise
        log.warning("%s: the server does not describe its producers: %s", topic, error)
        return ()


def ends_now(
    routes: Routes, partitions: Iterable[TopicPartition]
) -> Iterable[tuple[TopicPartition, Offset, BrokerNode]]:
    """Return each partition with the end of its log and its leader. Each topic is asked for once: its metadata are long
    if it has many partitions."""
    admin = PartitionAdmin(routes)
    for topic, wanted in _by_topic(partitions).items():
        ends = admin.offsets(topic, LATEST, partitions=wanted)
        for leader, indexes in routes.leaders(topic, wanted).items():
            for index in indexes:
                yield TopicPartition(topic, index), ends[index].offset, leader


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    indexes: dict[str, list[int]] = {}
    for topic, index in partitions:
        indexes.setdefault(topic, []).append(index)
    return indexes


def read(
    routes: Routes,
    partition: TopicPartition,
    fenced: FencedPartition,
    pids: Iterable[Pid],
    end: Offset,
    leader: BrokerNode,
) -> Found:
    """Read a fenced partition from its place to `end`, the end of the log after the fence. Raise Fenced if a later run
    of the name has written there."""
    place, fence = fenced.place, fenced.fence
    if not place.is_of(fenced.look.topic_id):
        return NoWriting(
            "the topic was deleted and created again since this producer wrote to it, and its records are gone: "
            f"find out which ones are needed, {_ADVICE}"
        )
    ours = frozenset(pids)
    found = Recollection(place, ours, fence)
    wanted = Range(*partition, found.start, end)
    try:
        for batches in fetch(routes, wanted, committed=False, fail_on_data_loss=False, every_batch=True, leader=leader):
            for header, data in batches:
                who = Identity(header.pid, header.epoch)
                if header.is_control or header.is_transactional or header.pid not in ours:
                    check_batch(data)
                    found.pass_over(header.base_offset, header.next_offset)
                    if header.is_control or header.pid in ours:
                        found.mark(who, header.base_offset)
                    continue
                contents = {record.offset - header.base_offset: content_of(record) for record in decode_batch(data)}
                found.meet(who, header.base_sequence, contents, header.base_offset, header.next_offset)
    except Taken as taken:
        message = f"{partition} has records of a later producer of this name"
        raise Fenced(message, persisted="unknown", code=ErrorCode.PRODUCER_FENCED) from taken
    if not found.is_fenced:
        return None
    if found.is_truncated:
        return NoWriting(
            f"the log has lost records that the server had acknowledged: it ended before offset {place.offset}, which "
            f"was saved. Was a backup restored, or an unclean leader elected? Find out which are missing, {_ADVICE}"
        )
    known = found.finish(end, fenced.look.remembered)
    if known is None:
        return NoWriting(
            f"records behind the saved offset {place.offset} were deleted, and the server no longer knows how many of "
            f"them this producer wrote. Find out which records the topic had, {_ADVICE}"
        )
    return known


_ADVICE = "then start from the right position with a new name= instead of ids="


def _topic_id_now(routes: Routes, topic: str) -> str | None:
    """Return the topic's id; an empty string if there is no such topic."""
    try:
        return _topic_id(routes.retried(lambda: routes.topic(topic))[1])
    except ServerError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return ""


def _topic_id(topic: Any) -> str | None:
    found = getattr(topic, "topic_id", None)
    return str(found) if found is not None and found.int else None


def _goes_on(first: Offset, count: int, offset: Offset) -> bool:
    """Return whether a record at `offset` follows `count` records that begin at `first`."""
    return offset == NOWHERE if first == NOWHERE else offset == first + count


def _different(batch: ProducerBatch, offset: Offset) -> SendFailed:
    message = (
        f"the log has another record of this name at offset {offset}: first send again, in the same order, what was "
        "sent after the ids were saved"
    )
    return SendFailed(message, persisted="no", **batch.where)
