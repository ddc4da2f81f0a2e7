"""Topic to topic: what is copied, what is handed over whole, and what a kill leaves (PIPE-3, PIPE-4)."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from fencepost import Admin
from fencepost.cli import main
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.read.ranges import DataLost, Range, fetch
from fencepost.client.read.scan import FetchedBatch
from fencepost.client.transactions.shared_writer import SharedTransaction
from fencepost.core.micro_batch.protocol import Replaced, SinkNameInUse
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.spark import copy as copying
from fencepost.spark.copy import CopiedRange, Copy, Round, _name_of, _task
from tests.support.committed import committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.integration

BASE_TIME = time.time_ns() // 1_000_000 - 60_000
"""Recent, or else retention takes the records away."""


class LocalCopy(Copy):
    """Carries its ranges in this process, one after the other: everything but Spark."""

    def __init__(self, source: str, topic: str, target: str, target_topic: str, **options: Any) -> None:
        nothing: Any = None
        super().__init__(nothing, ClientSettings.of(source), topic, ClientSettings.of(target), target_topic, **options)

    def carry(self, transaction: SharedTransaction, ranges: list[Range]) -> list[CopiedRange]:
        return _task(self.source, self.target, self.target_topic, self.max_bytes, transaction)(ranges)


class OnlyJobs:
    """A session whose jobs run in this process; it remembers the number of their tasks."""

    def __init__(self, master: str, cores: int, conf: dict[str, str] | None = None) -> None:
        self.sparkContext = self
        self.master, self.defaultParallelism = master, cores
        self._conf = conf or {}
        self.tasks: list[int] = []

    def getConf(self) -> dict[str, str]:
        return self._conf

    def parallelize(self, items: list[Any], slices: int) -> OnlyJobs:
        self.tasks.append(slices)
        self._items = items
        return self

    def flatMap(self, task: Callable[[Any], list[Any]]) -> OnlyJobs:
        self._items = [done for item in self._items for done in task(item)]
        return self

    def collect(self) -> list[Any]:
        return self._items


_started: list[Copy] = []


@pytest.fixture(autouse=True)
def _close_all() -> Iterator[None]:
    yield
    while _started:
        _started.pop().close()


def local(source: str, topic: str, target: str, target_topic: str, **options: Any) -> LocalCopy:
    copy = LocalCopy(source, topic, target, target_topic, **options)
    _started.append(copy)
    return copy


def run(copy: Copy) -> list[Round]:
    return list(copy.rounds())


def fill(servers: str, topic: str, count: int, *, partitions: int = 2, **settings: Any) -> None:
    """Records with keys, headers and times of their own, in batches of several."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "batch.num.messages": 100, **settings})
    for number in range(count):
        producer.produce(
            topic,
            key=b"k%d" % (number % 7),
            value=b"%d" % number,
            headers=[("n", b"%d" % number)],
            partition=number % partitions,
            timestamp=BASE_TIME + number,
        )
    assert producer.flush(30) == 0


def content(servers: str, topic: str) -> list[tuple[Any, ...]]:
    return [(m.partition(), m.key(), m.value(), m.headers(), m.timestamp()) for m in committed(servers, topic)]


def create(servers: str, topic: str, partitions: int = 2, **configs: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(topic, partitions, configs={key.replace("_", "."): v for key, v in configs.items()})


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_a_topic_is_copied_partition_to_partition_whole_and_created_like_its_source(
    servers: str, ours: str, name: str, codec: str
) -> None:
    """From each kind of server to fencepost's."""
    create(servers, name, 3, retention_ms="123456789")
    fill(servers, name, 1_000, partitions=3, **{"compression.type": codec})
    copy = local(servers, name, ours, f"{name}-copy")
    rounds = run(copy)
    assert content(ours, f"{name}-copy") == content(servers, name)
    assert sum(done.records for done in rounds) == 1_000
    assert sum(done.whole for done in rounds) == sum(done.batches for done in rounds) > 0
    with Admin(ours) as admin:
        configs = {entry.name: entry.value for entry in admin.topic_configs(f"{name}-copy")}
        assert configs["retention.ms"] == "123456789"
        assert len(admin.describe_topic(f"{name}-copy").partitions) == 3


def test_a_copy_to_each_kind_of_server_arrives(servers: str, ours: str, name: str) -> None:
    create(ours, name)
    fill(ours, name, 500)
    run(local(ours, name, servers, f"{name}-copy"))
    assert content(servers, f"{name}-copy") == content(ours, name)


def test_rounds_that_end_inside_batches_lose_and_double_nothing(servers: str, ours: str, name: str) -> None:
    create(servers, name)
    fill(servers, name, 1_000)
    rounds = run(local(servers, name, ours, f"{name}-copy", offsets_per_round=130))
    assert len(rounds) >= 7
    assert any(done.whole < done.batches for done in rounds)  # some were cut
    assert content(ours, f"{name}-copy") == content(servers, name)


def test_what_little_a_round_would_leave_is_copied_with_it(servers: str, ours: str, name: str) -> None:
    """As the markers of transactions, which count as offsets: the round after would copy nothing."""
    create(servers, name)
    fill(servers, name, 500)
    copy = local(servers, name, ours, f"{name}-copy", offsets_per_round=400)
    assert [done.records for done in run(copy)] == [500]
    assert content(ours, f"{name}-copy") == content(servers, name)


def test_it_goes_on_where_it_was(ours: str, name: str) -> None:
    create(ours, name)
    fill(ours, name, 300)
    run(local(ours, name, ours, f"{name}-copy"))
    fill(ours, name, 200)
    rounds = run(local(ours, name, ours, f"{name}-copy"))
    assert sum(done.records for done in rounds) == 200
    assert content(ours, f"{name}-copy") == content(ours, name)


def test_aborted_records_are_not_copied(servers: str, ours: str, name: str) -> None:
    create(servers, name)
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name})
    producer.init_transactions(30)
    for number, good in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for row in range(20):
            producer.produce(name, value=f"{number} {row}".encode(), partition=row % 2)
        producer.flush(30)
        if good:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    run(local(servers, name, ours, f"{name}-copy"))
    values = [value for _, _, value, *_ in content(ours, f"{name}-copy")]
    assert sorted(values) == sorted(f"{number} {row}".encode() for number in (0, 2) for row in range(20))


def test_batches_larger_than_the_target_takes_are_cut(ours: str, name: str) -> None:
    create(ours, name)
    fill(ours, name, 2_000)
    create(ours, f"{name}-copy", max_message_bytes="1000")
    rounds = run(local(ours, name, ours, f"{name}-copy"))
    assert sum(done.whole for done in rounds) < sum(done.batches for done in rounds)
    assert content(ours, f"{name}-copy") == content(ours, name)


def test_append_time_becomes_the_records_own_time(ours: str, name: str) -> None:
    create(ours, name, message_timestamp_type="LogAppendTime")
    fill(ours, name, 50)
    create(ours, f"{name}-copy")
    run(local(ours, name, ours, f"{name}-copy"))
    kept = [(value, time) for _, _, value, _, (_, time) in content(ours, name)]
    assert [(value, time) for _, _, value, _, (_, time) in content(ours, f"{name}-copy")] == kept


class Died(BaseException):
    pass


@pytest.mark.parametrize("step", ["fence", "freeze", "publish", "verify", "end", "done"])
def test_killed_at_a_step_and_started_again_it_holds_everything_once(
    servers: str, ours: str, name: str, step: str
) -> None:
    """PIPE-4, in the second round."""
    create(servers, name)
    fill(servers, name, 400)
    seen = 0

    def die(taken: str) -> None:
        nonlocal seen
        seen += taken == step
        if taken == step and seen == (3 if step == "fence" else 2):
            raise Died

    with pytest.raises(Died):
        run(local(servers, name, ours, f"{name}-copy", offsets_per_round=150, on_step=die))
    run(local(servers, name, ours, f"{name}-copy", offsets_per_round=150))
    assert content(ours, f"{name}-copy") == content(servers, name)


def test_two_copies_under_one_name_do_not_both_go_on(ours: str, name: str) -> None:
    create(ours, name)
    fill(ours, name, 100)
    first = local(ours, name, ours, f"{name}-copy", offsets_per_round=30)
    rounds = first.rounds()
    next(rounds)
    run(local(ours, name, ours, f"{name}-copy"))
    with pytest.raises(Replaced):
        list(rounds)
    assert content(ours, f"{name}-copy") == content(ours, name)


def test_what_cannot_be_copied_is_said(ours: str, name: str) -> None:
    create(ours, name, 3)
    create(ours, f"{name}-small", 1)
    with pytest.raises(ConfigError, match=r"has 3 partitions, the target .* only 1"):
        run(local(ours, name, ours, f"{name}-small"))
    fill(ours, name, 30, partitions=3)
    run(local(ours, name, ours, f"{name}-copy", name=name))
    create(ours, f"{name}-other")
    with pytest.raises(SinkNameInUse, match=f"belongs to a copy of {name} .* this is a copy of {name}-other"):
        run(local(ours, f"{name}-other", ours, f"{name}-copy", name=name))
    fill(ours, name, 30, partitions=3)
    with Admin(ours) as admin:
        admin.delete_records(name, {0: 15})
    with pytest.raises(DataLost, match="retention deleted the records before"):
        run(local(ours, name, ours, f"{name}-copy", name=name))
    (done,) = run(local(ours, name, ours, f"{name}-copy", name=name, adopt=True))
    assert done.records == 10 + 10 + 5
    port = ours.rpartition(":")[2]
    with pytest.raises(ConfigError, match="the same topic"):
        run(local(ours, name, f"localhost:{port}", name))


@pytest.mark.parametrize("which", ["target", "source"])
def test_a_topic_that_was_made_anew_is_not_gone_on_with(servers: str, name: str, which: str) -> None:
    """A position in the one before says nothing about it."""
    copied = f"{name}-copy"
    create(servers, name)
    fill(servers, name, 100)
    run(local(servers, name, servers, copied))
    with Admin(servers) as admin:
        admin.delete_topic(name if which == "source" else copied)
        await_gone(admin, name if which == "source" else copied)
    if which == "source":
        create(servers, name)
        fill(servers, name, 30)
    with pytest.raises(SinkNameInUse, match="recreated"):
        run(local(servers, name, servers, copied))
    run(local(servers, name, servers, copied, adopt=True))
    assert len(content(servers, copied)) == (130 if which == "source" else 100)


def await_gone(admin: Admin, topic: str) -> None:
    deadline = time.monotonic() + 30
    while topic in {known.name for known in admin.topics()}:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("which", ["target", "source"])
def test_a_topic_made_anew_under_a_copy_that_follows_stops_it(ours: str, name: str, which: str) -> None:
    create(ours, name)
    fill(ours, name, 100)
    rounds = local(ours, name, ours, f"{name}-copy").rounds(follow=True, pause=0.01)
    assert next(rounds).records == 100
    anew = name if which == "source" else f"{name}-copy"
    with Admin(ours) as admin:
        admin.delete_topic(anew)
    create(ours, anew)
    if which == "target":
        fill(ours, name, 10)
    with pytest.raises((DataLost, SinkNameInUse), match="recreated"):
        next(rounds)


def test_a_copy_that_follows_goes_on_with_partitions_that_the_source_gets(servers: str, name: str) -> None:
    """PIPE-3: and one that is started again does, too."""
    create(servers, name)
    fill(servers, name, 100)
    rounds = local(servers, name, servers, f"{name}-copy").rounds(follow=True, pause=0.01)
    assert next(rounds).records == 100
    with Admin(servers) as admin:
        admin.create_partitions(name, 3)
        fill(servers, name, 90, partitions=3)
        while len(content(servers, f"{name}-copy")) < 190:
            next(rounds)
        admin.create_partitions(name, 4)
    fill(servers, name, 40, partitions=4)
    run(local(servers, name, servers, f"{name}-copy"))
    assert sorted(content(servers, f"{name}-copy"), key=str) == sorted(content(servers, name), key=str)


def test_a_new_partition_that_lost_its_first_records_stops_the_copy(ours: str, name: str) -> None:
    """PIPE-3: the copy has seen the source without it, so these records were never copied."""
    create(ours, name)
    fill(ours, name, 10)
    run(local(ours, name, ours, f"{name}-copy"))
    with Admin(ours) as admin:
        admin.create_partitions(name, 3)
        fill(ours, name, 30, partitions=3)
        admin.delete_records(name, {2: 4})
    with pytest.raises(DataLost, match=f"{name}-2 is copied up to offset 0, but the log starts at 4 now"):
        run(local(ours, name, ours, f"{name}-copy"))
    run(local(ours, name, ours, f"{name}-copy", adopt=True))
    assert len(content(ours, f"{name}-copy")) == 10 + 26


def test_partitions_that_the_copy_may_not_add_are_asked_for(ours: str, name: str) -> None:
    create(ours, name)
    fill(ours, name, 10)
    copy = local(ours, name, ours, f"{name}-copy")
    run(copy)
    with Admin(ours) as admin:
        admin.create_partitions(name, 3)
    fill(ours, name, 30, partitions=3)

    def refuse(*_: object) -> None:
        raise ServerError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no ALTER")

    copy.runner.admin.create_partitions = refuse  # type: ignore[method-assign, assignment]
    with pytest.raises(ServerError, match=f"no ALTER. `fencepost topic alter {name}-copy --partitions 3` adds them"):
        run(copy)


def test_a_copy_slower_than_its_transaction_says_what_helps_a_copy(ours: str, name: str) -> None:
    """The server gives the transaction up; `--round` is the option that a copy has."""
    create(ours, name)
    fill(ours, name, 10)

    def dawdle(step: str) -> None:
        deadline = time.monotonic() + 60
        with Admin(ours) as admin:
            while step == "verify" and any(p.transaction_start is not None for p in admin.producers(f"{name}-copy")):
                assert time.monotonic() < deadline
                time.sleep(0.05)

    copy = local(ours, name, ours, f"{name}-copy", on_step=dawdle, transaction_timeout=1.0, attempts=1)
    with pytest.raises(ServerError, match=r"longer than 1 s, .* gave it up: copy fewer offsets .*--round"):
        run(copy)


@pytest.mark.parametrize("adopt", [False, True])
def test_one_that_takes_over_looks_anew_where_the_source_ends(ours: str, name: str, adopt: bool) -> None:
    """The one before may have copied further than the source went when it was asked."""
    create(ours, name, 1)
    fill(ours, name, 100, partitions=1)
    copy = local(ours, name, ours, f"{name}-copy", adopt=adopt)
    copy.prepare()
    plan = copy.plan('{"0": 100}', {0: 90})
    assert plan.ranges == []
    assert json.loads(plan.position) == {"0": 100}


def test_names_that_have_to_be_cut_are_still_different() -> None:
    first, second = (_name_of(f"copy.{'x' * 190}.{end}") for end in ("one-topic", "one-tropic"))
    assert first != second
    assert max(len(first), len(second)) <= 200
    assert _name_of("copy.a.b.c") == "copy.a.b.c"


@pytest.mark.every_run("lz4")
@pytest.mark.parametrize("codec", ["snappy", "lz4"])
def test_records_that_grow_by_compression_still_fit_a_target_that_takes_them_plain(
    ours: str, name: str, codec: str
) -> None:
    create(ours, name, 1)
    producer = Producer({"bootstrap.servers": ours, "compression.type": codec, "linger.ms": 50})
    values = [random.Random(number).randbytes(600) for number in range(60)]
    for value in values:
        producer.produce(name, value=value, timestamp=BASE_TIME)
    assert producer.flush(30) == 0
    for limit in range(1_300, 1_400, 7):
        create(ours, f"{name}-{limit}", 1, max_message_bytes=str(limit))
        run(local(ours, name, ours, f"{name}-{limit}"))
        assert [value for _, _, value, *_ in content(ours, f"{name}-{limit}")] == values


@pytest.mark.parametrize(
    ("master", "tasks"), [("local[2]", 2), ("local", 2), ("local[8]", 5), ("spark://host:7077", 5)]
)
def test_a_local_master_gets_a_task_per_core_and_a_cluster_one_per_partition(
    ours: str, name: str, master: str, tasks: int
) -> None:
    create(ours, name, 5)
    fill(ours, name, 100, partitions=5)
    spark = OnlyJobs(master, cores=8 if master == "local[8]" else 2)
    copy = local(ours, name, ours, f"{name}-copy")
    copy.carry = lambda transaction, ranges: Copy.carry(copy, transaction, ranges)  # type: ignore[method-assign]
    copy._spark = spark
    assert sum(done.records for done in run(copy)) == 100
    assert spark.sparkContext.tasks == [tasks]
    assert content(ours, f"{name}-copy") == content(ours, name)


def test_a_default_number_of_tasks_is_not_taken_for_the_number_of_cores(ours: str, name: str) -> None:
    """`spark.default.parallelism`, which Spark then returns for the cores: with 1, all but one core would be idle."""
    create(ours, name, 5)
    fill(ours, name, 100, partitions=5)
    spark = OnlyJobs("local[4]", cores=1, conf={"spark.default.parallelism": "1"})
    copy = local(ours, name, ours, f"{name}-copy")
    copy.carry = lambda transaction, ranges: Copy.carry(copy, transaction, ranges)  # type: ignore[method-assign]
    copy._spark = spark
    run(copy)
    assert spark.sparkContext.tasks == [5]


def test_a_task_that_failed_in_its_second_range_copies_nothing_twice(
    servers: str, ours: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PIPE-4: the first range was complete by then, the second one was begun, the third one was not."""
    create(ours, name, 3)
    fill(ours, name, 900, partitions=3)
    begun: list[int] = []

    def failing(routes: Routes, wanted: Range, **options: Any) -> Iterator[list[FetchedBatch]]:
        begun.append(wanted.partition)
        for answers, batches in enumerate(fetch(routes, wanted, **options)):
            if begun == [0, 1] and answers == 1:
                raise RuntimeError("this attempt fails")
            yield batches

    class Twice(LocalCopy):
        def carry(self, transaction: SharedTransaction, ranges: list[Range]) -> list[CopiedRange]:
            with pytest.raises(RuntimeError, match="this attempt fails"):
                super().carry(transaction, ranges)
            return super().carry(transaction, ranges)

    monkeypatch.setattr(copying, "fetch", failing)
    monkeypatch.setattr(copying, "_FETCH_BYTES", 100)  # a batch per answer
    copy = Twice(ours, name, servers, f"{name}-copy")
    _started.append(copy)
    assert [done.records for done in run(copy)] == [900]
    assert begun == [0, 1, 0, 1, 2]
    assert content(servers, f"{name}-copy") == content(ours, name)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(("policy", "rounds"), [("compact", 2), ("delete", 1)])
def test_a_rerun_task_resumes_only_where_the_source_cannot_have_lost_records(
    spark: SparkSession,
    ours: str,
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    policy: str,
    rounds: int,
) -> None:
    """PIPE-4: of a compacted topic the n-th record may be another one by then; the whole round is copied anew."""
    create(ours, name, cleanup_policy=policy)
    fill(ours, name, 200)
    original = copying._task
    marker = tmp_path / "failed"

    def failing(*arguments: Any, **options: Any) -> Any:
        task = original(*arguments, **options)

        def copy_and_fail(share: list[Range]) -> Any:
            done = task(share)  # what the attempt has written is in the log by now
            if any(wanted.partition == 1 for wanted in share) and not marker.exists():
                marker.touch()
                raise RuntimeError("this attempt fails")
            return done

        return copy_and_fail

    monkeypatch.setattr(copying, "_task", failing)
    steps: list[str] = []
    server = ClientSettings.of(ours)
    copy = Copy(spark, server, name, server, f"{name}-copy", on_step=steps.append)
    _started.append(copy)
    run(copy)
    assert marker.exists()
    assert steps.count("publish") == rounds
    assert content(ours, f"{name}-copy") == content(ours, name)


@pytest.mark.spark
@pytest.mark.filterwarnings("default")
def test_the_command_copies_on_spark_and_the_sinks_are_listed(spark: SparkSession, ours: str, name: str) -> None:
    create(ours, name)
    fill(ours, name, 2_000)
    # The command stops its session at the end; this one is the tests'.
    from pyspark.sql import SparkSession as Session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "stop", lambda _self: None)
        done = CliRunner().invoke(main, ["copy", f"{ours}/{name}", f"{ours}/{name}-copy", "--json", "--round", "700"])
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["records"], said["rounds"]) == (2_000, 3)
    assert content(ours, f"{name}-copy") == content(ours, name)
    listed = CliRunner().invoke(main, ["sink", "list", "--servers", ours, "--json"])
    assert json.loads(listed.stdout)[said["name"]]["batch"] == 2
    assert said["name"] in CliRunner().invoke(main, ["sink", "list", "--servers", ours]).stdout
    reset = CliRunner().invoke(main, ["sink", "reset", said["name"], "--servers", ours])
    assert reset.exit_code == 0, reset.output
    assert "it had written batch 2" in reset.stdout
    gone = CliRunner().invoke(main, ["sink", "reset", said["name"], "--servers", ours])
    assert gone.exit_code != 0
