"""Saved ids: a producer that goes on from them doubles nothing and loses nothing, wherever the one before it died."""

from __future__ import annotations

import os
import random
import shutil
import signal
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import fencepost
from examples import saved_ids
from fencepost.client.admin_client import HIGH_WATERMARK, Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.produce import resume, state
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.produce.ids_topic import IdsTopic
from fencepost.client.producer import Producer
from fencepost.client.reader import Reader
from fencepost.errors import ConfigError, Fenced, FencepostError, SendFailed
from fencepost.server.coordinators import transactions
from tests.integration.conftest import TestedServer
from tests.support.proxy import Proxy
from tests.support.raw import RawClient
from tests.support.scripted import Api, Fate

pytestmark = pytest.mark.integration


def values(server: TestedServer, topic: str) -> list[bytes | None]:
    return values_at(server.address, topic)


def values_at(address: str, topic: str) -> list[bytes | None]:
    with Reader(address, topic, stop="latest", read_committed=False) as reader:
        return [record.value for record in reader]


def begin(server: TestedServer, topic: str) -> tuple[Producer, ProducerIds]:
    """A producer that has sent and saved `saved`, as an earlier life."""
    producer = Producer(server.address, name=topic)
    producer.send(topic, b"saved", partition=0).result(30)
    return producer, producer.ids


def test_what_came_after_the_save_and_is_sent_again_is_left_out(server: TestedServer, topic: str) -> None:
    """IDEM-4."""
    first, ids = begin(server, topic)
    for i in range(20):
        first.send(topic, b"%d" % i, partition=0)
        first.flush()
    with Producer(server.address, ids=ids) as second:
        tickets = [second.send(topic, b"%d" % i, partition=0) for i in range(30)]
        second.flush()
        again = second.ids
    assert values(server, topic) == [b"saved", *(b"%d" % i for i in range(30))]
    assert [ticket.result(0).offset for ticket in tickets[:20]] == list(range(1, 21))
    offsets = [ticket.result(0).offset for ticket in tickets[20:]]
    assert offsets == sorted(offsets)
    assert offsets[0] > 20
    with Producer(server.address, ids=again) as third:
        third.send(topic, b"the end", partition=0)
    assert values(server, topic) == [b"saved", *(b"%d" % i for i in range(30)), b"the end"]
    with pytest.raises(Fenced):
        first.send(topic, b"late", partition=0).result(30)
    first.close()


def test_others_write_in_between_and_every_ticket_still_says_where(server: TestedServer, topic: str) -> None:
    first, ids = begin(server, topic)
    with Producer(server.address) as other:
        for i in range(5):
            first.send(topic, b"%d" % i, partition=0).result(30)
            other.send(topic, b"other", partition=0).result(30)
    with Producer(server.address, ids=ids) as second:
        tickets = [second.send(topic, b"%d" % i, partition=0) for i in range(7)]
    assert [ticket.result(0).offset for ticket in tickets[:5]] == [1, 3, 5, 7, 9]
    assert Counter(values(server, topic)) == {b"saved": 1, b"other": 5, **{b"%d" % i: 1 for i in range(7)}}
    first.close()


def test_the_life_before_is_fenced_in_every_partition_before_its_log_is_read(server: TestedServer, topic: str) -> None:
    """IDEM-5. It wakes up between the look and the first new record: nothing of it may come in any more."""
    first, ids = begin(server, topic)
    first.send(topic, b"0", partition=0).result(30)
    second = Producer(server.address, ids=ids)
    assert second.send(topic, b"0", partition=0).result(30).offset == 1  # taken over, and nothing was written
    with pytest.raises(Fenced):
        first.send(topic, b"1", partition=0).result(30)
    second.send(topic, b"1", partition=0).result(30)
    assert values(server, topic) == [b"saved", b"0", b"1"]
    second.close()
    first.close()


def test_a_partition_that_the_ids_do_not_know_is_read_from_its_beginning(
    server: TestedServer, client: RawClient, name: str
) -> None:
    client.create_topic(name, partitions=3)
    with Producer(server.address, name=name) as first:
        ids = first.ids  # nothing was sent so far
        for partition in range(3):
            first.send(name, b"%d" % partition, partition=partition)
    with Producer(server.address, ids=ids) as second:
        for partition in (2, 0, 1):
            second.send(name, b"%d" % partition, partition=partition)
    assert sorted(values(server, name)) == [b"0", b"1", b"2"]  # type: ignore[type-var]


@pytest.mark.parametrize("taken", [1, 3, None], ids=["the saved one", "some", "all"])
def test_what_was_deleted_is_left_out_by_what_the_server_remembers(
    server: TestedServer, topic: str, taken: int | None
) -> None:
    """IDEM-4: retention and DeleteRecords take the records, and H(P) stays."""
    first, ids = begin(server, topic)
    for i in range(5):
        first.send(topic, b"%d" % i, partition=0)
        first.flush()
    with Admin(server.address) as admin:
        admin.delete_records(topic, {0: HIGH_WATERMARK if taken is None else taken})
    with Producer(server.address, ids=ids) as second:
        tickets = [second.send(topic, b"%d" % i, partition=0) for i in range(8)]
        second.flush()
        again = second.ids
    written = [b"%d" % i for i in range(8)]
    assert values(server, topic) == (written[5:] if taken is None else written[taken - 1 :])
    offsets = [ticket.result(0).offset for ticket in tickets]
    gone = 5 if taken is None else taken - 1
    assert offsets[:gone] == [-1] * gone
    assert offsets[gone:5] == list(range(gone + 1, 6))
    with Producer(server.address, ids=again) as third:
        third.send(topic, b"the end", partition=0)
    assert values(server, topic)[-2:] == [b"7", b"the end"]
    first.close()


def test_a_partition_missing_from_the_ids_is_filled_in_from_the_servers_memory(
    server: TestedServer, topic: str
) -> None:
    with Producer(server.address, name=topic) as first:
        ids = first.ids
        for i in range(3):
            first.send(topic, b"%d" % i, partition=0).result(30)
    with Admin(server.address) as admin:
        admin.delete_records(topic, {0: HIGH_WATERMARK})
    with Producer(server.address, ids=ids) as second:
        for i in range(5):
            second.send(topic, b"%d" % i, partition=0)
    assert values(server, topic) == [b"3", b"4"]


def test_where_neither_the_records_nor_the_state_is_left_the_producer_says_so(server: TestedServer, topic: str) -> None:
    """A life in between has fenced the partition, and so taken the state's place; then the records were deleted."""
    first, ids = begin(server, topic)
    first.send(topic, b"0", partition=0).result(30)
    with Producer(server.address, ids=ids) as second:
        assert second.send(topic, b"0", partition=0).result(30).offset == 1
    with Admin(server.address) as admin:
        admin.delete_records(topic, {0: HIGH_WATERMARK})
    third = Producer(server.address, ids=ids)
    error = third.send(topic, b"0", partition=0).exception(30)
    assert isinstance(error, SendFailed)
    assert error.persisted == "no"
    assert "name= instead of ids=" in str(error)
    third.close()
    assert values(server, topic) == []
    first.close()


def test_a_record_that_is_not_what_was_sent_before_stops_the_producer(server: TestedServer, topic: str) -> None:
    first, ids = begin(server, topic)
    first.send(topic, b"one thing", partition=0).result(30)
    second = Producer(server.address, ids=ids)
    error = second.send(topic, b"another thing", partition=0).exception(30)
    assert isinstance(error, SendFailed)
    assert "offset 1" in str(error)
    with pytest.raises(SendFailed):
        second.send(topic, b"more", partition=0).result(30)
    second.close()
    assert values(server, topic) == [b"saved", b"one thing"]
    first.close()


def test_behind_a_record_that_differs_nothing_is_written(server: TestedServer, topic: str) -> None:
    """IDEM-4: also if it has a batch of its own, which could go in the same turn. Those before it are in the log."""
    with Producer(server.address, name=topic) as first:
        ids = first.ids
        for value in (b"0", b"1"):
            first.send(topic, value, partition=0)
    second = Producer(server.address, ids=ids, batch_size=100)
    tickets = [second.send(topic, value, partition=0) for value in (b"0", b"another", b"2" * 200, b"3" * 200)]
    failures = [ticket.exception(30) for ticket in tickets]
    assert failures[0] is None
    assert tickets[0].result(0).offset == 1  # behind the marker of the fence
    assert [failure.persisted for failure in failures[1:] if isinstance(failure, SendFailed)] == ["no"] * 3
    with pytest.raises(SendFailed, match="another record"):
        _ = second.ids
    second.close()
    assert values(server, topic) == [b"0", b"1"]


def test_after_a_failure_nothing_is_written_so_the_log_is_a_prefix_of_what_was_sent(
    server: TestedServer, client: RawClient, name: str
) -> None:
    client.create_topic(name, configs={"max.message.bytes": "1000"})
    producer = Producer(server.address, name=name)
    producer.send(name, b"fine", partition=0).result(30)
    assert isinstance(producer.send(name, b"x" * 2000, partition=0).exception(30), SendFailed)
    with pytest.raises(SendFailed):
        producer.send(name, b"behind it", partition=0).result(30)
    producer.close()
    assert values(server, name) == [b"fine"]


def test_ids_are_refused_where_they_would_be_wrong(
    server: TestedServer, client: RawClient, topic: str, name: str
) -> None:
    with Producer(server.address) as nameless, pytest.raises(ConfigError, match="name"):
        _ = nameless.ids
    with Producer(server.address, name=topic) as producer:
        ids = producer.ids
        with Proxy(server.address) as proxy, Producer(proxy.address, name=f"{topic}-slow") as slow:
            assert slow.ids.partitions == {}
            proxy.next(Api.PRODUCE, Fate.LOSE)
            slow.send(topic, b"v", partition=0)
            with pytest.raises(FencepostError, match="flush first"):
                _ = slow.ids
        with pytest.raises(ConfigError, match="has no transactions"), producer.transaction():
            pass
    with Producer(server.address, name=f"{topic}-transactions") as producer:
        with producer.transaction():
            producer.send(topic, b"v")
        with pytest.raises(FencepostError, match="transactions"):
            _ = producer.ids
    with pytest.raises(ConfigError, match="cluster"):
        Producer(server.address, ids=replace(ids, cluster_id="another"))
    with pytest.raises(ConfigError, match="not of"):
        Producer(server.address, ids=ids, name="somebody")
    client.create_topic(f"{name}-wide", partitions=2)
    with (
        Producer(server.address, ids=ids) as resumed,
        pytest.raises(FencepostError, match="needs a key or a partition"),
    ):
        resumed.send(f"{name}-wide", b"v").result(30)


class Example:
    """Processes that run `examples/saved_ids.py`, from a source with two partitions to a target with two."""

    def __init__(self, server: TestedServer, client: RawClient, name: str, path: Path) -> None:
        self.server, self.path = server, path
        self.source, self.target = f"{name}-source", f"{name}-target"
        for topic in (self.source, self.target):
            client.create_topic(topic, partitions=2)
        with Producer(server.address) as producer:
            for i in range(60):
                producer.send(self.source, b"%d" % i, key=b"key %d" % i)

    def start(self) -> tuple[int, int]:
        """Return the pid of a new process, and a pipe that gets a byte for each of its steps."""
        steps, write = os.pipe()
        child = os.fork()
        if child:
            os.close(write)
            return child, steps
        code = 1  # nothing of pytest may run in the child
        try:
            for step in saved_ids.run(self.server.address, self.source, self.target, self.path):
                code = 0 if step == "ended" else code
                os.write(write, b".")
        except (Fenced, ConfigError):  # another one has taken over, or has begun while this one was paused
            code = 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    @staticmethod
    def end(child: int, steps: int) -> int:
        """Wait for the end of the process, and return its exit code; negative: a signal."""
        _, status = os.waitpid(child, 0)
        os.close(steps)
        return os.waitstatus_to_exitcode(status)

    def check(self) -> None:
        found: dict[str, dict[int, list[bytes]]] = {self.source: {0: [], 1: []}, self.target: {0: [], 1: []}}
        for topic, by_partition in found.items():
            with Reader(self.server.address, topic, stop="latest") as reader:
                for record in reader:
                    by_partition[record.partition].append(record.value or b"")
        expected = {
            partition: [b"made of " + value for value in values] for partition, values in found[self.source].items()
        }
        assert found[self.target] == expected


def kill_often(example: Example, rnd: random.Random, kills: int) -> None:
    """Kill the example at random steps, and soon after a start most of the time: then it still catches up."""
    for _ in range(kills):
        child, steps = example.start()
        wanted = rnd.choice([rnd.randint(1, 6), rnd.randint(1, 20)])
        while wanted > 0 and (got := os.read(steps, wanted)):
            wanted -= len(got)
        time.sleep(rnd.random() * 0.02)  # not an event: any moment will do
        os.kill(child, signal.SIGKILL)
        example.end(child, steps)
    assert example.end(*example.start()) == 0
    example.check()


def pause_often(example: Example, rnd: random.Random, pauses: int) -> None:
    """Stop the example at random moments, let another process take over, and wake the first one up again."""
    for _ in range(pauses):
        paused, steps = example.start()
        for _ in range(rnd.randint(0, 8)):
            os.read(steps, 1)
        time.sleep(rnd.random() * 0.03)  # not an event: any moment will do
        os.kill(paused, signal.SIGSTOP)
        successor, its_steps = example.start()
        if rnd.random() < 0.5:
            for _ in range(rnd.randint(1, 12)):
                os.read(its_steps, 1)
            os.kill(successor, signal.SIGKILL)
        assert example.end(successor, its_steps) in (0, -signal.SIGKILL)
        os.kill(paused, signal.SIGCONT)
        assert example.end(paused, steps) in (0, 2)
    assert example.end(*example.start()) == 0
    example.check()


def test_killed_at_random_steps_every_record_comes_out_once(
    server: TestedServer, client: RawClient, name: str, tmp_path: Path
) -> None:
    """IDEM-4: the whole pattern, with saves by runs that still catch up with an earlier one."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    kill_often(Example(server, client, name, tmp_path / "saved"), random.Random(seed), 12)


def test_two_that_believe_to_be_the_same_write_every_record_once(
    server: TestedServer, client: RawClient, name: str, tmp_path: Path
) -> None:
    """IDEM-5: one is stopped by SIGSTOP, wakes up behind its successor, and reads, writes and saves."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    pause_often(Example(server, client, name, tmp_path / "saved"), random.Random(seed), 4)


@pytest.mark.soak
def test_hundreds_of_kills_and_pauses(server: TestedServer, client: RawClient, name: str, tmp_path: Path) -> None:
    for number in range(5):
        seed = random.randrange(10**9)
        print(f"seed {seed}")
        kill_often(Example(server, client, f"{name}-k{number}", tmp_path / f"k{number}"), random.Random(seed), 20)
        pause_often(Example(server, client, f"{name}-p{number}", tmp_path / f"p{number}"), random.Random(seed), 10)


def test_a_name_that_has_written_needs_its_ids(server: TestedServer, client: RawClient, name: str) -> None:
    """IDEM-4: a run that finds no saved ids, because it looked too early or they were lost, writes nothing again."""
    client.create_topic(name)
    with Producer(server.address, name=name) as first:
        _ = first.ids
    with Producer(server.address, name=name) as again:  # nothing was written so far
        _ = again.ids
        again.send(name, b"0", partition=0)
    with Producer(server.address, name=name) as third, pytest.raises(ConfigError, match="with ids=, or use a new name"):
        _ = third.ids
    with Admin(server.address) as admin:
        admin.delete_topic(name)
        admin.create_topic(name, 1)
    with Producer(server.address, name=name) as anew:  # what it wrote is gone
        ids = anew.ids
    with Producer(server.address, ids=ids) as second:
        second.send(name, b"0", partition=0)
    assert values(server, name) == [b"0"]


def test_a_name_that_wrote_before_its_ids_were_first_read_needs_them_too(server: TestedServer, topic: str) -> None:
    """IDEM-4."""
    with Producer(server.address, name=topic) as first:
        first.send(topic, b"0", partition=0).result(30)
        ids = first.ids
        assert first.ids == ids
        first.send(topic, b"1", partition=0)
    with (
        Producer(server.address, name=topic) as again,
        pytest.raises(ConfigError, match="with ids=, or use a new name"),
    ):
        _ = again.ids
    with Producer(server.address, ids=ids) as second:
        for i in (1, 2):
            second.send(topic, b"%d" % i, partition=0)
    assert values(server, topic) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("what", [b"v", pa.table({"value": pa.array([b"v"], pa.binary())})], ids=["record", "table"])
def test_once_ids_are_read_no_partition_is_left_to_chance(
    server: TestedServer, client: RawClient, name: str, what: bytes | pa.Table
) -> None:
    """IDEM-4: a later run could not choose the same one again."""
    client.create_topic(name, partitions=3)
    with Producer(server.address, name=name) as producer:
        _ = producer.ids
        send: Any = producer.send if isinstance(what, bytes) else producer.send_arrow
        with pytest.raises(FencepostError, match="needs a key or a partition"):
            send(name, what).result(30)
    assert values(server, name) == []


def test_ids_in_a_callback_raise_instead_of_waiting_forever(server: TestedServer, topic: str) -> None:
    outcome: Future[ProducerIds] = Future()

    def read_ids(_: object) -> None:
        try:
            outcome.set_result(producer.ids)
        except FencepostError as error:
            outcome.set_exception(error)

    with Producer(server.address, name=topic) as producer:
        _ = producer.ids
        producer.send(topic, b"v", partition=0).add_done_callback(read_ids)
        with pytest.raises(FencepostError, match="callback"):
            outcome.result(30)


def test_many_partitions_are_opened_with_few_questions(server: TestedServer, client: RawClient, name: str) -> None:
    """A topic's metadata are as long as it has partitions, so they are not asked for once per partition."""
    client.create_topic(name, partitions=40)
    asked = []
    really_topic = Routes.topic

    def counted_topic(routes: Routes, topic: str) -> Any:
        asked.append(topic)
        return really_topic(routes, topic)

    with pytest.MonkeyPatch.context() as patch, Producer(server.address, name=name) as producer:
        _ = producer.ids
        patch.setattr(Routes, "topic", counted_topic)
        for partition in range(40):
            producer.send(name, b"v", partition=partition)
        producer.flush()
    assert len(values(server, name)) == 40
    assert asked.count(name) < 40, asked


def test_ids_saved_while_a_run_catches_up_are_true(server: TestedServer, topic: str) -> None:
    """IDEM-4: it saves its own ids behind a record that an earlier run wrote."""
    with Producer(server.address, name=topic) as first:
        ids = first.ids
        for i in range(10):
            first.send(topic, b"%d" % i, partition=0)
    with Producer(server.address, ids=ids) as second:
        for i in range(4):
            second.send(topic, b"%d" % i, partition=0)
        second.flush()
        ids = ProducerIds.from_json(second.ids.to_json())
    with Producer(server.address, ids=ids) as third:
        for i in range(4, 12):
            third.send(topic, b"%d" % i, partition=0)
    assert values(server, topic) == [b"%d" % i for i in range(12)]


def test_a_run_that_meets_a_later_one_is_fenced_and_hands_out_no_ids(server: TestedServer, topic: str) -> None:
    """IDEM-5: it has fenced the partition, and was paused before it read it."""
    with Producer(server.address, name=topic) as first:
        ids = first.ids
    entered, wake = threading.Event(), threading.Event()
    really_ends_now = resume.ends_now

    def paused_before_reading(*what: Any) -> Any:
        entered.set()
        wake.wait(30)
        return really_ends_now(*what)

    with pytest.MonkeyPatch.context() as patch, Producer(server.address, ids=ids) as paused:
        patch.setattr(resume, "ends_now", paused_before_reading)
        ticket = paused.send(topic, b"0", partition=0)
        assert entered.wait(30)
        patch.undo()
        with Producer(server.address, ids=ids) as later:
            for i in range(3):
                later.send(topic, b"%d" % i, partition=0)
        wake.set()
        assert isinstance(ticket.exception(30), Fenced)
        with pytest.raises(Fenced):
            _ = paused.ids
    assert values(server, topic) == [b"0", b"1", b"2"]


def test_two_first_runs_at_a_time_write_every_record_once(server: TestedServer, topic: str) -> None:
    """IDEM-5: both found no saved ids. On Kafka the first one may write until the second one opens the partition, and
    the second one catches up then: also with records that it sends one at a time."""
    entered, wake = threading.Event(), threading.Event()
    really_exchange = IdsTopic.exchange

    def paused_behind_the_fence(*what: Any, **how: Any) -> Any:
        entered.set()
        wake.wait(30)
        return really_exchange(*what, **how)

    with pytest.MonkeyPatch.context() as patch, Producer(server.address, name=topic) as first:
        _ = first.ids
        patch.setattr(IdsTopic, "exchange", paused_behind_the_fence)
        ticket = first.send(topic, b"0", partition=0)
        assert entered.wait(30)
        patch.undo()
        with Producer(server.address, name=topic) as second:
            _ = second.ids
            wake.set()
            with suppress(Fenced):  # by our server
                ticket.result(30)
                for i in (1, 2):
                    first.send(topic, b"%d" % i, partition=0).result(30)
            for i in range(5):
                second.send(topic, b"%d" % i, partition=0).result(30)
    assert values(server, topic) == [b"%d" % i for i in range(5)]


def test_an_unsaved_partition_is_refused_once_its_records_are_deleted(server: TestedServer, topic: str) -> None:
    """IDEM-4: two runs have written there, so no memory of the server tells how much."""
    with Producer(server.address, name=topic) as first:
        ids = first.ids
        first.send(topic, b"0", partition=0)
    with Producer(server.address, ids=ids) as second:
        for i in range(3):
            second.send(topic, b"%d" % i, partition=0)
    with Admin(server.address) as admin:
        admin.delete_records(topic, {0: HIGH_WATERMARK})
    third = Producer(server.address, ids=ids)
    error = third.send(topic, b"0", partition=0).exception(30)
    third.close()
    assert isinstance(error, SendFailed)
    assert "were deleted" in str(error)
    assert values(server, topic) == []


def test_what_others_wrote_and_retention_deleted_does_not_stop_a_new_name(server: TestedServer, topic: str) -> None:
    with Producer(server.address) as other:
        other.send(topic, b"old", partition=0).result(30)
    with Admin(server.address) as admin:
        admin.delete_records(topic, {0: HIGH_WATERMARK})
    with Producer(server.address, name=topic) as first:
        ids = first.ids
    with Producer(server.address, ids=ids) as second:
        assert second.send(topic, b"0", partition=0).result(30).offset > 0
    with Producer(server.address, ids=ids) as third:
        for i in range(2):
            third.send(topic, b"%d" % i, partition=0)
    assert values(server, topic) == [b"0", b"1"]


@pytest.mark.parametrize("longer", [False, True], ids=["shorter", "longer"])
def test_a_recreated_topic_is_named_at_once(server: TestedServer, client: RawClient, name: str, longer: bool) -> None:
    """IDEM-4: also if others have made it longer than the saved place."""
    client.create_topic(name)
    with Producer(server.address, name=name) as first:
        for i in range(5):
            first.send(name, b"%d" % i, partition=0)
        first.flush()
        ids = first.ids
    with Admin(server.address) as admin:
        admin.delete_topic(name)
        admin.create_topic(name, 1)
    if longer:
        with Producer(server.address) as other:
            for _ in range(20):
                other.send(name, b"other", partition=0)
    second = Producer(server.address, ids=ids)
    error = second.send(name, b"5", partition=0).exception(30)
    second.close()
    assert isinstance(error, SendFailed)
    assert "deleted and created again" in str(error)
    assert error.persisted == "no"


class TestOnOurServer:
    """Where compaction and expiry can be had at once."""

    def test_what_compaction_took_is_left_out(self, tmp_path: Path) -> None:
        """IDEM-4: whole batches, and single records out of batches."""
        configs = {"cleanup.policy": "compact", "segment.bytes": "300", "min.cleanable.dirty.ratio": "0.01"}
        with fencepost.Server(tmp_path, background_interval_ms=20) as server, Admin(server.address) as admin:
            admin.create_topic("t", 1, configs=configs)
            first = Producer(server.address, name="compacted")
            first.send("t", b"saved", key=b"s", partition=0).result(30)
            ids = first.ids
            for i in range(30):
                first.send("t", b"%d" % i, key=b"%d" % (i % 2), partition=0)
                if i % 3 == 0:
                    first.flush()
            first.flush()
            while len(left := values_at(server.address, "t")) > 20:
                time.sleep(0.02)
            with Producer(server.address, ids=ids) as second:
                for i in range(33):
                    second.send("t", b"%d" % i, key=b"%d" % (i % 2), partition=0)
            assert values_at(server.address, "t")[-5:] == [*left[-2:], b"30", b"31", b"32"]
            first.close()

    @pytest.mark.parametrize("deleted", [False, True], ids=["records there", "records deleted"])
    def test_a_server_that_forgot_the_producer(self, tmp_path: Path, deleted: bool) -> None:
        with (
            fencepost.Server(tmp_path, background_interval_ms=20, producer_expiry_ms=300) as server,
            Admin(server.address) as admin,
        ):
            admin.create_topic("t", 1)
            first = Producer(server.address, name="forgotten")
            first.send("t", b"saved", partition=0).result(30)
            ids = first.ids
            first.send("t", b"0", partition=0).result(30)
            first.close()
            while admin.producers("t"):
                time.sleep(0.02)
            if deleted:
                admin.delete_records("t", {0: HIGH_WATERMARK})
            second = Producer(server.address, ids=ids)
            error = second.send("t", b"0", partition=0).exception(30)
            second.close()
            if deleted:
                assert isinstance(error, SendFailed)
                assert "name= instead of ids=" in str(error)
            else:
                assert error is None
                assert values_at(server.address, "t") == [b"saved", b"0"]

    def test_an_unsaved_partition_whose_records_and_memory_are_gone(self, tmp_path: Path) -> None:
        """IDEM-4: the place at which the name began there was written down, and retention has passed it."""
        with (
            fencepost.Server(tmp_path, background_interval_ms=20, producer_expiry_ms=300) as server,
            Admin(server.address) as admin,
        ):
            admin.create_topic("t", 1)
            with Producer(server.address, name="forgotten") as first:
                ids = first.ids
                first.send("t", b"0", partition=0).result(30)
            while admin.producers("t"):
                time.sleep(0.02)
            admin.delete_records("t", {0: HIGH_WATERMARK})
            second = Producer(server.address, ids=ids)
            error = second.send("t", b"0", partition=0).exception(30)
            second.close()
            assert isinstance(error, SendFailed)
            assert "were deleted" in str(error)

    def test_a_name_that_the_server_forgot_twice_doubles_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """IDEM-4: each run has another pid, and none of them saved."""
        monkeypatch.setattr(transactions, "_PATROL_SECONDS", 0.02)
        with fencepost.Server(tmp_path) as server, Admin(server.address) as admin:
            admin.create_topic("t", 1)
            with Producer(server.address, name="n") as first:
                ids = first.ids
                first.send("t", b"0", partition=0)
            for sent in (2, 3, 4):
                monkeypatch.setattr(transactions, "_FORGET_AFTER_MS", -1)
                while any(each.name == "n" for each in admin.transactions()):
                    time.sleep(0.02)
                monkeypatch.setattr(transactions, "_FORGET_AFTER_MS", 1 << 40)
                with Producer(server.address, ids=ids) as later:
                    for i in range(sent):
                        later.send("t", b"%d" % i, partition=0)
            assert values_at(server.address, "t") == [b"0", b"1", b"2", b"3"]

    def test_a_run_whose_name_the_server_forgot_is_fenced_by_the_next_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """IDEM-5: it has asked for its name too long ago, wrote all the time, and was paused while the next one took
        over, which has another pid."""
        monkeypatch.setattr(transactions, "_PATROL_SECONDS", 0.02)
        with fencepost.Server(tmp_path) as server, Admin(server.address) as admin:
            admin.create_topic("t", 1)
            first = Producer(server.address, name="n")
            ids = first.ids
            first.send("t", b"0", partition=0).result(30)
            monkeypatch.setattr(transactions, "_FORGET_AFTER_MS", -1)
            while any(each.name == "n" for each in admin.transactions()):
                time.sleep(0.02)
            monkeypatch.setattr(transactions, "_FORGET_AFTER_MS", 1 << 40)
            with Producer(server.address, ids=ids) as second:
                for i in range(3):
                    second.send("t", b"%d" % i, partition=0)
            monkeypatch.setattr(state, "KEEPS_NAME", 0)
            assert isinstance(first.send("t", b"1", partition=0).exception(30), Fenced)
            first.close()
            assert values_at(server.address, "t") == [b"0", b"1", b"2"]

    def test_names_that_begin_at_the_same_time_share_a_new_topic_of_ids(self) -> None:
        together = threading.Barrier(6)
        with fencepost.Server() as server:

            def begin(name: str) -> ProducerIds:
                with Producer(server.address, name=name) as producer:
                    producer.init_transactions()
                    together.wait(30)
                    return producer.ids

            with ThreadPoolExecutor(6) as threads:
                names = [f"n{i}" for i in range(6)]
                assert [ids.name for ids in threads.map(begin, names)] == names

    def test_a_deleted_topic_of_ids_is_named_at_once(self, tmp_path: Path) -> None:
        """IDEM-4: nobody knows where the name begins in a partition that its ids do not name. A second try neither."""
        with fencepost.Server(tmp_path) as server, Admin(server.address) as admin:
            admin.create_topic("t", 1)
            with Producer(server.address, name="name") as first:
                ids = first.ids
                first.send("t", b"0", partition=0)
            admin.delete_topic("__fencepost_ids")
            for _ in range(2):
                with Producer(server.address, ids=ids) as second:
                    error = second.send("t", b"0", partition=0).exception(30)
                assert isinstance(error, SendFailed)
                assert "no longer has what the producer 'name' has written there" in str(error)
                assert error.persisted == "no"
            assert values_at(server.address, "t") == [b"0"]

    def test_a_truncated_log_is_named_at_once(self, tmp_path: Path) -> None:
        """IDEM-4: an older copy of the data directory was put back."""
        with fencepost.Server(tmp_path / "data") as server, Producer(server.address, name="n") as first:
            first.send("t", b"0", partition=0).result(30)
            early = first.ids
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
        with fencepost.Server(tmp_path / "data") as server, Producer(server.address, ids=early) as second:
            for i in range(1, 5):
                second.send("t", b"%d" % i, partition=0)
            second.flush()
            ids = second.ids
        with fencepost.Server(tmp_path / "copy") as server:
            third = Producer(server.address, ids=ids)
            error = third.send("t", b"5", partition=0).exception(30)
            third.close()
        assert isinstance(error, SendFailed)
        assert "has lost records" in str(error)
