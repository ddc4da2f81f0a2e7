"""The steps of a micro-batch against real servers, without Spark: what each leaves in the log (PIPE-2, PIPE-4)."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from fencepost import Admin
from fencepost.client.cluster.connection import ConnectionState
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.runner import Advice, Content, MicroBatchSteps, Runner
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SharedTransaction
from fencepost.core.micro_batch.protocol import FrozenContent, Poisoned, Replaced, SinkNameInUse
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.kernel import encode_batch
from fencepost.types import TopicPartition
from tests.support.committed import committed_values

pytestmark = pytest.mark.integration


class Words(Content):
    """A micro-batch whose rows are given: one record batch per partition."""

    def __init__(self, runner: Runner, topic: str, words: list[str]) -> None:
        self.runner = runner
        self.topic = topic
        self.words = words
        self.frozen = 0
        self.rows: dict[TopicPartition, list[bytes]] = {}

    def freeze(self, position: str) -> FrozenContent:
        self.frozen += 1
        self.rows = {}
        for at, word in enumerate(self.words):
            self.rows.setdefault(TopicPartition(self.topic, at % 2), []).append(word.encode())
        return FrozenContent()

    def publish(self, transaction: SharedTransaction, links: LeaderChannels) -> None:
        for where, values in self.rows.items():
            self.runner.on_step(f"to {where.partition}")
            writer = PartitionWriter(links, transaction, where)
            writer.write(encode_batch([(None, value, time.time_ns() // 1_000_000, None) for value in values]))
            writer.finish()

    def records(self) -> Mapping[TopicPartition, int]:
        return {where: len(values) for where, values in self.rows.items()}


class Died(BaseException):
    """The driver is killed at this step: nothing of it runs any more, not even an abort."""


def dying_at(step: str, *, after: int = 0) -> Callable[[str], None]:
    seen = 0

    def on_step(name: str) -> None:
        nonlocal seen
        if name == step:
            seen += 1
            if seen > after:
                raise Died(step)

    return on_step


_started: list[Runner] = []


def runner(servers: str, name: str, **options: Any) -> Runner:
    started = Runner(ClientSettings.of(servers), name, **options)
    _started.append(started)
    return started


@pytest.fixture(autouse=True)
def _close_all() -> Iterator[None]:
    yield
    while _started:
        _started.pop().close()


def put(running: Runner, topic: str, batch: int, *words: str, query: str = "q") -> Any:
    return running.carry_out(Words(running, topic, list(words)), query, batch)


@pytest.fixture
def topic(servers: str, name: str) -> str:
    with Admin(servers) as admin:
        admin.create_topic(name, 2)
    return name


@pytest.fixture(autouse=True)
def no_farewell(monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed driver aborts nothing."""
    said = MicroBatchSteps.abort

    def abort(self: MicroBatchSteps) -> None:
        import sys

        if not isinstance(sys.exc_info()[1], Died):
            said(self)

    monkeypatch.setattr(MicroBatchSteps, "abort", abort)


def test_batches_appear_whole_and_in_order(servers: str, topic: str) -> None:
    sink = runner(servers, topic)
    first = put(sink, topic, 0, "a", "b", "c")
    second = put(sink, topic, 1, "d")
    assert (first.skipped, second.skipped, second.identity.epoch > first.identity.epoch) == (False, False, True)
    assert committed_values(servers, topic) == [b"a", b"c", b"d", b"b"]


STEPS = [
    "fence",
    "look",
    "announce",
    "freeze",
    "publish",
    "to 0",
    "to 1",
    "commit",
    "verify",
    "record",
    "end",
    "ended",
    "done",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_driver_killed_before_any_step_leaves_the_batch_to_its_successor_once(
    servers: str, topic: str, step: str
) -> None:
    """PIPE-4: killed at the step, started again with the same batch."""
    put(runner(servers, topic), topic, 0, "before")
    with pytest.raises(Died):
        put(runner(servers, topic, on_step=dying_at(step)), topic, 1, "a", "b")
    successor = runner(servers, topic)
    outcome = put(successor, topic, 1, "A", "B")
    put(successor, topic, 2, "after")
    found = sorted(committed_values(servers, topic))
    # "ended" comes behind the announcement's end too; only behind the batch's own is it in.
    was_in = step == "done"
    assert outcome.skipped is was_in
    assert found == sorted([b"before", b"after", *([b"a", b"b"] if was_in else [b"A", b"B"])])


def test_a_driver_killed_behind_the_end_of_the_transaction_has_written_the_batch(servers: str, topic: str) -> None:
    with pytest.raises(Died):
        put(runner(servers, topic, on_step=dying_at("ended", after=1)), topic, 0, "a", "b")
    assert put(runner(servers, topic), topic, 0, "A", "B").skipped
    assert sorted(committed_values(servers, topic)) == [b"a", b"b"]


def test_a_batch_that_is_in_already_is_skipped_and_said_to_be(servers: str, topic: str) -> None:
    sink = runner(servers, topic)
    put(sink, topic, 0, "a")
    assert put(sink, topic, 0, "b").skipped
    assert put(runner(servers, topic), topic, 0, "c").skipped
    assert committed_values(servers, topic) == [b"a"]


def test_a_new_checkpoint_under_an_old_name_is_refused_and_names_what_was_found(servers: str, topic: str) -> None:
    put(runner(servers, topic), topic, 0, "a")
    with pytest.raises(SinkNameInUse, match=r"another query \(batch 0 of query q.*adopt=True") as refused:
        put(runner(servers, topic), topic, 0, "b", query="another")
    assert refused.value.found is not None
    assert refused.value.found.query == "q"
    assert committed_values(servers, topic) == [b"a"]


def test_adopting_takes_the_name_over_once(servers: str, topic: str) -> None:
    put(runner(servers, topic), topic, 0, "a")
    adopted = runner(servers, topic, adopt=True)
    put(adopted, topic, 5, "b", query="another")
    with pytest.raises(SinkNameInUse):  # heeded at the first batch only
        put(adopted, topic, 0, "c", query="third")
    assert put(runner(servers, topic, adopt=True), topic, 5, "d", query="another").skipped
    assert sorted(committed_values(servers, topic)) == [b"a", b"b"]


def test_a_rolled_back_checkpoint_is_refused(servers: str, topic: str) -> None:
    sink = runner(servers, topic)
    for batch in range(3):
        put(sink, topic, batch, str(batch))
    with pytest.raises(SinkNameInUse, match="already written batch 2"):
        put(runner(servers, topic), topic, 1, "again")


def test_a_query_in_mid_life_needs_adoption(servers: str, topic: str) -> None:
    with pytest.raises(SinkNameInUse, match="knows of no batch"):
        put(runner(servers, topic), topic, 57, "a")
    put(runner(servers, topic, adopt=True), topic, 57, "b")
    assert committed_values(servers, topic) == [b"b"]


def test_a_driver_that_was_replaced_while_it_slept_stops_without_disturbing(servers: str, topic: str) -> None:
    """PIPE-4: the paused one wakes up between two batches, and inside its successor's batch."""
    old = runner(servers, topic)
    put(old, topic, 0, "a")
    inside: list[BaseException] = []

    def wake_the_old(step: str) -> None:
        if step == "to 1" and not inside:
            with pytest.raises(Replaced) as replaced:
                put(old, topic, 1, "zombie")
            inside.append(replaced.value)

    new = runner(servers, topic, on_step=wake_the_old)
    outcome = put(new, topic, 1, "b", "c")
    assert outcome.attempts == 1  # not disturbed
    assert "this driver was replaced" in str(inside[0])
    with pytest.raises(Replaced):
        put(old, topic, 1, "zombie")
    put(new, topic, 2, "d")
    assert sorted(committed_values(servers, topic)) == [b"a", b"b", b"c", b"d"]


def test_a_driver_replaced_in_the_middle_of_its_batch_cannot_commit_it(servers: str, topic: str) -> None:
    """PIPE-4: it slept between publish and commit; its successor has run the batch by then."""
    successor = runner(servers, topic)

    def sleep(step: str) -> None:
        if step == "verify":
            put(successor, topic, 0, "A", "B")

    with pytest.raises(Replaced) as replaced:
        put(runner(servers, topic, on_step=sleep), topic, 0, "a", "b")
    assert replaced.value.by.process > 0
    assert sorted(committed_values(servers, topic)) == [b"A", b"B"]


def test_a_failed_publication_is_tried_again_with_a_new_epoch(servers: str, topic: str) -> None:
    failing = 2

    def fail(step: str) -> None:
        nonlocal failing
        if step == "to 1" and failing:
            failing -= 1
            raise RuntimeError("an executor is lost")

    sink = runner(servers, topic, on_step=fail)
    outcome = put(sink, topic, 0, "a", "b")
    assert outcome.attempts == 3
    assert sorted(committed_values(servers, topic)) == [b"a", b"b"]


class ThreeBatches(Words):
    """Sent ahead of their answers; the first time somebody else bumps the epoch in between."""

    bumped = False

    def publish(self, transaction: SharedTransaction, links: LeaderChannels) -> None:
        for where, values in self.rows.items():
            writer = PartitionWriter(links, transaction, where, fresh=True)
            for value in values:
                writer.write(encode_batch([(None, value, time.time_ns() // 1_000_000, None)]))
                if not self.bumped:
                    self.bumped = True
                    self.runner.transactional.init(60_000)
            writer.finish()


def test_answers_that_a_failed_attempt_left_unread_are_not_taken_for_the_next_ones(servers: str, topic: str) -> None:
    """PIPE-4. Else the progress record would be taken for written when the batch before it was."""
    sink = runner(servers, topic)
    work = ThreeBatches(sink, topic, ["a", "-", "b", "-", "c", "-", "d"])
    assert sink.carry_out(work, "q", 0).attempts == 2
    assert put(sink, topic, 0).skipped
    assert [value for value in committed_values(servers, topic) if value != b"-"] == [b"a", b"b", b"c", b"d"]


def test_a_runner_carries_out_one_batch_at_a_time(ours: str, name: str) -> None:
    """A query that is started again while its last callback still runs has the same sink in two threads."""
    with Admin(ours) as admin:
        admin.create_topic(name, 2)
    reached, go_on = threading.Event(), threading.Event()

    def wait(step: str) -> None:
        if step == "publish" and not reached.is_set():
            reached.set()
            assert go_on.wait(30)

    sink = runner(ours, name, on_step=wait)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(put, sink, name, 0, "a", "b")
        assert reached.wait(30)
        second = threads.submit(put, sink, name, 0, "a", "b")
        go_on.set()
        assert not first.result(60).skipped
        assert second.result(60).skipped
    assert sorted(committed_values(ours, name)) == [b"a", b"b"]


def test_content_that_came_out_otherwise_is_frozen_anew(servers: str, topic: str) -> None:
    poison = [Poisoned("other bytes")]

    def fail(step: str) -> None:
        if step == "to 1" and poison:
            raise poison.pop()

    sink = runner(servers, topic, on_step=fail)
    words = Words(sink, topic, ["a", "b"])
    assert sink.carry_out(words, "q", 0).attempts == 2
    assert words.frozen == 2
    assert sorted(committed_values(servers, topic)) == [b"a", b"b"]


def test_when_the_attempts_are_over_nothing_is_left_open(servers: str, topic: str) -> None:
    def fail(step: str) -> None:
        if step == "verify":
            raise RuntimeError("always")

    with pytest.raises(RuntimeError, match="always"):
        put(runner(servers, topic, on_step=fail, attempts=2), topic, 0, "a", "b")
    with Admin(servers) as admin:
        assert admin.latest(topic, read_committed=True) == admin.latest(topic)  # readers are not held up
    assert committed_values(servers, topic) == []


def test_an_empty_batch_is_progress_too(servers: str, topic: str) -> None:
    sink = runner(servers, topic)
    assert not put(sink, topic, 0).skipped
    assert put(sink, topic, 0).skipped


def test_a_transaction_longer_than_the_server_allows_is_said_clearly(servers: str, topic: str) -> None:
    with pytest.raises(ServerError, match=r"transaction\.max\.timeout\.ms"):
        put(runner(servers, topic, transaction_timeout=10**6), topic, 0, "a")


@pytest.mark.every_run("fencepost")
def test_a_batch_whose_transaction_timed_out_is_published_again(servers: str, name: str) -> None:
    with Admin(servers) as admin:
        admin.create_topic(name, 2)
        waited: list[bool] = []

        def dawdle(step: str) -> None:
            """Until the server has given the transaction up; it looks now and then."""
            deadline = time.monotonic() + 60
            while step == "verify" and not waited:
                open_yet = any(state.transaction_start is not None for state in admin.producers(name))
                if not open_yet:
                    waited.append(True)
                assert time.monotonic() < deadline
                time.sleep(0.05)

        outcome = put(runner(servers, name, on_step=dawdle, transaction_timeout=1.0), name, 0, "a", "b")
    assert outcome.attempts == 2
    assert sorted(committed_values(servers, name)) == [b"a", b"b"]


def test_a_job_whose_transaction_was_given_up_is_told_what_helps(ours: str, name: str) -> None:
    class Slow(Words):
        advice = Advice(when_slow="be quick")

        def publish(self, transaction: SharedTransaction, links: LeaderChannels) -> None:
            self.runner.took["publish"] = 6_000.0  # that of the attempt before
            raise ServerError(ErrorCode.INVALID_PRODUCER_EPOCH, "writing to …")

    with Admin(ours) as admin:
        admin.create_topic(name, 2)
    running = runner(ours, name, transaction_timeout=5.0, attempts=1)
    with pytest.raises(ServerError, match=r"longer than 5 s, .* gave it up: be quick"):
        running.carry_out(Slow(running, name, ["a"]), "q", 0)


def test_the_reason_of_a_rejected_record_is_in_the_error(servers: str, name: str) -> None:
    """A sink that may not read the topic's configs cannot know that it is compacted."""
    with Admin(servers) as admin:
        admin.create_topic(name, 2, configs={"cleanup.policy": "compact"})
    with pytest.raises(ServerError, match=r"(?i)INVALID_RECORD.*writing to .*: .*\bkey\b"):
        put(runner(servers, name), name, 0, "a")


@pytest.mark.parametrize("partitions", [0, 1], ids=["deleted", "recreated with fewer partitions"])
def test_a_missing_or_shrunken_target_ends_the_batch_at_the_first_attempt(
    servers: str, topic: str, partitions: int
) -> None:
    """Waiting does not bring a partition back. Nothing of the batch is there, and started again it fits."""
    steps: list[str] = []

    def recreate(step: str) -> None:
        steps.append(step)
        if step == "publish" and steps.count(step) == 1:
            with Admin(servers) as admin:
                admin.delete_topic(topic)
                made_anew(admin, topic, partitions)

    now = "has 1 partitions now" if partitions else "is not there any more"
    sink = runner(servers, topic, on_step=recreate)
    sink.transactional.absent_patience = 0.5
    with pytest.raises(ServerError, match=f"a row goes to partition 1 of the target topic '{topic}', which {now}"):
        put(sink, topic, 0, "a", "b")
    assert (steps.count("publish"), steps.count("verify")) == (1, 0)
    with Admin(servers) as admin:
        if not partitions:
            made_anew(admin, topic, 1)
        admin.create_partitions(topic, 2)
    put(runner(servers, topic), topic, 0, "a", "b")
    assert sorted(committed_values(servers, topic)) == [b"a", b"b"]


def made_anew(admin: Admin, topic: str, partitions: int) -> None:
    """Waits until the deletion is through: Apache Kafka answers before it is."""
    deadline = time.monotonic() + 60
    while partitions:
        try:
            admin.create_topic(topic, partitions)
        except ServerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            break


def test_a_name_that_cannot_be_a_topics_is_refused() -> None:
    with pytest.raises(ConfigError, match="a sink's name must be"):
        runner("127.0.0.1:1", "no spaces, please")


def test_an_unclosed_sink_closes_its_connections_with_its_last_reference(ours: str, name: str) -> None:
    """Spark does not say when a query is over, and users do not close what they give to foreachBatch."""
    with Admin(ours) as admin:
        admin.create_topic(name, 2)
    sink = Runner(ClientSettings.of(ours), name)
    put(sink, name, 0, "a", "b")
    connections = [
        connection
        for routes in (sink.routes, sink.admin._routes)
        for loop in routes._idle
        for connection in loop._connections.values()
    ]
    assert len(connections) > 1
    assert all(each.is_ready for each in connections)
    del sink
    gc.collect()
    assert {each.state for each in connections} == {ConnectionState.CLOSED}
