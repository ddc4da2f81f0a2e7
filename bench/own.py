"""What `own` costs: a take-over, ten thousand resources on one connection, and everybody else.

    python -m bench.own [--quick]

*Take-over*: two processes take a guarded partition from each other, again and again. Owner, claimant and server are
three processes, as users have them, so no interpreter is shared; the cores are, and with two of them an owner that
floods takes one from the claimant and the server. Measured in the claimant, on a connection that is open already, as a
standby's is: from the call of `own` to its return (*granted*), and to the answer to the first write (*accepted*).
The owner meanwhile does nothing, or writes 20 records at a time and waits for them, or floods in a tight loop with its
memory full; the three take turns.

*Held*: ten thousand resources claimed on one connection: the time for all of them, and the server's memory.

*Others*: a client that never calls `own`, while those ten thousand are held and while nobody holds anything: records/s,
and the server's CPU seconds per million records. One server and one run; each repetition has both of them and a second
one without, in another order each time. The ratio of the two without is the control: what it spreads is noise, and a
cost that is smaller is not to be seen. Beside it, what the check at every append takes by itself.
"""

from __future__ import annotations

import logging
import statistics
import subprocess
import sys
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click
import psutil

import fencepost
from bench import jobs, run, topics
from bench.brokers import OS, Fencepost
from bench.jobs import Produce
from bench.results import Results
from fencepost.server.coordinators.guards import check_write

TAKE_OVER: Final = "own: claim to first accepted write"
GRANTED: Final = "own: claim to grant"
HELD: Final = "own: 10,000 resources on one connection"
OTHERS: Final = "own: records/s of who never calls it"
OTHERS_CPU: Final = "own: server CPU per million records of who never calls it"
CHECK: Final = "own: the check at every append"
WHILE_HELD, WITHOUT, CONTROL = "10,000 held", "none held", "none held, again"
IDLE, WRITES, FLOODS = "idle", "writing", "flooding"
_WARMING_UP: Final = 0.02
"""Seconds that an owner has for itself before it is taken over from: a flood takes a moment to rise."""
RESOURCES: Final = 10_000
GROUP: Final = "bench-writers"
_LINE: Final = ("raw", "100 B")
_ROOT: Final = Path(__file__).resolve().parent.parent


class Contender:
    """A process that claims when told, says how long that took, and owns until it is fenced."""

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

    def claim(self, generation: int, then: str) -> tuple[int, float, float]:
        """Generation, and the milliseconds until it was granted and until the first write was accepted."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{generation} {then}\n")
        owned, granted, accepted = self.await_word("owns")
        return int(owned), float(granted), float(accepted)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def contend(address: str, topic: str, warm: str) -> None:
    # What became of a flood's last records is not waited for, and the producer warns of that.
    logging.getLogger("fencepost.producer").setLevel(logging.ERROR)
    while True:
        producer = fencepost.Producer(address)
        producer.send(warm, b"x").result()
        print("ready", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        generation, then = line.split()
        began = time.perf_counter()
        claim = producer.own(GROUP, [f"{topic}-0"], generation=int(generation))
        granted = time.perf_counter()
        producer.send(topic, b"first", partition=0).result()
        accepted = time.perf_counter()
        print("owns", claim.generation, (granted - began) * 1000, (accepted - began) * 1000, flush=True)
        with suppress(fencepost.Fenced):
            _OWNERS[then](producer, topic)
        with suppress(fencepost.FencepostError):
            producer.close(0)


def _idle(producer: fencepost.Producer, topic: str) -> None:
    while True:
        producer.check_owned()
        time.sleep(0.001)


def _write(producer: fencepost.Producer, topic: str) -> None:
    while True:
        for _ in range(20):
            ticket = producer.send(topic, b"x" * 100, partition=0)
        ticket.result()


def _flood(producer: fencepost.Producer, topic: str) -> None:
    while True:
        producer.send(topic, b"x" * 100, partition=0)


_OWNERS: Final = {IDLE: _idle, WRITES: _write, FLOODS: _flood}


def measure_take_over(broker: Fencepost, results: Results, say: Callable[[str], None], count: int) -> None:
    guard = {"fencepost.writer.group": GROUP, "retention.bytes": str(64 << 20), "segment.bytes": str(16 << 20)}
    with fencepost.Admin(broker.address) as admin:
        admin.create_topic("guarded", 1, configs=guard)
        admin.create_topic("warm", 1)
    contenders = [Contender(broker.address, "guarded", "warm") for _ in range(2)]
    taken: dict[str, list[tuple[float, float]]] = {IDLE: [], WRITES: [], FLOODS: []}
    try:
        before = IDLE
        generation, _, _ = contenders[0].claim(1, before)
        for number in range(1, len(taken) * count + 1):
            then = list(taken)[number % len(taken)]
            time.sleep(_WARMING_UP)
            generation, granted, accepted = contenders[number % 2].claim(generation, then)
            taken[before].append((granted, accepted))
            contenders[(number - 1) % 2].await_word("ready")
            before = then
    finally:
        for contender in contenders:
            contender.close()
    for owner, times in taken.items():
        for section, values in ((GRANTED, [row[0] for row in times]), (TAKE_OVER, [row[1] for row in times])):
            cuts = statistics.quantiles(values, n=100)
            for label, value in (("p50", cuts[49]), ("p99", cuts[98])):
                results.add(section, (f"{count} take-overs", f"{owner} owner", label), broker.name, "ms", value)
            say(f"{section}, {owner} owner: p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms, of {count}")


def measure_held(broker: Fencepost, results: Results, say: Callable[[str], None]) -> None:
    before = psutil.Process(broker.pid).memory_info().rss
    began = time.perf_counter()
    with holding(broker):
        took = (time.perf_counter() - began) * 1000
        grown = (psutil.Process(broker.pid).memory_info().rss - before) / 1e6
    results.add(HELD, ("all in one claim",), broker.name, "ms", took)
    results.add(HELD, ("memory",), broker.name, "MB", grown)
    say(f"{RESOURCES} resources in one claim: {took:.0f} ms, {grown:.1f} MB")


@contextmanager
def holding(broker: Fencepost) -> Iterator[None]:
    with fencepost.Producer(broker.address) as owner:
        owner.own("bench-many", [f"resource-{number}" for number in range(RESOURCES)], generation=0)
        yield


def measure_others(broker: Fencepost, results: Results, say: Callable[[str], None], reps: int, records: int) -> None:
    def write() -> tuple[float, float]:
        """Records/s, and CPU seconds of the server per million records."""
        with topics.topic(broker) as topic:
            before = cpu_seconds(broker.pid)
            outcome = jobs.run("raw", Produce(address=broker.address, topic=topic, records=records, size=100))
            used = cpu_seconds(broker.pid) - before
        return outcome.records_per_second, used * 1e6 / records

    write()  # unmeasured: the first run is slower than later ones
    targets = [WITHOUT, WHILE_HELD, CONTROL]
    for rep in range(reps):
        for target in targets[rep % 3 :] + targets[: rep % 3]:
            with holding(broker) if target == WHILE_HELD else nullcontext():
                rate, used = write()
            results.add(OTHERS, _LINE, target, "records/s", rate)
            results.add(OTHERS_CPU, _LINE, target, "CPU s", used)
    for section in (OTHERS, OTHERS_CPU):
        for target in (WHILE_HELD, CONTROL):
            low, middle, high = spread(ratios(results, section, target))
            say(f"{section}: {target} / {WITHOUT}: {middle:.3f}, half of {reps} pairs in {low:.3f}..{high:.3f}")


def ratios(results: Results, section: str, target: str) -> list[float]:
    """Pair by pair, with what the same repetition had without."""
    ours, base = results.get(section, _LINE, target), results.get(section, _LINE, WITHOUT)
    return [a / b for a, b in zip(ours.values, base.values, strict=True)] if ours and base else []


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, between the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return low, middle, high


def cpu_seconds(pid: int) -> float:
    """To the nanosecond, where /proc counts in hundredths of a second: the clock that clock_getcpuclockid(3) names."""
    return time.clock_gettime((~pid << 3) | 2)


def measure_check(broker: Fencepost, results: Results, say: Callable[[str], None], calls: int = 200_000) -> None:
    """The question at every append, of a connection that owns nothing, about a topic that nobody guards."""
    broker_of_none: Any = None
    connection: Any = SimpleNamespace(severed=False)
    topic: Any = SimpleNamespace(name="topic", writer_group="", writer_ids=())
    timer = timeit.Timer(lambda: check_write(broker_of_none, connection, topic, 0))
    for _ in range(7):
        took = timer.timeit(calls) / calls * 1e9
        results.add(CHECK, ("per batch",), broker.name, "ns", took)
    say(f"{CHECK}: {took:.0f} ns")


@click.group(invoke_without_command=True)
@run.quick
@click.pass_context
def main(context: click.Context, quick: bool) -> None:
    """Measure `own` on the embedded server."""
    if context.invoked_subcommand is not None:
        return
    with run.running("own", quick=quick) as (results, scratch, say):
        broker = Fencepost(scratch / "fencepost-os", "os")
        assert broker.name == OS
        with run.started(broker):
            measure_take_over(broker, results, say, 300 if quick else 1000)
            measure_held(broker, results, say)
            measure_check(broker, results, say)
            measure_others(broker, results, say, 16 if quick else 60, 500_000 if quick else 2_000_000)


@main.command("contend")
@click.argument("address")
@click.argument("topic")
@click.argument("warm")
def contend_command(address: str, topic: str, warm: str) -> None:
    """One of the two processes of a take-over."""
    contend(address, topic, warm)


if __name__ == "__main__":
    main()
