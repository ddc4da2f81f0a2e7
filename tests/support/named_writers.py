"""Programs that write numbered records into every partition of a topic under a name, while nodes of a cluster hang.

A number that failed without being persisted is written again, as a program would. So at the end each number must be in
each partition once, and in order, whatever happened. `Fenced` is raised: only a true takeover may cause it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fencepost import Producer
from fencepost.errors import Fenced, FencepostError, SendFailed, ServerError
from fencepost.types import Offset, TopicPartition
from tests.support.cluster_load import PARTITIONS, stored

TIMEOUT: Final = 60.0
"""Seconds for a delivery and for a transaction; no node hangs for so long."""


class NamedWriter:
    """Sends outside of transactions, under a name."""

    def __init__(self, producer: Producer, servers: str, topic: str) -> None:
        self.producer = producer
        self._servers, self.topic = servers, topic
        self.written = 0
        self.failures: list[FencepostError] = []

    def write(self, before_the_end: Callable[[], object] = lambda: None) -> None:
        """Write the next number, until it is there."""
        while not self._is_written(b"%06d" % self.written, before_the_end):
            pass
        self.written += 1

    def _is_written(self, value: bytes, before_the_end: Callable[[], object]) -> bool:
        before_the_end()
        tickets = [self.producer.send(self.topic, value, partition=partition) for partition in range(PARTITIONS)]
        for ticket in tickets:
            ticket.result(2 * TIMEOUT)
        return True

    def judge(self) -> None:
        """Compare the log, read by another client, with what was written."""
        expected = [b"%06d" % number for number in range(self.written)]
        log = stored(self._servers, self.topic)
        assert {partition: [value for _, value in rows] for partition, rows in log.items()} == dict.fromkeys(
            range(PARTITIONS), expected
        )


class TransactionWriter(NamedWriter):
    """Writes each number in a transaction of its own, with offsets of a group if there is one."""

    group: str | None = None

    def _is_written(self, value: bytes, before_the_end: Callable[[], object]) -> bool:
        try:
            with self.producer.transaction():
                tickets = [
                    self.producer.send(self.topic, value, partition=partition) for partition in range(PARTITIONS)
                ]
                for ticket in tickets:
                    ticket.result(2 * TIMEOUT)
                if self.group is not None:
                    self.producer.send_offsets(self.group, {TopicPartition(self.topic, 0): Offset(int(value))})
                before_the_end()
        except Fenced:
            raise
        except (SendFailed, ServerError) as error:
            if isinstance(error, SendFailed) and error.persisted != "no":
                raise
            self.failures.append(error)
            return False
        return True


def all_kinds(servers: str, topics: Callable[[str], str], name: str, request_timeout: float) -> list[NamedWriter]:
    """Return a transactional producer of this name, which comes first; one that sends outside of transactions; one that
    has resumed from saved ids; and an owner. `topics` creates a topic."""

    def producer(name: str | None = None) -> Producer:
        return Producer(
            servers,
            name=name,
            request_timeout=request_timeout,
            delivery_timeout=TIMEOUT,
            transaction_timeout=TIMEOUT,
        )

    transactional = TransactionWriter(producer(name), servers, topics("transactional"))
    plain = NamedWriter(producer(f"{name}-plain"), servers, topics("plain"))
    with producer(f"{name}-resumed") as first:
        ids = first.ids
    resumed = NamedWriter(
        Producer(servers, ids=ids, request_timeout=request_timeout, delivery_timeout=TIMEOUT),
        servers,
        topics("resumed"),
    )
    owner = NamedWriter(producer(), servers, topics("owned"))
    owner.producer.own(name, [f"{owner.topic}-{partition}" for partition in range(PARTITIONS)], generation=1)
    return [transactional, plain, resumed, owner]
