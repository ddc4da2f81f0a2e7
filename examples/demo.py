"""Kill the server again and again while somebody else's producer writes, then count.

    python examples/demo.py [--records 300000] [--kills 5]

A fencepost server runs as a process of its own. librdkafka (confluent-kafka), which knows nothing of fencepost, writes
numbered records with idempotence on. The server is killed with -9 while it writes and started again on the same data.
Whatever was under way at that moment is in doubt: the producer sends it again, and the server must know what it has
already. At the end a consumer reads everything back: no number may be missing, none may be there twice, and in every
partition they must be in order.

Exits with 0 if that holds, with 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

import fencepost

TOPIC: Final = "numbers"
PARTITIONS: Final = 3
SECONDS_TO_START: Final = 30
SECONDS_WITHOUT_PROGRESS: Final = 60
QUIET: Final = {"log_level": 0, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
"""Lost connections are the point here; librdkafka need not report each of them."""


class Server:
    """`fencepost serve` as a process that can be killed and comes back with the same data on the same port."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.address = "127.0.0.1:0"  # a free port at first, the same one afterwards
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> float:
        """Starts it; answers how many seconds it took until it listened."""
        began = time.monotonic()
        command = [sys.executable, "-m", "fencepost", "serve", "--data", str(self.data), "--listen", self.address]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], SECONDS_TO_START)
        line = self._process.stdout.readline() if readable else ""
        if "listening on" not in line:
            raise SystemExit("the server did not start")
        self.address = line.split()[-1]
        return time.monotonic() - began

    def kill(self) -> None:
        """SIGKILL: no chance to finish, flush or say goodbye."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def _end(self) -> None:
        assert self._process is not None
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._process = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            self._end()


@dataclass
class Tally:
    """What the producer was told about its records."""

    acknowledged: int = 0
    failures: list[str] = field(default_factory=list)

    def settle(self, error: KafkaError | None, _: Message) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failures.append(str(error))


class Progress(Protocol):
    def moved(self, done: int) -> None: ...
    def say(self, line: str) -> None: ...


class LineProgress:
    """Without a terminal: only the events, a line each."""

    def moved(self, done: int) -> None:
        pass

    def say(self, line: str) -> None:
        print(line, flush=True)


class BarProgress:
    """At a terminal: a bar below the events."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress = progress
        self._task = task

    def moved(self, done: int) -> None:
        self._progress.update(self._task, completed=done)

    def say(self, line: str) -> None:
        self._progress.console.print(line, highlight=False, markup=False, soft_wrap=True)


@contextlib.contextmanager
def shown_progress(total: int) -> Iterator[Progress]:
    if not sys.stdout.isatty():
        yield LineProgress()
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    with Progress(TextColumn("  acknowledged"), BarColumn(), MofNCompleteColumn()) as progress:
        yield BarProgress(progress, progress.add_task("", total=total))


def write(server: Server, records: int, kills: int, progress: Progress) -> Tally:
    """Writes the numbers 0 … records − 1, number n to partition n mod PARTITIONS, and kills the server on the way."""
    tally = Tally()
    producer = Producer(
        {
            "bootstrap.servers": server.address,
            "enable.idempotence": True,
            "linger.ms": 5,
            "message.timeout.ms": 300_000,
            "queue.buffering.max.messages": 20_000,
            **QUIET,
        }
    )
    kill_at = [(kill + 1) * records // (kills + 1) for kill in range(kills)]
    sent = killed = last = 0
    moved_at = time.monotonic()
    while tally.acknowledged + len(tally.failures) < records:
        while sent < records:
            try:
                producer.produce(TOPIC, b"%d" % sent, partition=sent % PARTITIONS, on_delivery=tally.settle)
            except BufferError:  # the queue is full: let answers in
                break
            sent += 1
        producer.poll(0.05)
        progress.moved(tally.acknowledged)
        if tally.acknowledged > last:
            last, moved_at = tally.acknowledged, time.monotonic()
        elif time.monotonic() - moved_at > SECONDS_WITHOUT_PROGRESS:
            raise SystemExit(f"nothing was acknowledged for {SECONDS_WITHOUT_PROGRESS} s")
        if killed < kills and tally.acknowledged >= kill_at[killed]:
            killed += 1
            server.kill()
            waiting = sent - tally.acknowledged
            seconds = server.start()
            progress.say(
                f"  kill -9       {killed} of {kills}: {tally.acknowledged:,} acknowledged, {waiting:,} on their way; "
                f"the server is back after {seconds:.2f} s"
            )
    return tally


def read(server: Server) -> Iterator[tuple[int, int]]:
    """(partition, number) of every record in the log, in the order of each partition."""
    with fencepost.Admin(server.address) as admin:
        ends = admin.latest(TOPIC)
    consumer = Consumer({"bootstrap.servers": server.address, "group.id": "demo", "enable.auto.commit": False, **QUIET})
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
        unfinished = {partition for partition, end in ends.items() if end > 0}
        while unfinished:
            batch = consumer.consume(10_000, timeout=SECONDS_WITHOUT_PROGRESS)
            if not batch:
                raise SystemExit("the log cannot be read to its end")
            for message in batch:
                if message.error():
                    raise SystemExit(f"reading failed: {message.error()}")
                yield message.partition(), int(message.value())
                if message.offset() + 1 >= ends[message.partition()]:
                    unfinished.discard(message.partition())
    finally:
        consumer.close()


def judge(records: int, found: Iterator[tuple[int, int]]) -> bool:
    """Counts what is there against what should be, and says so."""
    times = bytearray(records)
    strange = disordered = total = 0
    newest = [-1] * PARTITIONS
    for partition, number in found:
        total += 1
        if not 0 <= number < records or number % PARTITIONS != partition:
            strange += 1
            continue
        times[number] = min(times[number] + 1, 255)
        disordered += number < newest[partition]
        newest[partition] = max(newest[partition], number)
    lost, doubled = times.count(0), sum(count - 1 for count in times if count > 1)
    print(
        f"  expected {records:,}, found {total:,}: lost {lost}, doubled {doubled}, out of order {disordered + strange}"
    )
    return not (lost or doubled or disordered or strange) and total == records


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill the server while a stranger's producer writes, then count.")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--kills", type=int, default=5)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fencepost-demo-") as data, Server(Path(data)) as server:
        print(f"  server        fencepost {fencepost.__version__} on {server.address}, a process of its own")
        with fencepost.Admin(server.address) as admin:
            admin.create_topic(TOPIC, PARTITIONS)
        print(f"  writing       {chosen.records:,} numbered records with confluent-kafka, idempotence on", flush=True)
        began = time.monotonic()
        with shown_progress(chosen.records) as progress:
            tally = write(server, chosen.records, chosen.kills, progress)
        print(f"  written       {tally.acknowledged:,} acknowledged in {time.monotonic() - began:.1f} s", flush=True)
        for failure in tally.failures[:3]:
            print(f"  failed        {failure}")
        held = judge(chosen.records, read(server)) and not tally.failures
    print(
        f"Exactly once, through {chosen.kills} kill{'s' if chosen.kills != 1 else ''}."
        if held
        else "NOT exactly once: see the counts above."
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
