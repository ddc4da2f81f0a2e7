"""What failed: said of each batch with what is known of it, and kept for `flush` until somebody has looked."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Any, Final

from fencepost.client.produce.partition_queue import UNDESIGNATED, Batch
from fencepost.client.produce.ticket import Settlement
from fencepost.errors import FencepostError, Persisted, SendFailed

_CAUSES_KEPT: Final = 5
_FAILURES_KEPT: Final = 1000


class Failures:
    """What failed and was not looked at, until `flush` says it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: deque[Settlement] = deque()
        self._older: Counter[str] = Counter()
        """Records per topic."""
        self._causes: list[FencepostError] = []

    def note(self, settlement: Settlement) -> None:
        with self._lock:
            self._kept.append(settlement)
            if len(self._kept) > _FAILURES_KEPT:  # whoever sends for days and never flushes
                self._fold(self._kept.popleft())

    def take(self) -> tuple[int, tuple[FencepostError, ...]]:
        """Number and first causes of the records nobody looked at, since the last call."""
        with self._lock:
            causes = self._fold_all()
            return self._older_taken().total(), tuple(causes)

    def take_by_topic(self) -> Counter[str]:
        """The same, per topic."""
        with self._lock:
            self._fold_all()
            return self._older_taken()

    def _fold_all(self) -> list[FencepostError]:
        for settlement in self._kept:
            self._fold(settlement)
        self._kept.clear()
        causes, self._causes = self._causes, []
        return causes

    def _older_taken(self) -> Counter[str]:
        older, self._older = self._older, Counter()
        return older

    def _fold(self, settlement: Settlement) -> None:
        unseen = settlement.unseen
        if unseen and settlement.error is not None:
            self._older[settlement.topic_name] += unseen
            if len(self._causes) < _CAUSES_KEPT:
                self._causes.append(settlement.error)


def where(batch: Batch) -> dict[str, Any]:
    partition = batch.partition
    known = None if partition == UNDESIGNATED else partition
    return {"topic": batch.topic_name, "partition": known, "count": batch.count}


def said_of(cause: FencepostError, persisted: Persisted, **where: Any) -> SendFailed:
    """The same cause, said of one batch."""
    kind = type(cause) if isinstance(cause, SendFailed) else SendFailed
    message = cause.message if isinstance(cause, SendFailed) else str(cause)
    error = kind(message, persisted=persisted, code=cause.code, **where)
    error.__cause__ = cause
    return error
