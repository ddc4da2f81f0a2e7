"""Sentences about what needs a person: who waits, for whom, and for how long."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote

from fencepost.core.transactions import RESTING
from fencepost.server.http.console.history import Reading
from fencepost.server.http.console.words import moment, number, span

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

_OLD_TRANSACTION_MS: Final = 60_000
_MOST: Final = 50
"""Sentences of each kind; a number stands for the others."""


class Attention(NamedTuple):
    text: str
    path: str = ""
    """The page that shows more."""


def attention(broker: Broker, now: Reading) -> list[Attention]:
    """Return what needs attention, the most urgent first. For the loop: it only looks at what is in memory."""
    found = [
        Attention(
            f"{trouble.chore.value.capitalize()} fails{f' for {trouble.subject}' if trouble.subject else ''} since "
            f"{moment(trouble.since_ms)} ({trouble.times} times): {trouble.reason}"
        )
        for trouble in broker.health.troubles[:_MOST]
    ]
    found += _shorten(_transactions(broker, now.sample.taken_ms), "more open transactions", "/producers")
    found += _shorten(_idle_groups(broker, now), "more groups without members", "/groups")
    return found


def _transactions(broker: Broker, now_ms: int) -> Iterable[Attention]:
    for each in sorted(
        (each for each in broker.transactions if each.state not in RESTING), key=lambda each: each.started_ms
    ):
        age = now_ms - each.started_ms
        if age < _OLD_TRANSACTION_MS:
            return
        first = sorted({where.topic for where in each.partitions})
        held = f" and holds readers of {', '.join(first[:3])}{' …' if len(first) > 3 else ''} back" if first else ""
        yield Attention(
            f"Transaction {each.name} of producer {each.pid} has been open for {span(age / 1000)}{held}.", "/producers"
        )


def _idle_groups(broker: Broker, now: Reading) -> Iterable[Attention]:
    for entry in broker.groups:
        lag = now.lags.get(entry.group_id)
        if lag is not None and lag.known and not entry.group.members:
            least = "at least " if lag.closed else ""
            yield Attention(
                f"Group {entry.group_id} has no members and lags by {least}{number(lag.known)} records.",
                f"/groups/{quote(entry.group_id, safe='')}",
            )


def _shorten(rows: Iterable[Attention], others: str, path: str) -> list[Attention]:
    every = list(rows)
    left = len(every) - _MOST
    return every[:_MOST] + ([Attention(f"{number(left)} {others}.", path)] if left > 0 else [])
