"""The progress of sinks, read from their progress topics: the last committed micro-batch of each.

`fencepost sink list` reads the same records through a client; metrics and the HTTP API read them here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fencepost.core.micro_batch.protocol import PROGRESS_KEY, Progress
from fencepost.core.micro_batch.zombies import SinkStory, WrittenProgress, story_of
from fencepost.core.producers.pid import Identity
from fencepost.errors import FencepostError
from fencepost.kernel import decode_batch
from fencepost.kernel.header import read_header
from fencepost.log.counting import is_aborted
from fencepost.log.partition import PartitionLog
from fencepost.types import NO_EPOCH, NO_PID, Offset

_FIRST_LOOK: Final = 64
"""Offsets from the end: a record and a marker per micro-batch, some of them aborted."""
_FAR_LOOK: Final = 4096
_MOST_TAILS: Final = 1000
_BYTES: Final = 256 * 1024
"""Bytes per read."""


def _last_progress(log: PartitionLog, stable: Offset) -> Progress | None:
    """Return the last committed progress record before `stable`, the last stable offset. Blocks; any thread may call
    it. Raise FencepostError if the log cannot be read."""
    first = log.start_offset
    back = _FIRST_LOOK
    while True:
        start = max(first, Offset(stable - back))
        found = None
        for found in _between(log, start, stable):  # noqa: B007
            pass
        if found is not None or start <= first:
            return Progress.decode(found[0]) if found is not None else None
        back *= 16


def _between(log: PartitionLog, start: Offset, stop: Offset) -> Iterator[tuple[bytes, Identity]]:
    """Yield the committed progress records, undecoded, with their writers."""
    aborted = log.producers.aborted
    while start < stop:
        chunks = log.read(start, _BYTES, upto=stop, block=True)
        if not chunks:
            return
        for data in chunks:
            at = 0
            while at < len(data):
                header = read_header(data, at)
                if not header.is_control and not is_aborted(header, aborted):
                    for record in decode_batch(data, at):
                        if record.key == PROGRESS_KEY and record.value is not None:
                            yield bytes(record.value), Identity(header.pid, header.epoch)
                at += header.size
                start = header.next_offset


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
        start = max(log.start_offset, Offset(stable - _look(far)))
        records = _decoded(list(_between(log, start, stable)))
        if not records:
            last = _last_progress(log, stable)  # many batches were aborted since
            records = [] if last is None else [WrittenProgress(last, Identity(NO_PID, NO_EPOCH))]
        tail = SinkTail(story_of(records), start <= log.start_offset)
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
