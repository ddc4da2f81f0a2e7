"""A sink's progress topic: one partition, compacted, written by that sink alone.

`__fencepost_sink.NAME` gets a record per micro-batch, written in the batch's own transaction. The last committed record
says which micro-batch is in the log.
"""

from __future__ import annotations

import re
from typing import Final

from fencepost.client.cluster.patience import Backoff
from fencepost.client.cluster.routing import Routes
from fencepost.client.transactions.compacted_topic import CompactedTopic
from fencepost.core.micro_batch.protocol import PROGRESS_KEY, PROGRESS_TOPIC_PREFIX, SINK_ID_PREFIX, Progress
from fencepost.errors import ConfigError, TimedOut
from fencepost.kernel import encode_batch
from fencepost.types import Milliseconds

TOPIC_PREFIX: Final = PROGRESS_TOPIC_PREFIX
TRANSACTIONAL_ID_PREFIX: Final = SINK_ID_PREFIX
_LONGEST_NAME: Final = 200
_FIRST_LOOK: Final = 64
"""Offsets from the end: a record and a marker per micro-batch, some of them aborted."""
_FIRST_PAUSE: Final = 0.002


def check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or len(name) > _LONGEST_NAME:
        raise ConfigError(f"a sink's name must be 1 to {_LONGEST_NAME} letters, digits, '.', '_' and '-', not {name!r}")
    return name


class ProgressTopic(CompactedTopic):
    def __init__(self, routes: Routes, name: str, *, patience: float = 60.0) -> None:
        super().__init__(routes, TOPIC_PREFIX + check_name(name), patience=patience)

    def last(self, *, settled: bool = True) -> Progress | None:
        """Return the last committed record.

        `settled`: the sink's name was fenced, so no transaction can stay open, and the whole log is waited for.
        Otherwise only what is readable at the moment counts."""
        stop = self.end(committed=False) if settled else 0
        stable = self.end(committed=True)
        waiting = Backoff(_FIRST_PAUSE, 0.1, self._patience)
        while stable < stop:
            if not waiting.wait():
                raise TimedOut(
                    f"{self.where}: a transaction stays open for {self._patience:g} s, though its writer is fenced; "
                    "`fencepost transactions` shows and ends it"
                )
            stable = self.end(committed=True)
        first = self.first()
        back = _FIRST_LOOK
        while True:
            start = max(first, stable - back)
            found = self._last_between(start, stable)
            if found is not None or start == first:
                return found
            back *= 16

    def _last_between(self, start: int, stop: int) -> Progress | None:
        found = [
            record.value
            for record in self.records(start, stop)
            if record.key == PROGRESS_KEY and record.value is not None
        ]
        return Progress.decode(found[-1]) if found else None


def record_batch(progress: Progress, now_ms: Milliseconds) -> bytearray:
    return encode_batch([(PROGRESS_KEY, progress.encode(), now_ms, None)])
