"""Micro-batches of a sink without Spark: what its driver does, with rows that are given."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fencepost.client.transactions.micro_batch import MicroBatch, Runner
from fencepost.client.transactions.shared_writer import PartitionWriter, SharedTransaction
from fencepost.kernel import encode_batch
from fencepost.types import TopicPartition


class Rows(MicroBatch):
    """A micro-batch of a sink, as Spark's driver carries it out, with rows that are given."""

    def __init__(self, runner: Runner, topic: str, count: int) -> None:
        super().__init__(runner)
        self._where = TopicPartition(topic, 0)
        self._count = count

    def freeze(self, position: str) -> int:
        return self._count

    def publish(self, transaction: SharedTransaction, manifest: int) -> None:
        self.runner.on_step("writing")
        writer = PartitionWriter(self.links(), transaction, self._where)
        now = time.time_ns() // 1_000_000
        writer.write(encode_batch([(None, b"a row", now, None) for _ in range(manifest)]))
        writer.finish()

    def records(self, manifest: int) -> Mapping[TopicPartition, int]:
        return {self._where: manifest}
