"""A micro-batch as a generator: it yields each step that the protocol asks for, and is sent the answer.

So a test can stop between any two steps, and a model can interleave several drivers.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

from greenlet import greenlet

from fencepost.core.micro_batch.protocol import (
    UNKNOWN,
    BatchOutcome,
    FrozenContent,
    Origin,
    Progress,
    SinkProtocol,
    StepFailed,
)
from fencepost.core.producers.pid import Identity


class Peek(NamedTuple):
    pass


class Fence(NamedTuple):
    pass


class Look(NamedTuple):
    pass


class Pause(NamedTuple):
    pass


class Announce(NamedTuple):
    identity: Identity
    progress: Progress


class Compare(NamedTuple):
    last: Progress


class Freeze(NamedTuple):
    fresh: bool
    position: str


class Publish(NamedTuple):
    identity: Identity


class Commit(NamedTuple):
    identity: Identity
    progress: Progress


SinkStep: TypeAlias = Peek | Fence | Look | Pause | Announce | Compare | Freeze | Publish | Commit


class _Asked:
    """Hands each step to whoever runs the generator."""

    def _ask(self, step: SinkStep) -> Any:
        asked: Any = greenlet.getcurrent().parent
        return asked.switch(step)

    def peek(self) -> Identity | None:
        return self._ask(Peek())  # type: ignore[no-any-return]

    def fence(self) -> Identity:
        return self._ask(Fence())  # type: ignore[no-any-return]

    def look(self) -> Progress | None:
        return self._ask(Look())  # type: ignore[no-any-return]

    def pause(self) -> None:
        self._ask(Pause())

    def announce(self, identity: Identity, progress: Progress) -> None:
        self._ask(Announce(identity, progress))

    def compare(self, last: Progress) -> str:
        return self._ask(Compare(last))  # type: ignore[no-any-return]

    def freeze(self, position: str, *, fresh: bool) -> FrozenContent:
        return self._ask(Freeze(fresh, position))  # type: ignore[no-any-return]

    def publish(self, identity: Identity) -> None:
        self._ask(Publish(identity))

    def commit(self, identity: Identity, progress: Progress) -> None:
        self._ask(Commit(identity, progress))


def steps_of(
    protocol: SinkProtocol, query: str, batch: int | None, now_ms: int, origin: Origin = UNKNOWN
) -> Generator[SinkStep, Any, BatchOutcome]:
    """Yield the steps of one batch. A failed step is thrown in."""
    running = greenlet(lambda: protocol.micro_batch(_Asked(), query, batch, now_ms, origin))
    try:
        step = running.switch()
        while not running.dead:
            try:
                answer = yield step
            except StepFailed as failure:
                step = running.throw(failure)
            else:
                step = running.switch(answer)
    finally:
        if not running.dead:
            running.throw()  # as if the process had ended
    return step  # type: ignore[no-any-return]
