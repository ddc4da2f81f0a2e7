"""Is the server ready for clients? `/readyz` asks, and so do load balancers and container platforms, often."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from fencepost.errors import FencepostError
from fencepost.server import descriptors
from fencepost.server.health import Chore

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

_VALID_SECONDS: Final = 1.0
"""Who asks more often gets the last answer: each new one writes to the store."""
_STORE_SECONDS: Final = 5.0
_NAMED: Final = 5
_PROBE: Final = "INSERT OR REPLACE INTO meta (name, value) VALUES ('ready_ms', ?)"


class Readiness:
    """Used only on the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._asking: asyncio.Task[list[str]] | None = None
        self._answer: list[str] = []
        self._valid_until = float("-inf")

    async def reasons(self) -> list[str]:
        """Return why the server is not ready, one sentence each; empty if it is. Callers share one probe."""
        if self._broker.clock.monotonic() < self._valid_until:
            return self._answer
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask())
            self._asking.add_done_callback(self._asked)
        return await asyncio.shield(self._asking)

    def _asked(self, asking: asyncio.Task[list[str]]) -> None:
        self._asking = None
        if not asking.cancelled() and asking.exception() is None:
            self._answer = asking.result()
            self._valid_until = self._broker.clock.monotonic() + _VALID_SECONDS

    async def _ask(self) -> list[str]:
        broker = self._broker
        reasons = []
        await asyncio.get_running_loop().run_in_executor(broker.threads, broker.space.look)
        if not descriptors.are_left():
            reasons.append(
                "the process has opened as many files as it may: raise its limit (ulimit -n), or lower max_connections"
            )
        if broker.space.is_low:
            reasons.append(str(broker.space.refusal()))
        try:
            written = broker.store.execute([(_PROBE, (str(broker.clock.now_ms()),))])
            await asyncio.wait_for(written, _STORE_SECONDS)
        except TimeoutError:
            reasons.append(f"the metadata store has not committed a change for {_STORE_SECONDS:g} s")
        except FencepostError as error:
            reasons.append(str(error))
        failed = [trouble for trouble in broker.health.troubles if trouble.chore in (Chore.SYNC, Chore.OPENING)]
        reasons += [f"{trouble.chore} of {trouble.subject} fails: {trouble.reason}" for trouble in failed[:_NAMED]]
        if len(failed) > _NAMED:
            reasons.append(f"and {len(failed) - _NAMED} further partitions")
        return reasons
