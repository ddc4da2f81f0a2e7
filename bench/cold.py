"""A burst to a new topic from a new process: a plain loop over `send`, then `flush`, beside confluent-kafka.

    python -m bench.cold [--quick] [--reps N] [--brokers fencepost,kafka] [--shapes without,with] [--before FOLDER]
    python -m bench.cold tuned [--reps N] [--sizes 10,100] [--partitions 1,4] [--broker kafka]

The other benches await one record before they measure. Here nothing is awaited: the connection, the topic's partitions
and the producer's id become known while the loop runs. The time is that from the producer's construction to the end of
`flush`, and the CPU that of the client's process meanwhile. The records have no key, or one of a thousand. `--before`:
the `src` folder of another fencepost, which is measured, too.

`tuned` compares all defaults with settings that somebody might choose by hand, for records of several sizes to several
numbers of partitions, each partition in turn. There the first record is awaited.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import cycle, islice, product, repeat
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from bench import machine, topics
from bench.brokers import Broker, Fencepost, Kafka
from bench.jobs import BATCH_BYTES, LINGER_MS, PARTITIONS
from bench.results import Results

COLD: Final = "a burst to a new topic, cold"
CONFLUENT, TUNED, DEFAULTS = "confluent-kafka", "fencepost", "fencepost, all defaults"
BEFORE: Final = " before"
KEYS: Final = {"without": "without keys", "with": "with keys"}
_SIZE: Final = 100
_DIFFERENT_KEYS: Final = 1000
_BY_HAND: Final[list[dict[str, Any]]] = [
    {},
    {"linger": 0.005},
    {"linger": 0.02, "batch_size": 1 << 20},
    {"linger": 0.1, "batch_size": 1 << 20, "buffer_memory": 256 << 20},
    {"batch_size": 1 << 20, "buffer_memory": 256 << 20},
    {"batch_size": 16 << 10},
]
"""The first are the defaults."""
_ROOT: Final = Path(__file__).resolve().parent.parent


# --- in a process of its own ---


def keys(shape: str, records: int) -> Iterator[bytes | None]:
    if shape == "without":
        return repeat(None, records)
    return islice(cycle([b"key %d" % number for number in range(_DIFFERENT_KEYS)]), records)


def with_confluent(address: str, topic: str, shape: str, records: int) -> None:
    from confluent_kafka import Producer

    value = b"x" * _SIZE
    began, cpu = time.perf_counter(), time.process_time()
    producer = Producer(
        {
            "bootstrap.servers": address,
            "enable.idempotence": True,
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 524_288,
            "log_level": 3,
        }
    )
    for key in keys(shape, records):
        while True:
            try:
                producer.produce(topic, value, key)
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(60):
        raise SystemExit("not everything was delivered")
    say(time.perf_counter() - began, time.process_time() - cpu)


def with_fencepost(address: str, topic: str, shape: str, records: int, **settings: Any) -> None:
    import fencepost

    value = b"x" * _SIZE
    began, cpu = time.perf_counter(), time.process_time()
    with fencepost.Producer(address, **settings) as producer:
        for key in keys(shape, records):
            producer.send(topic, value, key=key)
        producer.flush(60)
        say(time.perf_counter() - began, time.process_time() - cpu)


def with_settings(address: str, topic: str, size: int, partitions: int, records: int, settings: dict[str, Any]) -> None:
    import fencepost

    value = b"x" * size
    with fencepost.Producer(address, **settings) as producer:
        producer.send(topic, value, partition=0).result(60)
        began, cpu = time.perf_counter(), time.process_time()
        for partition in islice(cycle(range(partitions)), records):
            producer.send(topic, value, partition=partition)
        producer.flush(120)
        say(time.perf_counter() - began, time.process_time() - cpu)


def say(seconds: float, cpu: float) -> None:
    print(json.dumps([seconds, cpu]), flush=True)


def measure(broker: Broker, target: str, shape: str, records: int, before: Path | None) -> tuple[float, float]:
    """Return the seconds, and those of CPU, that a new process takes."""
    environment = dict(os.environ)
    if target.endswith(BEFORE):
        environment["PYTHONPATH"] = str(before)
        target = target.removesuffix(BEFORE)
    with topics.topic(broker, PARTITIONS) as topic:
        return ask("job", target, broker.address, topic, shape, records, environment=environment)


def ask(*words: object, environment: dict[str, str] | None = None) -> tuple[float, float]:
    command = [sys.executable, "-m", "bench.cold", *map(str, words)]
    said = subprocess.run(
        command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, check=True, text=True, timeout=300
    ).stdout
    seconds, cpu = json.loads(said)
    return seconds, cpu


@click.group(invoke_without_command=True)
@click.option("--quick", is_flag=True, help="Fewer records and repetitions: for a look, not for a claim.")
@click.option("--reps", type=click.IntRange(min=1), help="Repetitions, instead of 5 (or 2).")
@click.option("--brokers", "chosen", default="fencepost,kafka", help="Which servers.")
@click.option("--shapes", default=",".join(KEYS), help="Records with keys, without, or both.")
@click.option("--before", type=click.Path(path_type=Path, exists=True), help="The src folder of another fencepost.")
@click.pass_context
def main(context: click.Context, quick: bool, reps: int | None, chosen: str, shapes: str, before: Path | None) -> None:
    """Measure bursts from new processes to new topics, on our server and on Apache Kafka."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    from bench.report import table

    repetitions, records = reps or (2 if quick else 5), 500_000 if quick else 1_500_000
    console = Console(width=150)
    about = {**machine.describe(), "run": f"{'quick' if quick else 'full'}, {repetitions} repetitions"}
    name = f"cold-{dt.datetime.now(dt.UTC).date()}{'-quick' if quick else ''}"
    results = Results(about, Path(__file__).resolve().parent / "results" / f"{name}.json")
    scratch = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    brokers: list[Broker] = []
    if "fencepost" in chosen:
        brokers.append(Fencepost(scratch / "fencepost", "os"))
    if "kafka" in chosen:
        brokers.append(Kafka(scratch / "kafka"))
    targets = [CONFLUENT, TUNED, DEFAULTS]
    if before is not None:
        targets += [TUNED + BEFORE, DEFAULTS + BEFORE]
    try:
        for broker in brokers:
            broker.start()
        for rep in range(repetitions):
            for broker in brokers:
                turn = [*targets[rep % len(targets) :], *targets[: rep % len(targets)]]
                for shape, target in product(shapes.split(","), turn):
                    seconds, cpu = measure(broker, target, shape, records, before)
                    rate, what = records / seconds, f"{_SIZE} B {KEYS[shape]}"
                    results.add(COLD, (broker.name, what), target, "records/s", rate, client_cpu=cpu)
                    said = f"{rep + 1}/{repetitions} {broker.name}, {what}, {target}"
                    console.print(f"{said}: {rate:,.0f} records/s, {cpu:.2f} CPU s", style="dim")
    finally:
        for broker in brokers:
            broker.remove()
        shutil.rmtree(scratch, ignore_errors=True)
        table.show(results, console)


@main.command()
@click.argument("target")
@click.argument("address")
@click.argument("topic")
@click.argument("shape", type=click.Choice(list(KEYS)))
@click.argument("records", type=int)
def job(target: str, address: str, topic: str, shape: str, records: int) -> None:
    """Send once."""
    if target == CONFLUENT:
        with_confluent(address, topic, shape, records)
    elif target == TUNED:
        with_fencepost(address, topic, shape, records, linger=LINGER_MS / 1000, batch_size=BATCH_BYTES)
    else:
        with_fencepost(address, topic, shape, records)


@main.command()
@click.option("--reps", default=3)
@click.option("--sizes", default="10,100,1024,102400,1000000")
@click.option("--partitions", "counts", default="1,4,100,10000")
@click.option("--broker", "kind", type=click.Choice(["fencepost", "kafka"]), default="fencepost")
def tuned(reps: int, sizes: str, counts: str, kind: str) -> None:
    """Compare all defaults with settings chosen by hand."""
    scratch = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    broker: Broker = Kafka(scratch) if kind == "kafka" else Fencepost(scratch, "os")
    try:
        broker.start()
        for size, count in product(map(int, sizes.split(",")), map(int, counts.split(","))):
            records = max(500, min(500_000, (200 << 20) // (size + 100)))
            found: list[list[tuple[float, float]]] = [[] for _ in _BY_HAND]
            for _, (at, settings) in product(range(reps), enumerate(_BY_HAND)):
                with topics.topic(broker, count) as topic:  # our server remembers 100,000 producers of partitions
                    words = "with", broker.address, topic, size, count, records, json.dumps(settings)
                    found[at].append(ask(*words))
            seconds, cpu = ([median(each[part] for each in times) for times in found] for part in (0, 1))
            fast, cheap = seconds.index(min(seconds)), cpu.index(min(cpu))
            click.echo(
                f"{size} B, {count} partitions: {records / seconds[0]:,.0f} records/s, "
                f"{seconds[fast] / seconds[0]:.2f} x those of {_BY_HAND[fast]}; {cpu[0]:.2f} CPU s, "
                f"{cpu[0] / cpu[cheap]:.2f} x those of {_BY_HAND[cheap]}"
            )
    finally:
        broker.remove()
        shutil.rmtree(scratch, ignore_errors=True)


@main.command("with")
@click.argument("address")
@click.argument("topic")
@click.argument("size", type=int)
@click.argument("partitions", type=int)
@click.argument("records", type=int)
@click.argument("settings", type=json.loads)
def with_(address: str, topic: str, size: int, partitions: int, records: int, settings: dict[str, Any]) -> None:
    """Send once with these settings."""
    with_settings(address, topic, size, partitions, records, settings)


if __name__ == "__main__":
    main()
