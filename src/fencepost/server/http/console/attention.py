"""Sentences about what needs a person: who waits, for whom, and for how long."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, urlencode

from fencepost.core.transactions import RESTING, TransactionMetadata
from fencepost.server.http.console.rendering import counted, moment, number, span
from fencepost.server.views.snapshot import Snapshot
from fencepost.server.views.transactions import MOST_LOOKED_AT, hanging, open_log

if TYPE_CHECKING:
    from fencepost.server.broker import Broker

_OLD_TRANSACTION_MS: Final = 60_000
_NO_COMMIT_MS: Final = 60_000
"""A group without members may still be read: readers that were given their partitions commit without joining it."""
_MOST: Final = 50
"""Sentences of each kind; a number stands for the others."""
_TOPICS_NAMED: Final = 3


class Attention(NamedTuple):
    text: str
    path: str = ""
    """The page that shows more."""


class Sight(NamedTuple):
    """The names that the user may see: who may DESCRIBE the cluster sees all groups, but not all transactional ids."""

    transaction: Callable[[str], bool]
    topic: Callable[[str], bool]


def attention(broker: Broker, now: Snapshot, sight: Sight) -> list[Attention]:
    """Return what needs attention, the most urgent first. For the loop: it only looks at what is in memory."""
    found = [
        Attention(
            f"{trouble.chore.value.capitalize()} fails{f' for {trouble.subject}' if trouble.subject else ''} since "
            f"{moment(trouble.since_ms)} ({trouble.times} times): {trouble.reason}"
        )
        for trouble in broker.health.troubles[:_MOST]
    ]
    found += _shorten(_hanging(broker, now, sight), "more hanging transactions", "/producers")
    found += _shorten(_transactions(broker, now.taken_ms, sight), "more open transactions", "/transactions?state=open")
    found += _shorten(_idle_groups(now), "more groups without members", "/groups")
    return found


def _transactions(broker: Broker, now_ms: int, sight: Sight) -> Iterable[Attention]:
    for each in sorted(
        (each for each in broker.transactions if each.state not in RESTING), key=lambda each: each.started_ms
    ):
        age = now_ms - each.started_ms
        if age < _OLD_TRANSACTION_MS:
            return
        if not sight.transaction(each.name):
            continue
        held = _held_topics(broker, each, sight)
        what = f"held readers of {held} back" if held else "been open"
        yield Attention(
            f"Transaction {each.name} of producer {each.pid} has {what} for {span(age / 1000)}.",
            f"/transactions/{quote(each.name, safe='')}",
        )


def _held_topics(broker: Broker, transaction: TransactionMetadata, sight: Sight) -> str:
    """Return the names of some topics whose readers of committed records wait for the transaction."""
    found: set[str] = set()
    for where in islice(transaction.partitions, MOST_LOOKED_AT):
        log = open_log(broker, where) if where.topic not in found and sight.topic(where.topic) else None
        entry = log.producers.get(transaction.pid) if log is not None else None
        if entry is not None and entry.transaction_start is not None:
            found.add(where.topic)
            if len(found) > _TOPICS_NAMED:
                break
    names = sorted(found)
    return ", ".join(names[:_TOPICS_NAMED]) + (" …" if len(names) > _TOPICS_NAMED else "")


def _hanging(broker: Broker, now: Snapshot, sight: Sight) -> Iterable[Attention]:
    for each in hanging(broker, now.undecided):
        if not sight.topic(each.where.topic):
            continue
        query = urlencode({"topic": each.where.topic, "partition": each.where.partition, "pid": each.pid})
        yield Attention(
            f"A transaction of producer {each.pid} hangs in {each.where}: no coordinator knows it, so it holds readers "
            f"back at offset {number(each.first_offset)} until it is aborted by hand.",
            f"/producers/hanging?{query}",
        )


def _idle_groups(now: Snapshot) -> Iterable[Attention]:
    for name, group in now.groups.items():
        lag, age = group.lag, now.taken_ms - group.lag.committed_ms
        if lag.known and not group.members and age >= _NO_COMMIT_MS:
            least = "at least " if lag.closed else ""
            yield Attention(
                f"Group {name} has no members, has committed nothing for {span(age / 1000)} and lags by "
                f"{least}{counted(lag.known, 'record')}.",
                f"/groups/{quote(name, safe='')}",
            )


def _shorten(rows: Iterable[Attention], others: str, path: str) -> list[Attention]:
    every = list(rows)
    left = len(every) - _MOST
    return every[:_MOST] + ([Attention(f"{number(left)} {others}.", path)] if left > 0 else [])
