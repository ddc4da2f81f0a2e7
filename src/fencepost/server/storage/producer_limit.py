"""The limit on the producers that all partitions remember together (`max_producers`). From half of it on, those that
were idle for some minutes fade: they take little memory, and count little."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fencepost.clock import Clock
from fencepost.errors import ErrorCode, ServerError
from fencepost.server.storage.topics import Topic

_COUNT_SECONDS: Final = 1.0


class ProducerLimit:
    """The limit and the current count. It counts again now and then, because producers expire and partitions open."""

    def __init__(self, topics: Iterable[Topic], most: int, clock: Clock) -> None:
        self._topics = topics
        self._most = most
        self._clock = clock
        self._count = 0
        self._counted_at = -_COUNT_SECONDS

    def is_half_reached(self) -> bool:
        """Return whether idle producers should make room: so many are remembered that the limit is in sight."""
        self._count_again()
        return self._count * 2 >= self._most

    def check_new(self) -> None:
        """Count one more producer; raise POLICY_VIOLATION if the limit is reached."""
        self._count_again()
        if self._count >= self._most:
            raise ServerError(
                ErrorCode.POLICY_VIOLATION,
                f"the server remembers {self._count} producers, the limit: raise max_producers, "
                "or wait until idle producers expire (producer_expiry_ms)",
            )
        self._count += 1

    def _count_again(self) -> None:
        now = self._clock.monotonic()
        if now - self._counted_at >= _COUNT_SECONDS:
            self._counted_at = now
            logs = (partition.log for topic in self._topics for partition in topic.touched())
            self._count = sum(log.producers.weight for log in logs if log is not None)
