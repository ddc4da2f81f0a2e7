"""`Reader`: the records of topics or partitions, between two places in the log, one by one or as Arrow batches.

It can store offsets in a group, but does not join it, so its partitions never change. For balanced consumption any
Kafka consumer works with the server.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self, TypeAlias, TypedDict, Unpack

from fencepost.client.admin import Admin
from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.checks import MOST_SECONDS, check_bytes, check_name, check_seconds, only_known
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.forking import OnePerProcess, of_the_parent, tell_after_fork
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import Network, SocketNetwork
from fencepost.client.own.claim import Claim, Loss, OnLost, OwnBackend, claim_by, offers_own
from fencepost.client.own.lease_watch import LeaseWatch
from fencepost.client.own.server import ServerReaderBackend
from fencepost.client.read.fetcher import Chunk, Fetcher, FetchOptions
from fencepost.clock import Clock, SystemClock
from fencepost.core.own.claim_request import Resources, check_claim
from fencepost.core.own.lease import Lease
from fencepost.errors import Closed, ConfigError, ErrorCode, ServerError, TimedOut
from fencepost.kernel import decode_rows
from fencepost.types import EARLIEST, LATEST, Milliseconds, Offset, TopicPartition
from fencepost.wire.apis import OFFSET_COMMIT_BY_NAME, Key

if TYPE_CHECKING:
    import pyarrow as pa

    from fencepost.client.own.kafka import KafkaReaderBackend

Readable: TypeAlias = "str | TopicPartition | tuple[str, int]"
"""A topic, or one of its partitions."""
Place: TypeAlias = "Literal['earliest', 'latest', 'committed'] | int | datetime | Mapping[Any, int]"
"""A place to start or stop: an end of the log, the group's committed offsets, an offset (the same in each partition), a
time, or a mapping from `TopicPartition`, or from a partition's number, to an offset."""

_ALL: Final = 2**63 - 1


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
    topics: one topic, TopicPartition or tuple (topic, partition), or several
    start: Place = 'earliest'
        Where to start: 'earliest', 'latest', 'committed' (where the group left off), an offset, a datetime, or a dict
        from TopicPartition or partition number to offset.
    stop: Place | None = None
        Where to stop, in the same words; None: follow the log for ever.
    group: str | None = None
        The consumer group in which `commit` stores offsets. The reader does not join it.
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
        self._start, self._stop = start, stop
        places = self._find_places()
        self._positions = {partition: at for partition, (at, _) in places.items()}
        self._owns_by: OwnBackend | None = None
        self._commits_by: KafkaReaderBackend | None = None
        """Of an owner on Apache Kafka, which fences its write id when it commits."""
        self._untouched = True  # nothing was read yet
        network, clock = self._make_network()
        self._clock = clock
        self._lease = Lease()
        self._fetcher = Fetcher(self._settings, self._options, network, clock, places, self._lease)
        self._loss = Loss(self._lease, clock)
        self._loss.before_lease_ends = self._fetcher.read_answers
        self._loss.on_lease_over = network.wake  # the caller may wait for records
        self._watch = LeaseWatch(self._lease, clock, self._loss.look)
        tell_after_fork(self)

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

        With a `group.id` it starts at the group's committed offsets. An unknown name is an error that suggests the
        nearest one."""
        from fencepost.client.cluster.config_names import reader_fields  # for weight: most readers never need it

        settings, named = reader_fields(config)
        places = {name: place for name, place in (("start", start), ("stop", stop)) if place is not None}
        return cls(ClientSettings(**settings), topics, **{**named, **places, **options})

    def __repr__(self) -> str:
        topics = ", ".join(map(str, self._wanted))
        return f"<Reader of {topics} on {self._settings.addresses}, {'closed' if self._closed else 'open'}>"

    def _make_network(self) -> tuple[Network, Clock]:
        return SocketNetwork(self._settings.security), SystemClock()

    def _find_places(self) -> dict[TopicPartition, tuple[Offset, Offset | None]]:
        """Return where each partition starts and stops, as of now."""
        with Admin(self._settings) as admin:
            partitions = sorted(set(chain.from_iterable(_partitions(admin, each) for each in self._wanted)))
            starts = self._find(admin, partitions, self._start)
            if isinstance(self._start, int | Mapping):
                _check_starts(admin, starts, all_beyond=isinstance(self._start, int))
            stops = {} if self._stop is None else self._find(admin, partitions, self._stop)
        return {partition: (starts[partition], stops.get(partition)) for partition in partitions}

    def _find(self, admin: Admin, partitions: list[TopicPartition], place: Place) -> dict[TopicPartition, Offset]:
        """Return the offset that `place` means in each partition."""
        found: dict[TopicPartition, Offset] = {}
        for topic in dict.fromkeys(partition.topic for partition in partitions):
            indexes = [partition.partition for partition in partitions if partition.topic == topic]
            for index, offset in self._find_in_topic(admin, topic, indexes, place).items():
                found[TopicPartition(topic, index)] = Offset(offset)
        return found

    def _find_in_topic(self, admin: Admin, topic: str, indexes: list[int], place: Place) -> dict[int, int]:
        def at(time: int) -> dict[int, int]:
            committed = self._options.read_committed
            return {
                index: found.offset
                for index, found in admin.offsets(topic, time, partitions=indexes, read_committed=committed).items()
            }

        match place:
            case "earliest":
                return at(EARLIEST)
            case "latest":
                return at(LATEST)
            case "committed":
                assert self._group is not None
                kept_by_group = admin.group_offsets(self._group)
                stored = {each.partition: each.committed for each in kept_by_group if each.topic == topic}
                first = at(EARLIEST)
                return {index: first[index] if (kept := stored.get(index)) is None else kept for index in indexes}
            case datetime():
                found, end = at(int(place.timestamp() * 1000)), at(LATEST)
                return {index: offset if offset >= 0 else end[index] for index, offset in found.items()}
            case int():
                return dict.fromkeys(indexes, place)
            case Mapping():
                given = {index: place.get(TopicPartition(topic, index), place.get(index)) for index in indexes}
                missing = [index for index, offset in given.items() if offset is None]
                if missing:
                    raise ConfigError(f"no offset given for {topic}, partition {', '.join(map(str, missing))}")
                return {index: int(offset) for index, offset in given.items() if offset is not None}
        raise ConfigError(
            f"{place!r} is not a place in a log: expected 'earliest', 'latest', 'committed', an offset or a datetime"
        )

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
                self._loop, self._taken = (chunk, iter(self._decode(chunk))), None
            chunk, records = self._loop
            yield from self._hand_out(chunk, records)
            self._loop = None

    def _hand_out(self, chunk: Chunk, records: Iterator[ReadRecord]) -> Iterator[ReadRecord]:
        for record in records:
            self._given = record  # cheaper than moving the position for each record: `positions` reads it
            yield record
        self._given = None
        self._is_at(chunk)

    def _is_at(self, chunk: Chunk) -> None:
        """Move the position behind the chunk, but not behind the stop."""
        self._taken = None
        at = chunk.next if chunk.stop is None else min(chunk.next, chunk.stop)
        self._positions[chunk.partition] = Offset(at)

    def poll(self, timeout: float | None = None) -> list[ReadRecord] | None:
        """Return the next few records of one partition, or None at the end. Raise TimedOut if none arrive in time."""
        if self._loop is not None:
            rest, self._loop = list(self._hand_out(*self._loop)), None
            if rest:
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
        if self._closed:
            raise self._closed_by_fork or Closed("the reader is closed")
        self._untouched = False
        if self._taken is not None:
            return self._taken
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        asked = False
        while (chunk := self._fetched()) is None:
            if self._commits_by is not None:
                self._commits_by.check()
            if self._fetcher.is_done:
                return None
            left = None if deadline is None else max(0.0, deadline - self._clock.monotonic())
            if left == 0 and asked:
                raise TimedOut(f"no new records within {timeout:g} s")
            self._fetcher.run_once(left)
            asked = True  # once also without any time left, so that `poll(0)` in a loop gets records
        self._taken = chunk
        # Ask for more before this is decoded: server and network work meanwhile.
        self._fetcher.run_once(0.0)
        return chunk

    def _fetched(self) -> Chunk | None:
        """Return the next chunk that is here, unless it belongs to another owner by now."""
        self._loss.check()
        return self._fetcher.take()

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
            if self._fetcher.tenure.connection is not None:
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
    def positions(self) -> Mapping[TopicPartition, Offset]:
        """The next offset of each partition, after the last record that was handed out."""
        positions = dict(self._positions)
        if self._given is not None:
            given = self._given
            positions[TopicPartition(given.topic, given.partition)] = Offset(given.offset + 1)
        return positions

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Store the reader's positions, or the given offsets, in its group."""
        if self._group is None:
            raise ConfigError("commit needs a group: create the reader with group=…")
        store = self.positions if offsets is None else offsets
        self._loss.check()
        if self._commits_by is not None:
            self._commits_by.commit(self._group, store)
            return
        by_topic: dict[str, list[dict[str, Any]]] = {}
        for partition, offset in store.items():
            entry = {"partition_index": partition.partition, "committed_offset": offset, "committed_metadata": ""}
            by_topic.setdefault(partition.topic, []).append(entry)
        fields = {
            "group_id": self._group,
            "generation_id": -1,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "topics": [{"name": topic, "partitions": entries} for topic, entries in by_topic.items()],
        }
        if self._fetcher.tenure.connection is not None:
            # On a guarded topic only the connection that owns a partition may commit its offsets.
            self._stored(self._fetcher.ask(Key.OFFSET_COMMIT, fields, OFFSET_COMMIT_BY_NAME))
            return
        group = self._group
        with Routes(self._settings) as routes:

            def store_all() -> None:
                channel = routes.to(routes.coordinator(group))
                self._stored(channel.request(Key.OFFSET_COMMIT, fields, at_most=OFFSET_COMMIT_BY_NAME).message)

            routes.retried(store_all)

    def _stored(self, answer: Any) -> None:
        for topic in answer.topics:
            for stored in topic.partitions:
                what = f"storing {topic.name}-{stored.partition_index} for {self._group!r}"
                raise_for(stored.error_code, what)

    def after_fork(self) -> None:
        """Close the reader in a forked child. The two would share a connection, and what it owns."""
        if not self._closed:
            self._closed, self._closed_by_fork = True, of_the_parent("the reader")
            self._fetcher.forget_sockets()
            self._loss.leave_to_parent()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._watch.close()
            if self._owns_by is not None:
                self._owns_by.close()
                self._owns_by.forget()
            self._fetcher.close()
            self._lease.drop()  # what is released is not lost


def _wanted(topics: Any) -> list[str | TopicPartition]:
    """Return what to read as a list. A plain tuple of a name and a number is a partition too."""
    several = not (isinstance(topics, str) or _is_partition(topics))
    try:
        listed = list(topics) if several else [topics]
    except TypeError:
        raise ConfigError(f"topics={topics!r}: expected a topic, a TopicPartition, or a list of these") from None
    if not listed:
        raise ConfigError(f"topics={topics!r}: at least one is needed")
    for each in listed:
        if not (_is_partition(each) or (isinstance(each, str) and each)):
            raise ConfigError(f"topics: expected the name of a topic or a TopicPartition, not {each!r}")
    return [each if isinstance(each, str) else TopicPartition(*each) for each in listed]


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


def _check_starts(admin: Admin, starts: Mapping[TopicPartition, Offset], *, all_beyond: bool) -> None:
    """Raise if the start lies beyond the end: the caller would wait for records that may never come.

    `all_beyond`: only if it does so in every partition, because one offset was given for all of them.
    """
    ends: dict[TopicPartition, int] = {}
    for topic in dict.fromkeys(partition.topic for partition in starts):
        indexes = [partition.partition for partition in starts if partition.topic == topic]
        for index, end in admin.offsets(topic, LATEST, partitions=indexes).items():
            ends[TopicPartition(topic, index)] = end.offset
    beyond = [partition for partition, start in starts.items() if start > ends[partition]]
    if beyond and (not all_beyond or len(beyond) == len(starts)):
        first = beyond[0]
        raise ServerError(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"start={starts[first]} lies beyond the end of {first}, which is {ends[first]}; "
            "start='latest' waits for new records",
        )
