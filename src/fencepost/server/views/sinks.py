"""The progress of sinks, read from their progress topics: the last committed micro-batch of each.

`fencepost sink list` reads the same records through a client; metrics and the HTTP API read them here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from fencepost.core.micro_batch.protocol import PROGRESS_KEY, PROGRESS_TOPIC_PREFIX, SINK_ID_PREFIX, Progress
from fencepost.core.micro_batch.zombies import FencedWrite, SinkStory, WrittenProgress, story_of
from fencepost.core.producers.pid import Identity
from fencepost.core.rows import SinkRow
from fencepost.core.security.access import TOPIC_READ, TRANSACTIONAL_ID_DESCRIBE
from fencepost.errors import FencepostError
from fencepost.kernel import decode_batch
from fencepost.kernel.header import BatchHeader, read_header
from fencepost.log.partition import PartitionLog
from fencepost.log.reading import is_aborted
from fencepost.server.views.asking import HttpCaller
from fencepost.server.views.paging import Page, PagePlace, cut
from fencepost.server.views.topics import seen_topics
from fencepost.types import Offset
from fencepost.wire.apis import Key

if TYPE_CHECKING:
    from fencepost.server.storage.topics import Topic

_FIRST_LOOK: Final = 64
"""Offsets from the end: a record and a marker per micro-batch, some of them aborted."""
_FAR_LOOK: Final = 4096
_MOST_TAILS: Final = 1000
_BYTES: Final = 256 * 1024
"""Bytes per read."""


def batches_between(log: PartitionLog, start: Offset, stop: Offset) -> Iterator[tuple[BatchHeader, memoryview, int]]:
    """Yield the batches of a log, as `decode_batch` takes them, with their headers. Blocks; raise FencepostError."""
    while start < stop:
        chunks = log.read(start, _BYTES, upto=stop, block=True)
        if not chunks:
            return
        for data in chunks:
            at = 0
            while at < len(data):
                header = read_header(data, at)
                yield header, data, at
                at += header.size
                start = header.next_offset


def _between(log: PartitionLog, start: Offset, stop: Offset) -> Iterator[tuple[bytes, Identity]]:
    """Yield the committed progress records, undecoded, with their writers."""
    aborted = log.producers.aborted
    for header, data, at in batches_between(log, start, stop):
        if not header.is_control and not is_aborted(header, aborted):
            for record in decode_batch(data, at):
                if record.key == PROGRESS_KEY and record.value is not None:
                    yield bytes(record.value), Identity(header.pid, header.epoch)


def _decoded(rows: list[tuple[bytes, Identity]]) -> list[WrittenProgress]:
    """Return the records without strange ones; but the last one must be readable, because it tells the progress."""
    found = []
    for number, (value, writer) in enumerate(rows, 1):
        try:
            found.append(WrittenProgress(Progress.decode(value), writer))
        except FencepostError:
            if number == len(rows):
                raise
    return found


class SinkTail(NamedTuple):
    """The last records of a progress topic, as far as they tell something."""

    story: SinkStory | None
    """None if there is no record."""
    is_whole: bool
    """There are no older records."""


class SinkTails:
    """Tails of progress topics, kept until a topic has newer records. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[PartitionLog, Offset, int, SinkTail]] = {}

    def known(self, topic: str, log: PartitionLog, stable: Offset, *, far: bool = False) -> SinkTail | None:
        """Return the tail before `stable`, the last stable offset, if it was read already."""
        found = self._known.get(topic)
        if found is None or found[0] is not log or found[1] != stable or found[2] < _look(far):
            return None
        return found[3]

    def read(self, topic: str, log: PartitionLog, stable: Offset, *, far: bool = False) -> SinkTail:
        """Read the tail before `stable`: some tens of batches, or with `far` some thousands. Blocks. Raise
        FencepostError if the log cannot be read."""
        look, found = _look(far), deque[tuple[bytes, Identity]](maxlen=_FAR_LOOK)
        start = stable
        while not found and start > log.start_offset:  # many batches may have been aborted since
            start = max(log.start_offset, Offset(stable - look))
            found.extend(_between(log, start, stable))
            look *= 16
        is_whole = start <= log.start_offset and len(found) < _FAR_LOOK
        tail = SinkTail(story_of(_decoded(list(found))), is_whole)
        if len(self._known) >= _MOST_TAILS:
            self._known.clear()
        self._known[topic] = log, stable, _look(far), tail
        return tail

    def progress(self, topic: str, log: PartitionLog, stable: Offset) -> Progress | None:
        """Return the last committed progress before `stable`; None if there is none, or if the topic has other records
        or cannot be read. Blocks."""
        try:
            tail = self.known(topic, log, stable) or self.read(topic, log, stable)
        except FencepostError:
            return None
        return tail.story.last if tail.story is not None else None


def _look(far: bool) -> int:
    return _FAR_LOOK if far else _FIRST_LOOK


# -- pages of rows ------------------------------------------------------------------------------------------


async def list_sinks(caller: HttpCaller, place: PagePlace, find: str = "") -> Page[SinkRow]:
    """Return the sinks whose names contain `find`, in capitals or not."""
    seen = await seen_topics(caller, find, prefix=PROGRESS_TOPIC_PREFIX)
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
    tails, stable = caller.snapshots.sinks, log.last_stable_offset
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
