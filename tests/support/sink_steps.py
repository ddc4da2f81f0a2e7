"""A micro-batch as a generator: it yields each step that the protocol asks for, and is sent the answer.

So a test can stop between any two steps, and a model can interleave several drivers.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple, TypeAlias, get_args

from greenlet import greenlet

from fencepost.core.micro_batch.protocol import UNKNOWN, BatchOutcome, Origin, Progress, SinkProtocol, StepFailed
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
    position: str
    fresh: bool


class Publish(NamedTuple):
    identity: Identity


class Commit(NamedTuple):
    identity: Identity
    progress: Progress


SinkStep: TypeAlias = Peek | Fence | Look | Pause | Announce | Compare | Freeze | Publish | Commit
_KINDS: Final = {kind.__name__.lower(): kind for kind in get_args(SinkStep)}


_unfinished: Final[set[greenlet]] = set()
"""Kept, so that a batch is ended by its generator only, and not at any moment by the garbage collector."""


class _Asked:
    """Hands each step to whoever runs the generator, and returns the answer."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        asked: Any = greenlet.getcurrent().parent
        return lambda *given, **named: asked.switch(_KINDS[name](*given, **named))


def steps_of(
    protocol: SinkProtocol, query: str, batch: int | None, now_ms: int, origin: Origin = UNKNOWN
) -> Generator[SinkStep, Any, BatchOutcome]:
    """Yield the steps of one batch. A failed step is thrown in."""
    asked: Any = _Asked()
    running = greenlet(lambda: protocol.micro_batch(asked, query, batch, now_ms, origin))
    _unfinished.add(running)
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
        _unfinished.discard(running)
    return step  # type: ignore[no-any-return]
