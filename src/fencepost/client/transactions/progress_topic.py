"""A sink's progress topic: one partition, compacted, written by that sink alone.

`__fencepost_sink.NAME` holds a record per micro-batch, written in the batch's own transaction; the last committed one
says what is in the log. Because nobody else writes there, nobody else's open transaction can hide it.
"""

from __future__ import annotations

import re
import time
from typing import Final

from fencepost.client.admin import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.manage.lasting import create_lasting_topic
from fencepost.client.read.ranges import Range, fetch
from fencepost.core.micro_batch import Progress
from fencepost.errors import ConfigError, ErrorCode, ServerError, TimedOut
from fencepost.kernel import decode_batch, encode_batch
from fencepost.types import Milliseconds, TopicPartition

TOPIC_PREFIX: Final = "__fencepost_sink."
TRANSACTIONAL_ID_PREFIX: Final = "fencepost.sink."
_KEY: Final = b"progress"
_LONGEST_NAME: Final = 200
_FIRST_LOOK: Final = 64
"""Offsets from the end: a record and a marker per micro-batch, some of them aborted."""


def check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name) or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"a sink's name has letters, digits, '.', '_' and '-', at most {_LONGEST_NAME} of them: not {name!r}"
        )
    return name


class ProgressTopic:
    def __init__(self, routes: Routes, admin: Admin, name: str, *, patience: float = 60.0) -> None:
        self.where = TopicPartition(TOPIC_PREFIX + check_name(name), 0)
        self._routes = routes
        self._admin = admin
        self._patience = patience

    def ensure(self) -> None:
        """Creates it if it is not there."""
        if self._exists():
            return
        create_lasting_topic(self._admin, self.where.topic, 1, configs={"cleanup.policy": "compact"})

    def _exists(self) -> bool:
        try:
            self._admin.describe_topic(self.where.topic)
        except ServerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return False
        return True

    def last(self, *, settled: bool = True) -> Progress | None:
        """The last committed record. `settled`: after a fence, when nothing can be open any more, so that the end is
        waited for; otherwise what is readable at the moment."""
        topic, partition = self.where
        stop = self._admin.latest(topic)[partition] if settled else 0
        stable = self._admin.latest(topic, read_committed=True)[partition]
        deadline = time.monotonic() + self._patience
        pause = 0.002
        while stable < stop:
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{self.where}: a transaction has been open for {self._patience:g} s, though its writer is fenced; "
                    "`fencepost transactions` shows and ends it"
                )
            time.sleep(pause)
            pause = min(pause * 2, 0.1)
            stable = self._admin.latest(topic, read_committed=True)[partition]
        first = self._admin.earliest(topic)[partition]
        back = _FIRST_LOOK
        while True:
            start = max(first, stable - back)
            found = self._last_between(start, stable)
            if found is not None or start == first:
                return found
            back *= 16

    def _last_between(self, start: int, stop: int) -> Progress | None:
        found: bytes | None = None
        wanted = Range(self.where.topic, self.where.partition, start, stop)
        for batches in fetch(self._routes, wanted, patience=self._patience):
            for batch in batches:
                for record in decode_batch(batch.data):
                    if start <= record.offset < stop and record.key == _KEY and record.value is not None:
                        found = record.value
        return None if found is None else Progress.decode(found)


def record_batch(progress: Progress, now_ms: Milliseconds) -> bytearray:
    return encode_batch([(_KEY, progress.encode(), now_ms, None)])
