"""One process that runs transactions with confluent-kafka, aborts many of them, and notes what became of each.

    python -m tests.workers.transactions_loop SERVERS NOTES NAME TRANSACTIONS SEED

Transaction n writes `NAME:n:0`, `NAME:n:1`, … to random partitions of `t`, in one to three portions with a flush or
none in between. Some it aborts at once, with batches in flight. Notes are lines `begin n count`, and then `committed n`
or `aborted n`, each written as soon as the client says so; neither means that nobody knows. What is fatal to a producer
is noted as `fatal CODE`, and another producer takes its place.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.workers.history_worker import settings

TOPIC = "t"
PARTITIONS = 3
SECONDS = 60.0


class Loop:
    def __init__(self, servers: str, notes: str, name: str, seed: int) -> None:
        self._servers = servers
        self._name = name
        self._dice = random.Random(seed)
        self._notes = Path(notes).open("a", buffering=1)  # noqa: SIM115  # as long as the process
        self._producer = self._new_producer()

    def _new_producer(self) -> Producer:
        producer = Producer(
            settings(
                self._servers,
                transactional_id=self._name,
                transaction_timeout_ms=20_000,
                retry_backoff_ms=10,
                linger_ms=0,
            )
        )
        retried(lambda: producer.init_transactions(SECONDS))
        return producer

    def run(self, transactions: int) -> None:
        for number in range(transactions):
            try:
                self._transaction(number)
            except KafkaException as error:
                if not error.args[0].fatal():
                    raise
                print(f"fatal {error.args[0]}", file=self._notes)
                self._producer = self._new_producer()
        print("done", file=self._notes)

    def _transaction(self, number: int) -> None:
        dice, producer = self._dice, self._producer
        portions = [dice.randint(1, 3) for _ in range(dice.randint(1, 3))]
        print(f"begin {number} {sum(portions)}", file=self._notes)
        producer.begin_transaction()
        try:
            sent = 0
            for portion in portions:
                for _ in range(portion):
                    producer.produce(TOPIC, f"{self._name}:{number}:{sent}", partition=dice.randrange(PARTITIONS))
                    sent += 1
                if dice.random() < 0.3:
                    producer.flush(SECONDS)
                else:
                    producer.poll(dice.choice((0, 0.002)))  # on their way, and not answered
            if dice.random() < 0.4:
                self._abort(number)
                return
            retried(lambda: producer.commit_transaction(SECONDS))
        except KafkaException as error:
            if error.args[0].fatal():
                raise
            # Also where it does not ask for an abort: `produce` says no more than "erroneous state" when the
            # transaction has failed meanwhile.
            print(f"refused {error.args[0].name()}", file=self._notes)
            self._abort(number)
        else:
            print(f"committed {number}", file=self._notes)

    def _abort(self, number: int) -> None:
        retried(lambda: self._producer.abort_transaction(SECONDS))
        print(f"aborted {number}", file=self._notes)


def retried(call: Callable[[], Any]) -> None:
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable():
                raise


def main() -> None:
    servers, notes, name, transactions, seed = sys.argv[1:]
    Loop(servers, notes, name, int(seed)).run(int(transactions))


if __name__ == "__main__":
    main()
