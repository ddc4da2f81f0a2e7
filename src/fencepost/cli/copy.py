"""`fencepost copy`: an exactly-once copy from topic to topic, on Spark."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from fencepost.cli.options import ClusterTarget, client_command
from fencepost.cli.output import progress
from fencepost.errors import ConfigError, FencepostError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fencepost.client.cluster.settings import ClientSettings


@click.command()
@click.argument("source", metavar="[HOST:PORT/]TOPIC")
@click.argument("destination", metavar="[HOST:PORT/]TOPIC")
@click.option("-F", "--follow", is_flag=True, help="Keep copying new records until interrupted.")
@click.option("--name", help="The copy's identity across restarts [default: from cluster and topics].")
@click.option(
    "--adopt", is_flag=True, help="Take over the name of another copy; continue although the source lost records."
)
@click.option("--master", default="local[*]", show_default=True, help="Spark master, as for spark-submit.")
@click.option(
    "--round",
    "per_round",
    type=click.IntRange(min=1),
    help="Offsets per transaction, in the last one up to a quarter more [default: 4000000].",
)
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
    """Copy a topic to another topic exactly once, on Spark.

    The target may be on another cluster; a topic without HOST:PORT is on --servers. Each partition goes to the
    partition of the same number; keys, headers, timestamps and compression stay as they are. A missing target topic is
    created with the source's partitions and configs. The position is committed together with the records, in the
    target's cluster, so a copy that was killed resumes where it stopped.

    \b
    Examples:
      fencepost copy orders orders-copy
      fencepost copy 127.0.0.1:9092/orders kafka.example.com:9092/orders --follow
    """
    from fencepost.client.admin_client import Admin
    from fencepost.spark.copy import OFFSETS_PER_ROUND, Copy

    base = target.settings()
    (source_at, topic), (target_at, target_topic) = _place(base, source), _place(base, destination)
    if (source_at.servers, topic) == (target_at.servers, target_topic):
        raise ConfigError("source and target are the same topic; name another target")
    with Admin(source_at) as admin:
        admin.describe_topic(topic)  # fail before Spark starts if the topic does not exist
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
            with progress("copied", quiet=follow or target.as_json, rates=True) as advance:
                for done in work.rounds(follow=follow):
                    records, size, rounds = records + done.records, size + done.bytes, rounds + 1
                    advance(done.records, done.bytes, done.lag)
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
    from fencepost.client.cluster.addresses import parse_servers

    servers, slash, topic = text.rpartition("/")
    if not topic:
        raise ConfigError(f"{text!r} names no topic: expected HOST:PORT/TOPIC or TOPIC")
    return (replace(base, servers=parse_servers(servers)) if slash else base), topic


def _silence_py4j() -> None:
    """Drop py4j's log records: it logs each failed call with a traceback and raises the error anyway. It logs to the
    root logger, so the filter goes by module."""
    handler = logging.StreamHandler()
    handler.setLevel(logging.WARNING)
    handler.addFilter(lambda record: record.module not in ("java_gateway", "clientserver"))
    logging.getLogger().addHandler(handler)


@contextlib.contextmanager
def _session(master: str) -> Iterator[SparkSession]:
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise FencepostError("copy needs PySpark, which is not installed: pip install 'fencepost[spark]'") from None
    builder = SparkSession.builder.appName("fencepost copy").master(master)
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the default is the first `python3` in PATH
        # A command needs no web UI, and no listener beyond loopback.
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
    """Defer Ctrl-C until the block ends. PySpark, interrupted while it waits for its JVM, leaves that JVM behind for
    ever. A second Ctrl-C interrupts at once."""
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
        if signal.getsignal(signal.SIGINT) is note:  # a started session has installed its own handler
            signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt
