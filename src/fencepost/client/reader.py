"""`Reader`: the records of topics or partitions, between two places in the log, one by one or as Arrow batches.

With a group and topics it is a member of the group and shares their partitions with the other members
(`client/share/group.py`). With a group and partitions it reads just these, and only stores offsets in the group.

The program's thread does everything here, also what the group asks for: before it hands out records, the reader takes
the group's events, so `on_revoked` runs when the program is done with what it was given (`_attend`).
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeAlias, TypedDict, Unpack
from uuid import UUID

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.checks import MOST_SECONDS, check_bytes, check_name, check_seconds, only_known
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.forking import OnePerProcess, of_the_parent, tell_after_fork
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import Network, SocketNetwork
from fencepost.client.own.claim import Claim, LeaseWatch, Loss, OnLost, OwnBackend, claim_by, offers_own
from fencepost.client.own.server import ServerReaderBackend
from fencepost.client.read.fetcher import Chunk, Fetcher, FetchOptions
from fencepost.client.share.committing import Commits, OffsetCommit
from fencepost.client.share.exclusive import Exclusive
from fencepost.client.share.group import GroupMember, GroupOptions, OnPartitions, matching
from fencepost.client.share.lookups import Lookups
from fencepost.client.share.places import Place, Places, committed_offsets
from fencepost.client.transactions.coordinator import ConsumerGroupMetadata
from fencepost.clock import Clock, SystemClock
from fencepost.core.groups.holding import Assigned, ToRevoke, WereLost
from fencepost.core.groups.membership import GroupProtocol, Identity
from fencepost.core.own.claim_request import Resources, check_claim
from fencepost.core.own.lease import Lease
from fencepost.errors import (
    Closed,
    ConfigError,
    FencepostError,
    PartitionsLost,
    TimedOut,
    TopicRecreated,
    Unreachable,
)
from fencepost.kernel import decode_rows
from fencepost.types import Milliseconds, Offset, TopicPartition
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.own.kafka import KafkaReaderBackend

log = logging.getLogger("fencepost.reader")

Readable: TypeAlias = "str | TopicPartition | tuple[str, int] | re.Pattern[str]"
"""A topic, one of its partitions, or a pattern for the whole names of topics."""

_ALL: Final = 2**63 - 1


_LOOK_UP: Final = 1.0
"""Seconds after which a member of a group checks whether its coordinator is away for too long."""
_LOOK_SOON: Final = 0.1
_FOLLOWED: Final = 0


class Found(NamedTuple):
    """Positions that were looked up, by the number of the question."""

    number: int
    places: Mapping[TopicPartition, tuple[Offset, Offset | None]]
    ids: Mapping[TopicPartition, UUID]


class ReadRecord(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp: Milliseconds
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


class ReaderKeywords(TypedDict, total=False):
    """The settings of a reader; `Reader` explains each and has the defaults."""

    group: str | None
    member: str | None
    exclusive: bool
    group_protocol: GroupProtocol | None
    processing_timeout: float
    session_timeout: float
    on_assigned: OnPartitions | None
    on_revoked: OnPartitions | None
    on_lost: OnPartitions | None
    metadata_max_age: float
    read_committed: bool
    headers: bool
    partition_bytes: int
    prefetch_bytes: int
    max_wait: float
    patience: float


class Reader(OnePerProcess, Closing):
    """Reads topics or partitions from given places to given places, record by record or as Arrow batches.

    >>> with Reader("127.0.0.1:9092", "orders", start="earliest", stop="latest") as reader:
    ...     for record in reader:
    ...         print(record.offset, record.value)

    Settings:

    servers: host:port, several separated by commas, or a list
    topics: one topic, re.Pattern of topics, TopicPartition or tuple (topic, partition), or several
    start: Place = 'earliest'
        Where to start: 'earliest', 'latest', 'committed' (where the group left off), an offset, a datetime, or a dict
        from TopicPartition or partition number to offset. For a member of a group: where nothing is committed.
    stop: Place | None = None
        Where to stop, in the same words; None: follow the log for ever.
    group: str | None = None
        The consumer group. Given topics, the reader joins it, shares their partitions with its other members, and
        starts where the group left off, or at `start` where nothing is committed. Given partitions, it only stores
        offsets there.
    member: str | None = None
        The name of a static member: after a restart within the session it gets the same partitions back, and nothing
        moves.
    exclusive: bool = False
        Own what the group assigns, too: a member that was paused and replaced can neither fetch nor commit. On Apache
        Kafka it is rejected when it commits.
    group_protocol: GroupProtocol | None = None
        'consumer' (KIP-848), 'cooperative' or 'eager' (both classic); None: the first that server and group speak.
    processing_timeout: float = 300.0
        Seconds for which the program may work between two calls. After that the reader leaves the group, and the next
        call raises TooSlow.
    session_timeout: float = 45.0
        Seconds without a heartbeat after which a classic member is removed. With KIP-848 the server decides.
    on_assigned: OnPartitions | None = None
        Called with a frozenset of partitions that are new, before they are read; `seek` works in it.
    on_revoked: OnPartitions | None = None
        Called with the partitions that go to other members, when no more of their records are handed out; a `commit`
        in it still counts.
    on_lost: OnPartitions | None = None
        Called with the partitions that were lost without being asked: the reader was removed from its group.
    metadata_max_age: float = 30.0
        Seconds after which to look for new partitions, and for new topics that match a pattern.
    read_committed: bool = True
        Hand out only records of committed transactions; False: also those of open and aborted ones.
    headers: bool = True
        Decode the headers in `arrow()`.
    partition_bytes: int = 2097152
        Most bytes per partition in one answer.
    prefetch_bytes: int = 67108864
        Most bytes fetched ahead of what the caller has taken.
    max_wait: float = 0.5
        Seconds that the server holds a fetch back while there is nothing new.
    patience: float = 60.0
        Seconds without any answer after which reading raises.
    """

    @only_known("Reader")
    def __init__(
        self,
        servers: Servers | ClientSettings,
        topics: Readable | Iterable[Readable],
        *,
        start: Place = "earliest",
        stop: Place | None = None,
        group: str | None = None,
        member: str | None = None,
        exclusive: bool = False,
        group_protocol: GroupProtocol | None = None,
        processing_timeout: float = 300.0,
        session_timeout: float = 45.0,
        on_assigned: OnPartitions | None = None,
        on_revoked: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
        metadata_max_age: float = 30.0,
        read_committed: bool = True,
        headers: bool = True,
        partition_bytes: int = 2 << 20,
        prefetch_bytes: int = 64 << 20,
        max_wait: float = 0.5,
        patience: float = 60.0,
    ) -> None:
        self._settings = ClientSettings.of(servers)
        for name, size in (("partition_bytes", partition_bytes), ("prefetch_bytes", prefetch_bytes)):
            check_bytes(size, name)
        check_seconds(max_wait, "max_wait", or_zero=True, most=MOST_SECONDS)
        check_seconds(patience, "patience")
        self._options = FetchOptions(
            read_committed=read_committed,
            partition_bytes=partition_bytes,
            prefetch_bytes=prefetch_bytes,
            max_wait=max_wait,
            patience=patience,
        )
        check_name(group, "group")
        for name, seconds in (
            ("processing_timeout", processing_timeout),
            ("session_timeout", session_timeout),
            ("metadata_max_age", metadata_max_age),
        ):
            check_seconds(seconds, name)
        self._group = group
        self._headers = headers
        self._closed = False
        self._closed_by_fork: Closed | None = None
        self._given: ReadRecord | None = None
        self._taken: Chunk | None = None
        """Fetched and not decoded yet: after a failure or an interrupt it is decoded again, not skipped."""
        self._loop: tuple[Chunk, Iterator[ReadRecord]] | None = None
        """The chunk that a loop has begun to hand out, and the rest of its records."""
        if start == "committed" and group is None:
            raise ConfigError("start='committed' needs a group")
        self._wanted = _wanted(topics)
        self._places = Places(start, stop, group, read_committed=read_committed)
        self._on = {"assigned": on_assigned, "revoked": on_revoked, "lost": on_lost}
        self._tokens: dict[TopicPartition, int] = {}
        self._paused: set[TopicPartition] = set()
        self._sought: set[TopicPartition] = set()
        self._callback: str | None = None
        """The callback that is running: it must not read."""
        joins = group is not None and not any(isinstance(each, TopicPartition) for each in self._wanted)
        if not joins and (member is not None or exclusive or group_protocol is not None or any(self._on.values())):
            raise ConfigError(
                "member, exclusive, group_protocol, on_assigned, on_revoked and on_lost are for members of a group: "
                "give group=… and topics, not partitions"
            )
        places = self._find_places() if not joins else {}
        network, clock = self._make_network()
        self._clock = clock
        self._wake = network.wake
        self._positions: dict[TopicPartition, Offset] = {partition: at for partition, (at, _) in places.items()}
        self._owns_by: OwnBackend | None = None
        self._commits_by: KafkaReaderBackend | None = None
        """Of an owner on Apache Kafka, which fences its write id when it commits."""
        self._untouched = True  # nothing was read yet
        self._lease = Lease()
        self._fetcher = Fetcher(self._settings, self._options, network, clock, places, self._lease)
        self._loss = Loss(self._lease, clock)
        self._loss.before_lease_ends = self._fetcher.read_answers
        self._loss.on_lease_over = network.wake  # the caller may wait for records
        self._watch = LeaseWatch(self._lease, clock, self._loss.look)
        self._commits = Commits(self._store)
        self._lookups: Lookups[Found] = Lookups(network.wake, self._settings.retry_backoff, patience)
        self._admin = Admin(self._settings)
        """For what is asked while it reads. It connects when it is first needed."""
        self._routes = self._admin._routes
        self._asked: dict[TopicPartition, int] = {}
        """The newest question for the position of a partition: the answer to an older one would move it back."""
        self._asked_number = _FOLLOWED
        self._member: GroupMember | None = None
        self._exclusive: Exclusive | None = None
        self._untaken: frozenset[TopicPartition] = frozenset()
        """Assigned and not taken up yet, because claiming them or `on_assigned` has failed: that is tried again."""
        self._claim_at = 0.0
        self._claim_failing_since: float | None = None
        self._patience = patience
        self._max_age = metadata_max_age
        self._follows = stop is None and any(not isinstance(each, TopicPartition) for each in self._wanted)
        self._look_at = clock.monotonic() + metadata_max_age
        tell_after_fork(self)
        if joins:
            assert group is not None
            try:
                self._join(
                    GroupOptions(
                        group,
                        frozenset(each for each in self._wanted if isinstance(each, str)),
                        tuple(each for each in self._wanted if isinstance(each, re.Pattern)),
                        member,
                        group_protocol,
                        processing_timeout,
                        session_timeout,
                        metadata_max_age,
                        patience,
                    ),
                    exclusive=exclusive,
                )
            except BaseException:
                self.close()
                raise

    def _join(self, options: GroupOptions, *, exclusive: bool) -> None:
        check_name(options.member, "member")
        with Admin(self._settings) as admin:
            for name in options.names:
                admin.describe_topic(name)  # a name that does not exist is a mistake more often than a plan
        self._member = GroupMember(self._settings, options, self._clock, self._wake)
        if exclusive and isinstance(self._backend(), ServerReaderBackend):
            self._fetcher.brokers.stays_alone = True
            self._fetcher.on_fenced = self._loss.happened
            self._exclusive = Exclusive(self._backend(), options.group)
        self._member.begin()

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        topics: Readable | Iterable[Readable],
        *,
        start: Place | None = None,
        stop: Place | None = None,
        **options: Unpack[ReaderKeywords],
    ) -> Self:
        """Create a reader from librdkafka's and Java's names. `options` are the arguments above and take precedence.

        With a `group.id` it starts at the group's committed offsets, and where there are none at `auto.offset.reset`.
        An unknown name is an error that suggests the nearest one."""
        from fencepost.client.cluster.config_names import reader_fields  # for weight: most readers never need it

        settings, named = reader_fields(config)
        places = {name: place for name, place in (("start", start), ("stop", stop)) if place is not None}
        return cls(ClientSettings(**settings), topics, **{**named, **places, **options})

    def __repr__(self) -> str:
        topics = ", ".join(each.pattern if isinstance(each, re.Pattern) else str(each) for each in self._wanted)
        return f"<Reader of {topics} on {self._settings.addresses}, {'closed' if self._closed else 'open'}>"

    def _make_network(self) -> tuple[Network, Clock]:
        return SocketNetwork(self._settings.security), SystemClock()

    def _find_places(self) -> dict[TopicPartition, tuple[Offset, Offset | None]]:
        """Return where each partition starts and stops, as of now."""
        with Admin(self._settings) as admin:
            return self._places.find(admin, self._existing(admin))

    def _existing(self, admin: Admin) -> set[TopicPartition]:
        patterns = [each for each in self._wanted if isinstance(each, re.Pattern)]
        names = matching(patterns, (topic.name for topic in admin.topics())) if patterns else ()
        wanted = [each for each in self._wanted if not isinstance(each, re.Pattern)]
        return set(chain.from_iterable(_partitions(admin, each) for each in (*wanted, *names)))

    # --- reading ---

    def __iter__(self) -> Iterator[ReadRecord]:
        """Yield record by record; end when every partition has reached its stop, otherwise follow for ever.

        After a `break` or an exception, a new loop goes on where the last one stopped.
        """
        while True:
            if self._loop is None:
                chunk = self._next(None)
                if chunk is None:
                    return
                self._begin_loop(chunk, self._decode(chunk))
            yield from self._hand_out()
            self._wait_to_go_on(None)

    def _begin_loop(self, chunk: Chunk, records: list[ReadRecord]) -> None:
        self._loop, self._taken = (chunk, iter(records)), None

    def _hand_out(self) -> Iterator[ReadRecord]:
        """Yield the rest of the chunk at hand. End early when the group wants something: the rest is kept."""
        loop = self._loop
        assert loop is not None
        chunk, records = loop
        member = self._member
        for record in records:
            if self._loop is not loop:
                return  # the caller has moved the position, or the partition is gone
            if member is not None and not member.may_go_on():
                self._loop = chunk, chain((record,), records)
                return
            self._given = record  # cheaper than moving the position for each record: `positions` reads it
            yield record
        if self._loop is loop:
            self._loop = self._given = None
            self._is_at(chunk)

    def _wait_to_go_on(self, timeout: float | None) -> None:
        """Do what the group asks for while a chunk is at hand, until the rest may be handed out or is dropped."""
        member = self._member
        if member is None or self._loop is None:
            return
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        self._enter(member)
        try:
            self._attend()
            while self._loop is not None and not member.may_hand_out(self._loop[0].partition):
                self._turn(deadline, timeout)
                self._attend()
        finally:
            member.leave_to_program()

    def _is_at(self, chunk: Chunk) -> None:
        """Move the position behind the chunk, but not behind the stop."""
        self._taken = None
        at = chunk.next if chunk.stop is None else min(chunk.next, chunk.stop)
        self._positions[chunk.partition] = Offset(at)

    def poll(self, timeout: float | None = None) -> list[ReadRecord] | None:
        """Return the next few records of one partition, or None at the end. Raise TimedOut if none arrive in time."""
        while self._loop is not None:
            self._wait_to_go_on(timeout)
            if self._loop is not None and (rest := list(self._hand_out())):
                return rest
        chunk = self._next(timeout)
        if chunk is None:
            return None
        records = self._decode(chunk)
        self._is_at(chunk)
        return records

    def _decode(self, chunk: Chunk) -> list[ReadRecord]:
        start, stop = chunk.start, chunk.stop if chunk.stop is not None else _ALL
        rows = (
            decode_rows(batch, ReadRecord, tuple(chunk.partition), start=start, stop=stop) for batch in chunk.batches
        )
        return list(chain.from_iterable(rows))

    def arrow(self) -> Iterator[pa.RecordBatch]:
        """Yield `pyarrow.RecordBatch`es, each of one partition, with the columns of Spark's Kafka source."""
        while (chunk := self._next(None)) is not None:
            table = self._table(chunk)
            self._is_at(chunk)
            if table is not None and table.num_rows:
                yield table

    def _table(self, chunk: Chunk) -> pa.RecordBatch | None:
        from fencepost.kernel.arrow import read_arrow

        if not chunk.batches:
            return None
        return read_arrow(
            chunk.batches,
            start=chunk.start,
            stop=chunk.stop if chunk.stop is not None else _ALL,
            topic=chunk.partition.topic,
            partition=chunk.partition.partition,
            headers=self._headers,
        )

    def _next(self, timeout: float | None) -> Chunk | None:
        """Return the next chunk, or None at the end. It stays in `_taken` until it is handed out."""
        if self._closed:
            raise self._closed_by_fork or Closed("the reader is closed")
        self._untouched = False
        member = self._member
        if member is None:
            return self._wait_for_chunk(timeout)
        self._enter(member)
        try:
            return self._wait_for_chunk(timeout)
        finally:
            member.leave_to_program()

    def _wait_for_chunk(self, timeout: float | None) -> Chunk | None:
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        asked = False
        while (chunk := self._at_hand()) is None:
            if self._commits_by is not None:
                self._commits_by.check()
            if self._is_done:
                return None
            self._turn(deadline, timeout, once=not asked)
            asked = True  # once also without any time left, so that `poll(0)` in a loop gets records
        self._taken = chunk
        # Ask for more before this is decoded: server and network work meanwhile.
        self._fetcher.run_once(0.0)
        return chunk

    def _turn(self, deadline: float | None, timeout: float | None, *, once: bool = False) -> None:
        """Wait for something to happen. Raise TimedOut when the time is over."""
        now = self._clock.monotonic()
        left = float("inf") if deadline is None else max(0.0, deadline - now)
        if left == 0 and not once:
            raise TimedOut(f"no new records within {timeout:g} s")
        if self._member is not None:
            # The coordinator may be away for too long, the group may have settled: neither wakes anybody.
            left = min(left, _LOOK_UP if self._places.stop is None and not self._untaken else _LOOK_SOON)
        elif self._follows:
            left = min(left, max(0.0, self._look_at - now))
        self._fetcher.run_once(None if left == float("inf") else left)

    def _at_hand(self) -> Chunk | None:
        """Return the next chunk that is here, unless it belongs to another reader by now."""
        self._attend()
        self._loss.check()
        member = self._member
        if self._taken is None and (member is None or self._clock.monotonic() < member.lease_end):
            self._taken = self._take()
        return None if self._taken is None or not self._may_hand_out(self._taken) else self._taken

    def _take(self) -> Chunk | None:
        try:
            return self._fetcher.take()
        except TopicRecreated as error:
            if self._member is None:
                raise
            log.warning("%s: the topic was deleted and created again; its offset is looked up again", error.partition)
            self._commits.forget([error.partition])
            self._look_up_again(frozenset([error.partition]))
            return None

    def _may_hand_out(self, chunk: Chunk) -> bool:
        return self._member is None or self._member.may_hand_out(chunk.partition)

    @property
    def _is_done(self) -> bool:
        if self._places.stop is None or self._lookups.waiting or self._untaken or not self._fetcher.is_done:
            return False
        if self._member is None:
            return True
        return self._member.is_settled and (bool(self._positions) or self._has_no_share())

    def _has_no_share(self) -> bool:
        """Return whether other members hold everything and nothing is left for this one, which then ends.

        Its first answers may come before the group has decided. And what a dead member holds comes when its session is
        over; so a member waits if there are enough partitions for all."""
        member = self._member
        assert member is not None
        members = self._admin.describe_group(self._needs_group("stop")).members
        others = [each for each in members if each.member_id != member.member_id]
        wanted = self._existing(self._admin)
        is_theirs = wanted <= set(chain.from_iterable(each.assignment for each in others))
        is_final = member.protocol == "eager" or len(others) >= len(wanted)
        return is_theirs and is_final and member.is_settled and not member.assignment

    # --- partitions that come and go ---

    def _enter(self, member: GroupMember) -> None:
        if self._callback is not None:
            raise FencepostError(f"{self._callback} must not read: return from it first")
        member.enter()

    def _attend(self) -> None:
        """Do what the group asks for, in the program's thread, and begin with partitions whose positions were found."""
        member = self._member
        if member is None:
            self._follow()
        elif member.needs_program or self._clock.monotonic() >= member.lease_end:
            while (event := member.take_event()) is not None:
                match event:
                    case WereLost():
                        self._lost(event.partitions)
                    case ToRevoke():
                        self._revoke(member, event)
                    case Assigned():
                        self._take_up(member, event.partitions)
            member.raise_error()
        if self._untaken and member is not None and self._clock.monotonic() >= self._claim_at:
            self._take_up(member, self._untaken)
        while (found := self._lookups.take()) is not None:
            self._begin_with(found)

    def _take_up(self, member: GroupMember, partitions: frozenset[TopicPartition]) -> None:
        self._untaken |= partitions
        if self._exclusive is not None:
            try:
                self._tokens |= self._exclusive.claim(partitions - self._tokens.keys(), member.check)
            except PartitionsLost:
                return  # the next event says so
            except (Unreachable, TimedOut) as error:
                self._claim_again(error)
                return
            self._claim_failing_since = None
        else:
            self._tokens |= dict.fromkeys(partitions, member.epoch)
        self._sought.clear()
        try:
            self._call("assigned", partitions)
        except BaseException:
            self._drop(partitions)  # where it has moved them
            self._forget(partitions)
            raise
        self._untaken -= partitions
        self._look_up(partitions - self._sought)

    def _claim_again(self, error: FencepostError) -> None:
        """Try again soon: the connection has ended, or the server does not answer. Raise Fenced if more was lost."""
        self._loss.check()
        now = self._clock.monotonic()
        if self._claim_failing_since is None:
            self._claim_failing_since = now
        if now - self._claim_failing_since >= self._patience:
            raise error
        log.debug("claiming %s: %s", _shown(self._untaken), error)
        self._claim_at = now + self._settings.retry_backoff

    def _revoke(self, member: GroupMember, event: ToRevoke) -> None:
        """Hand out nothing more of these, let the program commit, then tell the coordinator."""
        untold = self._untold(event.partitions)
        self._drop(event.partitions)
        try:
            self._call("revoked", event.partitions - untold)
            self._flush_commits()
        finally:
            self._forget(event.partitions)
            self._forget_tokens(event.partitions)
            try:
                if self._exclusive is not None:
                    self._exclusive.release(event.partitions)
            except (Unreachable, TimedOut) as error:  # it ends with the connection, or with the successor's claim
                log.debug("releasing %s: %s", _shown(event.partitions), error)
            finally:
                member.released(event)

    def _lost(self, partitions: frozenset[TopicPartition]) -> None:
        untold = self._untold(partitions)
        self._drop(partitions)
        self._forget(partitions)
        self._forget_tokens(partitions)
        self._commits.forget(partitions)
        self._call("lost", partitions - untold)

    def _untold(self, partitions: frozenset[TopicPartition]) -> frozenset[TopicPartition]:
        """Return which of these the program has not taken up; it need not any more."""
        untold = self._untaken & partitions
        self._untaken -= untold
        return untold

    def _call(self, name: str, partitions: frozenset[TopicPartition]) -> None:
        callback = self._on[name]
        if callback is not None and partitions:
            self._callback = f"on_{name}"
            try:
                callback(partitions)
            finally:
                self._callback = None

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of these that is here. Their positions stay."""
        gone = frozenset(partitions)
        self._positions = dict(self.positions)
        if self._given is not None and TopicPartition(self._given.topic, self._given.partition) in gone:
            self._given = None
        if self._loop is not None and self._loop[0].partition in gone:
            self._loop = None
        if self._taken is not None and self._taken.partition in gone:
            self._taken = None
        self._fetcher.drop(gone)

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._positions.pop(partition, None)
            self._asked.pop(partition, None)
            self._fetcher.topic_ids.pop(partition, None)

    def _forget_tokens(self, partitions: Iterable[TopicPartition]) -> None:
        for partition in partitions:
            self._tokens.pop(partition, None)

    def _look_up(self, partitions: frozenset[TopicPartition]) -> None:
        """Find where these go on. Meanwhile the others are read."""
        member = self._member
        if not partitions or member is None:
            return
        number = self._asked_number = self._asked_number + 1
        self._asked.update(dict.fromkeys(partitions, number))

        def find() -> Found:
            return Found(number, *self._places.find_in_group(self._admin, self._routes, partitions))

        self._lookups.ask(find, lambda: not self._closed and any(map(member.may_commit, partitions)))

    def _look_up_again(self, partitions: frozenset[TopicPartition]) -> None:
        self._drop(partitions)
        self._forget(partitions)
        self._look_up(partitions)

    def _begin_with(self, found: Found) -> None:
        for partition, place in found.places.items():
            is_new = found.number == _FOLLOWED and partition not in self._positions
            if is_new or self._asked.get(partition) == found.number:
                self._asked.pop(partition, None)
                self._positions[partition] = place[0]
                if (topic_id := found.ids.get(partition)) is not None:
                    self._fetcher.topic_ids[partition] = topic_id
                self._fetcher.add({partition: place})
                if partition in self._paused:
                    self._fetcher.seek(partition, place[0], paused=True)

    def _follow(self) -> None:
        """Without a group: look for partitions and topics that are new. They are read from their beginning."""
        now = self._clock.monotonic()
        if not self._follows or now < self._look_at or self._lookups.waiting:
            return
        self._look_at = now + self._max_age
        known = frozenset(self._positions)

        def find() -> Found:
            try:
                with Admin(self._settings) as admin:
                    new = self._existing(admin) - known
                    starts = self._places.offsets(admin, new, "earliest")
            except FencepostError as error:
                log.debug("looking for partitions: %s", error)
                return Found(_FOLLOWED, {}, {})
            return Found(_FOLLOWED, {partition: (start, None) for partition, start in starts.items()}, {})

        self._lookups.ask(find, lambda: not self._closed)

    # --- owning ---

    def own(
        self,
        group: str | None = None,
        resources: Resources | None = None,
        *,
        generation: int | None = None,
        wait: bool | float | None = None,
        after: int | Mapping[str, int] | None = None,
        session: float = 0.0,
        on_lost: OnLost | None = None,
    ) -> Claim:
        """Claim `resources` in `group`; by default the partitions it reads, as `TOPIC-PARTITION`. See `Producer.own`.

        When somebody takes over, or the connection ends, reading and `commit` raise Fenced. If nothing was read yet,
        the start is determined again, because the previous owner may have gone on until now. A reader has no thread:
        it sends heartbeats for the `session` only while it is asked for records, so a caller that works for longer
        than that between two reads loses the resources.
        """
        if self._closed:
            raise self._closed_by_fork or Closed("the reader is closed")
        if self._member is not None:
            raise ConfigError("own is for readers of given partitions; a member of a group owns with exclusive=True")
        names = [str(partition) for partition in self._positions] if resources is None else resources
        request = check_claim(group, names, generation=generation, wait=wait, after=after, session=session)
        backend = self._backend()
        self._fetcher.on_fenced = self._loss.happened
        claim = claim_by(backend, request, self._loss, on_lost)
        self._watch.go_on()
        if self._untouched:
            places = self._find_places()
            self._positions = {partition: at for partition, (at, _) in places.items()}
            self._fetcher.begin(places)
        return claim

    def check_owned(self) -> None:
        """Raise Fenced if this reader has lost what it owned. Does not wait, and sends a sign of life."""
        if self._loss.parents is not None:
            raise self._loss.parents.fresh()
        if self._owns_by is not None and not self._closed:
            self._loss.check()
            if self._fetcher.owner.connection is not None:
                self._fetcher.run_once(0.0, fetches=False)
            if self._commits_by is not None:
                self._commits_by.check()
            self._loss.check()

    def interrupt(self) -> None:
        """Make an `own` that waits in another thread raise Closed."""
        if self._owns_by is not None:
            self._owns_by.interrupt()

    def _backend(self) -> OwnBackend:
        """Return the backend for the kind of server; chosen on first use."""
        if self._owns_by is None:
            with Routes(self._settings) as routes:
                is_ours = offers_own(self._fetcher.brokers, routes)
            self._owns_by = ServerReaderBackend(self._fetcher) if is_ours else self._kafka_backend()
        return self._owns_by

    def _kafka_backend(self) -> KafkaReaderBackend:
        from fencepost.client.own.kafka import KafkaReaderBackend  # for weight: only owners on Apache Kafka need it

        self._commits_by = KafkaReaderBackend(self._settings, self._lease)
        self._commits_by.on_fenced = self._loss.happened
        return self._commits_by

    # --- positions ---

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this reader reads now: those that its group assigns, or those it was given."""
        return frozenset(self._positions) if self._member is None else self._member.assignment

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """As whom this member commits, for `Producer.send_offsets`: the group rejects it once it is replaced. Raise
        PartitionsLost or TooSlow if that is known already."""
        if self._member is None:
            raise ConfigError("only a member of a group has group_metadata: give group=… and topics, not partitions")
        self._member.check_held(self.positions)
        return self._member.metadata()

    @property
    def tokens(self) -> Mapping[TopicPartition, int]:
        """A number for each partition of a group's member that is higher than those of all earlier holders. Pass it on
        with results, so that the system that gets them can reject those of a member that was replaced.

        With `exclusive` on fencepost's server it is `own`'s token; otherwise the group's epoch at the assignment."""
        return dict(self._tokens)

    @property
    def positions(self) -> Mapping[TopicPartition, Offset]:
        """The next offset of each partition, after the last record that was handed out."""
        positions = dict(self._positions)
        if self._given is not None:
            given = self._given
            positions[TopicPartition(given.topic, given.partition)] = Offset(given.offset + 1)
        return positions

    def seek(self, partition: TopicPartition | tuple[str, int], place: Place) -> None:
        """Go on at this place of a partition that the reader reads. In `on_assigned` it replaces the committed one."""
        name = self._its_partition(partition)
        offset = Offset(place) if isinstance(place, int) else self._places.offsets(self._admin, [name], place)[name]
        is_read = name in self._fetcher.partitions
        stop = self._fetcher.stop_of(name) if is_read else self._places.stops(self._admin, [name]).get(name)
        self._drop([name])
        self._forget([name])
        self._sought.add(name)
        self._positions[name] = offset
        self._fetcher.add({name: (offset, stop)})
        if name in self._paused:
            self._fetcher.seek(name, offset, paused=True)

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Hand out no records of these until `resume`, also if they come back from another member meanwhile."""
        self._set_paused(partitions, paused=True)

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        self._set_paused(partitions, paused=False)

    def _set_paused(self, partitions: Iterable[TopicPartition | tuple[str, int]], *, paused: bool) -> None:
        for name in [self._its_partition(each) for each in partitions]:
            (self._paused.add if paused else self._paused.discard)(name)
            if name in self._fetcher.partitions:
                position, stop = self.positions[name], self._fetcher.stop_of(name)
                self._drop([name])
                self._positions[name] = position
                self._fetcher.add({name: (position, stop)})
                self._fetcher.seek(name, position, paused=paused)

    def _its_partition(self, partition: TopicPartition | tuple[str, int]) -> TopicPartition:
        name = TopicPartition(*partition)
        if name not in self.assignment:
            raise ConfigError(f"{name} is not read by this reader; its assignment is {_shown(self.assignment)}")
        return name

    def rewind(self) -> None:
        """Forget the positions, and go on at the group's committed offsets. For members of a group."""
        if self._member is None:
            raise ConfigError("rewind is for members of a group; seek moves the position of a partition")
        self._look_up_again(self._member.assignment)

    def committed(self) -> dict[TopicPartition, Offset | None]:
        """Return what the group has committed of each partition that this reader reads."""
        group = self._needs_group("committed")
        wanted = self.assignment
        stored = committed_offsets(self._routes, group, wanted)
        return {partition: stored.get(partition) for partition in sorted(wanted)}

    def lag(self) -> dict[TopicPartition, int]:
        """Return the number of offsets from each position to the end of its partition, as of now."""
        positions = self.positions
        ends = self._places.offsets(self._admin, positions, "latest")
        return {partition: max(0, ends[partition] - at) for partition, at in positions.items()}

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None, *, wait: bool = True) -> None:
        """Store the reader's positions, or the given offsets, in its group: the offsets of the next records.

        A member of a group raises PartitionsLost, and stores nothing, if one of the partitions was lost; TooSlow if the
        program was too slow. `wait=False`: a thread stores them; if that fails, the next commit raises."""
        self._needs_group("commit")
        store = self.positions if offsets is None else offsets
        self._loss.check()
        if self._member is not None:
            self._member.check_held(store)
        is_owner = self._commits_by is not None or self._fetcher.owner.connection is not None
        self._commits.commit(store, wait=wait or is_owner)

    def _needs_group(self, what: str) -> str:
        if self._group is None:
            raise ConfigError(f"{what} needs a group: create the reader with group=…")
        return self._group

    def _flush_commits(self) -> None:
        try:
            self._commits.flush()
        except FencepostError as error:
            log.warning("a commit that nobody waited for failed: %s", error)

    def _store(self, store: Mapping[TopicPartition, int]) -> None:
        group = self._needs_group("commit")
        if self._member is not None:
            send = None if self._exclusive is None else self._send_as_owner
            self._member.commit(store, self._fetcher.topic_ids, send)
            return
        if self._commits_by is not None:
            self._commits_by.commit(group, store)
            return
        commit = OffsetCommit(group, store, Identity("", -1, None), self._fetcher.topic_ids)
        routes = self._routes

        def store_all() -> None:
            # On a guarded topic only the connection that owns a partition may commit its offsets.
            if self._fetcher.owner.connection is not None:
                answer = self._send_as_owner(commit)
            else:
                channel = routes.to(routes.coordinator(group))
                answer = channel.request(Key.OFFSET_COMMIT, commit.fields, at_most=commit.newest).message
            refused = commit.refused(answer)
            for partition in commit.of_gone(refused, routes):
                raise TopicRecreated(partition, store[partition])
            for partition, code in refused.items():
                raise_for(code, f"storing {partition} for {group!r}")

        routes.retried(store_all)

    def _send_as_owner(self, commit: OffsetCommit) -> Any:
        return self._fetcher.ask(Key.OFFSET_COMMIT, commit.fields, commit.newest)

    def after_fork(self) -> None:
        """Close the reader in a forked child. The two would share a connection, and what it owns."""
        if not self._closed:
            self._closed, self._closed_by_fork = True, of_the_parent("the reader")
            if self._member is not None:
                self._member.leave_to_parent()
            self._fetcher.forget_sockets()
            self._loss.leave_to_parent()

    def close(self) -> None:
        """Leave the group, and close. Commit nothing that was not asked for."""
        if not self._closed:
            if self._member is not None or self._group is not None:
                self._flush_commits()
            self._closed = True
            self._lookups.close()
            self._admin.close()
            if self._member is not None:
                self._member.close()
            self._watch.close()
            if self._owns_by is not None:
                self._owns_by.close()
                self._owns_by.forget()
            self._fetcher.close()
            self._lease.drop()  # what is released is not lost


def _wanted(topics: Any) -> list[str | TopicPartition | re.Pattern[str]]:
    """Return what to read as a list. A plain tuple of a name and a number is a partition too."""
    several = not (isinstance(topics, str | re.Pattern) or _is_partition(topics))
    try:
        listed = list(topics) if several else [topics]
    except TypeError:
        raise ConfigError(f"topics={topics!r}: expected a topic, a TopicPartition, or a list of these") from None
    if not listed:
        raise ConfigError(f"topics={topics!r}: at least one is needed")
    for each in listed:
        is_pattern = isinstance(each, re.Pattern) and isinstance(each.pattern, str)
        if not (_is_partition(each) or is_pattern or (isinstance(each, str) and each)):
            raise ConfigError(f"topics: expected the name of a topic or a TopicPartition, not {each!r}")
    return [each if isinstance(each, str | re.Pattern) else TopicPartition(*each) for each in listed]


def _shown(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "empty"


def _is_partition(wanted: Any) -> bool:
    return (
        isinstance(wanted, tuple)
        and len(wanted) == 2
        and isinstance(wanted[0], str)
        and isinstance(wanted[1], int)
        and not isinstance(wanted[1], bool)
    )


def _partitions(admin: Admin, wanted: str | TopicPartition) -> list[TopicPartition]:
    if isinstance(wanted, TopicPartition):
        return [wanted]
    described = admin.describe_topic(wanted)
    return [TopicPartition(wanted, partition.partition) for partition in described.partitions]
