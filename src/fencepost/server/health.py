"""The server's health: the background tasks ("chores") that currently fail.

Every chore runs inside `Health.watch`. `Health` records a failure with the partition or transaction it concerns, and
the server goes on with the rest. The entry is removed when the same chore succeeds there. Any thread may read
`Health.troubles`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, TypeVar, cast

from fencepost.clock import Clock
from fencepost.errors import FencepostError
from fencepost.types import Milliseconds

logger = logging.getLogger(__name__)
_Item = TypeVar("_Item")

MAX_TROUBLES: Final = 1000
"""Maximum number of recorded troubles; further ones are only counted."""


class Chore(StrEnum):
    """The kinds of work that the server does in the background."""

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
    CERTIFICATES = "reloading certificates"
    AUDIT = "writing the audit log"


@dataclass(frozen=True, slots=True)
class Trouble:
    """A chore that fails, and the subject for which it fails."""

    chore: Chore
    subject: str
    """The partition, transaction, group or folder; empty if the chore concerns the whole server."""
    reason: str
    since_ms: Milliseconds
    last_ms: Milliseconds
    times: int
    """Failures since the last success."""


class Health:
    """The current troubles. Only the loop changes them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._troubles: dict[tuple[Chore, str], Trouble] = {}

    @property
    def troubles(self) -> tuple[Trouble, ...]:
        """Oldest first."""
        return tuple(self._troubles.values())

    def watch(self, chore: Chore, subject: object = "") -> AbstractContextManager[None, bool]:
        """Record an exception in the block and suppress it, or record success."""
        return cast("AbstractContextManager[None, bool]", self._watch(chore, subject))

    @contextmanager
    def _watch(self, chore: Chore, subject: object) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the chore is tried again, and the others go on
            self.note(chore, subject, error)
        else:
            self.clear(chore, subject)

    def note(self, chore: Chore, subject: object, error: BaseException) -> None:
        """Record a failure. Log the 1st, 2nd, 4th, 8th … of a kind: a disk that stays full should not fill the log."""
        key = chore, str(subject)
        reason = str(error) or type(error).__name__
        now = self._clock.now_ms()
        known = self._troubles.get(key)
        if known is None and len(self._troubles) >= MAX_TROUBLES:
            return
        if known is None:
            trouble = Trouble(*key, reason, now, now, 1)
        else:
            trouble = replace(known, reason=reason, last_ms=now, times=known.times + 1)
        self._troubles[key] = trouble
        if trouble.times & (trouble.times - 1) == 0:
            expected = isinstance(error, (FencepostError, OSError))
            logger.warning(
                "%s%s failed and will be retried: %s%s",
                f"{key[1]}: " if key[1] else "",
                chore,
                reason,
                f" ({trouble.times} failures so far)" if known else "",
                exc_info=None if expected else error,
            )

    def clear(self, chore: Chore, subject: object = "") -> None:
        """Record that the chore succeeded for `subject`."""
        if self._troubles and (gone := self._troubles.pop((chore, str(subject)), None)) is not None:
            logger.info(
                "%s%s succeeded after %d failures", f"{gone.subject}: " if gone.subject else "", chore, gone.times
            )

    def each(self, chore: Chore, items: Iterable[_Item], do: Callable[[_Item], None]) -> None:
        """Do the chore for every item, also after one fails; record the last failure at the end."""
        failure: Exception | None = None
        for item in items:
            try:
                do(item)
            except Exception as error:  # noqa: BLE001 - one item's failure must not stop the others
                failure = error
        if failure is None:
            self.clear(chore)
        else:
            self.note(chore, "", failure)

    def keep_only(self, chore: Chore, subjects: Container[str]) -> None:
        """Drop this chore's troubles for all subjects but these, because the others no longer exist."""
        for key in [key for key in self._troubles if key[0] is chore and key[1] and key[1] not in subjects]:
            del self._troubles[key]

    def forget(self, subjects: Container[str]) -> None:
        """Drop all troubles of these subjects, because they no longer exist."""
        for key in [key for key in self._troubles if key[1] in subjects]:
            del self._troubles[key]
