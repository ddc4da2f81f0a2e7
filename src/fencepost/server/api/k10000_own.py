"""Own (10000): claim resources for this connection, wait for them, or release them (OWN-1 to OWN-9).

fencepost's own API. Version 1 names the field `resource`, makes the group optional and returns it. A claim of several
resources is granted as a whole or refused, and a refusal names the resources with their current generations. With
`wait_ms` the claim severs nobody and waits until all resources are free. With `session_ms` an owner that is silent for
longer is severed; a claim that waits has no session yet. `release` is carried out first.

A claim of a few resources is judged as soon as it is read, and not in the loop's next turn: an owner that floods makes
turns long, and it is severed by the judgement.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from fencepost.core.own.claim_request import DEFAULT_GROUP, MAX_NAME_CHARACTERS, MAX_RESOURCES_PER_OWNER
from fencepost.core.own.ownership import ClaimedResource, Granted, Judgement, OwnedResource
from fencepost.core.security.access import GROUP_READ, TOPIC_READ, TOPIC_WRITE
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.server.broker import Broker
from fencepost.server.coordinators.guards import refuse_severed
from fencepost.server.net.router import Api, ApiRequest, Fields
from fencepost.server.net.turns import paced
from fencepost.types import Generation, Milliseconds, partition_named
from fencepost.wire.own import UNSET_TOKEN

if TYPE_CHECKING:
    from fencepost.server.net.connection import Connection

_MAX_RESOURCES_JUDGED_AT_ONCE: Final = 20
"""Resources of a claim that is judged as soon as it is read."""
_RESOURCES_PER_PIECE: Final = 500
"""Resources that are released in one piece."""


def handle(broker: Broker, request: ApiRequest) -> Fields | Awaitable[Fields]:
    message = request.message
    if message.wait_ms or message.release or len(message.resources) > _MAX_RESOURCES_JUDGED_AT_ONCE:
        return _handle_in_pieces(broker, request)
    group, connection = _group(request), request.connection
    try:
        claimed: dict[str, ClaimedResource] = {}
        _check_group(request, group)
        for resource in message.resources:
            _check_resource(broker, request, resource, claimed)
        _check_count(broker, request, group, claimed)
        refuse_severed(connection)
        judged, durable = broker.owners.claim_now(connection, group, list(claimed.values()))
    except FencepostError as error:
        return _refused(group, error)
    if durable:
        return _handle_rest(broker, request, group, judged, durable)
    _begin_session(broker, request.connection, message.session_ms, judged)
    return _answer(group, judged, [_row(judged, row) for row in judged.rows])


async def _handle_rest(
    broker: Broker, request: ApiRequest, group: str, judged: Judgement[Connection], durable: Sequence[Awaitable[Any]]
) -> Fields:
    """Answer when the grant is durable."""
    try:
        await broker.owners.when_durable(request.connection, group, judged, durable)
        _begin_session(broker, request.connection, request.message.session_ms, judged)
    except FencepostError as error:
        return _refused(group, error)
    return _answer(group, judged, [_row(judged, row) for row in judged.rows])


async def _handle_in_pieces(broker: Broker, request: ApiRequest) -> Fields:
    message, connection = request.message, request.connection
    wait_ms, session_ms = message.wait_ms, message.session_ms
    group = _group(request)
    try:
        claimed = await _check(broker, request, group)
        async for names in paced(_slices(message.release)):
            broker.owners.release(connection, group, names)
        refuse_severed(connection)
        del message
        request = request._replace(message=None)  # a claim may wait for days; it must not keep its request
        if wait_ms > 0:
            connection.release_request()
            # No longer than the login: the client chooses how long it waits, and would own with an expired token.
            within_ms = int(request.session.within_login(wait_ms / 1000, broker.clock.monotonic()) * 1000)
            judged = await broker.owners.wait(connection, group, claimed, within_ms)
            if judged is None:
                until = "before the client's login ended" if within_ms < wait_ms - 1 else f"within {wait_ms} ms"
                raise ServerError(ErrorCode.REQUEST_TIMED_OUT, f"not all were free {until}")
            await _check_again(broker, request, group, claimed)
        else:
            judged = await broker.owners.claim(connection, group, claimed)
        _begin_session(broker, connection, session_ms, judged)
    except FencepostError as error:
        return _refused(group, error)
    return _answer(group, judged, [_row(judged, row) async for row in paced(judged.rows)])


def _group(request: ApiRequest) -> str:
    return DEFAULT_GROUP if request.message.group is None else str(request.message.group)


def _refused(group: str, error: FencepostError) -> Fields:
    return {"error_code": error.code, "error_message": error.reason, "group": group, "resources": []}


def _answer(group: str, judged: Judgement[Connection], rows: list[Fields]) -> Fields:
    is_granted = isinstance(judged, Granted)
    return {
        "error_code": ErrorCode.NONE if is_granted else ErrorCode.ILLEGAL_GENERATION,
        "error_message": None if is_granted else _reason(judged.rows),
        "group": group,
        "resources": rows,
    }


def _row(judged: Judgement[Connection], row: OwnedResource) -> Fields:
    return {
        "name": row.name,
        "resource": row.name,
        "error_code": ErrorCode.NONE if isinstance(judged, Granted) else ErrorCode.ILLEGAL_GENERATION,
        "generation": row.generation,
        "token": row.token,
    }


def _begin_session(
    broker: Broker, connection: Connection, session_ms: Milliseconds, judged: Judgement[Connection]
) -> None:
    """Begin or change the session. A refused claim changes nothing, not even that."""
    if session_ms > 0 and isinstance(judged, Granted) and broker.owners.table.owned_by(connection):
        broker.owners.set_session(connection, session_ms)


def _slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(names), _RESOURCES_PER_PIECE):
        yield names[at : at + _RESOURCES_PER_PIECE]


def _require_topic(broker: Broker, request: ApiRequest, name: str) -> None:
    """Raise if the resource is a partition that the client may not use: the claim could sever its writers. Where only
    readers are guarded, the claim concerns readers. Who may neither read nor write hears nothing about the guard, and
    so not that the topic exists."""
    partition = partition_named(name)
    topic = broker.topics.get(partition.topic) if partition is not None else None
    if partition is not None:
        only_readers = topic is not None and topic.reader_group and not topic.writer_group
        needs_read = only_readers and any(request.sees(need, partition.topic) for need in (TOPIC_READ, TOPIC_WRITE))
        request.require(TOPIC_READ if needs_read else TOPIC_WRITE, partition.topic)


async def _check_again(broker: Broker, request: ApiRequest, group: str, claimed: Sequence[ClaimedResource]) -> None:
    """Raise, and release the resources, if the client's login has ended or it has lost its permission while the claim
    waited."""
    try:
        if request.session.is_over(broker.clock.monotonic()):  # it was granted in the same moment
            raise ServerError(ErrorCode.REQUEST_TIMED_OUT, "the client's login ended while its claim waited")
        request.require(GROUP_READ, group)
        async for resource in paced(claimed):
            _require_topic(broker, request, resource.name)
    except ServerError:
        broker.owners.release(request.connection, group, [resource.name for resource in claimed])
        raise


def _reason(rows: list[OwnedResource]) -> str:
    first, more = rows[0], len(rows) - 1
    words = f"{first.name} is at generation {first.generation}, token {first.token}"
    return words + (f" (and {more} more)" if more else "")


async def _check(broker: Broker, request: ApiRequest, claimed_in: str) -> list[ClaimedResource]:
    """Check the claim in pieces; only what the table decides is done in one."""
    _check_group(request, claimed_in)
    claimed: dict[str, ClaimedResource] = {}
    async for resource in paced(request.message.resources):
        _check_resource(broker, request, resource, claimed)
    _check_count(broker, request, claimed_in, claimed)
    return list(claimed.values())


def _check_group(request: ApiRequest, claimed_in: str) -> None:
    message = request.message
    if not 0 < len(claimed_in) <= MAX_NAME_CHARACTERS:
        raise ServerError(ErrorCode.INVALID_REQUEST, f"group must have 1 to {MAX_NAME_CHARACTERS} characters")
    if message.wait_ms < 0 or message.session_ms < 0:
        raise ServerError(ErrorCode.INVALID_REQUEST, "wait_ms and session_ms must not be negative")
    request.require(GROUP_READ, claimed_in)


def _check_resource(broker: Broker, request: ApiRequest, resource: Any, claimed: dict[str, ClaimedResource]) -> None:
    """Check one resource of the claim, and add it to `claimed`."""
    name = resource.name
    if not 0 < len(name) <= MAX_NAME_CHARACTERS:
        raise ServerError(
            ErrorCode.INVALID_REQUEST, f"a resource's name must have 1 to {MAX_NAME_CHARACTERS} characters"
        )
    if name in claimed:
        raise ServerError(ErrorCode.INVALID_REQUEST, f"resource {name!r} is named more than once")
    _require_topic(broker, request, name)
    if resource.generation < 0:
        raise ServerError(
            ErrorCode.INVALID_REQUEST,
            f"the generation of {name!r} must not be negative, but is {resource.generation}",
        )
    after = None if resource.after_token == UNSET_TOKEN else resource.after_token
    claimed[name] = ClaimedResource(name, Generation(resource.generation), after)


def _check_count(broker: Broker, request: ApiRequest, claimed_in: str, claimed: Mapping[str, ClaimedResource]) -> None:
    owned = {name for group, name in broker.owners.table.owned_by(request.connection) if group == claimed_in}
    if len(owned | claimed.keys()) > MAX_RESOURCES_PER_OWNER:
        raise ServerError(
            ErrorCode.INVALID_REQUEST, f"a connection may own at most {MAX_RESOURCES_PER_OWNER} resources"
        )


API = Api(key=10_000, name="Own", versions=(0, 1), handle=handle, waits=True)
