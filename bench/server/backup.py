"""What a backup costs those who write meanwhile, and how long a backup, the next one and a restore take.

    python -m bench.server.backup [--scale 0.1] [--reps 3] [--sync always]
    python -m bench server --only backup

A server has 10 GiB of log (times the scale). A producer pours records of 1 KiB into another topic, flat out or at a
steady rate, and a *healthy client*, in a process of its own, sends one acknowledged record of 100 B at a time. Flat out
shows how much slower a producer becomes; but the disk then has nothing left, also without a backup. What the healthy
client feels is to be judged under the steady load.

In each repetition `fencepost backup` makes a whole copy into an empty folder. *During* is from its start to its end;
*without* are the five seconds before it and the five seconds after it. Each repetition is one pair. Flat out, a disk
may be twice as fast in one minute as in the next: many small backups say more than a few large ones (`--scale`).

The last backup is followed by a second one into the same folder, which copies only what is new. Then the load ends, the
server stops, `fencepost restore` makes a new directory, and a server starts with it: timed to its first answer, and to
a record written and read back in each partition.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import click
import psutil

import fencepost
from bench import payload, run, topics
from bench.brokers import ALWAYS, OS, Fencepost
from bench.jobs import BATCH_BYTES, LINGER_MS, PARTITIONS
from bench.results import Results
from bench.server import plan as plans
from bench.server import restart
from bench.server.plan import Plan, Say
from tests.support.raw import RawClient

RATE: Final = "backup: records/s of a producer"
SERVER_CPU: Final = "backup: server CPU per million records"
OWN_CPU: Final = "backup: CPU of the backup itself"
HEALTHY: Final = "backup: one acknowledged record beside it"
SECONDS: Final = "backup: seconds"
DURING, WITHOUT = "during a backup", "without"
FLAT_OUT, STEADY, STOPPED = "flat out", "steady, 50 MB/s", "no load"
_RATES: Final = {FLAT_OUT: 0, STEADY: 50_000}
"""Records a second; 0: as many as possible."""
FIRST, SECOND, RESTORE = "backup", "second backup", "restore"
ANSWER, WRITTEN = "start of the restored server", "start of the restored server to records written and read"
_POURED: Final = "poured"
_TAPPED: Final = "tapped"
_SIZE: Final = 1024
_OFTEN: Final = ("-X", "background_interval_ms=1000")
"""Retention must keep up with the load: only the log that nobody writes to shall be large."""
_PAUSE: Final = 0.005
_WARMING_UP: Final = 3.0
_HALF: Final = 5.0
_SENT_AT_ONCE: Final = 500
_FEWEST: Final = 3
"""Repetitions of a run that counts."""
_ROOT: Final = Path(__file__).resolve().parents[2]


def measure(
    plan: Plan,
    results: Results,
    say: Say,
    *,
    targets: tuple[str, ...] = (ALWAYS, OS),
    loads: tuple[str, ...] = (FLAT_OUT, STEADY),
) -> None:
    for target in targets:
        sync = target.split()[1]
        server = Fencepost(plan.folder / f"backup-{sync}", sync, arguments=_OFTEN)
        copies, restored = plan.folder / f"copies-{sync}", Fencepost(plan.folder / f"restored-{sync}", sync)
        what = f"{plan.log_bytes / (1 << 30):g} GiB, sync {sync}"
        try:
            server.start()
            _fill(server, plan.log_bytes, say)
            for load in loads:
                with _pouring(server, load) as watch:
                    for _ in range(plan.reps):
                        _compare(watch, copies, (load, what), results, say)
            _again(server, copies, what, results, say)
            server.remove()  # the disk that is lost; and its space is needed
            _restore(copies, restored, what, results, say)
        finally:
            server.remove()
            restored.remove()
            shutil.rmtree(copies, ignore_errors=True)


def _fill(server: Fencepost, size: int, say: Say) -> None:
    began = time.perf_counter()
    with RawClient(server.address) as client:
        client.create_topic(restart.TOPIC, PARTITIONS)
        _, in_flight = restart.write_batches(client, size)
        for _ in in_flight:
            client.receive_produced()
    with fencepost.Admin(server.address) as admin:
        small = {"retention.bytes": str(64 << 20), "segment.bytes": str(16 << 20)}
        admin.create_topic(_POURED, PARTITIONS, configs=small)
        admin.create_topic(_TAPPED, 1)
    os.sync()  # what is left of this in the page cache would be written during the first repetition
    say(f"{server.name}: {size / 1e9:.1f} GB written in {time.perf_counter() - began:.0f} s")


class Window(NamedTuple):
    """The time between two marks."""

    records: int
    seconds: float
    server_cpu: float
    latencies_ms: list[float]

    def and_then(self, later: Window) -> Window:
        return Window(
            self.records + later.records,
            self.seconds + later.seconds,
            self.server_cpu + later.server_cpu,
            self.latencies_ms + later.latencies_ms,
        )


class _Watch:
    """The load: how far it is, and how its healthy client fares."""

    def __init__(self, server: Fencepost, tap: subprocess.Popen[str]) -> None:
        self.server = server
        self._process = psutil.Process(server.pid)
        self._tap = tap
        self.restart()

    def restart(self) -> None:
        self._ask_tap()
        self._began, self._records, self._cpu = time.perf_counter(), self._count(), _spent(self._process)

    def read(self) -> Window:
        """Return what happened since the last call, or since `restart`."""
        now, records, cpu = time.perf_counter(), self._count(), _spent(self._process)
        window = Window(records - self._records, now - self._began, cpu - self._cpu, self._ask_tap())
        self._began, self._records, self._cpu = now, records, cpu
        return window

    def _count(self) -> int:
        return topics.count(self.server, _POURED)

    def _ask_tap(self) -> list[float]:
        assert self._tap.stdin is not None
        assert self._tap.stdout is not None
        self._tap.stdin.write("read\n")
        self._tap.stdin.flush()
        taken: list[float] = json.loads(self._tap.stdout.readline())
        return taken


@contextmanager
def _pouring(server: Fencepost, load: str) -> Iterator[_Watch]:
    with _worker("pour", server.address, str(_RATES[load])), _worker("tap", server.address) as tap:
        time.sleep(_WARMING_UP)
        yield _Watch(server, tap)


def _compare(watch: _Watch, copies: Path, labels: tuple[str, str], results: Results, say: Say) -> None:
    shutil.rmtree(copies, ignore_errors=True)
    os.sync()
    watch.restart()
    time.sleep(_HALF)
    without = watch.read()
    seconds, cpu = _back_up(watch.server, copies)
    during = watch.read()
    time.sleep(_HALF)
    note(labels, without.and_then(watch.read()), during, results, say)
    results.add(SECONDS, (*labels, FIRST), watch.server.name, "s", seconds)
    results.add(OWN_CPU, labels, watch.server.name, "CPU s", cpu)
    say(f"the backup took {seconds:.1f} s and {cpu:.1f} CPU s")


def _again(server: Fencepost, copies: Path, what: str, results: Results, say: Say) -> None:
    with _pouring(server, STEADY):
        seconds, cpu = _back_up(server, copies)
    results.add(SECONDS, (STEADY, what, SECOND), server.name, "s", seconds)
    say(f"a second backup into the folder took {seconds:.2f} s and {cpu:.1f} CPU s")


def note(labels: tuple[str, str], without: Window, during: Window, results: Results, say: Say) -> None:
    for target, window in ((WITHOUT, without), (DURING, during)):
        rate, cpu = window.records / window.seconds, window.server_cpu * 1e6 / window.records
        results.add(RATE, labels, target, "records/s", rate)
        results.add(SERVER_CPU, labels, target, "CPU s", cpu)
        cuts = statistics.quantiles(window.latencies_ms, n=100)
        for label, value in (("p50", cuts[49]), ("p99", cuts[98])):
            results.add(HEALTHY, (*labels, label), target, "ms", value)
        say(
            f"{labels[0]}, {target}, {window.seconds:.0f} s: {rate:,.0f} records/s, {cpu:.2f} CPU s per million; "
            f"healthy client p50 {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms, at most {max(window.latencies_ms):.0f} ms"
        )


def _back_up(server: Fencepost, copies: Path) -> tuple[float, float]:
    """Run `fencepost backup`; return its seconds, and its CPU seconds."""
    return _run("backup", str(copies), "--data", str(server.data))


def _restore(copies: Path, restored: Fencepost, what: str, results: Results, say: Say) -> None:
    seconds, _ = _run("restore", str(copies), "--data", str(restored.data))
    results.add(SECONDS, (STOPPED, what, RESTORE), restored.name, "s", seconds)
    began = time.perf_counter()
    answered = restored.start()
    with RawClient(restored.address) as client:
        restart.write_and_read(client, b"after the restore")
    usable = time.perf_counter() - began
    results.add(SECONDS, (STOPPED, what, ANSWER), restored.name, "s", answered)
    results.add(SECONDS, (STOPPED, what, WRITTEN), restored.name, "s", usable)
    say(f"restore: {seconds:.1f} s; the server answers after {answered:.2f} s, writes and reads after {usable:.2f} s")


def _run(*arguments: str) -> tuple[float, float]:
    """Run a command of fencepost; return its seconds and its CPU seconds."""
    began, before = time.perf_counter(), os.times()
    subprocess.run([sys.executable, "-m", "fencepost", *arguments], check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return time.perf_counter() - began, used


def _spent(process: psutil.Process) -> float:
    spent = process.cpu_times()
    return float(spent.user + spent.system)


@contextmanager
def _worker(kind: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.server.backup", kind, *arguments]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


@click.group(invoke_without_command=True)
@click.option("--scale", type=click.FloatRange(min=0.001), default=1.0, help="Of the 10 GiB [default: 1].")
@click.option("--reps", type=click.IntRange(min=1), default=3, help="Repetitions [default: 3].")
@click.option("--sync", type=click.Choice(["always", "os"]), multiple=True, help="Of the server [default: both].")
@click.option("--load", type=click.Choice(list(_RATES)), multiple=True, help="Of the server [default: both].")
@click.option("--name", help="Of the result file [default: server-backup-DATE].")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where the server keeps its data.")
@click.pass_context
def main(
    context: click.Context,
    scale: float,
    reps: int,
    sync: tuple[str, ...],
    load: tuple[str, ...],
    name: str | None,
    folder: Path | None,
) -> None:
    """Measure backups of a server under load."""
    if context.invoked_subcommand is not None:
        return
    targets = tuple(f"fencepost {each}" for each in sync) or (ALWAYS, OS)
    how = f"{reps} repetitions, {scale:g} × 10 GiB"
    is_quick = reps < _FEWEST
    with run.running("server-backup", quick=is_quick, how=how, name=name, folder=folder) as (results, scratch, say):
        chosen = plans.full(scratch)
        chosen = replace(chosen, reps=reps, log_bytes=int(chosen.log_bytes * scale))
        measure(chosen, results, say, targets=targets, loads=load or tuple(_RATES))


@main.command()
@click.argument("address")
@click.argument("rate", type=int)
def pour(address: str, rate: int) -> None:
    """Write so many records a second, or with 0 as many as possible, until killed."""
    pool = payload.values(_SIZE)
    producer = fencepost.Producer(
        address, batch_size=BATCH_BYTES, max_request_size=4 * BATCH_BYTES, linger=LINGER_MS / 1000
    )
    began, sent = time.perf_counter(), 0
    while True:
        for value in pool[:_SENT_AT_ONCE] if rate else pool:
            producer.send(_POURED, value)
        sent += _SENT_AT_ONCE
        if rate:
            time.sleep(max(0.0, began + sent / rate - time.perf_counter()))


@main.command()
@click.argument("address")
def tap(address: str) -> None:
    """Write one acknowledged record at a time, until killed; print the milliseconds of each when asked."""
    [value] = payload.values(100, 1)
    taken: list[float] = []
    producer = fencepost.Producer(address)
    while True:
        began = time.perf_counter()
        producer.send(_TAPPED, value, partition=0).result()
        taken.append((time.perf_counter() - began) * 1000)
        if select.select([sys.stdin], [], [], _PAUSE)[0]:
            sys.stdin.readline()
            print(json.dumps(taken), flush=True)
            taken.clear()


if __name__ == "__main__":
    main()
