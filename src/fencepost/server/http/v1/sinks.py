"""Sinks of Spark jobs: the last micro-batch of each, and warnings of writers that were replaced and still try."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from fencepost.core.micro_batch import PROGRESS_TOPIC_PREFIX, SINK_ID_PREFIX
from fencepost.core.security.access import TOPIC_DESCRIBE, TOPIC_READ, TRANSACTIONAL_ID_DESCRIBE
from fencepost.core.zombies import FencedWrite, Zombies, find_zombies, first_of_current
from fencepost.errors import FencepostError
from fencepost.server.http.v1.answers import SinkJson
from fencepost.server.http.v1.asking import HttpCaller
from fencepost.server.http.v1.paging import Page, PagePlace, cut
from fencepost.server.net.turns import paced
from fencepost.server.storage.sink_progress import SinkTail
from fencepost.server.storage.topics import Topic
from fencepost.wire.apis import Key


async def list_sinks(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[SinkJson]:
    """Return the sinks whose names contain `find`, in capitals or not."""
    request = caller.request(Key.DESCRIBE_TOPIC_PARTITIONS)
    wanted = find.lower()
    seen = [
        topic
        async for topic in paced(list(caller.broker.topics))
        if topic.name.startswith(PROGRESS_TOPIC_PREFIX)
        and wanted in topic.name.removeprefix(PROGRESS_TOPIC_PREFIX).lower()
        and request.sees(TOPIC_DESCRIBE, topic.name)
    ]
    topics, cursor = await cut(seen, lambda topic: (topic.name,), place)
    return Page([await _sink(caller, topic) for topic in topics], cursor)


async def _sink(caller: HttpCaller, topic: Topic) -> SinkJson:
    name = topic.name.removeprefix(PROGRESS_TOPIC_PREFIX)
    unknown = SinkJson(name, None, None, None, None, None, None, None, None, None, None, None, None, [], True)
    if not caller.request(Key.FETCH).sees(TOPIC_READ, topic.name):
        return replace(unknown, readable=False)
    fenced = None
    if caller.request(Key.DESCRIBE_TRANSACTIONS).sees(TRANSACTIONAL_ID_DESCRIBE, SINK_ID_PREFIX + name):
        fenced = caller.broker.fenced_writes.of(SINK_ID_PREFIX + name)
    try:
        tail = await _tail(caller, topic, far=False)
        if fenced is not None and not tail.is_whole and first_of_current(tail.records) is None:
            tail = await _tail(caller, topic, far=True)
    except FencepostError:
        return replace(unknown, readable=False)
    if not tail.records:
        return unknown
    progress = tail.records[-1].progress
    wrote = progress.wrote_something
    return SinkJson(
        name,
        progress.query if wrote else None,
        progress.batch if wrote else None,
        progress.rows if wrote else None,
        progress.fence_ms,
        progress.look_ms,
        progress.freeze_ms,
        progress.publish_ms,
        progress.previous_commit_ms,
        progress.incarnation,
        progress.host,
        progress.process,
        progress.time_ms,
        describe_zombies(find_zombies(tail.records, fenced), progress.incarnation),
        True,
    )


async def _tail(caller: HttpCaller, topic: Topic, *, far: bool) -> SinkTail:
    log = await caller.broker.partition(topic.name, 0).open()
    read = partial(caller.broker.sink_tails.read, topic.name, log, log.last_stable_offset, far=far)
    return await caller.in_thread(read)


def describe_zombies(found: Zombies, incarnation: int) -> list[str]:
    """Return the facts as sentences."""
    warnings = []
    if found.late is not None:
        warnings.append(_late(found.late, incarnation))
    if found.rivals is not None:
        now, before = found.rivals
        warnings.append(
            f"Process {now.process} on {now.host} and process {before.process} on {before.host} take this sink from "
            f"each other: incarnation {before.incarnation} had replaced the former, which is back as incarnation "
            f"{now.incarnation}. Stop one of them."
        )
    return warnings


def _late(write: FencedWrite, incarnation: int) -> str:
    when, client = datetime.fromtimestamp(write.time_ms // 1000, UTC), write.client_id or "a client"
    return (
        f"A driver or task from before incarnation {incarnation} still wrote after it was replaced: at "
        f"{when:%Y-%m-%d %H:%M:%S} UTC the server refused a batch of {client} at {write.address} "
        f"with epoch {write.writer.epoch}. Stop it; nothing of the batch is in the log."
    )
