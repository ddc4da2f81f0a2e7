"""Groups on our server beside confluent-kafka: reading, exactly once, and how soon moved partitions are read again.

    python -m bench.groups [--quick] [--reps N]

Members are processes of their own. Those that read hold their partitions back until all of them have their share and
the topic is full, and go at the same time. A loop counts from its second batch on, when everything is connected. A move
counts from the moment at which a member is there (its reader was made) or begins to leave, until the new holder of
each partition that moves has got its first record; records are written to all of them all the time.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import click

from bench import payload, run, topics
from bench.brokers import Broker, Fencepost, cpu_seconds
from bench.jobs import PARTITIONS

READING: Final = "reading in a group"
PROCESSING: Final = "1,000 records per transaction"
MOVING: Final = "partitions that move"
CONFLUENT, ITERATION, ARROW = "confluent-kafka", "fencepost", "fencepost arrow"
JOINS, LEAVES = "one joins", "one leaves"
IN_EACH: Final = 1000
_SIZE: Final = 100
_MEMBERS: Final = 2
_MANY: Final = 10
_WIDE: Final = 100
_TICK: Final = 0.02
_ROOT: Final = Path(__file__).resolve().parent.parent


# --- in processes of their own ---


def say(*words: object) -> None:
    print(*words, flush=True)


def read_with_confluent(address: str, topic: str, share: int, count: int) -> None:
    from confluent_kafka import Consumer

    settings = {"group.id": topic, "auto.offset.reset": "earliest", "enable.auto.commit": False, "log_level": 2}
    consumer = Consumer({"bootstrap.servers": address, **settings})
    consumer.subscribe([topic])
    while len(consumer.assignment()) != share:
        consumer.consume(1, 0.05)
    consumer.pause(consumer.assignment())
    say("ready")
    sys.stdin.readline()
    consumer.resume(consumer.assignment())
    began, left = time.perf_counter(), count
    while left > 0:
        for message in consumer.consume(10_000, 0.5):
            left -= len(message.value()) == _SIZE
    say(time.perf_counter() - began)
    sys.stdin.readline()
    consumer.close()


def read_with_fencepost(address: str, topic: str, share: int, count: int, *, arrow: bool) -> None:
    import fencepost
    import fencepost.kernel.arrow  # before the time is taken

    with fencepost.Reader(address, topic, group=topic) as reader:
        while len(reader.assignment) != share:
            with contextlib.suppress(fencepost.TimedOut):
                reader.poll(0.05)
        reader.pause(*reader.assignment)
        say("ready")
        sys.stdin.readline()
        reader.resume(*reader.assignment)
        began, left = time.perf_counter(), count
        if arrow:
            for table in reader.arrow():
                left -= table.num_rows
                if left <= 0:
                    break
        else:
            for record in reader:
                left -= len(record.value or b"") == _SIZE
                if left <= 0:
                    break
        say(time.perf_counter() - began)
        sys.stdin.readline()


def process_with_confluent(address: str, source: str, target: str, count: int) -> None:
    from confluent_kafka import Consumer, Producer

    settings = {
        "group.id": f"{source}-{uuid.uuid4().hex}",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    reading = {"bootstrap.servers": address, "isolation.level": "read_committed", "log_level": 2}
    consumer = Consumer({**settings, **reading})
    name = uuid.uuid4().hex
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0, "log_level": 2})
    producer.init_transactions()
    consumer.subscribe([source])
    done, first, began = 0, 0, 0.0
    while done < count:
        messages = consumer.consume(IN_EACH, 1.0)
        if not messages:
            continue
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value(), message.key())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()
        done += len(messages)
        if not began:
            began, first = time.perf_counter(), done
    say((done - first) / (time.perf_counter() - began))
    consumer.close()


def process_with_fencepost(address: str, source: str, target: str, *, arrow: bool) -> None:
    import fencepost

    group = f"{source}-{uuid.uuid4().hex}"
    with fencepost.Processor(address, source, group=group, stop="latest", batch_records=IN_EACH) as batches:
        done, first, began = 0, 0, 0.0
        for batch in batches:
            with batch as out:
                if arrow:
                    table = batch.arrow()
                    out.send_arrow(target, table.select(["key", "value"]))
                    done += table.num_rows
                else:
                    for record in batch:
                        out.send(target, record.value, key=record.key)
                        done += 1
            if not began:
                began, first = time.perf_counter(), done
        say((done - first) / (time.perf_counter() - began))


def hold(address: str, topic: str) -> None:
    """Read, and say what was assigned, and when the first record of each partition came after that."""
    import fencepost

    over = threading.Event()

    def await_end() -> None:
        sys.stdin.readline()
        over.set()

    threading.Thread(target=await_end, daemon=True).start()
    new: set[int] = set()
    with fencepost.Reader(
        address, topic, group=topic, start="latest", on_assigned=lambda got: new.update(each.partition for each in got)
    ) as reader:
        say("made", time.monotonic())
        while not over.is_set():
            with contextlib.suppress(fencepost.TimedOut):
                for record in reader.poll(0.05) or ():
                    if record.partition in new:
                        new.discard(record.partition)
                        say("first", record.partition, time.monotonic())
        say("leaves", time.monotonic())


JOBS: Final[dict[str, Callable[..., None]]] = {
    f"read {CONFLUENT}": read_with_confluent,
    f"read {ITERATION}": lambda *how: read_with_fencepost(*how, arrow=False),
    f"read {ARROW}": lambda *how: read_with_fencepost(*how, arrow=True),
    f"process {CONFLUENT}": process_with_confluent,
    f"process {ITERATION}": lambda address, source, target, _: process_with_fencepost(
        address, source, target, arrow=False
    ),
    f"process {ARROW}": lambda address, source, target, _: process_with_fencepost(address, source, target, arrow=True),
    "hold": hold,
}


# --- here ---


class Member:
    """A process with a job, whose lines are collected."""

    def __init__(self, job: str, *how: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.groups", "job", json.dumps([job, *how])],
            cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[list[str]] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(line.split() for line in self._process.stdout)

    def next(self) -> list[str]:
        while not self.lines:
            if self._process.poll() is not None:
                raise RuntimeError("a member has ended too early")
            time.sleep(0.001)
        return self.lines.pop(0)

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self.go()
        self._process.wait(60)
        self._thread.join()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def members(job: str, how: Sequence[Any], count: int) -> Iterator[list[Member]]:
    started = [Member(job, *how) for _ in range(count)]
    try:
        yield started
    finally:
        for each in started:
            each.kill()


def fill(address: str, topic: str, partitions: int, records: int) -> None:
    import fencepost

    pool = payload.values(_SIZE)
    with fencepost.Producer(address) as producer:
        for number in range(records):
            producer.send(topic, pool[number % len(pool)], partition=number % partitions)


def read(broker: Broker, target: str, records: int) -> float:
    """Records per second of all members together, by the slowest one."""
    partitions = 2 * _MEMBERS
    with topics.topic(broker, partitions) as topic:
        how = (broker.address, topic, partitions // _MEMBERS, records // _MEMBERS)
        with members(f"read {target}", how, _MEMBERS) as readers:
            for reader in readers:
                reader.next()
            fill(broker.address, topic, partitions, records)
            for reader in readers:
                reader.go()
            return records / max(float(reader.next()[0]) for reader in readers)


def process(broker: Broker, target: str, source: str, records: int) -> float:
    with (
        topics.topic(broker) as output,
        members(f"process {target}", (broker.address, source, output, records), 1) as (worker,),
    ):
        return float(worker.next()[0])


def move(broker: Broker) -> dict[str, float]:
    """Seconds until the last partition that has moved is read again, after one has joined, and after one has left."""
    over = threading.Event()

    def write(topic: str) -> None:
        import fencepost

        with fencepost.Producer(broker.address) as producer:
            while not over.wait(_TICK):
                for partition in range(_WIDE):
                    producer.send(topic, b"", partition=partition)

    with topics.topic(broker, _WIDE) as topic, members("hold", (broker.address, topic), _MANY - 1) as holders:
        writer = threading.Thread(target=write, args=(topic,))
        writer.start()
        try:
            _await_quiet(holders, _WIDE)
            with members("hold", (broker.address, topic), 1) as (joiner,):
                everybody = [*holders, joiner]
                made = float(joiner.next()[1])
                joins = max(_await_quiet(everybody, _WIDE // _MANY)) - made
                holders[0].end()
                left = next(float(line[1]) for line in holders[0].lines if line[0] == "leaves")
                leaves = max(_await_quiet(everybody[1:], _WIDE // _MANY)) - left
        finally:
            over.set()
            writer.join()
    return {JOINS: joins, LEAVES: leaves}


def _await_quiet(holders: Sequence[Member], at_least: int) -> list[float]:
    """Wait until so many partitions were read by new holders and no more come; return when each was."""
    found: list[float] = []
    quiet_since = time.monotonic()
    while len(found) < at_least or time.monotonic() < quiet_since + 2:
        for holder in holders:
            while holder.lines:
                line = holder.lines.pop(0)
                if line[0] == "first":
                    found.append(float(line[2]))
                    quiet_since = time.monotonic()
        time.sleep(_TICK)
    return found


@click.group(invoke_without_command=True)
@run.quick
@run.reps
@click.pass_context
def main(context: click.Context, quick: bool, reps: int | None) -> None:
    """Measure groups on our server beside confluent-kafka."""
    if context.invoked_subcommand is not None:
        return
    repetitions = reps or (2 if quick else 5)
    records, in_loop = (500_000, 100_000) if quick else (2_000_000, 500_000)
    targets = [CONFLUENT, ITERATION, ARROW]
    with run.running("groups", quick=quick, how=f"{repetitions} repetitions") as (results, scratch, tell):
        broker = Fencepost(scratch / "fencepost", "os")
        with run.started(broker), topics.topic(broker) as source:
            fill(broker.address, source, PARTITIONS, in_loop)
            for rep in range(repetitions):
                for target in [*targets[rep % 3 :], *targets[: rep % 3]]:
                    for section in (READING, PROCESSING):
                        before = cpu_seconds(broker)
                        if section == READING:
                            rate = read(broker, target, records)
                        else:
                            rate = process(broker, target, source, in_loop)
                        used = cpu_seconds(broker) - before
                        labels = (f"{_MEMBERS} members" if section == READING else "1 member", f"{_SIZE} B")
                        results.add(section, labels, target, "records/s", rate, server_cpu=used)
                        tell(f"{rep + 1}/{repetitions} {section}, {target}: {rate:,.0f} records/s")
                for what, seconds in move(broker).items():
                    results.add(MOVING, (f"{_MANY} members, {_WIDE} partitions", what), broker.name, "s", seconds)
                    tell(f"{rep + 1}/{repetitions} {what}: {seconds:.2f} s")


@main.command()
@click.argument("text")
def job(text: str) -> None:
    """Do one job."""
    name, *how = json.loads(text)
    JOBS[name](*how)


if __name__ == "__main__":
    main()
