"""Micro-batches of a sink without Spark: what its driver does, with rows that are given."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fencepost.client.micro_batch.runner import Content, Runner
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SharedTransaction
from fencepost.core.micro_batch.protocol import FrozenContent
from fencepost.kernel import encode_batch
from fencepost.types import TopicPartition


class Rows(Content):
    """A micro-batch of a sink, as Spark's driver carries it out, with rows that are given."""

    def __init__(self, runner: Runner, topic: str, count: int) -> None:
        self._runner = runner
        self._where = TopicPartition(topic, 0)
        self._count = count

    def freeze(self, position: str) -> FrozenContent:
        return FrozenContent()

    def publish(self, transaction: SharedTransaction, links: LeaderChannels) -> None:
        self._runner.on_step("writing")
        writer = PartitionWriter(links, transaction, self._where)
        now = time.time_ns() // 1_000_000
        writer.write(encode_batch([(None, b"a row", now, None) for _ in range(self._count)]))
        writer.finish()

    def records(self) -> Mapping[TopicPartition, int]:
        return {self._where: self._count}
