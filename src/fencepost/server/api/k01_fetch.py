"""Fetch (1): record batches as they are in the log, now or as soon as there are enough of them.

Versions 4 to 18. v7 adds fetch sessions (`core.fetch_sessions`), v12 is flexible, v13 names topics by id, v15 to v18
concern replicas.

Batches in the page cache are read on the loop; cold and very large ones in a thread. `max_bytes` never withholds the
first batch, because a reader could not get past one larger than its limit. If the answer memory has no room for the
first batch, the request waits in line for it. `min_bytes` is capped at the maximum size of an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

from fencepost.core.fetch_sessions import INITIAL_EPOCH
from fencepost.core.quotas import CONSUMER_BYTE_RATE
from fencepost.errors import ErrorCode, FencepostError, Malformed
from fencepost.kernel.header import Buffer
from fencepost.log.files import WouldBlock
from fencepost.log.reading import LargeBatch
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import refuse_severed
from fencepost.server.net.answer_memory import HeldBytes
from fencepost.server.net.router import Answer, Api, ApiRequest
from fencepost.server.storage.fetching import FetchContext, Key, NotOpen, Reading, untouched
from fencepost.types import MAX_TOPIC_NAME, Milliseconds
from fencepost.wire.hot import (
    FetchedPartition,
    FetchedTopic,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    decode_fetch_request,
    encode_fetch_response,
)

_TOPIC_IDS: Final = 13
_MAX_NARROW_BYTES: Final = 2 * 1024
"""A request up to this size has a few dozen partitions: it is handled in one piece, and may always wait."""
_NAP_SECONDS: Final = 0.5
"""Maximum wait of a wide request when too many wide requests wait already."""
_MAX_PARTITIONS_ON_LOOP: Final = 1000
"""Answers with up to this number of partitions are encoded on the loop."""

_Found: TypeAlias = dict[Key, FetchedPartition]


def handle(broker: Broker, request: ApiRequest) -> Answer | Awaitable[Answer]:
    if len(request.message) - request.body_at > _MAX_NARROW_BYTES:
        return _handle_wide(broker, request)
    message = decode_fetch_request(request.version, request.message, request.body_at)
    begun = _begin(broker, request, message)
    if isinstance(begun, ErrorCode):
        return _refusal(request, begun)
    context, full = begun
    for key, ask in _asked(message):
        context.want(broker, key, ask)
    for key in _forgotten(message):
        context.drop(key)
    if (code := _settle_session(broker, request, message, context, full=full)) is not ErrorCode.NONE:
        return _refusal(request, code)
    if context.id and not context.watches:
        context.watch()
    reading = Reading(broker, request, message, context, full=full)
    try:
        if broker.reading_turns.is_over or not reading.go_on():
            return _serve(broker, request, message, context, reading, full=full)
    except (WouldBlock, NotOpen, LargeBatch):
        return _serve(broker, request, message, context, reading, full=full)
    if (reading.is_enough or message.max_wait_ms <= 0 or not context.rows) and len(
        reading.found
    ) <= _MAX_PARTITIONS_ON_LOOP:
        reading.tell()
        throttle_ms = request.throttle_ms(CONSUMER_BYTE_RATE, reading.size)
        return _encode(request.version, context.id, reading.found, throttle_ms)
    return _serve(broker, request, message, context, reading, full=full)


async def _handle_wide(broker: Broker, request: ApiRequest) -> Answer:
    """Handle a request with many partitions in pieces. If too many such requests wait already, wait only briefly and
    keep only the request itself."""
    answer = await _try_wide(broker, request, may_wait=True)
    if answer is None:
        await asyncio.sleep(_NAP_SECONDS)
        answer = await _try_wide(broker, request, may_wait=False)
    return answer


async def _try_wide(broker: Broker, request: ApiRequest, *, may_wait: bool) -> Answer:
    """Answer a wide request, or return None if it would have to wait but too many wait already."""
    decode = partial(decode_fetch_request, request.version, request.message, request.body_at)
    is_large = broker.codecs.is_large_request(len(request.message))
    message = await broker.codecs.run(decode) if is_large else decode()
    if not may_wait:
        message = message._replace(max_wait_ms=0, session_id=0, session_epoch=-1)
    _check_connection(request)
    begun = _begin(broker, request, message)
    if isinstance(begun, ErrorCode):
        return _refusal(request, begun)
    context, full = begun
    async for key, ask in broker.reading_turns.paced(_asked(message)):
        context.want(broker, key, ask)
    async for key in broker.reading_turns.paced(_forgotten(message)):
        context.drop(key)
    if (code := _settle_session(broker, request, message, context, full=full)) is not ErrorCode.NONE:
        return _refusal(request, code)
    if context.id and not context.watches:
        await context.watch_in_pieces(broker)
    rows = len(context.rows)
    if context.id or message.max_wait_ms <= 0:
        return await _serve(broker, request, message, context, None, full=full)
    if broker.fetch_sessions.reserve(rows):
        try:
            return await _serve(broker, request, message, context, None, full=full)
        finally:
            broker.fetch_sessions.unreserve(rows)
    reading = Reading(broker, request, message, context, full=full)
    with broker.answers.holding() as held:
        await _read(broker, reading, held)
        return await _answer(broker, request, context, reading, full=full) if reading.is_enough else None


def _check_connection(request: ApiRequest) -> None:
    if request.connection.closed:
        raise Malformed("the client disconnected before its request was decoded")
    refuse_severed(request.connection)


def _begin(broker: Broker, request: ApiRequest, message: FetchRequest) -> tuple[FetchContext, bool] | ErrorCode:
    """Return the fetch context of the request, and whether the answer must contain all partitions; or an error."""
    by_id = request.version >= _TOPIC_IDS
    judged = broker.fetch_sessions.judge(
        message.session_id, message.session_epoch, request.connection, broker.clock.monotonic(), by_id=by_id
    )
    if isinstance(judged, ErrorCode):
        return judged
    context = FetchContext(by_id=by_id) if judged is None else judged
    context.isolate(message.isolation_level)
    return context, judged is None


def _asked(message: FetchRequest) -> Iterator[tuple[Key, FetchPartition]]:
    """Yield the requested partitions. Of one that is named twice, the last entry counts."""
    for topic in message.topics:
        name = topic.name if topic.name is not None else topic.topic_id
        if isinstance(name, str) and len(name) > MAX_TOPIC_NAME:
            raise Malformed(f"a topic's name must have at most {MAX_TOPIC_NAME} characters, not {len(name)}")
        for ask in topic.partitions:
            yield (name, ask.index), ask


def _forgotten(message: FetchRequest) -> Iterator[Key]:
    """Yield the partitions that the client no longer reads."""
    for topic in message.forgotten:
        name = topic.name if topic.name is not None else topic.topic_id
        for index in topic.partitions:
            yield name, index


def _settle_session(
    broker: Broker, request: ApiRequest, message: FetchRequest, context: FetchContext, *, full: bool
) -> ErrorCode:
    """Begin the session if the request asks for a new one, or check that it may continue with its new size."""
    sessions = broker.fetch_sessions
    if full:
        if message.session_epoch == INITIAL_EPOCH:
            sessions.begin(context, request.connection, broker.clock.monotonic())
        return ErrorCode.NONE
    if not (message.topics or message.forgotten) or sessions.resized(context):
        return ErrorCode.NONE
    if context.rows:
        return ErrorCode.FETCH_SESSION_ID_NOT_FOUND  # the session is too large, so the client goes on without one
    context.id = 0
    return ErrorCode.NONE


async def _serve(
    broker: Broker,
    request: ApiRequest,
    message: FetchRequest,
    context: FetchContext,
    reading: Reading | None,
    *,
    full: bool,
) -> Answer:
    """Read, wait and read again, until there is enough or the time is over. `reading`: a pass already begun."""
    loop = asyncio.get_running_loop()
    # No longer than the login: the client chooses how long it waits, and would read on with an expired token.
    deadline = loop.time() + request.session.within_login(message.max_wait_ms / 1000, broker.clock.monotonic())
    watched = context.watches
    size = -1
    # The context has all that is needed, and a waiting request must not keep its frame in memory.
    request = request._replace(message=None)
    message = message._replace(topics=[], forgotten=(), rack_id="")
    try:
        while True:
            reading = reading or Reading(broker, request, message, context, full=full)
            with broker.answers.holding() as held:
                await _read(broker, reading, held)
                left = deadline - loop.time()
                # If the size is the same although new records arrived, no more fits into an answer.
                is_enough = reading.is_enough or 0 < reading.size == size
                if is_enough or left <= 0 or context.ended or not context.rows:
                    return await _answer(broker, request, context, reading, full=full)
            size, missing = reading.size, reading.missing_bytes
            reading = None  # release the records
            request.connection.release_request()
            if not context.watches:
                await context.watch_in_pieces(broker)
            await context.news(missing, max(deadline - loop.time(), 0))
    finally:
        if not watched:
            context.unwatch(broker)


async def _read(broker: Broker, reading: Reading, held: HeldBytes) -> None:
    """Complete a pass over the due rows."""
    while True:
        large = 0
        await broker.reading_turns()
        try:
            is_through = reading.go_on()
            held.set(reading.size)
            if is_through:
                return
            continue
        except NotOpen:
            await _open(reading)
            continue
        except WouldBlock:
            pass
        except LargeBatch as batch:
            large = batch.size
        await _read_in_thread(broker, reading, held, large)


async def _open(reading: Reading) -> None:
    partition = reading.row.partition
    if partition is not None:
        with suppress(FencepostError, OSError):  # the pass adds the error to the answer
            await partition.open()
    reading.was_opened()


async def _read_in_thread(broker: Broker, reading: Reading, held: HeldBytes, large: int) -> None:
    """Read the next row in a thread, after reserving memory for a first batch of `large` bytes."""
    row = reading.row
    while True:
        held.set(reading.size)
        if large:
            await held.reserve(large)
            reading.has_room_for(large)
        else:
            held.set(reading.size + max(min(row.ask.max_bytes, reading.left), 0))
        try:
            seen = reading.look(row)
        except NotOpen:
            return  # the log was closed in the meantime
        if isinstance(seen, ErrorCode):
            return  # the pass will find the same error
        log, offsets, upto = seen
        read = partial(reading.read, row, log, upto, block=True)
        try:
            records = await asyncio.get_running_loop().run_in_executor(broker.threads, read)
        except LargeBatch as batch:
            large = batch.size
            continue
        except FencepostError as refusal:
            reading.fail(row, offsets, refusal.code)
        else:
            reading.take(row, offsets, records)
        held.set(reading.size)
        return


async def _answer(
    broker: Broker, request: ApiRequest, context: FetchContext, reading: Reading, *, full: bool
) -> list[Buffer]:
    await reading.tell_in_pieces()
    found = reading.found
    if full and len(found) < len(context.rows):
        everything: _Found = {}
        async for key, row in broker.reading_turns.paced(context.rows.items()):
            everything[key] = found.get(key) or untouched(row, context.isolation_level)
        found = everything
    session_id = 0 if context.ended else context.id
    throttle_ms = request.throttle_ms(CONSUMER_BYTE_RATE, reading.size)
    if len(found) <= _MAX_PARTITIONS_ON_LOOP:
        return _encode(request.version, session_id, found, throttle_ms)
    return await broker.codecs.run(partial(_encode, request.version, session_id, found, throttle_ms))


def _encode(version: int, session_id: int, found: _Found, throttle_ms: Milliseconds) -> list[Buffer]:
    topics: dict[str | UUID | None, list[FetchedPartition]] = {}
    for (name, _), row in found.items():
        topics.setdefault(name, []).append(row)
    answer = [
        FetchedTopic(name, None, rows) if isinstance(name, str) else FetchedTopic(None, name, rows)
        for name, rows in topics.items()
    ]
    return encode_fetch_response(version, FetchResponse(answer, throttle_ms, session_id=session_id))


def _refusal(request: ApiRequest, code: ErrorCode) -> list[Buffer]:
    return encode_fetch_response(request.version, FetchResponse([], error_code=code))


API = Api(key=1, name="Fetch", versions=(4, 18), handle=handle, raw=True, waits=True)
