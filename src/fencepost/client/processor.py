"""`Processor`: consume, transform, produce, exactly once. A reader in a group and its transactional producer as one.

One batch is one transaction:

    hand out   records of the partitions that the group assigns to this member, at most `batch_records`
    work       the caller's block; its records go into the transaction
    commit     if all of them were taken: the offsets after them, sent as this member at its epoch (TxnOffsetCommit,
               KIP-447), then EndTxn
    otherwise  abort, then rewind: forget all positions, and look the committed ones up again

Three rules make this exactly once, whoever dies or sleeps at whatever moment:

1. The coordinator rejects offsets of a member that it has removed, or whose epoch is not the present one. This side
   adds what a server cannot know: a batch belongs to the holding it was handed out in, so partitions that were lost and
   assigned again are not committed (`GroupMember.metadata`).
2. Who gets a partition next asks for *stable* offsets: while a transaction with offsets of the partition is undecided,
   the coordinator does not answer (`share/places.py`).
3. Nothing is released between two batches' hand-outs except here, in `__next__`, when no transaction is open.

The transactional id. Fencing is by the group's epochs, so the id need not be the predecessor's: it is the group's name
and a random part, one per processor. It stays in the server's tables until the server expires it (Kafka: seven days
after its last use). A static member has a stable id instead, group and member: at its restart it aborts at once what
its predecessor has left open, where others wait for the transaction's timeout.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Self, TypedDict, Unpack

from fencepost.client.batch import Batch, Fetched, Output, Piece
from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.checks import accepted_time, check_known, check_name, check_seconds, only_known
from fencepost.client.cluster.closing import Closing
from fencepost.client.cluster.forking import OnePerProcess
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.produce.transaction import ProducerTransaction
from fencepost.client.producer import Producer, ProducerKeywords
from fencepost.client.reader import Readable, Reader, ReaderKeywords, ReadRecord
from fencepost.client.share.places import Place
from fencepost.clock import SystemClock
from fencepost.core.groups.membership import GroupProtocol
from fencepost.core.retrying import Retries, Verdict, backoff
from fencepost.errors import (
    Closed,
    ConfigError,
    ErrorCode,
    Fenced,
    FencepostError,
    PartitionsLost,
    TimedOut,
    TooSlow,
    Unreachable,
)
from fencepost.types import TopicPartition

log = logging.getLogger("fencepost.processor")

LOOK: Final = 0.25
"""Seconds between two looks whether the loop is to end."""
_TIME_TO_COMMIT: Final = 1.5
"""How long a transaction may stay open, as a multiple of what a batch may take."""
_LONGEST_PAUSE: Final = 10.0
_LINGER: Final = 0.005
"""Seconds. No record is seen before the commit, which flushes: a short block needs one request per broker, no more."""
_EPOCH_IN_DOUBT: Final = frozenset(
    {
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
    }
)
"""Offsets were rejected because of who sent them: a newer epoch may be on its way, or the member was removed."""
_ABORTABLE: Final = frozenset(
    {ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE, ErrorCode.CONCURRENT_TRANSACTIONS}
)
_OF_READER: Final = frozenset(
    {
        *("group", "member", "group_protocol", "processing_timeout", "session_timeout", "patience"),
        *("exclusive", "read_committed", "on_revoked", "on_lost"),
    }
)
_OF_PRODUCER: Final = frozenset({"name", "transaction_timeout", "idempotent", "acks"})


class ProcessorKeywords(TypedDict, total=False):
    """The settings of a processor; `Processor` explains each and has the defaults."""

    member: str | None
    group_protocol: GroupProtocol | None
    batch_records: int
    processing_timeout: float
    session_timeout: float
    retries: int
    retry_backoff: float
    dead_letter: str | None
    patience: float
    reader: ReaderKeywords | None
    producer: ProducerKeywords | None


class Processor(OnePerProcess, Closing):
    """Reads topics as a member of a group, and writes what the caller makes of them, each record exactly once.

    >>> with Processor("127.0.0.1:9092", "orders", group="enrich") as batches:
    ...     for batch in batches:
    ...         with batch as out:
    ...             for record in batch:
    ...                 out.send("enriched", record.value.upper(), key=record.key)

    A batch's block is one transaction: its records and the positions become visible together, or not at all. If the
    block raises, or the group has given a partition to another member, nothing is committed, and the records come
    again, here or there. Only consumers that read committed records see exactly once.

    Settings:

    servers: host:port, several separated by commas, or a list
    topics: one topic, re.Pattern of topics, or several
    group: str
        The consumer group whose members share the partitions.
    start: Place = 'earliest'
        Where to start in partitions of which the group has committed nothing, as in `Reader`.
    stop: Place | None = None
        Where to stop, in the same words; None: follow the log for ever.
    member: str | None = None
        The name of a static member: after a restart it gets the same partitions back, and aborts at once what its
        predecessor has left open.
    group_protocol: GroupProtocol | None = None
        'consumer' (KIP-848), 'cooperative' or 'eager' (both classic); None: the first that server and group speak.
    batch_records: int = 1000
        Most records of a batch, which is one transaction.
    processing_timeout: float = 60.0
        Seconds that the work on a batch may take. After that the member has left its group and the block raises
        TooSlow. The transaction of a worker that was killed stays open for half as long again, and hides from readers
        what others have written behind it.
    session_timeout: float = 45.0
        Seconds without a heartbeat after which a classic member is removed. With KIP-848 the server decides.
    retries: int = 0
        How often to try again when a block raises an Exception. The first retry takes the record that failed alone.
    retry_backoff: float = 0.1
        Seconds before the first retry; doubled each time, at most 10.
    dead_letter: str | None = None
        The topic for records that fail more often than `retries`, with headers that say where they come from and why
        they failed. None: the block's exception is raised.
    patience: float = 60.0
        Seconds without success after which an unreachable server is an error.
    reader: ReaderKeywords | None = None
        Further settings of the reader, as a dict.
    producer: ProducerKeywords | None = None
        Further settings of the producer, as a dict: {"compression": "lz4"}. Its `linger` is 0.005 unless it is given.
    """

    @only_known("Processor")
    def __init__(
        self,
        servers: Servers | ClientSettings,
        topics: Readable | Iterable[Readable],
        *,
        group: str,
        start: Place = "earliest",
        stop: Place | None = None,
        member: str | None = None,
        group_protocol: GroupProtocol | None = None,
        batch_records: int = 1000,
        processing_timeout: float = 60.0,
        session_timeout: float = 45.0,
        retries: int = 0,
        retry_backoff: float = 0.1,
        dead_letter: str | None = None,
        patience: float = 60.0,
        reader: ReaderKeywords | None = None,
        producer: ProducerKeywords | None = None,
    ) -> None:
        self._settings = ClientSettings.of(servers)
        check_name(group, "group")
        check_name(dead_letter, "dead_letter")
        check_seconds(retry_backoff, "retry_backoff", or_zero=True)
        for name, number, least in (("batch_records", batch_records, 1), ("retries", retries, 0)):
            if not isinstance(number, int) or isinstance(number, bool) or number < least:
                raise ConfigError(f"{name} must be a whole number of at least {least}, not {number!r}")
        _check_free("reader", reader or {}, _OF_READER)
        _check_free("producer", producer or {}, _OF_PRODUCER)
        self._group = group
        self._batch_records = batch_records
        self._first_pause = retry_backoff
        self._dead_letter = dead_letter
        self._patience = patience
        self._clock = SystemClock()
        self._name = f"{group}-{member if member is not None else uuid.uuid4().hex}"
        self._is_static = member is not None
        self._with: ProducerKeywords = {"linger": _LINGER, **(producer or {}), "name": self._name}
        self._with["transaction_timeout"] = processing_timeout * _TIME_TO_COMMIT
        self._retries = Retries(retries, isolates=dead_letter is not None)
        self._deaths: dict[tuple[TopicPartition, int], BaseException] = {}
        self._rest: deque[Fetched] = deque()
        """Fetched and not handed out yet, in order per partition."""
        self._passed: dict[TopicPartition, int] = {}
        """Positions behind chunks without records, which the next batch commits too."""
        self._batch: Batch | None = None
        self._on_lost: Callable[[], None] = _nothing
        self._pause_until = 0.0
        self._failing_since: float | None = None
        self._is_ending = False
        self._closed = False
        self._something = threading.Event()
        """Set when the group wants something, or the loop is to end."""
        reading: ReaderKeywords = {
            **(reader or {}),
            "group": group,
            "member": member,
            "group_protocol": group_protocol,
            "processing_timeout": processing_timeout,
            "session_timeout": session_timeout,
            "patience": patience,
            "on_revoked": self._drop,
            "on_lost": self._drop,
        }
        self._reader = Reader(self._settings, topics, start=start, stop=stop, **reading)
        self._producer: Producer | None = None
        try:
            if self._reader._member is None:
                raise ConfigError("a Processor shares topics with its group: give topics, not partitions")
            self._member = self._reader._member
            self._member.on_change = self._look
            self._its_producer()
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, object],
        topics: Readable | Iterable[Readable],
        *,
        group: str | None = None,
        start: Place | None = None,
        stop: Place | None = None,
        **options: Unpack[ProcessorKeywords],
    ) -> Self:
        """Create a processor from librdkafka's and Java's names, those of consumers and of producers. `options` are the
        arguments above and take precedence. An unknown name is an error that suggests the nearest one."""
        check_known("Processor", options, ["group", "start", "stop", *ProcessorKeywords.__annotations__])
        settings, given = from_config(config, group, start, options)
        return cls(settings, topics, stop=stop, **given)

    def __repr__(self) -> str:
        return f"<Processor {self._name!r} of {self._reader!r}>"

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this member has."""
        return self._reader.assignment

    # --- the loop ---

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        while True:
            try:
                batch = self._next(LOOK)
            except TimedOut:
                continue
            if batch is None:
                raise StopIteration
            return batch

    def end(self) -> None:
        """Let the loop end after the present batch. Another thread, or a signal handler, may call it."""
        self._is_ending = True
        self._something.set()

    def _next(self, timeout: float) -> Batch | None:
        """Return the next batch, or None at the end. Raise TimedOut if there is none in time."""
        if self._batch is not None:
            if not self._batch._is_over:
                raise FencepostError("the last batch is not processed: process each in its `with batch as out:` block")
            self._batch = None
        if self._closed:
            raise Closed("the processor is closed")
        if self._is_ending:
            return None
        self._attend(timeout)
        self._make_ready()
        if not self._gather(timeout):
            return None
        batch = self._cut()
        if batch is None:
            raise TimedOut("nothing to hand out yet")
        self._batch = batch
        self._look()  # what was known before the batch was
        return batch

    def _attend(self, timeout: float) -> None:
        """Do what the group asks for, also during a pause."""
        reader, member = self._reader, self._member
        while True:
            with _forgiving():
                reader._enter(member)
                try:
                    reader._attend()
                finally:
                    member.leave_to_program()
            left = self._pause_until - self._clock.monotonic()
            if left <= 0:
                return
            if self._is_ending:
                raise TimedOut("the loop ends")
            self._something.wait(min(left, timeout))
            self._something.clear()
            if left > timeout:
                raise TimedOut("a pause before the next attempt")

    def _make_ready(self) -> None:
        """See to it that there is a producer, before a batch is handed out: its block should not wait for a server."""
        try:
            self._its_producer()
        except FencepostError as error:
            if not (_is_passing(error) and self._wait_for_server("the producer is not ready", error)):
                raise
            raise TimedOut("waiting for the server") from error

    def _gather(self, timeout: float) -> bool:
        """Fetch until there is enough for a batch, or nothing more at hand. Return False at the end."""
        while sum(each.stop - each.start for each in self._rest) < self._batch_records:
            with _forgiving():
                try:
                    chunk = self._reader._next(0.0 if self._may_cut() else timeout)
                except TimedOut:
                    if self._may_cut():
                        return True
                    raise
                if chunk is None:
                    return bool(self._rest)
                fetched = Fetched(self._reader, chunk)
                self._reader._is_at(chunk)
                if chunk.batches:
                    self._rest.append(fetched)
                elif all(each.chunk.partition != chunk.partition for each in self._rest):
                    self._passed[chunk.partition] = fetched.stop
        return True

    def _may_cut(self) -> bool:
        return any(self._reader._may_hand_out(each.chunk) for each in self._rest)

    def _cut(self) -> Batch | None:
        """Return a batch of what is at hand. No group event comes between this and the hand-out."""
        pieces: list[Piece] = []
        left, kept, closed = self._batch_records, deque[Fetched](), set[TopicPartition]()
        dead = False
        while self._rest:
            fetched = self._rest.popleft()
            partition = fetched.chunk.partition
            if left <= 0 or partition in closed or not self._reader._may_hand_out(fetched.chunk):
                closed.add(partition)
                kept.append(fetched)
                continue
            cut = self._retries.cut(partition, fetched.start, min(fetched.stop, fetched.start + left))
            if cut.alone and pieces:
                closed.add(partition)
                kept.append(fetched)
                continue
            pieces.append(Piece(fetched, fetched.start, cut.stop))
            left = 0 if cut.alone else left - (cut.stop - fetched.start)
            dead = cut.dead
            fetched.start = cut.stop
            if fetched.start < fetched.stop:
                closed.add(partition)
                kept.append(fetched)
        self._rest = kept
        if not pieces:
            return None
        batch = Batch(pieces, self._member, self._begin, self._end)
        if not dead:
            return batch
        self._bury(batch)
        return None

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out nothing of partitions that this member gives up or has lost."""
        gone = frozenset(partitions)
        self._rest = deque(each for each in self._rest if each.chunk.partition not in gone)
        for partition in gone:
            self._passed.pop(partition, None)

    def _look(self) -> None:
        """Tell the caller about a loss. Runs also on the member's thread."""
        self._something.set()
        batch = self._batch
        if batch is None or batch._is_over or not self._member.is_losing(batch.partitions):
            return
        batch._is_gone = not all(map(self._member.may_commit, batch.partitions))
        if not batch.lost.is_set():
            batch.lost.set()
            self._on_lost()

    # --- one transaction ---

    def _begin(self, batch: Batch) -> Output:
        if self._batch is not batch:
            raise FencepostError("the batch is not the newest: process each before the next one is taken")
        producer = self._its_producer()
        transaction = producer.transaction()
        transaction.__enter__()
        batch._transaction = transaction
        return Output(producer)

    def _end(self, batch: Batch, error: BaseException | None) -> bool:
        """Commit, or abort and rewind. Return whether the loop goes on, although the block or the commit failed."""
        self._member.enter()  # what follows is the server's time, not the program's
        try:
            return self._end_by(batch, error)
        finally:
            self._member.leave_to_program()

    def _end_by(self, batch: Batch, error: BaseException | None) -> bool:
        failure = error
        if error is None:
            try:
                batch._check_taken()
                self._commit(batch)
            except Exception as raised:  # noqa: BLE001 - judged below, and raised if nothing helps
                failure = raised
            except BaseException:
                self._abort(batch)
                self._rewind()
                raise
        if failure is None:
            return False
        failure = self._too_slow(batch, failure) or failure
        self._abort(batch)
        self._rewind()
        if self._goes_on(batch, failure, in_block=error is not None):
            return True
        if failure is not error:
            raise failure
        return False

    def _commit(self, batch: Batch) -> None:
        transaction = batch._transaction
        assert transaction is not None
        positions = {name: extent.stop for name, extent in batch._extents().items()}
        offsets = {**{name: at for name, at in self._passed.items() if name not in batch.partitions}, **positions}
        self._send_offsets(transaction, offsets)
        transaction.commit()
        self._failing_since = None
        for name in offsets:
            self._passed.pop(name, None)
        for name, position in positions.items():
            self._retries.done(name, position)

    def _send_offsets(self, transaction: ProducerTransaction, offsets: dict[TopicPartition, int]) -> None:
        """Add the offsets as this member. A rejected epoch may be outdated by an answer that is on its way."""
        member = self._member
        deadline = self._clock.monotonic() + self._settings.request_timeout
        while True:
            who = member.metadata(offsets)
            try:
                transaction.send_offsets(self._group, offsets, who)
                return
            except FencepostError as error:
                if error.code not in _EPOCH_IN_DOUBT or self._clock.monotonic() >= deadline:
                    raise
            member.check(offsets, max(LOOK, deadline - self._clock.monotonic()))

    def _abort(self, batch: Batch) -> None:
        transaction = batch._transaction
        try:
            if transaction is not None and transaction.is_open:
                transaction.abort()
        except FencepostError as error:
            log.info("aborting a transaction of %s: %s", self._name, error)

    def _rewind(self) -> None:
        self._rest.clear()
        self._passed.clear()
        self._reader.rewind()

    def _its_producer(self) -> Producer:
        """Return the producer; a new one if the coordinator has fenced it, as it does when a transaction times out."""
        producer = self._producer
        if producer is not None and producer._sender.fenced is not None:
            if self._is_static:
                self._member.check(())  # raises if another process uses the member's name
            log.warning("the transaction of %s was ended by the coordinator; claiming the name again", self._name)
            self._producer = None
            _close(producer)
            producer = None
        if producer is None:
            producer = Producer(self._settings, **self._with)
            try:
                producer.init_transactions()
            except BaseException:
                _close(producer)
                raise
            self._producer = producer
        return producer

    # --- failures ---

    def _too_slow(self, batch: Batch, failure: BaseException) -> TooSlow | None:
        """Return TooSlow if that is behind the failure: the server refuses what comes from a member that has left."""
        if isinstance(failure, FencepostError):
            try:
                self._member.check_held(batch.partitions)
            except TooSlow as slow:
                return slow
            except FencepostError:
                return None
        return None

    def _goes_on(self, batch: Batch, failure: BaseException, *, in_block: bool) -> bool:
        """Return whether to swallow the failure and hand the records out again."""
        if not isinstance(failure, Exception):
            return False
        is_slow = isinstance(failure, TooSlow)
        if not is_slow:
            if self._was_lost(batch, failure):
                log.info("%r was rolled back, because the group has moved a partition: %s", batch, failure)
                return True
            if not in_block and batch._done < len(batch._pieces):
                return False
            is_fenced = self._producer is not None and self._producer._sender.fenced is not None
            if is_fenced or (not in_block and _is_passing(failure)):
                return self._wait_for_server(f"{batch!r} was not committed and comes again", failure)
        # Whoever is too slow need not be at the record that took the time: halves find it.
        at = batch._working_on() if in_block and not is_slow else None
        decision = self._retries.failed(batch._extents(), at)
        if decision.verdict is Verdict.RAISE:
            return False
        log.warning("%r was rolled back and comes again: %s: %s", batch, type(failure).__name__, failure)
        if decision.verdict is Verdict.DEAD:
            name, offset = at or next((name, extent.start) for name, extent in batch._extents().items())
            self._deaths[name, offset] = failure
        elif decision.verdict is Verdict.RETRY:
            self._pause(decision.failures)
        return True

    def _was_lost(self, batch: Batch, failure: Exception) -> bool:
        if isinstance(failure, PartitionsLost) or (
            isinstance(failure, FencepostError) and failure.code in _EPOCH_IN_DOUBT
        ):
            return True
        try:
            self._member.check_held(batch.partitions)
        except TooSlow:
            return False
        except PartitionsLost:
            return True
        return False

    def _wait_for_server(self, what: str, failure: Exception) -> bool:
        now = self._clock.monotonic()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= self._patience:
            return False
        log.warning("%s: %s", what, failure)
        self._pause(1)
        return True

    def _pause(self, failures: int) -> None:
        pause = backoff(self._first_pause, _LONGEST_PAUSE, failures) if self._first_pause else 0.0
        self._pause_until = self._clock.monotonic() + pause

    def _bury(self, batch: Batch) -> None:
        """Set a record aside: into the dead-letter topic, and the position behind it, in one transaction."""
        assert self._dead_letter is not None
        self._batch = batch
        piece = batch._pieces[0]
        cause = self._deaths.get((piece.partition, piece.start))
        with batch as out:
            for record in batch:
                headers = [*record.headers, *self._why(record, cause)]
                time = accepted_time(record.timestamp)
                out.send(self._dead_letter, record.value, key=record.key, headers=headers, timestamp=time)
                log.warning("%s offset %d goes to %s: %s", piece.partition, record.offset, self._dead_letter, cause)
        if batch._transaction is not None:
            self._deaths.pop((piece.partition, piece.start), None)

    def _why(self, record: ReadRecord, cause: BaseException | None) -> list[tuple[str, bytes]]:
        said = "unknown" if cause is None else f"{type(cause).__name__}: {cause}"
        return [
            ("fencepost.topic", record.topic.encode()),
            ("fencepost.partition", str(record.partition).encode()),
            ("fencepost.offset", str(record.offset).encode()),
            ("fencepost.group", self._group.encode()),
            ("fencepost.error", said.encode(errors="replace")),
        ]

    def close(self) -> None:
        """Abort an open transaction, leave the group, and close."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._producer is not None:
                _close(self._producer)
        finally:
            self._reader.close()


def from_config(
    config: Mapping[str, object], group: str | None, start: Place | None, options: ProcessorKeywords
) -> tuple[ClientSettings, Any]:
    """Return the settings and the keywords for a processor."""
    from fencepost.client.cluster.config_names import processor_fields  # for weight: most programs never need it

    settings, reader, producer = processor_fields(config)
    named = {name: reader.pop(name) for name in list(reader) if name in ProcessorKeywords.__annotations__}
    if group is None and (group := reader.get("group")) is None:
        raise ConfigError("a Processor needs a group: group.id in the config, or group=…")
    reader.pop("group", None)
    begin = reader.pop("start", "earliest")
    named["start"] = begin if start is None else start
    further = {
        "reader": {**reader, **(options.get("reader") or {})},
        "producer": {**producer, **(options.get("producer") or {})},
    }
    return ClientSettings(**settings), {**named, **options, **further, "group": group}


def _forgiving() -> suppress:
    """Go on after TooSlow: no batch was open, or its block has raised it already."""
    return suppress(TooSlow)


def _close(producer: Producer) -> None:
    """Close a producer. What it has not sent was part of a transaction that is rolled back."""
    with suppress(FencepostError):
        producer.close(0)


def _is_passing(failure: Exception) -> bool:
    """Return whether the server may be the reason, and another attempt may succeed."""
    if not isinstance(failure, FencepostError):
        return False
    return (
        isinstance(failure, Unreachable | TimedOut | Fenced)
        or failure.retriable
        or failure.code in _ABORTABLE
        or getattr(failure, "persisted", "no") == "unknown"
    )


def _check_free(argument: str, given: Any, taken: frozenset[str]) -> None:
    for name in given:
        if name in taken:
            raise ConfigError(f"{argument}: {name!r} is set by the Processor itself")


def _nothing() -> None:
    """Do nothing."""
