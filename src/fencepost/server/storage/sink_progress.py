"""The progress of sinks, read from their progress topics: the last committed micro-batch of each.

`fencepost sink list` reads the same records through a client; metrics and the HTTP API read them here.
"""

from __future__ import annotations

from typing import Final

from fencepost.core.micro_batch import PROGRESS_KEY, Progress
from fencepost.errors import FencepostError
from fencepost.kernel import decode_batch
from fencepost.kernel.header import read_header
from fencepost.log.counting import is_aborted
from fencepost.log.partition import PartitionLog
from fencepost.types import Offset

_FIRST_LOOK: Final = 64
"""Offsets from the end: a record and a marker per micro-batch, some of them aborted."""
_BYTES: Final = 256 * 1024
"""Bytes per read."""


def last_progress(log: PartitionLog, stable: Offset) -> Progress | None:
    """Return the last committed progress record before `stable`, the last stable offset. Blocks; any thread may call
    it. Raise FencepostError if the log cannot be read."""
    first = log.start_offset
    back = _FIRST_LOOK
    while True:
        start = max(first, Offset(stable - back))
        found = _last_between(log, start, stable)
        if found is not None or start <= first:
            return Progress.decode(found) if found is not None else None
        back *= 16


def _last_between(log: PartitionLog, start: Offset, stop: Offset) -> bytes | None:
    aborted = log.producers.aborted
    found = None
    while start < stop:
        chunks = log.read(start, _BYTES, upto=stop, block=True)
        if not chunks:
            break
        for data in chunks:
            at = 0
            while at < len(data):
                header = read_header(data, at)
                if not header.is_control and not is_aborted(header, aborted):
                    for record in decode_batch(data, at):
                        if record.key == PROGRESS_KEY and record.value is not None:
                            found = bytes(record.value)
                at += header.size
                start = header.next_offset
    return found


class SinkProgress:
    """Progress by sink, kept until the topic has a newer record. Used by one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[PartitionLog, Offset, Progress | None]] = {}

    def read(self, logs: dict[str, tuple[PartitionLog, Offset]]) -> dict[str, Progress]:
        """Return the progress of these sinks, given as log and last stable offset; without those that have none, or
        whose topic has other records or cannot be read. Blocks."""
        known = {}
        for name, (log, stable) in logs.items():
            before = self._known.get(name)
            if before is not None and before[0] is log and before[1] == stable:
                known[name] = before
                continue
            try:
                known[name] = log, stable, last_progress(log, stable)
            except FencepostError:
                known[name] = log, stable, None
        self._known = known
        return {name: progress for name, (_, _, progress) in known.items() if progress is not None}
