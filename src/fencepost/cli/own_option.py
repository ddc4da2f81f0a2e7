"""The option `--own GROUP` of `produce` and `consume`: own the partitions, and exit when they are lost."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import click

from fencepost.cli.options import ClusterTarget
from fencepost.errors import Fenced

if TYPE_CHECKING:
    from fencepost.client.own.claim import OnLost, OwnKeywords

FENCED: Final = 75
"""Exit code after the ownership is lost: another owner took over, or the server is gone (EX_TEMPFAIL: a retry may
succeed)."""
SESSION: Final = 10.0
"""Seconds of silence after which a producer loses its partitions; its send thread sends the heartbeats."""


class OwnershipLost(click.ClickException):
    exit_code = FENCED


def own_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--own GROUP` and `--generation N`."""
    generation = click.option(
        "--generation",
        type=click.IntRange(min=0),
        help="With --own: do not wait, take over from an owner with at most this generation; 0 resets.",
    )
    own = click.option(
        "--own", "owned_in", metavar="GROUP", help="Own the partitions in GROUP first; wait until they are free."
    )
    return own(generation(command))


def how_to_own(owned_in: str | None, generation: int | None, session: float = 0.0) -> OwnKeywords:
    if generation is not None and owned_in is None:
        raise click.UsageError("--generation needs --own GROUP")
    if generation is None:
        return {"wait": True, "session": session}
    return {"generation": generation, "session": session}


def partitions_of(target: ClusterTarget, topic: str, only: Sequence[int] = ()) -> list[str]:
    """Return the resources: all partitions of the topic, or `only` these."""
    with target.admin() as admin:
        there = [found.partition for found in admin.describe_topic(topic).partitions]
    if strange := [str(index) for index in only if index not in there]:
        raise click.UsageError(f"{topic} has no partition {', '.join(strange)}")
    return [f"{topic}-{index}" for index in only or there]


@contextmanager
def woken_when_lost() -> Iterator[OnLost]:
    """Yield a callback for the loss. It raises Fenced on the main thread, even while that reads standard input."""
    lost: list[Fenced] = []

    def raise_it(number: int, frame: object) -> None:
        if lost:
            raise lost.pop()

    if not hasattr(signal, "SIGUSR1") or threading.current_thread() is not threading.main_thread():
        yield lost.append  # the next record raises it
        return
    before = signal.signal(signal.SIGUSR1, raise_it)
    # Guards `is_over`: a signal after the end would find no handler of ours, and end the process.
    lock, is_over = threading.Lock(), False

    def wake(fenced: Fenced) -> None:
        with lock:
            if not is_over:
                lost.append(fenced)
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    try:
        yield wake
    finally:
        try:
            with lock:
                is_over = True
            lost.clear()
        finally:
            signal.signal(signal.SIGUSR1, before)


@contextmanager
def told_when_lost(owned_in: str | None) -> Iterator[None]:
    """Turn Fenced into OwnershipLost, which has its own exit code."""
    try:
        yield
    except Fenced as fenced:
        if owned_in is None:
            raise
        raise OwnershipLost(str(fenced)) from fenced
