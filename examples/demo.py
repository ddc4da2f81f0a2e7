"""Kill the server while a producer writes, kill the Spark job that reads on, and count after each.

    python examples/demo.py [--records 300000] [--kills 5] [--no-spark]

A fencepost server runs as a process of its own. librdkafka (confluent-kafka), which knows nothing of fencepost, writes
numbered records with idempotence on. The server is killed with -9 while it writes and started again on the same data.
Whatever was under way at that moment is in doubt: the producer sends it again, and the server must know what it has
already. A consumer then reads everything back: no number may be missing, none may be there twice, and in every
partition they must be in order.

In the second part a Spark job copies the numbers, each with the time it was seen, into another topic through the
exactly-once sink. Its driver is killed with -9 half-way and started again from its checkpoint, and the same count is
made of the target, by the same stranger's client with isolation.level=read_committed. Without Java this part is left
out.

Exits with 0 if that holds, with 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import select
import shutil
import signal
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
TARGET: Final = "seen"
MICRO_BATCHES: Final = 8
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


def read(server: Server, topic: str) -> Iterator[tuple[int, int]]:
    """(partition, number) of every committed record in the log, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": server.address,
            "group.id": "demo",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            **QUIET,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        unfinished = set(range(PARTITIONS))
        heard_at = time.monotonic()
        while unfinished:
            batch = consumer.consume(10_000, timeout=0.2)  # it waits until there are as many, or for so long
            if batch:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > SECONDS_WITHOUT_PROGRESS:
                raise SystemExit("the log cannot be read to its end")
            for message in batch:
                error = message.error()
                if error is None:
                    yield message.partition(), int(message.value().split()[0])
                elif error.code() == KafkaError._PARTITION_EOF:
                    unfinished.discard(message.partition())
                else:
                    raise SystemExit(f"reading failed: {error}")
    finally:
        consumer.close()


def why_no_spark() -> str | None:
    """What is missing for the second part, in words; None if nothing is."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        return "needs Java 17 or newer (Debian: openjdk-17-jdk-headless)"
    if importlib.util.find_spec("pyspark") is None:
        return "needs PySpark (pip install 'fencepost[spark]')"
    return None


class Pipeline:
    """The Spark job as a process group of its own, so that a kill takes its JVM too."""

    def __init__(self, server: Server, folder: Path, per_batch: int) -> None:
        script = Path(__file__).with_name("demo_pipeline.py")
        place = [server.address, TOPIC, TARGET, str(folder / "checkpoint"), str(per_batch)]
        self._command = [sys.executable, str(script), *place]
        self._log = folder / "spark.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def kill(self) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def committed(self) -> int:
        """Micro-batches that the sink has reported so far, over all runs."""
        return self._log.read_text(errors="replace").count("sink demo: batch") if self._log.exists() else 0

    def wait(self) -> None:
        assert self._process is not None
        if self._process.wait():
            raise SystemExit(f"the Spark job failed:\n{self._log.read_text(errors='replace')[-3000:]}")

    @property
    def ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None


def pipe(server: Server, records: int) -> bool:
    """Runs the Spark job, kills its driver half-way, starts it again, and counts what is in the target."""
    with fencepost.Admin(server.address) as admin:
        admin.create_topic(TARGET, PARTITIONS)
    with tempfile.TemporaryDirectory(prefix="fencepost-demo-spark-") as folder:
        pipeline = Pipeline(server, Path(folder), max(PARTITIONS, records // MICRO_BATCHES))
        print(f"  spark         copies {TOPIC} to {TARGET}, each number with the time it was seen", flush=True)
        began = time.monotonic()
        pipeline.start()
        try:
            while pipeline.committed() < MICRO_BATCHES // 2 and not pipeline.ended:
                time.sleep(0.005)  # the moment of the kill is what it is: somewhere in a micro-batch
            pipeline.kill()
            print(
                f"  kill -9       the driver, after {pipeline.committed()} of {MICRO_BATCHES} micro-batches", flush=True
            )
            pipeline.start()
            pipeline.wait()
        except BaseException:
            pipeline.kill()
            raise
        print(f"  restarted     and finished, {time.monotonic() - began:.1f} s in all", flush=True)
        return judge(records, read(server, TARGET))


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
    parser = argparse.ArgumentParser(description="Kill the server, then the Spark job, and count.")
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--no-spark", action="store_true", help="leave out the second part")
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
        held = judge(chosen.records, read(server, TOPIC)) and not tally.failures
        kills = chosen.kills
        missing = "left out (--no-spark)" if chosen.no_spark else why_no_spark()
        if missing is not None:
            print(f"  spark         {missing}", flush=True)
        elif held:
            held = pipe(server, chosen.records)
            kills += 1
    print(
        f"Exactly once, through {kills} kill{'s' if kills != 1 else ''}."
        if held
        else "NOT exactly once: see the counts above."
    )
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
