"""The target of a copy that keeps offsets: where it ends, and if it is a copy of the source at all."""

from __future__ import annotations

import time
from typing import Final

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.reader import Reader
from fencepost.errors import FencepostError
from fencepost.types import EARLIEST, LATEST, TopicPartition

FILLER_KEY: Final = b""
FILLER_VALUE: Final = b""
"""Key and value of a record that only uses up an offset."""
_COMPARED: Final = 1000
"""Offsets before the target's end whose records are compared before a copy goes on."""
_MARKER_SECONDS: Final = 60.0
_POLL_SECONDS: Final = 0.002


class CopyTarget:
    """Both clusters, for questions about one partition. Threads may share it."""

    def __init__(self, source: ClientSettings, target: ClientSettings) -> None:
        self._source = source
        self._target = target
        self._from = Admin(source)
        self.to = Admin(target)
        self._compared: dict[TopicPartition, int] = {}
        """Partitions whose last records were compared, with the target's end at that time."""

    def close(self) -> None:
        self._from.close()
        self.to.close()

    def demand_copy(self, where: TopicPartition) -> None:
        """Raise FencepostError if the target has a partition that is not a copy of the source's. Change nothing."""
        first, end = _at(self._from, where, EARLIEST), _at(self._from, where, LATEST, committed=True)
        self._demand_same_tail(where, first, self._settled_end(where), end)

    def prepare(self, where: TopicPartition) -> tuple[int, int, int]:
        """Return the source's start, the target's end, and the source's end, of a target that can be continued."""
        first, end = _at(self._from, where, EARLIEST), _at(self._from, where, LATEST, committed=True)
        at = self._settled_end(where)
        self._demand_same_tail(where, first, at, end)
        oldest = _at(self.to, where, EARLIEST)
        if oldest < first <= at and self._has_only_fillers(where, oldest, first):
            self.delete_before(where, first)  # a run was killed when it had written them, and not deleted
        return first, at, end

    def delete_before(self, where: TopicPartition, offset: int) -> None:
        self.to.delete_records(where.topic, {where.partition: offset})

    def await_end(self, where: TopicPartition, position: int) -> None:
        """Wait until markers are in the log: Kafka acknowledges the end of a transaction before it writes them."""
        deadline = time.monotonic() + _MARKER_SECONDS
        while (end := _at(self.to, where, LATEST)) != position:
            if end > position or time.monotonic() > deadline:
                raise _unlike(where, f"it ends at {end} instead of {position}")
            time.sleep(_POLL_SECONDS)

    def _settled_end(self, where: TopicPartition) -> int:
        """Return the target's end once no transaction is open there."""
        deadline = time.monotonic() + _MARKER_SECONDS
        while True:
            end = _at(self.to, where, LATEST)
            if _at(self.to, where, LATEST, committed=True) == end:
                return end
            if time.monotonic() > deadline:
                raise FencepostError(f"{where.topic}-{where.partition} has an open transaction on the target")
            time.sleep(_POLL_SECONDS)

    def _demand_same_tail(self, where: TopicPartition, first: int, at: int, end: int) -> None:
        """Check that the target's last records are the source's. Either side may have removed some of them since."""
        if self._compared.get(where) == at > first:
            return
        self._compare(where, first, at, end)
        self._compared[where] = at

    def _compare(self, where: TopicPartition, first: int, at: int, end: int) -> None:
        if at > end:
            raise _unlike(where, f"it ends at {at}, the source at {end}: programs have written to it")
        oldest = _at(self.to, where, EARLIEST)
        start = max(at - _COMPARED, first, oldest)
        if start >= at:
            # Nothing can be compared, and all that the target has will be deleted, because the source has none of it.
            if not self._has_only_fillers(where, max(at - _COMPARED, oldest), at):
                raise _unlike(where, f"it has records before {at}, and the source starts at {first}")
            return
        ours = _records(self._source, where, start, at)
        theirs = _records(self._target, where, start, at)
        removed = self._removes_keys(where.topic)
        for offset, record in ours.items():
            if theirs.get(offset, record if removed else None) != record:
                raise _unlike(where, f"its record {offset} is missing or another one")
        if removed and ours and not theirs:
            raise _unlike(where, f"it has no record from {start} to {at - 1}")

    def _removes_keys(self, topic: str) -> bool:
        """Tell if the target compacts the topic: it may have removed records that the source still has. A run that was
        killed has left the policy of its copying there; then the source's tells it."""
        configs = (*self.to.topic_configs(topic), *self._from.topic_configs(topic))
        return any(each.name == "cleanup.policy" and "compact" in (each.value or "") for each in configs)

    def _has_only_fillers(self, where: TopicPartition, start: int, stop: int) -> bool:
        there = _records(self._target, where, start, min(stop, start + _COMPARED))
        return all(fields[1:] == (FILLER_KEY, FILLER_VALUE, ()) for fields in there.values())


def _at(admin: Admin, where: TopicPartition, time: int, *, committed: bool = False) -> int:
    found = admin.offsets(where.topic, time, partitions=[where.partition], read_committed=committed)
    return int(found[where.partition].offset)


def _records(settings: ClientSettings, where: TopicPartition, start: int, stop: int) -> dict[int, tuple[object, ...]]:
    if start >= stop:
        return {}
    with Reader(settings, where, start=start, stop=stop) as reader:
        return {each.offset: (each.timestamp, each.key, each.value, tuple(each.headers)) for each in reader}


def _unlike(where: TopicPartition, why: str) -> FencepostError:
    return FencepostError(
        f"{where.topic}-{where.partition} on the target is not a copy that can be continued: {why}. Delete the "
        "topic there and start again, or leave the topic out (--topic)"
    )
