"""Produce (0): append one record batch per partition, at most once each (IDEM-2).

Versions 3 to 13. v7 allows zstd, v8 adds an error message per partition, v9 is flexible, v13 names topics by id.
Versions 0 to 2 are advertised but not supported, as in Kafka 4: without them librdkafka does not compress.

The batch stays as it is: the server verifies its header, size and checksum, scans the records without creating objects
(`server/storage/validation.py`), judges (pid, epoch, sequence) in the partition, and stamps the offset.

With `--sync always` the answer waits for the shared sync, while the connection continues with its next request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Final

from fencepost.core.producers.dedup import Accept, BatchVerdict, Conflict, Duplicate, Forgotten, StaleEpoch, Unknown
from fencepost.core.producers.pid import Identity
from fencepost.core.quotas import PRODUCER_BYTE_RATE
from fencepost.core.security.access import TOPIC_WRITE, TRANSACTIONAL_ID_WRITE
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.kernel import Record, Scan, decode_batch, read_header
from fencepost.kernel.header import DELETE_HORIZON, BatchHeader, Buffer, check_batch, is_transactional
from fencepost.log.partition import PartitionLog
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import StaleRequest, check_write
from fencepost.server.net.router import NOT_AUTHORIZED, Answer, Api, ApiRequest, Deferred
from fencepost.server.storage.partition import Partition
from fencepost.server.storage.syncer import MAX_PARTITIONS_OF_NEXT_ROUND
from fencepost.server.storage.validation import Scans
from fencepost.types import Milliseconds, Offset
from fencepost.wire.hot import (
    ProducedPartition,
    ProducedTopic,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    decode_produce_request,
    encode_produce_response,
)

logger = logging.getLogger(__name__)

OUR_CLIENT: Final = "fencepost"
_FIRST_VERSION_WITH_ZSTD: Final = 7
_FIRST_VERSION_WITH_ABORTABLE: Final = 11
_ZSTD: Final = 4
_LAST_CODEC: Final = 4
_MOST_NAMED: Final = 10_000
"""Records of a request that are decoded to name the bad ones. librdkafka's largest batch has so many."""
_MOST_NAMED_BYTES: Final = 1 << 20


class _BadRecords(ServerError):
    """A batch that is rejected for some of its records; clients fail only those for good (KIP-467)."""

    def __init__(self, code: ErrorCode, message: str, scan: Scan, is_bad: Callable[[Record], bool]) -> None:
        super().__init__(code, message)
        self.scan = scan
        self.is_bad = is_bad


class _Outcome:
    """The result for one partition's batch; final only when the log says that the batch is durable."""

    __slots__ = ("answer", "log", "needs", "partition")

    def __init__(self, answer: ProducedPartition) -> None:
        self.answer = answer
        self.partition: Partition | None = None
        self.log: PartitionLog | None = None
        self.needs = Offset(-1)
        """The high watermark at which the batch is durable."""


def handle(broker: Broker, request: ApiRequest) -> Answer | Awaitable[Answer]:
    message = decode_produce_request(request.version, request.message, request.body_at)
    closed, batches = _closed_and_unchecked(broker, request, message)
    scans = broker.validation.prepare(batches)
    if closed or not isinstance(scans, dict):
        ended = broker.transactions.ended(message.transactional_id)
        return _prepare(broker, request, message, closed, scans, ended)
    return _produce(broker, request, message, scans)


def _may_write_in_transaction(request: ApiRequest, message: ProduceRequest) -> bool:
    """Tell if the client may use the transactional id. As in Kafka it counts only if a batch is transactional."""
    if message.transactional_id is not None and request.sees(TRANSACTIONAL_ID_WRITE, message.transactional_id):
        return True
    if not request.connection.authorizer.enabled or not any(
        records is not None and is_transactional(records) for topic in message.topics for _, records in topic.partitions
    ):
        return True
    request.connection.denied(request.key, TRANSACTIONAL_ID_WRITE, message.transactional_id or "")
    return False


def _topic_name(broker: Broker, topic: ProduceTopic) -> str | None:
    if topic.name is not None:
        return topic.name
    found = broker.topics.by_id(topic.topic_id)
    return found.name if found is not None else None


def _closed_and_unchecked(
    broker: Broker, request: ApiRequest, message: ProduceRequest
) -> tuple[list[Partition], list[memoryview]]:
    """Return the partitions to open first, and the batches whose records must be checked."""
    closed: list[Partition] = []
    batches: list[memoryview] = []
    for wanted in message.topics:
        name = _topic_name(broker, wanted)
        topic = broker.topics.get(name) if name is not None else None
        if topic is not None and request.sees(TOPIC_WRITE, topic.name):
            for index, records in wanted.partitions:
                partition = topic.partition(index)
                if partition is not None and not partition.ready_to_write():
                    closed.append(partition)
                if (
                    records is not None
                    and partition is not None
                    and (topic.checks_records or topic.is_compacted)
                    and len(records) <= topic.log_config.max_message_bytes
                ):
                    batches.append(records)
    return closed, batches


async def _prepare(
    broker: Broker,
    request: ApiRequest,
    message: ProduceRequest,
    closed: list[Partition],
    scans: Scans | Awaitable[Scans],
    ended: int,
) -> Answer:
    for partition in closed:
        try:
            await partition.open_to_write()
        except (FencepostError, OSError) as error:
            logger.warning("cannot open %s: %s", partition.name, error)
    found = scans if isinstance(scans, dict) else await scans
    # Hundreds of requests may be ready at the same moment, and the first batch of a log makes its files.
    await broker.opening_turns()
    _check_not_ended(broker, message, ended)
    began = perf_counter()
    answer = _produce(broker, request, message, found)
    broker.opening_turns.spend(perf_counter() - began)
    return await answer if isinstance(answer, Awaitable) else answer


def _check_not_ended(broker: Broker, message: ProduceRequest, ended: int) -> None:
    """Raise if the request's transaction has ended meanwhile. A batch does not name its transaction, only its epoch,
    and another transaction may be open by now."""
    if broker.transactions.ended(message.transactional_id) != ended:
        raise StaleRequest(f"the transaction of {message.transactional_id!r} ended before this request was handled")


def _produce(broker: Broker, request: ApiRequest, message: ProduceRequest, scans: Scans) -> Answer | Awaitable[Answer]:
    outcomes = _Outcomes(broker, request, message, scans)
    if len(message.topics) == 1 and len(message.topics[0].partitions) == 1:
        outcomes.append(outcomes.begin(message.topics[0]), *message.topics[0].partitions[0])
        return outcomes.answer()
    steps = _steps(outcomes)
    if not _is_cut(outcomes, steps):
        return outcomes.answer()
    outcomes.publish()
    return _rest(outcomes, steps)


def _steps(outcomes: _Outcomes) -> Iterator[None]:
    """Append the batches, and stop behind each."""
    for topic in outcomes.message.topics:
        rows = outcomes.begin(topic)
        for index, records in topic.partitions:
            outcomes.append(rows, index, records)
            yield


def _is_cut(outcomes: _Outcomes, steps: Iterator[None]) -> bool:
    """Append batches until the connection's turn is over; return False if all are appended."""
    return any(outcomes.turn.is_long() for _ in steps)


async def _rest(outcomes: _Outcomes, steps: Iterator[None]) -> Answer:
    """Let others go first, append further batches for a turn, and so on."""
    while True:
        await asyncio.sleep(0)
        outcomes.turn.begin()
        outcomes.resume()
        if not _is_cut(outcomes, steps):
            return outcomes.answer()
        outcomes.publish()


class _Outcomes:
    """The outcomes of a request, batch by batch."""

    __slots__ = (
        "_broker",
        "_ended",
        "_name",
        "_ours",
        "_reason",
        "_refusal",
        "_request",
        "_rows",
        "_scans",
        "_synced",
        "_to_name",
        "_topic",
        "_touched",
        "_whole",
        "_wide",
        "message",
        "turn",
    )

    def __init__(self, broker: Broker, request: ApiRequest, message: ProduceRequest, scans: Scans) -> None:
        self._broker = broker
        self._scans = scans
        self._request = request
        self.message = message
        self.turn = request.connection.turn
        self._ours = request.connection.software_name == OUR_CLIENT
        self._ended = broker.transactions.ended(message.transactional_id)
        self._topic: ProduceTopic | None = None
        self._name: str | None = None
        """Of the current topic."""
        may = _may_write_in_transaction(request, message)
        self._whole = ErrorCode.NONE if may else TRANSACTIONAL_ID_WRITE.refusal
        """The client may not write in this transaction."""
        self._refusal = self._whole
        """The client may not write in this transaction, or not to the current topic."""
        self._reason = request.refusal(TRANSACTIONAL_ID_WRITE, message.transactional_id or "")
        self._rows: list[tuple[ProduceTopic, list[_Outcome]]] = []
        self._touched: list[Partition] = []
        """Partitions with appends since the last `publish`."""
        self._synced: asyncio.Future[None] | None = None
        """The sync that covers everything published, if answers wait for one."""
        self._to_name = _MOST_NAMED
        self._wide = sum(len(topic.partitions) for topic in message.topics) > MAX_PARTITIONS_OF_NEXT_ROUND

    def begin(self, topic: ProduceTopic) -> list[_Outcome]:
        """Continue with this topic, and return the list for the outcomes of its batches."""
        self._topic = topic
        self._name = _topic_name(self._broker, topic)
        self._refusal = self._whole
        if not self._whole and self._name is not None and not self._request.may(TOPIC_WRITE, self._name):
            self._refusal = TOPIC_WRITE.refusal
            # A client that knows only the topic's id does not hear its name.
            self._reason = self._request.refusal(TOPIC_WRITE, self._name) if topic.name else NOT_AUTHORIZED
        rows: list[_Outcome] = []
        self._rows.append((topic, rows))
        return rows

    def append(self, rows: list[_Outcome], index: int, records: memoryview | None) -> None:
        name, message = self._name, self.message
        if self._refusal is not ErrorCode.NONE:
            outcome = _refused(index, self._refusal, self._reason)
        elif name is None:
            outcome = _refused(index, ErrorCode.UNKNOWN_TOPIC_ID, "no topic has this id")
        elif message.acks not in (-1, 0, 1):
            outcome = _refused(index, ErrorCode.INVALID_REQUIRED_ACKS, f"acks must be 0, 1 or -1, not {message.acks}")
        else:
            try:
                outcome = _append(
                    self._broker,
                    self._request,
                    message.transactional_id,
                    name,
                    index,
                    records,
                    self._scans,
                    ours=self._ours,
                )
            except FencepostError as error:
                named = self._name_records(records, error) if isinstance(error, _BadRecords) else ()
                outcome = _refused(index, error.code, error.reason, record_errors=named)
                # The ACLs were checked above, so this is the refusal of a guard.
                if error.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    self._note_not_owner(name, index)
        if outcome.answer.error_code:
            self._broker.counters.refused[ErrorCode.of(outcome.answer.error_code).name] += 1
        if outcome.partition is not None:
            self._touched.append(outcome.partition)
        rows.append(outcome)

    def _name_records(self, records: memoryview | None, error: _BadRecords) -> list[tuple[int, str | None]]:
        """Return the index of each bad record, with the reason; none if that would take the loop too long."""
        assert records is not None
        count = read_header(records).count
        if count > self._to_name or error.scan.size > _MOST_NAMED_BYTES:
            return []
        self._to_name -= count
        decoded = decode_batch(records, check=False, max_bytes=_MOST_NAMED_BYTES)
        return [(number, error.reason) for number, record in enumerate(decoded) if error.is_bad(record)]

    def _note_not_owner(self, topic: str, index: int) -> None:
        """Count a batch that a guard has refused."""
        self._broker.counters.fenced_by_owner += 1
        guarded = self._broker.topics.get(topic)
        if guarded is not None and guarded.writer_group:
            takeovers = self._broker.owners.takeovers
            takeovers.refused(guarded.writer_group, f"{topic}-{index}", self._request.connection)

    def resume(self) -> None:
        """Look again at what `append` does not check for every batch, because others may have had their turn: raise
        StaleRequest if the transaction has ended, and find out whether the topic still has its id."""
        _check_not_ended(self._broker, self.message, self._ended)
        if self._topic is not None and self._topic.name is None:
            self._name = _topic_name(self._broker, self._topic)

    def publish(self) -> None:
        """Start to sync the appended batches, or show them to readers, before others get their turn: a new owner that
        takes over between two pieces of a request waits for them (OWN-9)."""
        touched, self._touched = self._touched, []
        if not touched:
            return
        if self._broker.config.sync == "always":
            syncer = self._broker.syncer
            self._synced = syncer.join_wide(touched) if self._wide else syncer.join(touched, self._request.connection)
            return
        for partition in touched:
            if partition.log is not None:
                partition.advance(partition.log.end_offset)

    def answer(self) -> Answer:
        self.publish()
        throttle_ms = self._request.throttle_ms(PRODUCER_BYTE_RATE, len(self._request.message))
        finish = partial(_finish, self._request.version, self._rows, throttle_ms)
        if self._synced is None:
            return _answer_now(self._request, self.message, self._rows, finish)
        return None if self.message.acks == 0 else Deferred(self._synced, finish)


def _answer_now(
    request: ApiRequest,
    message: ProduceRequest,
    outcomes: list[tuple[ProduceTopic, list[_Outcome]]],
    finish: partial[list[Buffer]],
) -> Answer:
    if message.acks != 0:
        return finish()
    if any(outcome.answer.error_code for _, rows in outcomes for outcome in rows):
        # With acks=0 there is no answer, so closing the connection is the only way to report an error, as in Kafka.
        request.connection.close()
    return None


def _append(
    broker: Broker,
    request: ApiRequest,
    transactional_id: str | None,
    topic: str,
    index: int,
    records: memoryview | None,
    scans: Scans,
    *,
    ours: bool,
) -> _Outcome:
    partition = broker.partition(topic, index)
    by_id = bool(partition.topic.writer_ids)
    if not by_id:
        check_write(broker, request.connection, partition.topic, index)
    header = _check(partition, records, request.version)
    assert records is not None
    if by_id:  # check the id that the pid belongs to, whatever the request says; its epoch is checked below
        name = broker.transactions.name_of(header.pid)
        check_write(broker, request.connection, partition.topic, index, name)
    scan = _scan(broker, partition, records, header, scans)
    if header.pid >= 0 and (header.is_transactional or broker.transactions.has_named(header.pid)):
        _check_transaction(broker, request, transactional_id, partition, header)
    now = broker.clock.now_ms()
    if not partition.topic.log_config.append_time:
        _check_time(partition, header, scan, now)
    if header.pid >= 0 and partition.log is not None and partition.log.producers.get(header.pid) is None:
        broker.producers.check_new()
    verdict, offset = partition.append(records, header, now)
    log = partition.log
    assert log is not None
    if isinstance(verdict, Accept):
        time = now if partition.topic.log_config.append_time else -1
        outcome = _Outcome(ProducedPartition(index, 0, offset, time, log.start_offset))
        outcome.needs = Offset(offset + header.count)
    elif isinstance(verdict, Duplicate):
        broker.counters.duplicates += 1
        log.producers.note_duplicate(header.pid)
        time = verdict.timestamp if partition.topic.log_config.append_time else -1
        outcome = _Outcome(ProducedPartition(index, 0, verdict.base_offset, time, log.start_offset))
        outcome.needs = Offset(verdict.base_offset + header.count)
    else:
        broker.counters.fenced_by_epoch += isinstance(verdict, StaleEpoch)
        return _refused(index, *_refusal(partition, header, verdict, ours=ours), log.start_offset)
    outcome.partition, outcome.log = partition, log
    return outcome


def _refusal(partition: Partition, header: BatchHeader, verdict: BatchVerdict, *, ours: bool) -> tuple[ErrorCode, str]:
    who = f"{partition.name}: pid {header.pid}, epoch {header.epoch}, sequence {header.base_sequence}"
    if isinstance(verdict, StaleEpoch):
        return ErrorCode.INVALID_PRODUCER_EPOCH, f"{who}: fenced by epoch {verdict.current_epoch}"
    if isinstance(verdict, Conflict):
        # A client that reuses sequences has lost track of them. On this code other clients continue with a new epoch:
        # librdkafka, Java and kafka-python write the records again, or abort the transaction. Kafka acknowledges such
        # a batch and does not store it.
        reason = f"{who}: already in the log with other bytes, or in an earlier transaction"
        logger.warning("%s; rejected", reason)
        return ErrorCode.INVALID_RECORD if ours else ErrorCode.UNKNOWN_PRODUCER_ID, reason
    if isinstance(verdict, Unknown):
        return ErrorCode.UNKNOWN_PRODUCER_ID, f"{who}: this pid has never written here, expected sequence 0"
    if isinstance(verdict, Forgotten):
        # Other clients treat DUPLICATE_SEQUENCE_NUMBER as success and would report an offset that they do not have.
        code = ErrorCode.DUPLICATE_SEQUENCE_NUMBER if ours else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        return code, f"{who}: already in the log, but its offset is no longer remembered"
    expected = getattr(verdict, "expected", None)
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, f"{who}: expected sequence {expected}"


def _check(partition: Partition, records: memoryview | None, version: int) -> BatchHeader:
    """Check the form of the batch and return its header."""
    if records is None or not len(records):
        raise ServerError(ErrorCode.INVALID_RECORD, "the record batch is missing")
    header = check_batch(records)
    if header.size != len(records):
        raise ServerError(ErrorCode.INVALID_RECORD, "there must be exactly one record batch per partition")
    config = partition.topic.log_config
    if header.size > config.max_message_bytes:
        raise ServerError(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"batch of {header.size} bytes is larger than max.message.bytes={config.max_message_bytes}",
        )
    if header.count < 1 or header.count != header.last_offset_delta + 1:
        raise ServerError(
            ErrorCode.INVALID_RECORD,
            f"the batch has {header.count} records but a last offset delta of {header.last_offset_delta}",
        )
    if header.is_control:
        raise ServerError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    if header.codec > _LAST_CODEC or (header.codec == _ZSTD and version < _FIRST_VERSION_WITH_ZSTD):
        raise ServerError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.codec} is not supported in v{version}"
        )
    if header.pid >= 0 and header.epoch < 0:
        raise ServerError(ErrorCode.INVALID_PRODUCER_EPOCH, "a batch with a pid must have an epoch")
    if header.pid >= 0 and header.base_sequence < 0:
        raise ServerError(ErrorCode.INVALID_RECORD, "a batch with a pid must have a sequence")
    if header.attributes & DELETE_HORIZON:
        raise ServerError(ErrorCode.INVALID_RECORD, "clients may not set a delete horizon; only compaction does")
    return header


def _scan(broker: Broker, partition: Partition, records: memoryview, header: BatchHeader, scans: Scans) -> Scan | None:
    """Return the scan of the batch; None if its topic does not check records."""
    if not partition.topic.checks_records and not partition.topic.is_compacted:
        return None
    scan = broker.validation.scan_here(records, header, scans)
    if scan.keyless and partition.topic.is_compacted:
        message = "a record for a compacted topic must have a key"
        raise _BadRecords(ErrorCode.INVALID_RECORD, message, scan, lambda record: record.key is None)
    return scan


def _check_time(partition: Partition, header: BatchHeader, scan: Scan | None, now: Milliseconds) -> None:
    """Check the timestamps of all records; of the header, if the topic does not check records."""
    before, after = partition.topic.timestamp_slack
    earliest = header.base_timestamp if scan is None else scan.earliest
    latest = header.max_timestamp if scan is None else max(scan.latest, header.max_timestamp)
    if latest - now > after or (earliest >= 0 and now - earliest > before):
        message = f"timestamps from {earliest} to {latest} are too far from the server's time, {now}"
        if scan is None:
            raise ServerError(ErrorCode.INVALID_TIMESTAMP, message)

        def is_bad(record: Record) -> bool:
            return record.timestamp - now > after or 0 <= record.timestamp < now - before

        raise _BadRecords(ErrorCode.INVALID_TIMESTAMP, message, scan, is_bad)


def _check_transaction(
    broker: Broker, request: ApiRequest, transactional_id: str | None, partition: Partition, header: BatchHeader
) -> None:
    """Raise unless the current producer writes the batch within its open transaction, or outside of any."""
    who = Identity(header.pid, header.epoch)
    if header.is_transactional:
        error = broker.transactions.judge_write(transactional_id, who, partition.name, request.connection)
        if error is ErrorCode.INVALID_PRODUCER_EPOCH:
            _note_zombie(broker, request, transactional_id, who)
    else:
        # The request need not name the id, and pids can be guessed: whoever uses the pid of an id needs its permission.
        name = broker.transactions.name_of(header.pid)
        if name is not None:
            request.require(TRANSACTIONAL_ID_WRITE, name)
        error = broker.transactions.judge_plain_write(who, partition.name)
    if error is ErrorCode.NONE:
        return
    if error is ErrorCode.INVALID_TXN_STATE and request.version >= _FIRST_VERSION_WITH_ABORTABLE:
        error = ErrorCode.TRANSACTION_ABORTABLE
    raise ServerError(
        error, f"{partition.name}: pid {header.pid}, epoch {header.epoch} has no open transaction with this partition"
    )


def _note_zombie(broker: Broker, request: ApiRequest, transactional_id: str | None, who: Identity) -> None:
    """Remember a write whose epoch is too old, for the page of sinks."""
    known = broker.transactions.get(transactional_id) if transactional_id is not None else None
    if known is not None:
        connection = request.connection
        now = broker.clock.now_ms()
        broker.fenced_writes.note(known.name, who, known.identity, now, connection.peer, request.client_id or "")


def _refused(
    index: int,
    code: ErrorCode,
    message: str,
    log_start_offset: int = -1,
    record_errors: Sequence[tuple[int, str | None]] = (),
) -> _Outcome:
    """Return an error. On UNKNOWN_PRODUCER_ID clients need the log's start offset; without it they only retry."""
    return _Outcome(ProducedPartition(index, code, -1, -1, log_start_offset, message, record_errors))


def _finish(
    version: int, outcomes: list[tuple[ProduceTopic, list[_Outcome]]], throttle_ms: Milliseconds
) -> list[Buffer]:
    topics = [
        ProducedTopic(topic.name, topic.topic_id, [_settled(outcome) for outcome in rows]) for topic, rows in outcomes
    ]
    return [encode_produce_response(version, ProduceResponse(topics, throttle_ms))]


def _settled(outcome: _Outcome) -> ProducedPartition:
    if outcome.log is not None and outcome.log.high_watermark < outcome.needs:
        reason = f"cannot sync the log: {outcome.log.failed}"
        return ProducedPartition(outcome.answer.index, ErrorCode.KAFKA_STORAGE_ERROR, error_message=reason)
    return outcome.answer


API = Api(key=0, name="Produce", versions=(3, 13), handle=handle, raw=True, most_bytes=2**31 - 1, advertise_from=0)
