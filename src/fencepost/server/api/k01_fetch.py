"""Fetch (1): record batches as they lie in the log, now or as soon as there are enough of them.

Versions 4 to 18. v7 brought fetch sessions, which are declined (every answer has session 0, and clients then name
their partitions each time), v12 is flexible, v13 names topics by id, v15 to v18 concern replicas.

Batches that are in the page cache are read on the loop; cold ones in a thread. `max_bytes` never keeps the first
batch back, or a reader could not get past one larger than its buffer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final, NamedTuple, TypeAlias

from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.kernel.header import Buffer, read_header, split_batches
from fencepost.log.files import WouldBlock
from fencepost.log.partition import PartitionLog
from fencepost.server.broker import Broker
from fencepost.server.guards import check_read
from fencepost.server.partition import Partition
from fencepost.server.router import Answer, Api, Request
from fencepost.types import Offset
from fencepost.wire.hot import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    decode_fetch_request,
    encode_fetch_response,
)

LEADER_EPOCH: Final = 0
_READ_COMMITTED: Final = 1
_LEAST_BYTES: Final = 64 * 1024
"""What one answer may have even while clients that do not read hold all the memory there is for answers."""


class _Wanted(NamedTuple):
    """A partition of the request, looked up."""

    ask: FetchPartition
    partition: Partition | None
    error: ErrorCode


class _View(NamedTuple):
    """What of a log may be seen at one moment: taken on the loop, because a thread that reads must not ask the log."""

    log: PartitionLog
    high_watermark: Offset
    last_stable_offset: Offset
    start_offset: Offset


def handle(broker: Broker, request: Request) -> Answer | Awaitable[Answer]:
    message = decode_fetch_request(request.version, request.message, request.body_at)
    if message.session_id != 0:
        refusal = FetchResponse([], error_code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return encode_fetch_response(request.version, refusal)
    wanted = [(topic, [_look_up(broker, topic, ask) for ask in topic.partitions]) for topic in message.topics]
    if all(row.partition is None or row.partition.log is not None for _, rows in wanted for row in rows):
        try:
            topics, size, failed = _read_all(broker, message, _look(broker, request, wanted), block=False)
        except WouldBlock:
            return _wait(broker, request, message, wanted)
        if size >= message.min_bytes or failed or message.max_wait_ms <= 0 or not message.topics:
            return encode_fetch_response(request.version, FetchResponse(topics))
    return _wait(broker, request, message, wanted)


async def _wait(
    broker: Broker, request: Request, message: FetchRequest, wanted: list[tuple[FetchTopic, list[_Wanted]]]
) -> Answer:
    """The long poll: reads again whenever one of the partitions has news, until there is enough or time is over."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + message.max_wait_ms / 1000
    partitions = [row.partition for _, rows in wanted for row in rows if row.partition is not None]
    for partition in partitions:
        try:
            await partition.open()
        except (FencepostError, OSError):
            continue  # the read below answers with the error
    while True:
        news: asyncio.Future[None] = loop.create_future()
        for partition in partitions:
            partition.add_waiter(news)
        try:
            views = _look(broker, request, wanted)
            try:
                topics, size, failed = _read_all(broker, message, views, block=False)
            except WouldBlock:
                topics, size, failed = await loop.run_in_executor(
                    broker.threads, partial(_read_all, broker, message, views, block=True)
                )
            left = deadline - loop.time()
            if size >= message.min_bytes or failed or left <= 0:
                return encode_fetch_response(request.version, FetchResponse(topics))
            await asyncio.wait((news,), timeout=left)
        finally:
            for partition in partitions:
                partition.remove_waiter(news)


def _look_up(broker: Broker, wanted: FetchTopic, ask: FetchPartition) -> _Wanted:
    if wanted.name is not None:
        topic = broker.topics.get(wanted.name)
        missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    else:
        topic = broker.topics.by_id(wanted.topic_id) if wanted.topic_id is not None else None
        missing = ErrorCode.UNKNOWN_TOPIC_ID
    if topic is None:
        return _Wanted(ask, None, missing)
    partition = topic.partition(ask.index)
    if partition is None:
        return _Wanted(ask, None, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return _Wanted(ask, partition, ErrorCode.NONE)


_Views: TypeAlias = list[tuple[FetchTopic, list[tuple[FetchPartition, _View | ErrorCode]]]]


def _look(broker: Broker, request: Request, wanted: list[tuple[FetchTopic, list[_Wanted]]]) -> _Views:
    return [(topic, [(row.ask, _view(broker, request, row)) for row in rows]) for topic, rows in wanted]


def _view(broker: Broker, request: Request, row: _Wanted) -> _View | ErrorCode:
    if row.partition is None:
        return row.error
    if row.partition.topic.deleted:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    log = row.partition.log
    if log is None:
        return ErrorCode.KAFKA_STORAGE_ERROR
    try:
        check_read(broker, request.connection, row.partition.topic, row.ask.index)
        _check_leader_epoch(row.ask.current_leader_epoch)
    except ServerError as error:
        return error.code
    return _View(log, log.high_watermark, log.last_stable_offset, log.start_offset)


def _read_all(
    broker: Broker, message: FetchRequest, views: _Views, *, block: bool
) -> tuple[list[FetchedTopic], int, bool]:
    """Answers for all partitions, the bytes of records in them, and whether one of them is an error."""
    room = max(broker.config.answer_memory - broker.unread_bytes, _LEAST_BYTES)
    left = min(message.max_bytes, broker.config.fetch_max_bytes, room)
    size, failed = 0, False
    topics: list[FetchedTopic] = []
    for topic, rows in views:
        answers: list[FetchedPartition] = []
        for ask, view in rows:
            if isinstance(view, ErrorCode):
                answers.append(FetchedPartition(ask.index, view))
                failed = True
                continue
            answer, taken = _read(ask, view, message, left, first=size == 0, block=block)
            size += taken
            left -= taken
            failed = failed or bool(answer.error_code)
            answers.append(answer)
        topics.append(FetchedTopic(topic.name, topic.topic_id, answers))
    return topics, size, failed


def _read(
    ask: FetchPartition, view: _View, message: FetchRequest, left: int, *, first: bool, block: bool
) -> tuple[FetchedPartition, int]:
    committed = message.isolation_level == _READ_COMMITTED
    upto = view.last_stable_offset if committed else view.high_watermark
    offset = Offset(ask.fetch_offset)
    error, records, taken = ErrorCode.NONE, list[Buffer](), 0
    try:
        if left > 0 or first:
            records = [*view.log.read(offset, min(ask.max_bytes, max(left, 0)), upto=upto, block=block)]
            taken = sum(map(len, records))
            if taken > left and not first:
                records, taken = [], 0
    except FencepostError as refusal:
        error = refusal.code
    aborted = _aborted(view, offset, records) if committed else None
    return (
        FetchedPartition(
            ask.index, error, view.high_watermark, view.last_stable_offset, view.start_offset, aborted, records
        ),
        taken,
    )


def _aborted(view: _View, offset: Offset, records: list[Buffer]) -> list[tuple[int, int]]:
    """(pid, first offset) of the aborted transactions that have records in what was read."""
    known = view.log.producers.aborted
    if not records or not len(known):
        return []
    *_, last = split_batches(records[-1])
    end = read_header(last).next_offset
    return [(entry.pid, entry.first_offset) for entry in known.between(offset, end)]


def _check_leader_epoch(given: int) -> None:
    """There has only ever been one leader; a client that knows of another comes from some other cluster."""
    if given > LEADER_EPOCH:
        raise ServerError(ErrorCode.UNKNOWN_LEADER_EPOCH)


API = Api(key=1, name="Fetch", versions=(4, 18), handle=handle, raw=True, waits=True)
