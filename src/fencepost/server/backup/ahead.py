"""Groups and sinks of a restored data directory that have gone further than its logs.

A backup is one point in time, so a group in it cannot be ahead of the logs, unless these had lost something before.
What lies outside can: the checkpoint of a Spark query knows batches that the log has lost. So every sink is named, with
the last batch in the log.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from fencepost.core.micro_batch.protocol import Progress, UnknownProgress
from fencepost.core.producers.dedup import IssuedPids
from fencepost.kernel import decode_batch
from fencepost.kernel.header import BatchHeader
from fencepost.log.config import LogConfig
from fencepost.log.files import OsFiles
from fencepost.log.handles import Handles
from fencepost.log.recovery import Recovered, recover
from fencepost.log.segment import walk_batches
from fencepost.server.coordinators import group_rows
from fencepost.server.storage.datadir import folder_name
from fencepost.server.storage.store import Queryable
from fencepost.types import Milliseconds, TopicPartition

SINK_TOPIC: Final = "__fencepost_sink."


class GroupAhead(NamedTuple):
    group: str
    partition: str
    committed: int
    end: int


class SinkState(NamedTuple):
    """The last micro-batch of a sink that the log has."""

    sink: str
    query: str
    batch: int


class RestoredLogs:
    """The logs of a data directory that no server uses."""

    def __init__(self, data: Path, store: Queryable, now: Milliseconds) -> None:
        self._data = data
        self._store = store
        self._now = now
        self._handles = Handles(OsFiles())
        self._folders = {
            str(name): data / "logs" / folder_name(str(name), UUID(bytes=id_bytes))
            for name, id_bytes in store.query("SELECT name, id FROM topics")
        }

    def close(self) -> None:
        self._handles.close()

    def _recovered(self, topic: str, partition: int) -> Recovered:
        folder = str(self._folders[topic] / str(partition))
        return recover(folder, LogConfig(), self._handles, self._now, issued=IssuedPids())

    def groups_ahead(self) -> list[GroupAhead]:
        """Return the committed offsets that are beyond the end of their log."""
        ends: dict[TopicPartition, int] = {}
        found = []
        for group, offsets in group_rows.load_offsets(self._store).items():
            for partition, committed in offsets.items():
                if partition.topic not in self._folders:
                    continue
                if partition not in ends:
                    ends[partition] = self._recovered(*partition).end_offset
                if committed.offset > ends[partition]:
                    found.append(GroupAhead(group, str(partition), committed.offset, ends[partition]))
        return sorted(found)

    def sinks(self) -> list[SinkState]:
        """Return the sinks of Spark jobs, each with its last batch."""
        names = sorted(name for name in self._folders if name.startswith(SINK_TOPIC))
        return [self._sink(name) for name in names]

    def _sink(self, topic: str) -> SinkState:
        log = self._recovered(topic, 0)
        last: Progress | None = None
        for segment in log.segments:
            with self._handles.using(segment.handle) as fd:
                for placed, data, at in walk_batches(self._handles.files, fd, 0, segment.size):
                    if not placed.header.is_control and _is_committed(placed.header, log):
                        for record in decode_batch(data, at):
                            with suppress(UnknownProgress):
                                last = Progress.decode(record.value or b"")
        name = topic.removeprefix(SINK_TOPIC)
        return SinkState(name, last.query, last.batch) if last is not None else SinkState(name, "", -1)


def _is_committed(header: BatchHeader, log: Recovered) -> bool:
    known = log.producers.get(header.pid)
    start = known.transaction_start if known is not None else None
    if start is not None and header.base_offset >= start:
        return False
    return not any(
        entry.pid == header.pid and entry.first_offset <= header.base_offset < entry.marker_offset
        for entry in log.producers.aborted
    )
