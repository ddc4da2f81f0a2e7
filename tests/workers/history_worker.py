"""One process of a history: copies a partition in transactions, or reads what is committed, and notes all it does.

    python -m tests.workers.history_worker copy SERVERS NOTES NAME PARTITION SEED       (−1: what the group assigns)
    python -m tests.workers.history_worker read SERVERS NOTES NAME

`copy` takes records of one partition of `in` and writes two for each to `out`, to partitions chosen by the record, in
transactions of random size together with its input position. Some it aborts on purpose. It uses confluent-kafka the
way its documentation says: what can be retried is, what asks for an abort is aborted, and what is fatal ends the
process, which whoever started it starts again. Its transactional id belongs to the partition, so that two of these
processes at work on one partition fence each other; as a member of the group it has one of its own, and it is the group
that fences it.
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from fencepost.testing.history import Recorder

OUT_PARTITIONS = 2
GROUP = "copiers"
SECONDS = 60.0
FENCED = 3
"""Exit code of who was replaced, or met another fatal error."""


def settings(servers: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": servers,
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 100,
        "socket.timeout.ms": 3_000,
        "metadata.recovery.strategy": "none",  # with "rebootstrap" librdkafka 2.x can hang when all brokers were away
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in more.items()},
    }


class Copier:
    def __init__(self, servers: str, notes: str, name: str, partition: int, seed: int) -> None:
        self._dice = random.Random(seed)
        self._notes = Recorder(notes, name)
        self._name = name
        self._count = 0
        self._partition = partition
        self._producer = Producer(
            settings(
                servers,
                transactional_id=f"copier-{partition}" if partition >= 0 else name,
                transaction_timeout_ms=30_000 if partition >= 0 else 3_000,
                retry_backoff_ms=10,
                linger_ms=0,
            )
        )
        self._consumer = Consumer(
            settings(
                servers,
                group_id=GROUP,
                session_timeout_ms=6_000,
                enable_auto_commit=False,
                isolation_level="read_committed",
                auto_offset_reset="earliest",
            )
        )

    def run(self) -> None:
        self._producer.init_transactions(SECONDS)
        if self._partition < 0:
            self._consumer.subscribe(["in"])
        else:
            self._consumer.assign(self._committed([TopicPartition("in", self._partition)]))
        while True:
            messages = self._consumer.consume(self._dice.randint(1, 20), 1.0)
            records = [message for message in messages if message.error() is None]
            if records:
                self._copy(records)

    def _committed(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """The committed positions, which nobody can change any more once our epoch or generation is the newest."""
        while True:
            try:
                found = self._consumer.committed(partitions, SECONDS)
                break
            except KafkaException as error:
                if not error.args[0].retriable() and error.args[0].code() >= 0:
                    raise
        return [TopicPartition("in", at.partition, at.offset if at.offset >= 0 else OFFSET_BEGINNING) for at in found]

    def _go_back(self) -> None:
        for position in self._committed(self._consumer.assignment()):
            self._consumer.seek(position)

    def _copy(self, records: list[Any]) -> None:
        notes, producer = self._notes, self._producer
        notes.begin()
        producer.begin_transaction()
        try:
            for record in records:
                work = record.value().decode()
                for half in range(2):
                    self._count += 1
                    value = f"{self._name}/{self._count}"
                    partition = (int(work.rpartition(":")[2]) + half) % OUT_PARTITIONS
                    notes.send("out", partition, value, f"{work}/{half}")
                    producer.produce("out", value.encode(), partition=partition)
            if self._dice.random() < 0.1:
                producer.flush(SECONDS)  # what is not sent yet would only be dropped
                self._abort()
                return
            ends = {record.partition(): record.offset() + 1 for record in records}
            positions = [TopicPartition("in", partition, end) for partition, end in ends.items()]
            self._retried(
                lambda: producer.send_offsets_to_transaction(
                    positions, self._consumer.consumer_group_metadata(), SECONDS
                )
            )
            self._retried(lambda: producer.commit_transaction(SECONDS))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            self._abort()
        else:
            notes.committed()

    def _abort(self) -> None:
        self._retried(lambda: self._producer.abort_transaction(SECONDS))
        self._notes.aborted()
        self._go_back()

    @staticmethod
    def _retried(call: Any) -> None:
        while True:
            try:
                call()
                return
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


def read(servers: str, notes_path: str, name: str) -> None:
    notes = Recorder(notes_path, name)
    reader = Consumer(
        settings(
            servers,
            group_id=name,
            enable_auto_commit=False,
            isolation_level="read_committed",
            auto_offset_reset="error",
        )
    )
    reader.assign([TopicPartition("out", partition, 0) for partition in range(OUT_PARTITIONS)])
    while True:
        for message in reader.consume(100, 1.0):
            if message.error() is None:
                notes.read("out", message.partition(), message.offset(), message.value().decode())


def main() -> None:
    what, servers, notes, name, *rest = sys.argv[1:]
    if what == "read":
        read(servers, notes, name)
    copier = Copier(servers, notes, name, int(rest[0]), int(rest[1]))
    try:
        copier.run()
    except KafkaException as error:
        print(f"{name}: {error}", flush=True)
        os._exit(FENCED)  # librdkafka may take its time to tear down a producer that has unsent records


if __name__ == "__main__":
    main()
