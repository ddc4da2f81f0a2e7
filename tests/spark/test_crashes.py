"""Real processes, really killed: whatever dies, the target holds every input record once (PIPE-4).

Each driver here is a process group of its own (Python, JVM, workers) that is killed or stopped as a whole. The target
is read by a stranger's client with read_committed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost
import fencepost.spark
from fencepost import Admin
from fencepost.spark.sink import Sink, write
from fencepost.spark.source import register
from tests.support.committed import committed_values
from tests.support.kafka import KafkaBroker, KafkaUnavailable
from tests.support.make_runs import without_tool
from tests.support.proxy import Proxy
from tests.support.scripted import Fate
from tests.support.short_outage import AwayServer
from tests.support.spark import ROOT
from tests.support.spark_drivers import STEPS, Drivers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.filterwarnings("default"), pytest.mark.timeout(600)]

END_TXN = 26


@pytest.fixture
def filled(spark: SparkSession, servers: str, name: str) -> tuple[str, str]:
    """A source topic with 900 records, and an empty target."""
    fill(spark, servers, f"{name}-in", 900)
    with Admin(servers) as admin:
        admin.create_topic(f"{name}-out", 3)
    return f"{name}-in", f"{name}-out"


def fill(spark: SparkSession, servers: str, topic: str, count: int) -> None:
    rows = spark.range(0, count, 1, 2).selectExpr("cast(id % 10 as string) key", "cast(id as string) value")
    write(rows, servers, topic=topic, job=f"fill-{topic}", create=3)


@pytest.fixture
def drivers(servers: str, filled: tuple[str, str], name: str, tmp_path: Path) -> Iterator[Drivers]:
    started = Drivers(tmp_path, servers=servers, source=filled[0], target=filled[1], name=name, per_batch=90)
    yield started
    started.kill_all()


def assert_each_once(servers: str, topic: str, count: int = 900) -> None:
    assert Counter(map(int, committed_values(servers, topic))) == Counter(range(count))


@pytest.mark.every_run("fencepost-committed")
@pytest.mark.parametrize("steps", [["ended"], ["publish", "done"]], ids=["committed", "before and after"])
def test_a_driver_killed_around_the_commit_in_turn(servers: str, drivers: Drivers, steps: list[str]) -> None:
    drivers.common["per_batch"] = 225  # as few batches as these kills need
    drivers.killed_at_each_in_turn(steps)
    assert_each_once(servers, drivers.common["target"])


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_driver_killed_between_every_two_steps_in_turn(servers: str, drivers: Drivers) -> None:
    drivers.killed_at_each_in_turn(STEPS)
    assert_each_once(servers, drivers.common["target"])


@pytest.mark.long
def test_a_paused_driver_woken_inside_its_successors_batch_is_fenced_harmlessly(
    everywhere: str, spark: SparkSession, name: str, tmp_path: Path
) -> None:
    fill(spark, everywhere, f"{name}-in", 900)
    with Admin(everywhere) as admin:
        admin.create_topic(f"{name}-out", 3)
    drivers = Drivers(
        tmp_path,
        servers=everywhere,
        source=f"{name}-in",
        target=f"{name}-out",
        name=name,
        per_batch=300,
        driver_bytes=0,
    )
    try:
        old = drivers.start(("verify", 1, "stop"))
        _, status = os.waitpid(old.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), drivers.output(old)
        inside = tmp_path / "inside"
        new = drivers.start(("verify", 0, str(inside)))
        drivers.wait_for(inside, new)
        os.killpg(old.pid, signal.SIGCONT)
        assert old.wait(120) == 3, drivers.output(old)
        assert "this driver was replaced" in drivers.output(old)
        Path(f"{inside}.go").touch()
        drivers.finish(new)
    finally:
        drivers.kill_all()
    assert_each_once(everywhere, f"{name}-out")


@pytest.mark.soak
def test_an_executor_killed_while_it_publishes_rows_that_differ_on_recomputation(servers: str, name: str) -> None:
    """PIPE-4, PIPE-5. A cluster of two executors; one dies with the frozen batches it stored, and what is computed anew
    differs."""
    with Admin(servers) as admin:
        admin.create_topic(name, 3)
    command = [sys.executable, "-m", "tests.workers.spark_cluster", servers, name, name, "2000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    # The beginning: what Spark says while it is shut down is long, and no cause of anything.
    assert done.returncode == 0, done.stderr[:6000]
    report = json.loads(done.stdout.strip().splitlines()[-1])
    assert report["attempts"] > 1  # what was lost came out otherwise, and was not published
    assert Counter(int(value.split()[0]) for value in committed_values(servers, name)) == Counter(range(2_000))


def numbers(spark: SparkSession, count: int) -> DataFrame:
    return spark.range(0, count, 1, 2).selectExpr("cast(id as string) value")


@pytest.mark.every_run("end")
@pytest.mark.parametrize("step", ["publish", "verify", "end"])
def test_a_server_killed_and_restarted_inside_a_batch(
    spark: SparkSession, name: str, tmp_path: Path, step: str
) -> None:
    with fencepost.Server(tmp_path / "data", process=True) as server:
        address = server.address
        with Admin(address) as admin:
            admin.create_topic(name, 3)
        killed: list[fencepost.Server] = []

        def kill(taken: str) -> None:
            if taken == step and not killed:
                server.kill()
                killed.append(fencepost.Server(tmp_path / "data", listen=address, process=True).start())

        try:
            report = write(numbers(spark, 3_000), address, topic=name, job=name, driver_bytes=0, on_step=kill)
            assert report.rows == 3_000
            assert_each_once(address, name, 3_000)
        finally:
            for restarted in killed:
                restarted.stop()
    assert killed


@pytest.mark.every_run("look")
@pytest.mark.parametrize("step", ["look", "freeze"])
def test_a_sink_waits_for_a_server_that_is_away(spark: SparkSession, name: str, tmp_path: Path, step: str) -> None:
    """Also while it looks what is in the log, and at its targets: nothing is open then (PIPE-4)."""
    server = AwayServer(tmp_path / "data")
    try:
        with Admin(server.address) as admin:
            admin.create_topic(name, 3)

        def leave(taken: str) -> None:
            if taken == step and not server.missed:
                server.leave()

        report = write(numbers(spark, 300), server.address, topic=name, job=name, on_step=leave)
        server.is_back()
        assert report.rows == 300
        assert_each_once(server.address, name, 300)
    finally:
        server.stop()


def test_a_stream_waits_for_a_server_that_is_away(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """The source asks for offsets all the time: a restart of the server must not end the query (PIPE-1, PIPE-4)."""
    register(spark)
    server = AwayServer(tmp_path / "data")
    target = f"{name}-target"
    try:
        with Admin(server.address) as admin:
            admin.create_topic(name, 1)
            admin.create_topic(target, 1)
        source = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", server.address)
        rows = source.option("subscribe", name).option("startingOffsets", "earliest").load()
        sink = Sink(server.address, topic=target, name=name)
        checkpoint = str(tmp_path / "checkpoint")
        stream = rows.select("value").writeStream.foreachBatch(sink).option("checkpointLocation", checkpoint)
        query = stream.trigger(processingTime="100 milliseconds").start()
        try:
            for batch in range(2):
                with fencepost.Producer(server.address) as producer:
                    for number in range(batch * 100, batch * 100 + 100):
                        producer.send(name, str(number))
                query.processAllAvailable()
                if batch == 0:
                    server.leave()
                    server.is_back()
                    assert server.missed == 3
            assert query.isActive
        finally:
            query.stop()
        assert_each_once(server.address, target, 200)
    finally:
        server.stop()


@pytest.mark.soak
@pytest.mark.kafka
def test_an_apache_kafka_killed_and_restarted_inside_a_batch(spark: SparkSession, name: str, tmp_path: Path) -> None:
    """One broker, killed and launched again before each of three steps, in three batches."""
    broker = KafkaBroker(tmp_path / "broker")
    try:
        broker.start()
    except KafkaUnavailable as unavailable:
        without_tool(str(unavailable))
    try:
        with Admin(broker.address) as admin:
            admin.create_topic(name, 3)
        killed: list[str] = []

        def kill(taken: str) -> None:
            if taken == step and step not in killed:
                killed.append(step)
                broker.stop()  # SIGKILL
                broker.launch()

        for batch, step in enumerate(("publish", "verify", "end")):
            rows = numbers(spark, 3_000).selectExpr(f"cast(value + {batch * 3_000} as string) value")
            job = f"{name}-{step}"
            write(rows, broker.address, topic=name, job=job, driver_bytes=0, on_step=kill, attempts=6)
        assert killed == ["publish", "verify", "end"]
        assert_each_once(broker.address, name, 9_000)
    finally:
        broker.stop()


@pytest.mark.every_run("kafka")
def test_the_answer_to_the_commit_is_lost_and_the_batch_is_there_once(
    spark: SparkSession, servers: str, name: str
) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 3)
    with Proxy(servers) as proxy:
        lost = []

        def lose(step: str) -> None:
            if step == "end":
                proxy.next(END_TXN, Fate.CUT)  # type: ignore[arg-type]
                lost.append(step)

        report = write(numbers(spark, 1_000), proxy.address, topic=name, job=name, on_step=lose)
    assert (report.rows, report.skipped, len(lost)) == (1_000, False, 1)
    assert_each_once(servers, name, 1_000)


@pytest.mark.every_run("fencepost")
def test_a_new_checkpoint_with_the_old_name_is_refused_and_nothing_is_written(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    fill(spark, servers, f"{name}-in", 100)
    with Admin(servers) as admin:
        admin.create_topic(f"{name}-out", 3)
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    rows = reading.option("subscribe", f"{name}-in").option("startingOffsets", "earliest").load().select("value")

    def run(checkpoint: str, **options: Any) -> None:
        sink = fencepost.spark.Sink(servers, topic=f"{name}-out", name=name, **options)
        try:
            query = rows.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / checkpoint))
            query.trigger(availableNow=True).start().awaitTermination()
        finally:
            sink.close()

    run("first")
    with pytest.raises(Exception, match="belongs to another query"):
        run("second")
    assert_each_once(servers, f"{name}-out", 100)
    run("third", adopt=True)  # a person has decided: once more
    assert len(committed_values(servers, f"{name}-out")) == 200
