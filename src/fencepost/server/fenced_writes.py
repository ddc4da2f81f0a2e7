"""The last refused write of each transactional id whose epoch was too old. Only the loop uses it."""

from __future__ import annotations

from typing import Final

from fencepost.core.producers.pid import Identity
from fencepost.core.zombies import FencedWrite
from fencepost.types import Milliseconds

_MOST: Final = 1000
"""Transactional ids; the one that was refused longest ago makes way."""

_LONGEST: Final = 200
"""Characters of a client id, which the client chooses."""


class FencedWrites:
    def __init__(self) -> None:
        self._last: dict[str, FencedWrite] = {}

    def note(
        self, name: str, writer: Identity, current: Identity, time_ms: Milliseconds, address: str, client_id: str
    ) -> None:
        self._last.pop(name, None)
        self._last[name] = FencedWrite(writer, current, time_ms, address, client_id[:_LONGEST])
        if len(self._last) > _MOST:
            del self._last[next(iter(self._last))]

    def of(self, name: str) -> FencedWrite | None:
        return self._last.get(name)
