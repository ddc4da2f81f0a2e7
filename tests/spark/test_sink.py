"""The sink in a real Spark session: foreachBatch, batch DataFrames, retried tasks (PIPE-2, PIPE-4)."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import fencepost.spark
from fencepost import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.topics import ProgressTopic
from fencepost.errors import ConfigError, ErrorCode, ServerError
from tests.support import spark_writing
from tests.support.committed import committed, committed_values

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]


def create(servers: str, *topics: str, partitions: int = 3, **configs: str) -> None:
    with Admin(servers) as admin:
        for topic in topics:
            admin.create_topic(topic, partitions, configs={key.replace("_", "."): v for key, v in configs.items()})


def numbers(spark: SparkSession, count: int, *, tasks: int = 4) -> DataFrame:
    """Rows whose value is their number and whose key is one of ten."""
    rows = spark.range(0, count, 1, tasks)
    return rows.selectExpr("cast(id % 10 as string) key", "cast(id as string) value")


def fill(spark: SparkSession, servers: str, topic: str, count: int) -> None:
    fencepost.spark.write(numbers(spark, count), servers, topic=topic, job=f"fill-{topic}", create=3)


def stream(spark: SparkSession, servers: str, topic: str, **options: Any) -> DataFrame:
    reading = spark.readStream.format("fencepost").option("kafka.bootstrap.servers", servers)
    reading = reading.option("subscribe", topic).option("startingOffsets", "earliest")
    for key, value in options.items():
        reading = reading.option(key, value)
    return reading.load()


def run(df: DataFrame, sink: Any, checkpoint: Path) -> Any:
    query = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    started = query.trigger(availableNow=True).start()
    assert started.awaitTermination(120)
    return started


@pytest.mark.every_run("fencepost-by driver", "kafka-by tasks")
@pytest.mark.parametrize("driver_bytes", [1 << 20, 0], ids=["by driver", "by tasks"])
def test_a_batch_dataframe_is_written_once_per_job(
    spark: SparkSession, servers: str, name: str, driver_bytes: int
) -> None:
    create(servers, name)
    rows = 60 if driver_bytes else 5_000
    df = numbers(spark, rows)
    first = fencepost.spark.write(df, servers, topic=name, job=name, driver_bytes=driver_bytes, compression="lz4")
    again = fencepost.spark.write(df, servers, topic=name, job=name, driver_bytes=driver_bytes)
    assert (first.rows, first.skipped, first.partitions) == (rows, False, 3)
    assert (first.published_by, again.skipped) == ("driver" if driver_bytes else "tasks", True)
    found = committed(servers, name)
    assert Counter(int(message.value()) for message in found) == Counter(range(rows))
    for key in range(10):  # records of one key are in one partition, in order
        of_key = [message for message in found if message.key() == str(key).encode()]
        assert [int(message.value()) for message in of_key] == list(range(key, rows, 10))
        assert len({message.partition() for message in of_key}) == 1


@pytest.mark.every_run("kafka")
def test_a_stream_passes_in_several_micro_batches_and_resumes_from_its_checkpoint(
    spark: SparkSession, servers: str, name: str, tmp_path: Path
) -> None:
    """PIPE-1, PIPE-2: source and sink together."""
    source, target = f"{name}-in", f"{name}-out"
    fill(spark, servers, source, 3_000)
    create(servers, target)
    sink = fencepost.spark.Sink(servers, topic=target, name=name)
    df = stream(spark, servers, source, maxOffsetsPerTrigger="1000").select("key", "value")
    query = run(df, sink, tmp_path / "checkpoint")
    sink.close()
    reports = list(sink.reports)
    assert [report.batch for report in reports] == list(range(len(reports)))
    assert len(reports) >= 3
    assert sum(report.rows for report in reports) == 3_000
    assert query.recentProgress[-1]["sources"][0]["latestOffset"]
    with Routes(ClientSettings.of(servers)) as routes:
        progress = ProgressTopic(routes, name).last()
    assert progress is not None
    assert (progress.batch, progress.rows) == (reports[-1].batch, reports[-1].rows)
    took = (progress.fence_ms, progress.look_ms, progress.freeze_ms, progress.publish_ms, progress.previous_commit_ms)
    assert all(each is not None and each >= 0 for each in took), took
    with Admin(servers) as admin:
        before = admin.latest(target)
    later = fencepost.spark.Sink(servers, topic=target, name=name)
    run(df, later, tmp_path / "checkpoint")  # nothing new
    later.close()
    with Admin(servers) as admin:
        assert admin.latest(target) == before
    assert Counter(map(int, committed_values(servers, target))) == Counter(range(3_000))


def test_key_headers_partition_and_topic_come_from_columns(spark: SparkSession, ours: str, name: str) -> None:
    create(ours, f"{name}-a", f"{name}-b")
    rows = [
        (b"k", "one", [("h", b"1"), ("h", None)], 2, f"{name}-a"),
        (None, "two", None, None, f"{name}-b"),
        (b"k", None, [], 0, f"{name}-b"),
    ]
    kind = "key binary, value string, headers array<struct<key:string,value:binary>>, partition int, topic string"
    report = fencepost.spark.write(spark.createDataFrame(rows, kind), ours, job=name)
    assert (report.rows, report.partitions >= 2) == (3, True)
    (first,) = committed(ours, f"{name}-a")
    assert (first.key(), first.value(), first.headers(), first.partition()) == (
        b"k",
        b"one",
        [("h", b"1"), ("h", None)],
        2,
    )
    others = {message.value(): message for message in committed(ours, f"{name}-b")}
    assert set(others) == {b"two", None}
    assert others[None].partition() == 0


@pytest.mark.every_run("fencepost")
def test_unwritable_rows_go_to_the_dead_letters_in_the_same_transaction(
    spark: SparkSession, servers: str, name: str
) -> None:
    create(servers, name, max_message_bytes="2000")
    create(servers, f"{name}-dead", partitions=1)
    rows = [("ok", "fine", 0), ("large", "x" * 5_000, 1), ("lost", "nowhere", 7), ("ok", "fine too", 2)]
    df = spark.createDataFrame(rows, "key string, value string, partition int")
    report = fencepost.spark.write(df, servers, topic=name, job=name, dead_letter=f"{name}-dead")
    assert sorted(committed_values(servers, name)) == [b"fine", b"fine too"]
    dead = {message.key(): dict(message.headers()) for message in committed(servers, f"{name}-dead")}
    assert set(dead) == {b"large", b"lost"}
    assert b"more than" in dead[b"large"]["fencepost.reason"]
    assert b"no such partition" in dead[b"lost"]["fencepost.reason"]
    assert dead[b"lost"]["fencepost.topic"] == name.encode()
    assert report.rows == 4


@pytest.mark.every_run("kafka")
def test_rows_with_a_rejected_timestamp_are_dead_letters_and_others_keep_theirs(
    spark: SparkSession, servers: str, name: str
) -> None:
    """The server would refuse the whole batch with INVALID_TIMESTAMP, and after every restart again."""
    create(servers, name, message_timestamp_before_max_ms="86400000", message_timestamp_after_max_ms="3600000")
    create(servers, f"{name}-dead", partitions=1)
    now = time.time_ns() // 1_000_000
    times = {"now": now, "early": now - 2 * 86_400_000, "late": now + 2 * 3_600_000, "none": -1}
    df = spark.createDataFrame(list(times.items()), "key string, ms long")
    df = df.selectExpr("key", "key as value", "timestamp_millis(ms) as timestamp")
    options: dict[str, Any] = {"topic": name, "keep_timestamps": True}
    with pytest.raises(Exception, match=r"1 rows cannot be written: its time is .* The first one: topic .*, key b'"):
        fencepost.spark.write(df, servers, job=name, **options)
    fencepost.spark.write(df, servers, job=name, dead_letter=f"{name}-dead", **options)
    assert [(message.value(), message.timestamp()[1]) for message in committed(servers, name)] == [(b"now", now)]
    dead = {message.key(): dict(message.headers()) for message in committed(servers, f"{name}-dead")}
    assert {key: headers["fencepost.timestamp"] for key, headers in dead.items()} == {
        key.encode(): str(ms).encode() for key, ms in times.items() if key != "now"
    }
    assert b"message.timestamp.before.max.ms" in dead[b"early"]["fencepost.reason"]
    assert b"message.timestamp.after.max.ms" in dead[b"late"]["fencepost.reason"]


@pytest.mark.every_run("fencepost")
def test_a_timestamp_the_server_still_rejects_is_judged_again_with_more_margin(
    spark: SparkSession, servers: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time passes between freezing and publishing, and clocks differ."""
    from fencepost.client.micro_batch.targets import TimeLimits

    create(servers, name, message_timestamp_before_max_ms="3600000")
    create(servers, f"{name}-dead", partitions=1)
    now = time.time_ns() // 1_000_000
    df = spark.createDataFrame([("old", now - 3_630_000), ("new", now)], "value string, ms long")
    df = df.selectExpr("value", "timestamp_millis(ms) as timestamp").coalesce(1)
    # As a clock that is ninety seconds slow would judge.
    monkeypatch.setattr(TimeLimits, "of", classmethod(lambda cls, _configs: cls(before=3_690_000)))
    report = fencepost.spark.write(df, servers, topic=name, job=name, dead_letter=f"{name}-dead", keep_timestamps=True)
    assert report.attempts > 1
    assert committed_values(servers, name) == [b"new"]
    assert committed_values(servers, f"{name}-dead") == [b"old"]


def test_a_row_that_names_what_cannot_be_a_topic_is_a_dead_letter(spark: SparkSession, ours: str, name: str) -> None:
    create(ours, name, f"{name}-dead")
    rows = [(name, "fine"), ("", "nameless"), ("a b", "no name"), ("x" * 300, "too long"), ("..", "neither")]
    df = spark.createDataFrame(rows, "topic string, value string")
    fencepost.spark.write(df, ours, job=name, dead_letter=f"{name}-dead", create=1)
    assert committed_values(ours, name) == [b"fine"]
    assert sorted(committed_values(ours, f"{name}-dead")) == [b"nameless", b"neither", b"no name", b"too long"]


def test_a_row_that_can_never_be_written_fails_the_batch_without_dead_letters(
    spark: SparkSession, ours: str, name: str
) -> None:
    create(ours, name, max_message_bytes="2000")
    with pytest.raises(Exception, match="dead_letter"):
        fencepost.spark.write(spark.createDataFrame([("x" * 5_000,)], "value string"), ours, topic=name, job=name)
    assert committed_values(ours, name) == []


def test_what_is_wrong_with_a_dataframe_or_a_target_is_said(spark: SparkSession, ours: str, name: str) -> None:
    df = spark.createDataFrame([(1, "v")], "key int, value string")
    with pytest.raises(ConfigError, match="column key must be binary or string, not int"):
        fencepost.spark.write(df, ours, topic=name, job=name)
    with pytest.raises(ConfigError, match=f"{name}' does not exist: `fencepost topic create"):
        fencepost.spark.write(df.select("value"), ours, topic=name, job=name)
    with pytest.raises(ConfigError, match="no column `value`; its columns are key"):
        fencepost.spark.write(df.select("key"), ours, topic=name, job=name)
    with pytest.raises(ConfigError, match="the options of a sink are"):
        fencepost.spark.Sink(ours, topic=name, name=name, compresion="lz4")
    with pytest.raises(ConfigError, match="not inside a streaming query"):
        fencepost.spark.Sink(ours, topic=name, name=name)(df, 0)


@pytest.mark.parametrize("way", ["foreachBatch", "format"])
def test_a_compacted_dead_letter_topic_is_refused_with_the_reason(
    spark: SparkSession, ours: str, name: str, way: str
) -> None:
    """PIPE-2: it rejects letters without a key, and forgets letters of the same key."""
    create(ours, name)
    create(ours, f"{name}-dead", cleanup_policy="compact")
    rows = spark.createDataFrame([("one",)], "value string")
    dead = {"deadLetter" if way == "format" else "dead_letter": f"{name}-dead"}
    write: Any = spark_writing.save if way == "format" else fencepost.spark.write
    with pytest.raises(Exception, match=f"the dead-letter topic '{name}-dead' is compacted: it rejects rows without"):
        write(rows, ours, topic=name, job=name, **dead)


def test_a_guarded_target_is_refused_with_the_guards_name_and_the_way_out(
    spark: SparkSession, ours: str, name: str
) -> None:
    """OWN: a guarded topic takes writes of the connection that owns the partition; a sink has many and owns nothing."""
    create(ours, name, fencepost_writer_group="masters")
    with pytest.raises(
        ServerError, match=r"fencepost\.writer\.group=masters.*`fencepost topic alter .* --unset"
    ) as refused:
        fencepost.spark.write(numbers(spark, 10), ours, topic=name, job=name)
    assert refused.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED
    with Admin(ours) as admin:
        admin.alter_topic(name, {}, remove=["fencepost.writer.group"])
    fencepost.spark.write(numbers(spark, 10), ours, topic=name, job=name)
    assert len(committed_values(ours, name)) == 10


def _once(marker: Path) -> bool:
    """True the first time on this machine."""
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def test_a_sink_called_twice_for_a_batch_says_so_and_a_repeated_batch_is_skipped(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    """PIPE-4: what was to be written by a second call would be lost, and nobody would be told."""
    source, target = f"{name}-in", f"{name}-out"
    fill(spark, ours, source, 30)
    create(ours, target)
    sink = fencepost.spark.Sink(ours, topic=target, name=name)
    df = stream(spark, ours, source).select("key", "value")

    def twice(batch: DataFrame, number: int) -> None:
        sink(batch, number)
        sink(batch, number)

    with pytest.raises(Exception, match="called twice for batch 0"):
        run(df, twice, tmp_path / "checkpoint")
    run(df, sink, tmp_path / "checkpoint")  # Spark has not committed the batch: it comes again, in another run
    assert [report.skipped for report in sink.reports] == [False, True]
    sink.close()
    assert Counter(map(int, committed_values(ours, target))) == Counter(range(30))


@pytest.fixture(params=["files", "storage"])
def kept_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where frozen batches are kept: in files, as with every local master, or in Spark's storage, as on a cluster."""
    if request.param == "storage":
        monkeypatch.setattr("fencepost.spark.spool.Spool.is_possible", lambda _spark: False)
    return str(request.param)


def after_each_answer(monkeypatch: pytest.MonkeyPatch, kept_in: str, act: Callable[[], None]) -> None:
    """Let tasks that publish call `act` when they have written a target partition."""
    from fencepost.spark import publish as publishing

    name = "publish_files" if kept_in == "files" else "publish_rows"
    original = getattr(publishing, name)

    def acting(*arguments: Any) -> Any:
        publish = original(*arguments)

        def publish_and_act(given: Any) -> Iterator[Any]:
            for answer in publish(given):  # what the attempt has written is in the log by now
                act()
                yield answer

        return publish_and_act

    monkeypatch.setattr(publishing, name, acting)


@pytest.mark.every_run("fencepost-files-worker is killed", "kafka-storage-task fails")
@pytest.mark.parametrize("how", ["task fails", "worker is killed"])
def test_a_task_that_fails_once_while_publishing_goes_on_behind_what_is_there(
    spark: SparkSession,
    servers: str,
    name: str,
    tmp_path: Path,
    how: str,
    kept_in: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PIPE-4: the second attempt repeats nothing and leaves nothing out."""
    create(servers, name, partitions=2)
    marker = tmp_path / "failed"

    def fail() -> None:
        if _once(marker):
            if how == "task fails":
                raise RuntimeError("this attempt fails")
            os.kill(os.getpid(), signal.SIGKILL)

    after_each_answer(monkeypatch, kept_in, fail)
    report = fencepost.spark.write(
        numbers(spark, 4_000), servers, topic=name, job=name, driver_bytes=0, batch_bytes=4_000
    )
    assert marker.exists()
    assert report.attempts == 1  # Spark ran the task again; the batch did not have to be
    assert Counter(map(int, committed_values(servers, name))) == Counter(range(4_000))


@pytest.mark.every_run("files")
def test_a_query_stopped_while_publishing_gives_up_the_batch_and_writes_it_later(
    spark: SparkSession, ours: str, name: str, tmp_path: Path, kept_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPE-4: `stop` cancels the job. That is no failure that another attempt cures, and Spark waits for the sink."""
    source, target, marker = f"{name}-in", f"{name}-out", tmp_path / "publishing"
    fill(spark, ours, source, 300)
    create(ours, target)

    def get_stuck() -> None:
        if _once(marker):
            time.sleep(600)  # until Spark kills this task

    steps: list[str] = []
    df = stream(spark, ours, source).select("key", "value")
    with monkeypatch.context() as patched:
        after_each_answer(patched, kept_in, get_stuck)
        sink = fencepost.spark.Sink(ours, topic=target, name=name, driver_bytes=0, on_step=steps.append)
        query = df.writeStream.foreachBatch(sink).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        deadline = time.monotonic() + 120
        while not marker.exists():
            assert query.isActive and time.monotonic() < deadline, query.exception()
            time.sleep(0.05)  # a task makes it; there is nothing else to await
        query.stop()
    # Spark has recognised the stop. Otherwise its thread dies of a StackOverflowError, over the text of a long error.
    assert (query.status["message"], query.exception()) == ("Stopped", None)
    assert (steps.count("publish"), steps.count("freeze"), list(sink.reports)) == (1, 1, [])
    with Admin(ours) as admin:  # nothing is left open that would hold readers up
        assert admin.latest(target, read_committed=True) == admin.latest(target)
    assert committed_values(ours, target) == []
    run(df, sink, tmp_path / "checkpoint")
    sink.close()
    assert Counter(map(int, committed_values(ours, target))) == Counter(range(300))


def test_an_exception_in_on_report_is_logged_and_does_not_end_the_query(
    spark: SparkSession, ours: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The batch is in the log by then."""

    def fail(_report: object) -> None:
        raise RuntimeError("the dashboard is away")

    create(ours, name)
    assert fencepost.spark.write(numbers(spark, 10), ours, topic=name, job=name, on_report=fail).rows == 10
    assert "on_report failed for batch 0; the batch is written" in caplog.text
    assert "the dashboard is away" in caplog.text


@pytest.mark.parametrize("rows", [300, 10], ids=["by tasks", "by the driver"])
def test_spark_counts_each_row_once_where_rows_name_their_topics(
    spark: SparkSession, ours: str, name: str, tmp_path: Path, rows: int
) -> None:
    """Tasks look topics up as rows name them, and the last micro-batch names a topic that none did before."""
    create(ours, f"{name}-0", f"{name}-1")
    fill(spark, ours, f"{name}-in", 2 * rows)
    new = f"case when cast(cast(value as string) as int) < {rows} then '{name}-0' else '{name}-1' end topic"
    df = stream(spark, ours, f"{name}-in", maxOffsetsPerTrigger=rows).selectExpr("value", new)
    sink = fencepost.spark.Sink(ours, name=name)
    query = run(df, sink, tmp_path / "checkpoint")
    sink.close()
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 2 * rows
    written = [*committed_values(ours, f"{name}-0"), *committed_values(ours, f"{name}-1")]
    assert Counter(map(int, written)) == Counter(range(2 * rows))


def test_a_topic_column_that_changes_when_recomputed_sends_no_row_to_dead_letters(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    """Topics are looked up where rows are encoded, so a random column cannot come out otherwise in between."""
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    create(ours, f"{name}-a", f"{name}-b", f"{name}-dead")
    seen = tmp_path / "seen"

    def named(_value: str) -> str:
        return f"{name}-a" if _once(seen) else f"{name}-b"

    one = spark.createDataFrame([("one",)], "value string")
    df = one.withColumn("topic", F.udf(named, "string").asNondeterministic()("value"))
    fencepost.spark.write(df, ours, job=name, dead_letter=f"{name}-dead", driver_bytes=0)
    found = {topic: committed_values(ours, f"{name}-{topic}") for topic in ("a", "b", "dead")}
    assert found == {"a": [b"one"], "b": [], "dead": []}


@pytest.mark.every_run("3-False-by key", "4-True-without a key")
@pytest.mark.parametrize("key", ["key", "cast(null as binary) key"], ids=["by key", "without a key"])
@pytest.mark.parametrize(("partitions", "shuffled"), [(3, False), (6, False), (4, True)])
def test_nothing_is_shuffled_where_each_target_partition_has_its_rows_from_one_task(
    spark: SparkSession,
    ours: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    partitions: int,
    shuffled: bool,
) -> None:
    """PIPE-5: as from a topic of three partitions to one of three or six; PIPE-2: order is kept either way."""
    from fencepost.spark import publish as publishing
    from fencepost.spark.spool import Spool

    source, target = f"{name}-in", f"{name}-out"
    fill(spark, ours, source, 3_000)
    create(ours, target, partitions=partitions)
    shuffles: list[int] = []
    original = publishing._by_target

    def counted(frozen: DataFrame, manifest: Any, tasks: int) -> DataFrame:
        shuffles.append(tasks)
        return original(frozen, manifest, tasks)

    monkeypatch.setattr(publishing, "_by_target", counted)
    monkeypatch.setattr(Spool, "is_possible", lambda _spark: False)
    monkeypatch.setattr("fencepost.spark.tuning._SHORT_ROWS", 100)
    sink = fencepost.spark.Sink(ours, topic=target, name=name, driver_bytes=0, batch_bytes=2_000)
    run(stream(spark, ours, source).selectExpr(key, "value"), sink, tmp_path / "checkpoint")
    sink.close()
    assert sink.report is not None
    assert (sink.report.published_by, sink.report.partitions) == ("tasks", partitions)
    assert bool(shuffles) == shuffled
    found = committed(ours, target)
    assert Counter(int(message.value()) for message in found) == Counter(range(3_000))
    if key == "key":
        for digit in range(10):
            of_key = [int(message.value()) for message in found if message.key() == str(digit).encode()]
            assert of_key == list(range(digit, 3_000, 10))


def test_files_of_frozen_batches_are_gone_when_the_micro_batch_is_over(
    spark: SparkSession, ours: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPE-2: by key from four tasks to three partitions, in order; PIPE-5: without a trace on the disk."""
    create(ours, name, partitions=3)
    monkeypatch.setattr(spark.sparkContext, "_temp_dir", str(tmp_path))
    seen: list[int] = []

    def look(step: str) -> None:
        if step == "publish":
            seen.append(len(list(tmp_path.glob("*/*"))))

    df = numbers(spark, 4_000)
    report = fencepost.spark.write(df, ours, topic=name, job=name, driver_bytes=0, batch_bytes=4_000, on_step=look)
    assert (report.published_by, report.partitions) == ("tasks", 3)
    assert seen == [df.rdd.getNumPartitions()]
    assert list(tmp_path.iterdir()) == []
    found = committed(ours, name)
    assert Counter(int(message.value()) for message in found) == Counter(range(4_000))
    for digit in range(10):
        of_key = [int(message.value()) for message in found if message.key() == str(digit).encode()]
        assert of_key == list(range(digit, 4_000, 10))


def test_rows_longer_than_expected_are_read_again_and_written_once(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    """PIPE-5: while their size is not known, Spark leaves the content of long rows out."""
    from pyspark.sql import functions as F  # noqa: N812 - what everybody calls it

    create(ours, name)
    once, passes = "x" * 20_000, spark.sparkContext.accumulator(0)

    def counted(number: int) -> str:
        passes.add(1)
        return once if number == 1_500 else str(number)

    df = spark.range(0, 2_000, 1, 2).select(F.udf(counted, "string").asNondeterministic()("id").alias("value"))
    report = fencepost.spark.write(df, ours, topic=name, job=name, driver_bytes=0)
    assert (report.rows, report.attempts, passes.value) == (2_000, 1, 4_000)
    expected = Counter(str(number) for number in range(2_000) if number != 1_500) + Counter([once])
    assert Counter(value.decode() for value in committed_values(ours, name)) == expected


def test_rows_without_a_key_are_spread_over_all_partitions_by_many_small_batches(
    spark: SparkSession, ours: str, name: str
) -> None:
    """Each micro-batch has one task and one Arrow batch. Jobs, each a batch 0, are spread, too."""
    create(ours, name, partitions=6)
    sink = fencepost.spark.Sink(ours, topic=name, name=name)
    rows = spark.range(0, 90, 1, 1).selectExpr("cast(id as string) value")
    for batch in range(6):
        sink.run(rows, "a query", batch)
    sink.close()
    assert Counter(message.partition() for message in committed(ours, name)) == dict.fromkeys(range(6), 90)
    create(ours, f"{name}-jobs", partitions=2)
    jobs = 0
    while {message.partition() for message in committed(ours, f"{name}-jobs")} != {0, 1}:
        assert jobs < 30  # each is as likely to begin at the other partition
        fencepost.spark.write(rows.limit(1), ours, topic=f"{name}-jobs", job=f"{name}-{jobs}")
        jobs += 1


@pytest.mark.every_run("storage")
def test_rows_that_come_out_otherwise_on_recomputation_are_never_mixed(
    spark: SparkSession, ours: str, name: str, kept_in: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPE-2: the frozen batches are lost between freeze and publish, and random rows differ when computed anew."""
    from fencepost.spark import publish as publishing

    create(ours, name)
    df = spark.range(0, 2_000, 1, 4).selectExpr("cast(uuid() as string) value")
    lost: list[bool] = []
    by = "from_files" if kept_in == "files" else "by_tasks"
    original = getattr(publishing, by)

    def losing(kept: Any, settings: Any, transaction: Any, manifest: Any) -> None:
        if not lost:
            lost.append(True)
            if kept_in == "files":
                Path(manifest.batches[min(manifest.batches)][0].content.file).unlink()
            else:
                kept.unpersist(blocking=True)
        original(kept, settings, transaction, manifest)

    monkeypatch.setattr(publishing, by, losing)
    report = fencepost.spark.write(df, ours, topic=name, job=name, driver_bytes=0)
    assert report.attempts == 2
    found = committed_values(ours, name)
    assert len(found) == len(set(found)) == 2_000


def test_an_aggregation_with_a_watermark_is_written_once(
    spark: SparkSession, ours: str, name: str, tmp_path: Path
) -> None:
    """Counts per key in append mode, over several micro-batches."""
    source, target = f"{name}-in", f"{name}-out"
    fill(spark, ours, source, 1_000)
    create(ours, target)
    counted = (
        stream(spark, ours, source, maxOffsetsPerTrigger="400")
        .withWatermark("timestamp", "1 second")
        .groupBy("key")
        .count()
        .selectExpr("key", "cast(count as string) value")
    )
    sink = fencepost.spark.Sink(ours, topic=target, name=name)
    query = counted.writeStream.outputMode("update").foreachBatch(sink)
    started = query.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
    assert started.awaitTermination(120)
    sink.close()
    last = {message.key(): int(message.value()) for message in committed(ours, target)}
    assert last == {str(key).encode(): 100 for key in range(10)}
