"""A program whose signal handler calls the client that it interrupts, again and again, at random moments.

python interrupted.py ADDRESS TOPIC WHAT SEED SECONDS

WHAT: a producer (its handler sends, waits, flushes), a named one in transactions, one that the handler closes, or a
reader. Whatever the handler or the program itself raises must be a FencepostError. A call that hangs ends the program,
with the stacks of all threads on stderr. At the end it prints how many records were acknowledged.
"""

from __future__ import annotations

import faulthandler
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import fencepost

HANGS: Final = 60.0
"""Seconds after which a round counts as hung."""


class Interrupted:
    """The client, what the program does with it, and what the handler does."""

    soon = 0.001
    """Seconds that a round takes, more or less: it is interrupted within them."""

    def __init__(self, address: str, topic: str) -> None:
        self.address, self.topic = address, topic
        self.acknowledged = 0
        self.begin()

    def begin(self) -> None:
        """Begin a round."""

    def end(self) -> None:
        """End a round."""

    def work(self) -> Mapping[str, Callable[[], object]]:
        raise NotImplementedError

    def handle(self) -> Mapping[str, Callable[[], object]]:
        raise NotImplementedError


class OfProducer(Interrupted):
    name: str | None = None

    def __init__(self, address: str, topic: str) -> None:
        self.producer = fencepost.Producer(address, name=topic if self.name else None)
        super().__init__(address, topic)
        self.ticket = self.send()

    def send(self) -> fencepost.Ticket:
        self.ticket = self.producer.send(self.topic, b"value", partition=0)
        return self.ticket

    def result(self) -> None:
        self.send().result()
        self.acknowledged += 1

    def flush(self) -> None:
        for _ in range(5):
            self.send()
        self.producer.flush()

    def ask(self) -> None:
        self.send().add_done_callback(str)
        self.ticket.done()
        self.ticket.exception()

    def work(self) -> Mapping[str, Callable[[], object]]:
        return {"result": self.result, "send": self.send, "flush": self.flush, "ask": self.ask}

    def handle(self) -> Mapping[str, Callable[[], object]]:
        return {
            "send": lambda: self.producer.send(self.topic, b"value", partition=0, headers=[("name", b"value")]),
            "result": lambda: self.producer.send(self.topic, b"value", partition=0).result(),
            "last": self.ticket.result,
            "flush": self.producer.flush,
            "callback": lambda: self.ticket.add_done_callback(str),
            "stats": self.producer.stats,
        }


class InTransactions(OfProducer):
    name = "named"

    def transaction(self) -> None:
        with self.producer.transaction():
            for _ in range(3):
                self.send()
        self.acknowledged += 3

    def work(self) -> Mapping[str, Callable[[], object]]:
        return {"transaction": self.transaction}


class Closed(OfProducer):
    def begin(self) -> None:
        self.producer = fencepost.Producer(self.address)

    def end(self) -> None:
        self.producer.close()

    def handle(self) -> Mapping[str, Callable[[], object]]:
        return {"close": self.producer.close, "close in time": lambda: self.producer.close(3)}


class OfReader(Interrupted):
    soon = 0.01

    def __init__(self, address: str, topic: str) -> None:
        with fencepost.Producer(address) as producer:
            for number in range(2000):
                producer.send(topic, b"%d" % number, partition=0)
        super().__init__(address, topic)

    def begin(self) -> None:
        self.reader = fencepost.Reader(self.address, self.topic, stop="latest", group=self.topic, partition_bytes=3000)

    def end(self) -> None:
        self.reader.close()

    def loop(self) -> None:
        for number, record in enumerate(self.reader):
            assert record.value == b"%d" % number
            if number == 300:
                return

    def commit(self) -> None:
        for _ in range(5):
            self.reader.poll(30)
            self.reader.commit()

    def own(self) -> None:
        self.reader.own(self.topic, generation=1)
        self.reader.poll(30)

    def work(self) -> Mapping[str, Callable[[], object]]:
        return {"loop": self.loop, "commit": self.commit, "own": self.own}

    def handle(self) -> Mapping[str, Callable[[], object]]:
        return {"close": self.reader.close, "check": self.reader.check_owned}


KINDS: Final[Mapping[str, type[Interrupted]]] = {
    "producer": OfProducer,
    "transactions": InTransactions,
    "closed producer": Closed,
    "reader": OfReader,
}


def main(address: str, topic: str, what: str, seed: str, seconds: str) -> None:
    chance, calls = random.Random(int(seed)), 0
    client = KINDS[what](address, topic)

    def handler(*_: object) -> None:
        nonlocal calls
        calls += 1
        with suppress(fencepost.FencepostError):  # refused, or closed
            chance.choice(list(client.handle().values()))()

    signal.signal(signal.SIGALRM, handler)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        faulthandler.dump_traceback_later(HANGS, exit=True)
        client.begin()
        signal.setitimer(signal.ITIMER_REAL, client.soon * chance.choice([0.05, 0.2, 1.0]) * chance.uniform(0.1, 2.0))
        with suppress(fencepost.FencepostError):  # the handler has closed it
            chance.choice(list(client.work().values()))()
        signal.setitimer(signal.ITIMER_REAL, 0)
        client.end()
    assert calls
    faulthandler.dump_traceback_later(HANGS, exit=True)
    if isinstance(client, OfProducer):
        client.producer.close()
    print(client.acknowledged)


if __name__ == "__main__":
    main(*sys.argv[1:])
