"""Saved ids: a producer that goes on from them doubles nothing and loses nothing, wherever the one before it died."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest

import fencepost
from examples import saved_ids
from fencepost.client.admin import HIGH_WATERMARK, Admin
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.producer import Producer
from fencepost.client.reader import Reader
from fencepost.errors import ConfigError, Fenced, FencepostError, SendFailed
from fencepost.testing.proxy import Proxy
from fencepost.testing.scripted import Api, Fate
from tests.integration.conftest import TestedServer
from tests.support.raw import RawClient

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
        with producer.transaction():
            producer.send(topic, b"v")
        with pytest.raises(FencepostError, match="transactions"):
            _ = producer.ids
    with pytest.raises(ConfigError, match="cluster"):
        Producer(server.address, ids=ProducerIds("another", ids.name, ids.pid, ids.epoch, {}))
    with pytest.raises(ConfigError, match="not of"):
        Producer(server.address, ids=ids, name="somebody")
    client.create_topic(f"{name}-wide", partitions=2)
    with (
        Producer(server.address, ids=ids) as resumed,
        pytest.raises(FencepostError, match="needs a key or a partition"),
    ):
        resumed.send(f"{name}-wide", b"v").result(30)


def test_killed_at_every_step_every_record_comes_out_once(
    server: TestedServer, client: RawClient, name: str, tmp_path: Path
) -> None:
    """IDEM-4, the whole pattern of `examples/saved_ids.py`: dies at step 1, is started again, dies at step 2, …"""
    source, target = f"{name}-source", f"{name}-target"
    client.create_topic(source, partitions=2)
    client.create_topic(target, partitions=2)
    with Producer(server.address) as producer:
        for i in range(24):
            producer.send(source, b"%d" % i, key=b"key %d" % i)
    for steps in range(1, 100):
        child = os.fork()
        if child == 0:  # nothing of pytest may run in here
            code = 1
            try:
                for number, step in enumerate(saved_ids.run(server.address, source, target, tmp_path / "saved"), 1):
                    if step == "ended":
                        code = 0
                    elif number == steps:
                        os.kill(os.getpid(), signal.SIGKILL)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    else:
        raise AssertionError("never came to its end")
    assert steps > 3
    with Reader(server.address, source, stop="latest") as reader:
        expected: dict[int, list[bytes | None]] = {0: [], 1: []}
        for record in reader:
            expected[record.partition].append(b"made of " + (record.value or b""))
    with Reader(server.address, target, stop="latest") as reader:
        found: dict[int, list[bytes | None]] = {0: [], 1: []}
        for record in reader:
            found[record.partition].append(record.value)
    assert found == expected


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
