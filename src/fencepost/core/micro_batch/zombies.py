"""Zombies of a sink: drivers or tasks that were replaced and still try to write.

The exactly-once protocol refuses them, so they do no harm; but a person wants to know that they run. Only what is
certain counts: it follows from records in the sink's progress topic and from a write that the server has refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from fencepost.core.micro_batch.protocol import Progress
from fencepost.core.producers.pid import Identity
from fencepost.types import Milliseconds

_OF_A_PROCESS: Final = re.compile("[0-9a-f]{32}")
"""Tokens of sink objects in one process. Other tokens name a run of a query, for which many processes commit."""


class WrittenProgress(NamedTuple):
    """A progress record, and the producer that wrote it."""

    progress: Progress
    writer: Identity


class FencedWrite(NamedTuple):
    """The last refused write of a transactional id, whose epoch was too old."""

    writer: Identity
    current: Identity
    """The identity that the transactional id had at that moment."""
    time_ms: Milliseconds
    address: str
    client_id: str


class SinkStory(NamedTuple):
    """The story that the records of a progress topic tell."""

    last: Progress
    announced: WrittenProgress | None
    """The record with which the current incarnation announced itself; None if it is not among the records. Only a
    record of somebody else right before it tells that it was the first."""
    rivals: tuple[Progress, Progress] | None
    """Two processes that take the sink from each other: the current one, and the one that it replaced."""

    def is_late(self, write: FencedWrite) -> bool:
        """Tell if the write is from before the current incarnation, and came after it had taken over."""
        if self.announced is None or not write.writer.pid == write.current.pid == self.announced.writer.pid:
            return False
        return write.writer.epoch < self.announced.writer.epoch <= write.current.epoch


def story_of(records: Sequence[WrittenProgress]) -> SinkStory | None:
    """Return what the last records tell, the oldest first; None without any."""
    if not records:
        return None
    last = records[-1].progress
    announced = None
    for before, record in zip(reversed(records[:-1]), reversed(records[1:]), strict=True):
        if before.progress.token != last.token:
            announced = record
            break
    return SinkStory(last, announced, _rivals(records))


def _rivals(records: Sequence[WrittenProgress]) -> tuple[Progress, Progress] | None:
    """Return the current process and its predecessor if the current one was there before its predecessor, too."""
    turns: list[Progress] = []
    for record in records:
        if not turns or turns[-1].token != record.progress.token:
            turns.append(record.progress)
    if len(turns) < 3 or not all(_OF_A_PROCESS.fullmatch(turn.token) for turn in turns[-2:]):
        return None
    now, before = turns[-1], turns[-2]
    if (now.host, now.process) == (before.host, before.process):
        return None
    was_there = any(
        (turn.host, turn.process) == (now.host, now.process) and _OF_A_PROCESS.fullmatch(turn.token)
        for turn in turns[:-2]
    )
    return (now, before) if was_there else None


_MOST: Final = 1000
"""Transactional ids; the one that was refused longest ago makes way."""

_MAX_CLIENT_ID_CHARACTERS: Final = 200
"""Characters of a client id, which the client chooses."""


class FencedWrites:
    def __init__(self) -> None:
        self._last: dict[str, FencedWrite] = {}

    def note(
        self, name: str, writer: Identity, current: Identity, time_ms: Milliseconds, address: str, client_id: str
    ) -> None:
        self._last.pop(name, None)
        self._last[name] = FencedWrite(writer, current, time_ms, address, client_id[:_MAX_CLIENT_ID_CHARACTERS])
        if len(self._last) > _MOST:
            del self._last[next(iter(self._last))]

    def of(self, name: str) -> FencedWrite | None:
        return self._last.get(name)
