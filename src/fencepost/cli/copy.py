"""`fencepost copy`: a topic to a topic on Spark, exactly once."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.errors import ConfigError, FencepostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.client.cluster.settings import ClientSettings


@click.command()
@click.argument("source", metavar="[HOST:PORT/]TOPIC")
@click.argument("destination", metavar="[HOST:PORT/]TOPIC")
@click.option("-F", "--follow", is_flag=True, help="Go on with what comes, until interrupted.")
@click.option("--name", help="The copy's identity across restarts [default: made of cluster and topics].")
@click.option(
    "--adopt", is_flag=True, help="Take over a name that another copy has used; go on although the source was cut."
)
@click.option("--master", default="local[*]", show_default=True, help="Spark's master, as for spark-submit.")
@click.option("--round", "per_round", type=click.IntRange(min=1), help="Offsets per transaction [default: 4000000].")
@client_command
def copy(
    target: ClusterTarget,
    source: str,
    destination: str,
    follow: bool,
    name: str | None,
    adopt: bool,
    master: str,
    per_round: int | None,
) -> None:
    """Copy a topic to another one, exactly once, on Spark.

    The other one may be on another cluster. Partition goes to partition; keys, headers, timestamps and compression stay
    as they are. The target is created like the source if it does not exist. Killed at any moment and started again it
    goes on where it was: its position is committed together with the records, in the target's cluster. Without
    HOST:PORT a topic is on --servers.

    \b
    Examples:
      fencepost copy orders orders-copy
      fencepost copy 127.0.0.1:9092/orders kafka.example.com:9092/orders --follow
    """
    from fencepost.client.admin import Admin
    from fencepost.spark.copy import OFFSETS_PER_ROUND, Copy

    base = target.settings()
    (source_at, topic), (target_at, target_topic) = _place(base, source), _place(base, destination)
    if (source_at.servers, topic) == (target_at.servers, target_topic):
        raise ConfigError("source and target are the same topic")
    with Admin(source_at) as admin:
        admin.describe_topic(topic)  # what is not there is said before Spark starts, and not in the midst of its lines
    _silence_py4j()
    with _session(master) as spark:
        work = Copy(
            spark,
            source_at,
            topic,
            target_at,
            target_topic,
            name=name,
            adopt=adopt,
            offsets_per_round=per_round or OFFSETS_PER_ROUND,
        )
        began = time.monotonic()
        records = size = rounds = 0
        try:
            with _bar(follow or target.as_json) as show:
                for done in work.rounds(follow=follow):
                    records, size, rounds = records + done.records, size + done.bytes, rounds + 1
                    show(records, done.lag)
        except KeyboardInterrupt:
            if not follow:
                raise
        finally:
            work.close()
        seconds = time.monotonic() - began
    target.done(
        f"copied {records} records, {size / 1e6:.1f} MB, in {rounds} transactions and {seconds:.1f} s "
        f"({records / max(seconds, 0.001):,.0f} records/s) as {work.name}",
        {"records": records, "bytes": size, "rounds": rounds, "seconds": round(seconds, 3), "name": work.name},
    )


def _place(base: ClientSettings, text: str) -> tuple[ClientSettings, str]:
    from fencepost.client.cluster.settings import parse_servers

    servers, slash, topic = text.rpartition("/")
    if not topic:
        raise ConfigError(f"{text!r} names no topic: HOST:PORT/TOPIC, or TOPIC alone")
    return (replace(base, servers=parse_servers(servers)) if slash else base), topic


def _silence_py4j() -> None:
    """py4j logs a call that failed or was interrupted with its traceback, and then raises all the same: what is raised
    is enough. It uses the root logger, so that is where it has to be told apart from others."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.module not in ("java_gateway", "clientserver"))
    logging.getLogger().addHandler(handler)


@contextlib.contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise FencepostError("copy runs on Spark, which is not installed: pip install 'fencepost[spark]'") from None
    builder = SparkSession.builder.appName("fencepost copy").master(master)
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # or the workers take whatever `python3` is
        # On a server's command line nobody looks at a user interface, and nothing but loopback need listen.
        for setting, value in (("ui.enabled", "false"), ("driver.host", "127.0.0.1"), ("log.level", "ERROR")):
            builder = builder.config(f"spark.{setting}", value)
        builder = builder.config("spark.driver.bindAddress", "127.0.0.1")
    session = None
    try:
        with _interrupted_afterwards():
            session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
        yield session
    finally:
        if session is not None:
            session.stop()


@contextlib.contextmanager
def _interrupted_afterwards() -> Iterator[None]:
    """Ctrl-C in the block takes effect behind it. PySpark that is interrupted while it waits for its JVM forgets the
    JVM, and that one waits for ever for somebody to talk to. A second Ctrl-C is for those who cannot wait."""
    before = signal.getsignal(signal.SIGINT)
    came = False

    def note(_number: int, _frame: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is note:  # a session that has come up has put its own there
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _bar(quiet: bool) -> Iterator[Any]:
    """A bar at a terminal: records, rate, what is left and for how long."""
    if quiet or not sys.stderr.isatty():
        yield lambda _records, _lag: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [
        TextColumn("copied"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    ]
    began = time.monotonic()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("copy", total=None, rate="")

        def show(records: int, lag: int) -> None:
            rate = f"{records / max(time.monotonic() - began, 0.001):,.0f}/s"
            progress.update(task, completed=records, total=records + lag, rate=rate)

        yield show
