"""What `own` costs: a take-over, ten thousand resources on one connection, and everybody else.

    python -m bench.own [--quick]

*Take-over*: two processes take a guarded partition from each other, again and again, each flooding it while it owns it.
Measured in the claimant, from the call of `own` to the answer to its first write, on a connection that is open already,
as a standby's is.

*Held*: ten thousand resources claimed on one connection: the time for all of them, and the server's memory.

*Others*: records/s of a client that never calls `own`, while those ten thousand are held and while nobody holds
anything, interleaved.
"""

from __future__ import annotations

import datetime as dt
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import psutil

import fencepost
from bench import jobs, machine, topics
from bench.brokers import OS, Fencepost, cpu_seconds
from bench.jobs import Produce
from bench.results import Results

TAKE_OVER: Final = "own: claim to first accepted write"
HELD: Final = "own: 10,000 resources on one connection"
OTHERS: Final = "own: records/s of who never calls it"
WHILE_HELD, WITHOUT = "10,000 held", "none held"
RESOURCES: Final = 10_000
GROUP: Final = "bench-writers"
_ROOT: Final = Path(__file__).resolve().parent.parent


class Contender:
    """A process that claims when told, says how long that took, and floods until it is fenced."""

    def __init__(self, address: str, topic: str, warm: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.own", "contend", address, topic, warm],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.await_word("ready")

    def await_word(self, word: str) -> list[str]:
        assert self._process.stdout is not None
        said, *rest = self._process.stdout.readline().split()
        if said != word:
            raise RuntimeError(f"said {said} {rest}, not {word}")
        return rest

    def claim(self, generation: int) -> tuple[int, float]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{generation}\n")
        granted, ms = self.await_word("owns")
        return int(granted), float(ms)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def contend(address: str, topic: str, warm: str) -> None:
    while True:
        producer = fencepost.Producer(address, linger=0)
        producer.send(warm, b"x").result()
        print("ready", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        began = time.perf_counter()
        claim = producer.own(GROUP, [f"{topic}-0"], generation=int(line))
        producer.send(topic, b"first", partition=0).result()
        took = (time.perf_counter() - began) * 1000
        print("owns", claim.generation, took, flush=True)
        with suppress(fencepost.Fenced):
            while True:
                for _ in range(20):
                    ticket = producer.send(topic, b"x" * 100, partition=0)
                ticket.result()
        with suppress(fencepost.FencepostError):
            producer.close(0)


def measure_take_over(broker: Fencepost, results: Results, say: Callable[[str], None], count: int) -> None:
    guard = {"fencepost.writer.group": GROUP}
    with fencepost.Admin(broker.address) as admin:
        admin.create_topic("guarded", 1, configs=guard)
        admin.create_topic("warm", 1)
    contenders = [Contender(broker.address, "guarded", "warm") for _ in range(2)]
    try:
        generation, _ = contenders[0].claim(1)
        taken: list[float] = []
        for number in range(1, count + 1):
            generation, ms = contenders[number % 2].claim(generation)
            taken.append(ms)
            contenders[(number - 1) % 2].await_word("ready")
    finally:
        for contender in contenders:
            contender.close()
    cuts = statistics.quantiles(taken, n=100)
    for label, value in (("p50", cuts[49]), ("p99", cuts[98])):
        results.add(TAKE_OVER, (f"{count} take-overs", label), broker.name, "ms", value)
    say(f"take-over: p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms, of {count}")


def measure_held(broker: Fencepost, results: Results, say: Callable[[str], None]) -> fencepost.Producer:
    """Whoever holds them goes on holding them until it is closed."""
    before = psutil.Process(broker.pid).memory_info().rss
    owner = fencepost.Producer(broker.address)
    began = time.perf_counter()
    owner.own("bench-many", [f"resource-{number}" for number in range(RESOURCES)], generation=1)
    took = (time.perf_counter() - began) * 1000
    grown = (psutil.Process(broker.pid).memory_info().rss - before) / 1e6
    results.add(HELD, ("all in one claim",), broker.name, "ms", took)
    results.add(HELD, ("memory",), broker.name, "MB", grown)
    say(f"{RESOURCES} resources in one claim: {took:.0f} ms, {grown:.1f} MB")
    return owner


def measure_others(broker: Fencepost, results: Results, say: Callable[[str], None], reps: int, records: int) -> None:
    def rate() -> float:
        with topics.topic(broker) as topic:
            outcome = jobs.run("raw", Produce(address=broker.address, topic=topic, records=records, size=100))
        return records / outcome.seconds

    rate()  # unmeasured: the first run is slower than later ones
    for rep in range(reps):
        for target in (WHILE_HELD, WITHOUT) if rep % 2 else (WITHOUT, WHILE_HELD):
            owner = None
            if target == WHILE_HELD:
                owner = fencepost.Producer(broker.address)
                owner.own("bench-many", [f"resource-{number}" for number in range(RESOURCES)], generation=0)
            try:
                before = cpu_seconds(broker)
                found = rate()
                used = cpu_seconds(broker) - before
            finally:
                if owner is not None:
                    owner.close()
            results.add(OTHERS, ("raw", "100 B"), target, "records/s", found, server_cpu=used)
            say(f"{rep + 1}/{reps} {target}: {found:,.0f} records/s, server {used:.2f} CPU s")


@click.group(invoke_without_command=True)
@click.option("--quick", is_flag=True, help="Fewer of everything: for a look, not for a claim.")
@click.pass_context
def main(context: click.Context, quick: bool) -> None:
    """Measure `own` on the embedded server."""
    if context.invoked_subcommand is not None:
        return
    from rich.console import Console

    from bench.report import table

    console = Console(width=150)
    name = f"own-{dt.datetime.now(dt.UTC).date()}{'-quick' if quick else ''}"
    about = {**machine.describe(), "run": "quick" if quick else "full"}
    results = Results(about, Path(__file__).resolve().parent / "results" / f"{name}.json")
    scratch = Path(tempfile.mkdtemp(prefix="fencepost-bench-"))
    broker = Fencepost(scratch / "fencepost-os", "os")
    assert broker.name == OS

    def say(line: str) -> None:
        console.print(line, style="dim", highlight=False)

    try:
        broker.start()
        measure_take_over(broker, results, say, 200 if quick else 1000)
        measure_held(broker, results, say).close()
        measure_others(broker, results, say, 3 if quick else 7, 1_000_000 if quick else 3_000_000)
    finally:
        broker.remove()
        shutil.rmtree(scratch, ignore_errors=True)
        table.show(results, console)


@main.command("contend")
@click.argument("address")
@click.argument("topic")
@click.argument("warm")
def contend_command(address: str, topic: str, warm: str) -> None:
    """One of the two processes of a take-over."""
    contend(address, topic, warm)


if __name__ == "__main__":
    main()
