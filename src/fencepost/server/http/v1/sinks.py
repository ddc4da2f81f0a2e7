"""Sinks of Spark jobs: the last micro-batch of each, and warnings of writers that were replaced and still try."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial

from fencepost.core.micro_batch import PROGRESS_TOPIC_PREFIX, SINK_ID_PREFIX
from fencepost.core.rows import SinkRow
from fencepost.core.security.access import TOPIC_DESCRIBE, TOPIC_READ, TRANSACTIONAL_ID_DESCRIBE
from fencepost.core.zombies import FencedWrite, SinkStory
from fencepost.errors import FencepostError
from fencepost.server.http.v1.asking import HttpCaller
from fencepost.server.http.v1.paging import Page, PagePlace, cut
from fencepost.server.net.turns import paced
from fencepost.server.storage.topics import Topic
from fencepost.server.views.sinks import SinkTail
from fencepost.wire.apis import Key


async def list_sinks(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[SinkRow]:
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


async def _sink(caller: HttpCaller, topic: Topic) -> SinkRow:
    name = topic.name.removeprefix(PROGRESS_TOPIC_PREFIX)
    if not caller.request(Key.FETCH).sees(TOPIC_READ, topic.name):
        return SinkRow(name, readable=False)
    fenced = None
    if caller.request(Key.DESCRIBE_TRANSACTIONS).sees(TRANSACTIONAL_ID_DESCRIBE, SINK_ID_PREFIX + name):
        fenced = caller.broker.fenced_writes.of(SINK_ID_PREFIX + name)
    try:
        tail = await _tail(caller, topic, far=False)
        if fenced is not None and not tail.is_whole and tail.story is not None and tail.story.announced is None:
            tail = await _tail(caller, topic, far=True)
    except FencepostError:
        return SinkRow(name, readable=False)
    if tail.story is None:
        return SinkRow(name)
    progress = tail.story.last
    wrote = progress.wrote_something
    return SinkRow(
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
        describe_zombies(tail.story, fenced),
    )


async def _tail(caller: HttpCaller, topic: Topic, *, far: bool) -> SinkTail:
    log = await caller.broker.partition(topic.name, 0).open()
    tails, stable = caller.broker.sink_tails, log.last_stable_offset
    known = tails.known(topic.name, log, stable, far=far)
    if known is not None:
        return known
    return await caller.in_thread(partial(tails.read, topic.name, log, stable, far=far))


def describe_zombies(story: SinkStory, fenced: FencedWrite | None) -> list[str]:
    """Return sentences about writers that were replaced and still try."""
    warnings = []
    if fenced is not None and story.is_late(fenced):
        when, client = datetime.fromtimestamp(fenced.time_ms // 1000, UTC), fenced.client_id or "a client"
        warnings.append(
            f"A driver or task from before incarnation {story.last.incarnation} still wrote after it was replaced: at "
            f"{when:%Y-%m-%d %H:%M:%S} UTC the server refused a batch of {client} at {fenced.address} with epoch "
            f"{fenced.writer.epoch}. Stop it; nothing of the batch is in the log."
        )
    if story.rivals is not None:
        now, before = story.rivals
        warnings.append(
            f"Process {now.process} on {now.host} and process {before.process} on {before.host} take this sink from "
            f"each other: incarnation {before.incarnation} had replaced the former, which is back as incarnation "
            f"{now.incarnation}. Stop one of them."
        )
    return warnings
