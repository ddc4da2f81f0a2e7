"""What the server does unasked and could not do: the state that says whether somebody should look.

Every chore runs inside `Health.watch`. A failure is noted here, with the partition or transaction that it concerns, and
the server goes on with the rest; the note goes away when the same chore succeeds there. `Health.troubles` may be read
by any thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Final, TypeVar

from fencepost.clock import Clock
from fencepost.errors import FencepostError
from fencepost.types import Milliseconds

logger = logging.getLogger(__name__)
_Item = TypeVar("_Item")

MAX_TROUBLES: Final = 1000
"""Troubles that are kept apart; beyond it they are only counted."""


class Chore(StrEnum):
    """Each kind of work that nobody asks for."""

    RETENTION = "retention"
    FORGETTING_PRODUCERS = "forgetting idle producers"
    SNAPSHOT = "snapshot"
    COMPACTION = "compaction"
    OPENING = "opening for retention"
    SYNC = "sync"
    SPACE = "keeping room on the disk"
    LOOKING_AROUND = "looking for closed partitions"
    FOLDERS = "removing folders of deleted topics"
    OFFSETS = "expiring committed offsets"
    GROUPS = "group deadlines"
    TRANSACTIONS = "transaction timeouts"
    MARKERS = "finishing a transaction"
    OWNERS = "severing silent owners"
    CONNECTIONS = "closing idle connections"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A chore that fails, and where."""

    chore: Chore
    subject: str
    """The partition, transaction, group or folder that it concerns; empty if it concerns the server."""
    reason: str
    since_ms: Milliseconds
    last_ms: Milliseconds
    times: int
    """How often it has failed since it last succeeded."""


class Health:
    """The troubles there are now. Written by the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._troubles: dict[tuple[Chore, str], Trouble] = {}
        self.uncounted = 0
        """Failures that were not kept apart, because there were too many."""

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """Oldest first."""
        return tuple(self._troubles.values())

    def watch(self, chore: Chore, subject: object = "") -> _Watch:
        """For a `with` block: notes whatever goes wrong inside, and swallows it; or notes that it went well."""
        return _Watch(self, chore, subject)

    def note(self, chore: Chore, subject: object, error: BaseException) -> None:
        """Keeps a failure. It is logged when it is new, and then at every doubling: a disk that stays full is not worth
        a line every round."""
        key = chore, str(subject)
        reason = str(error) or type(error).__name__
        now = self._clock.now_ms()
        known = self._troubles.get(key)
        if known is None and len(self._troubles) >= MAX_TROUBLES:
            self.uncounted += 1
            return
        if known is None:
            trouble = Trouble(*key, reason, now, now, 1)
        else:
            trouble = replace(known, reason=reason, last_ms=now, times=known.times + 1)
        self._troubles[key] = trouble
        if trouble.times & (trouble.times - 1) == 0:
            expected = isinstance(error, (FencepostError, OSError))
            logger.warning(
                "%s%s failed and will be tried again: %s%s",
                f"{key[1]}: " if key[1] else "",
                chore,
                reason,
                f" ({trouble.times} times by now)" if known else "",
                exc_info=None if expected else error,
            )

    def clear(self, chore: Chore, subject: object = "") -> None:
        """The chore has succeeded there."""
        if self._troubles and (gone := self._troubles.pop((chore, str(subject)), None)) is not None:
            logger.info(
                "%s%s is well again after %d failures", f"{gone.subject}: " if gone.subject else "", chore, gone.times
            )

    def each(self, chore: Chore, items: Iterable[_Item], do: Callable[[_Item], None]) -> None:
        """Does the chore for every item. One that fails is noted when the others have had their turn."""
        failure: Exception | None = None
        for item in items:
            try:
                do(item)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others have their turn
                failure = error
        if failure is None:
            self.clear(chore)
        else:
            self.note(chore, "", failure)

    def keep_only(self, chore: Chore, subjects: Container[str]) -> None:
        """Forgets what this chore could not do for others than these: they are not there any more."""
        for key in [key for key in self._troubles if key[0] is chore and key[1] and key[1] not in subjects]:
            del self._troubles[key]

    def forget(self, subjects: Container[str]) -> None:
        """These are not there any more, and neither is what was wrong with them."""
        for key in [key for key in self._troubles if key[1] in subjects]:
            del self._troubles[key]


class _Watch:
    __slots__ = ("_chore", "_health", "_subject")

    def __init__(self, health: Health, chore: Chore, subject: object) -> None:
        self._health = health
        self._chore = chore
        self._subject = subject

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is None:
            self._health.clear(self._chore, self._subject)
        elif isinstance(error, Exception):
            self._health.note(self._chore, self._subject, error)
        return isinstance(error, Exception)
