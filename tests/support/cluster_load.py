"""Load on a cluster while its nodes die, and the judgement of what came of it.

Each load is a thread that writes numbered records and keeps what it was told of every one of them. Afterwards a
stranger's client reads the log with read_committed, and `judge` compares: what was acknowledged is there once, at the
offset that was named; what was said not to be persisted is not there; order is kept per partition; a transaction is
there whole or not at all. A `Follower` has read along meanwhile, and must have seen the same.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

from fencepost import Producer, Reader
from fencepost.client.produce.ticket import Ticket
from fencepost.errors import SendFailed, TimedOut
from tests.support.committed import committed

PARTITIONS: Final = 3
_UNSETTLED: Final = 300
_PAUSE: Final = 0.02


class Told(NamedTuple):
    """What a load was told of one record."""

    value: bytes
    partition: int
    persisted: str
    offset: int | None
    cause: str


@dataclass
class Judgement:
    """The figures of one load; everything in `wrong` is a broken promise."""

    name: str
    told: Counter[str] = field(default_factory=Counter)
    stored: int = 0
    wrong: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    causes: Counter[str] = field(default_factory=Counter)

    def blame(self, what: str, example: object) -> None:
        self.wrong[what] += 1
        if len(self.examples) < 20:
            self.examples.append(f"{what}: {example}")

    def __str__(self) -> str:
        said = ", ".join(f"{count} {what}" for what, count in sorted(self.told.items()))
        wrong = ", ".join(f"{count} {what}" for what, count in sorted(self.wrong.items())) or "nothing wrong"
        causes = "".join(f"\n    {count} x {cause}" for cause, count in self.causes.most_common(5))
        return f"{self.name}: told {said}; {self.stored} in the log; {wrong}{causes}"


class _Thread:
    """A thread whose exception is the test's."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self, seconds: float) -> None:
        """Waits, but no longer than the thread lives."""
        self._thread.join(seconds)

    def finish(self) -> None:
        self._stopped.set()
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self._error = error

    def _run(self) -> None:
        raise NotImplementedError


class PlainLoad(_Thread):
    """An idempotent producer, several batches in flight in each partition."""

    def __init__(self, servers: str, topic: str, **options: Any) -> None:
        super().__init__(f"load of {topic}")
        self.topic = topic
        self._producer = Producer(servers, batch_size=1000, on_error=lambda error: None, **options)
        self._waiting: deque[tuple[bytes, int, Ticket]] = deque()
        self.told: list[Told] = []
        self.acknowledged = 0

    def _run(self) -> None:
        number = 0
        with self._producer:
            while not self._stopped.is_set():
                for _ in range(10):
                    for partition in range(PARTITIONS):
                        value = b"%d" % number
                        self._waiting.append(
                            (value, partition, self._producer.send(self.topic, value, partition=partition))
                        )
                        number += 1
                self._settle(_UNSETTLED)
                self._stopped.wait(_PAUSE)
            self._settle(0)

    def _settle(self, leave: int) -> None:
        while len(self._waiting) > leave or (self._waiting and self._waiting[0][2].done()):
            value, partition, ticket = self._waiting.popleft()
            try:
                offset = ticket.result(300).offset
                self.told.append(Told(value, partition, "yes", offset, ""))
                self.acknowledged += 1
            except SendFailed as error:
                cause = f"{type(error).__name__} ({error.persisted}): {error.message}"
                self.told.append(Told(value, partition, error.persisted, None, cause))

    def wait_until_it_gives_up(self) -> None:
        """Until records whose answers never came have failed, in every partition."""
        before, waited = len(self.told), 0
        while {told.partition for told in self.told[before:] if told.persisted != "yes"} != set(range(PARTITIONS)):
            assert waited < 600, "nothing was given up in 60 s"
            self.pause(0.1)
            waited += 1

    def judge(self, log: dict[int, list[tuple[int, bytes]]]) -> Judgement:
        result = Judgement(self.topic, stored=sum(map(len, log.values())))
        places: dict[bytes, list[tuple[int, int]]] = defaultdict(list)
        for partition, rows in log.items():
            numbers = [int(value) for _, value in rows]
            for before, after in pairwise(numbers):
                if after <= before:
                    result.blame("out of order", f"{after} behind {before} in {partition}")
            for offset, value in rows:
                places[value].append((partition, offset))
        for told in self.told:
            result.told[told.persisted] += 1
            if told.cause:
                result.causes[told.cause] += 1
            found = places.pop(told.value, [])
            if len(found) > 1:
                result.blame("doubled", f"{told} at {found}")
            if told.persisted == "yes":
                if not found:
                    result.blame("acknowledged and lost", told)
                elif told.offset is not None and told.offset >= 0 and (told.partition, told.offset) not in found:
                    result.blame("at another offset", f"{told} at {found}")
            elif told.persisted == "no" and found:
                result.blame("said not to be persisted", f"{told} at {found}")
        for value in places:
            result.blame("of nobody", value)
        return result


class TransactionLoad(_Thread):
    """A transactional producer: each transaction writes some records to every partition."""

    RECORDS: Final = 4

    def __init__(self, servers: str, topic: str, **options: Any) -> None:
        super().__init__(f"load of {topic}")
        self.topic = topic
        self.name = f"{topic}-name"
        self._producer = Producer(servers, name=self.name, on_error=lambda error: None, **options)
        self.told: list[tuple[str, str]] = []
        self.committed = 0

    def _run(self) -> None:
        with self._producer:
            while not self._stopped.is_set():
                self.told.append(self._one(len(self.told)))
                self._stopped.wait(_PAUSE)

    def _one(self, number: int) -> tuple[str, str]:
        aborts = number % 10 == 9
        try:
            with self._producer.transaction():
                for row in range(self.RECORDS):
                    for partition in range(PARTITIONS):
                        self._producer.send(self.topic, b"%d:%d" % (number, row), partition=partition)
                if aborts:
                    self._producer.flush()
                    raise _Unwanted
        except _Unwanted:
            return "aborted", ""
        except SendFailed as error:
            # Only "no" is a promise that nothing of it is to be seen.
            outcome = "failed" if error.persisted == "no" else "unknown"
            return outcome, f"{type(error).__name__} ({error.persisted}): {error.message}"
        self.committed += 1
        return "committed", ""

    def judge(self, log: dict[int, list[tuple[int, bytes]]]) -> Judgement:
        result = Judgement(self.topic, stored=sum(map(len, log.values())))
        seen: Counter[int] = Counter()
        expected = [b"%d" % row for row in range(self.RECORDS)]
        for partition, rows in log.items():
            runs: dict[int, list[bytes]] = defaultdict(list)
            last = -1
            for _, value in rows:
                number, _, row = value.partition(b":")
                runs[int(number)].append(row)
                if int(number) < last:
                    result.blame("out of order", f"{value!r} behind transaction {last} in {partition}")
                last = int(number)
            for transaction, found in runs.items():
                seen[transaction] += 1
                if found != expected:
                    result.blame("torn, doubled or out of order", f"transaction {transaction} in {partition}: {found}")
        for transaction, (outcome, cause) in enumerate(self.told):
            result.told[outcome] += 1
            if cause:
                result.causes[cause] += 1
            partitions = seen.pop(transaction, 0)
            if outcome == "committed" and partitions != PARTITIONS:
                result.blame("committed and lost", f"{transaction} is in {partitions} partitions")
            elif outcome in ("aborted", "failed") and partitions:
                result.blame("aborted and there", f"{transaction} is in {partitions} partitions: {cause}")
            elif partitions not in (0, PARTITIONS):
                result.blame("torn", f"{transaction} is in {partitions} partitions")
        for transaction in seen:
            result.blame("of nobody", transaction)
        return result


class _Unwanted(Exception):
    pass


class Follower(_Thread):
    """Our `Reader`, reading along from the beginning while leaders die."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(f"reader of {topic}")
        self.topic = topic
        self._reader = Reader(servers, topic, max_wait=0.1)
        self.seen: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(PARTITIONS)}

    def _run(self) -> None:
        with self._reader:
            while not self._stopped.is_set():
                self._take(0.2)

    def _take(self, timeout: float) -> None:
        try:
            records = self._reader.poll(timeout)
        except TimedOut:
            return
        for record in records or ():
            assert record.value is not None
            self.seen[record.partition].append((record.offset, record.value))

    def finish_at(self, log: dict[int, list[tuple[int, bytes]]]) -> None:
        """Goes on until it has seen as much as the log holds, and stops."""
        total = sum(map(len, log.values()))
        waited = 0
        while sum(map(len, self.seen.values())) < total and self._thread.is_alive() and waited < 600:
            self._thread.join(0.1)
            waited += 1
        self.finish()


def stored(servers: str, topic: str) -> dict[int, list[tuple[int, bytes]]]:
    """What a stranger reads, per partition."""
    log: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in range(PARTITIONS)}
    for message in committed(servers, topic, timeout=120):
        log[message.partition()].append((message.offset(), message.value()))
    return log
