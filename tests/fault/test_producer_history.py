"""Producers with random settings, each with several callers, while their server is killed and paused and signal
handlers interrupt `send`, `result` and `flush`.

Whatever happens: what a ticket says is persisted is in the log once, what it says is not there is not, nothing is there
twice, and what one caller has sent by one producer is in the order in which it did so. (A record of unknown fate may
arrive after those of the next producer: the server was paused when its connection was closed.)
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fencepost import Admin, FencepostError, Producer, SendFailed, Ticket, Undelivered
from tests.integration.test_producer_basics import read_all
from tests.support.crash import ServerProcess
from tests.support.raw import RawClient

pytestmark = [
    pytest.mark.fault,
    # The handler may interrupt a callback of the garbage collector: then Python reports what it raises, and goes on.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SECONDS = float(os.environ.get("FENCEPOST_SOAK_SECONDS", "600"))
CALLERS = 3
_A_LIFE = 1.5
"""Seconds, more or less, for which a producer is used."""


class Interrupted(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is."""


class Caller:
    """Sends to a partition of its own and, without naming one, to a topic that all callers share."""

    def __init__(self, number: int, seed: int) -> None:
        self.number, self.chance = number, random.Random(seed)
        self.sent: dict[bytes, Ticket | None] = {}
        """By value; None: `send` was interrupted, and nobody knows whether the record was accepted."""
        self._numbers = 0
        self.life = 0
        """The number of the producer."""
        self.failed: BaseException | None = None

    def use(self, producer: Producer, is_over: Callable[[], bool]) -> None:
        try:
            while not is_over():
                self.call(producer)
        except BaseException as error:
            self.failed = error

    def call(self, producer: Producer) -> None:
        kind, ticket = self.chance.random(), None
        try:
            for _ in range(self.chance.choice([1, 1, 1, 20, 200])):
                ticket = self.send(producer)
            if kind < 0.7:
                assert ticket is not None
                ticket.result(self.chance.choice([None, 0.01, 1.0]))
            elif kind < 0.9:
                producer.flush()
        except FencepostError:
            pass  # of a record, which says so on its ticket; or it was not accepted

    def send(self, producer: Producer) -> Ticket:
        self._numbers += 1
        value = b"%d %d %d " % (self.number, self._numbers, self.life) + b"x" * self.chance.choice([0, 0, 100, 3000])
        own = self.chance.random() < 0.7
        self.sent[value] = None
        try:
            ticket = producer.send("own", value, partition=self.number) if own else producer.send("shared", value)
        except FencepostError:
            del self.sent[value]
            raise
        self.sent[value] = ticket
        return ticket


class Interrupter:
    """Interrupts the main thread's calls by signals, whose handler raises, or sends a record of its own."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.handler: Caller | None = None
        self.producer: Producer | None = None
        self.refused: list[FencepostError] = []
        self.undelivered: list[FencepostError] = []
        self.is_armed = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(threading.get_ident(), chance.randrange(2**32)))

    def __enter__(self) -> Interrupter:
        self._before = signal.signal(signal.SIGUSR1, self._handle)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGUSR1, self._before)

    def _run(self, whom: int, seed: int) -> None:
        chance = random.Random(seed)
        while not self._over.wait(chance.choice([0.0005, 0.003, 0.02]) * chance.random()):
            signal.pthread_kill(whom, signal.SIGUSR1)

    def _handle(self, *_: object) -> None:
        if not self.is_armed:
            return
        self.is_armed = False
        if self.chance.random() < 0.5:
            raise Interrupted
        assert self.handler is not None
        assert self.producer is not None
        try:
            self.handler.send(self.producer)
        except FencepostError as error:
            self.refused.append(error)

    def call(self, what: Callable[[], object]) -> None:
        try:
            try:
                self.is_armed = True
                what()
            finally:
                self.is_armed = False
        except Interrupted:
            self.is_armed = False


@contextmanager
def hears_of(causes: list[FencepostError]) -> Iterator[None]:
    """Keep why records were not delivered that no ticket has told of."""
    try:
        yield
    except Undelivered as undelivered:
        causes.extend(undelivered.causes)


def live(address: str, callers: list[Caller], interrupter: Interrupter, chance: random.Random) -> None:
    """Use one producer for a while: the first caller on this thread, the last one in the signal handler."""
    for caller in callers:
        caller.life += 1
    ends_at = time.monotonic() + _A_LIFE * (0.5 + chance.random())
    is_alone = chance.random() < 0.5  # then the producer is often idle, and the caller itself writes and reads
    with (
        hears_of(interrupter.undelivered),
        Producer(
            address,
            linger=chance.choice([0.0, 0.0, 0.005, 0.05]),
            batch_size=chance.choice([16 << 10, 1 << 20]),
            buffer_memory=chance.choice([256 << 10, 32 << 20]),
            delivery_timeout=chance.choice([1.0, 3.0, 20.0]),
            request_timeout=chance.choice([0.5, 10.0]),
            exit_timeout=30.0,  # so every record is settled, or has expired, before the producer gives up
        ) as producer,
    ):
        others = [
            threading.Thread(target=caller.use, args=(producer, lambda: time.monotonic() >= ends_at))
            for caller in callers[1:-1]
            if not is_alone
        ]
        for other in others:
            other.start()
        interrupter.producer, interrupter.handler = producer, callers[-1]
        while time.monotonic() < ends_at:
            interrupter.call(lambda: callers[0].call(producer))
        for other in others:
            other.join()


def break_it(server: ServerProcess, seed: int, is_over: threading.Event) -> None:
    """Kill and pause the server at random moments."""
    chance = random.Random(seed)
    while not is_over.wait(0.2 + chance.random()):
        if chance.random() < 0.5:
            server.kill()
            server.start("os")
            server.await_ready()
        else:
            with server.paused():
                is_over.wait(2 * chance.random())


def history(folder: Path, chance: random.Random, seconds: float) -> None:
    lives, found, known = 0, Counter[bytes](), Counter[str]()
    with ServerProcess(folder) as server:
        server.start("os")
        server.await_ready()
        with Admin(server.address) as admin:
            admin.create_topic("own", CALLERS + 1)
            admin.create_topic("shared", 2)
        callers = [Caller(number, chance.randrange(2**32)) for number in range(CALLERS + 1)]
        is_over = threading.Event()
        breaks = threading.Thread(target=break_it, args=(server, chance.randrange(2**32), is_over))
        breaks.start()
        try:
            ends_at = time.monotonic() + seconds
            with Interrupter(chance) as interrupter:
                while time.monotonic() < ends_at:
                    live(server.address, callers, interrupter, chance)
                    lives += 1
            strange = [error for error in interrupter.refused if not isinstance(error, SendFailed)]
            assert [error for error in strange if "interrupted a call of the same producer" not in str(error)] == []
        finally:
            is_over.set()
            breaks.join()
        assert [caller.failed for caller in callers] == [None] * len(callers)
        server.kill()  # what is still in its sockets is not carried out any more
        server.start("os")
        server.await_ready()
        with RawClient(server.address) as client:
            for topic, partitions in (("own", CALLERS + 1), ("shared", 2)):
                for partition in range(partitions):
                    values = [value or b"" for value in read_all(client, topic, partition)]
                    found.update(values)
                    if topic == "own":
                        numbers = defaultdict[bytes, list[int]](list)
                        for value in values:
                            numbers[value.split()[2]].append(int(value.split()[1]))
                        disordered = [life for life, each in numbers.items() if each != sorted(each)]
                        assert disordered == [], f"in partition {partition}"
    assert [value for value, count in found.items() if count > 1] == []
    assert [cause for cause in interrupter.undelivered if "was closed" in str(cause)] == [], "a record was forgotten"
    wrong: defaultdict[str, list[bytes]] = defaultdict(list)
    for caller in callers:
        for value, ticket in caller.sent.items():
            if ticket is None:
                known["interrupted"] += 1
                continue
            error = ticket.exception(0)
            says = "yes" if error is None else error.persisted if isinstance(error, SendFailed) else "unknown"
            known[says] += 1
            if (says == "yes" and not found[value]) or (says == "no" and found[value]):
                wrong[says].append(value[:20])
    assert wrong == {}
    print(f"{lives} lives, {sum(known.values())} records {dict(known)}: lost 0, doubled 0, disordered 0")
    assert known["yes"]


def test_nothing_is_lost_doubled_or_disordered_whatever_is_interrupted(tmp_path: Path, chance: random.Random) -> None:
    """PROD-4, PROD-8, IDEM-5, IDEM-6."""
    history(tmp_path, chance, 8.0)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_nothing_is_lost_doubled_or_disordered_for_a_long_time(tmp_path: Path, chance: random.Random) -> None:
    history(tmp_path, chance, SECONDS)
