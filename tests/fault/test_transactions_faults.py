"""Transactions on a failing disk, with clients that hang up, and through restarts."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.failing_files import FailingFiles, GatedFiles
from tests.support.group_client import await_coordinator
from tests.support.group_client import commit as plain_commit
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.fault

NONE = ErrorCode.NONE
LATER = ErrorCode.COORDINATOR_NOT_AVAILABLE


def failing_files(data: Path) -> FailingFiles:
    (data / "logs").mkdir(parents=True)
    return FailingFiles(data / "logs")


def begin(client: TransactionClient, *values: bytes, topic: str = "t") -> TransactionalProducer:
    client.create_topic(topic)
    producer = TransactionalProducer.start(client, "name")
    assert client.add(producer, {topic: [0]}) == [NONE]
    for value in values:
        assert client.write(producer, topic, [value]).error is NONE
    return producer


@pytest.mark.parametrize("commit", [True, False])
def test_an_end_takes_effect_also_if_its_client_has_hung_up(tmp_path: Path, commit: bool) -> None:
    files = GatedFiles()
    with (
        fencepost.Server(tmp_path, sync="always", files=files) as server,
        TransactionClient(server.address) as reader,
    ):
        with TransactionClient(server.address) as client:
            producer = begin(client, b"a")
            files.gate.clear()
            client.send_end(producer, commit=commit)
            assert files.waiting.wait(60) or not commit
        files.gate.set()
        reader.await_state("name", "CompleteCommit" if commit else "CompleteAbort")
        assert reader.fetch_committed("t").values == ([b"a"] if commit else [])
        assert reader.init("name")[0] is NONE


def test_what_is_not_on_the_disk_cannot_be_committed(tmp_path: Path) -> None:
    files = failing_files(tmp_path)
    with (
        fencepost.Server(tmp_path, sync="always", files=files) as server,
        TransactionClient(server.address) as client,
    ):
        producer = begin(client, b"a")
        files.fail_next("sync", errno.EIO)
        assert client.write(producer, "t", [b"b"]).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert client.end(producer, commit=True, patient=False) is LATER
        assert client.describe("name").transaction_state == "Ongoing"
        while (answer := client.write(producer, "t", [b"b"])).error is not NONE:  # the client's retry reopens the log
            assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert client.end(producer, commit=True) is NONE
        client.await_state("name", "CompleteCommit")
        assert client.fetch_committed("t").values == [b"a", b"b"]


@pytest.mark.parametrize("sync", ["os", "always"])
@pytest.mark.parametrize("commit", [True, False])
def test_a_decision_stands_although_the_disk_refuses_its_marker(tmp_path: Path, commit: bool, sync: Any) -> None:
    files = failing_files(tmp_path)
    with (
        fencepost.Server(tmp_path, sync=sync, files=files) as server,
        TransactionClient(server.address) as client,
    ):
        producer = begin(client, b"a")
        files.fail_next("write", errno.EIO, times=3)
        assert client.end(producer, commit=commit, patient=False) is NONE
        state = client.describe("name").transaction_state
        assert state == ("PrepareCommit" if commit else "PrepareAbort")
        assert client.add(producer, {"t": [0]}, patient=False) == [ErrorCode.CONCURRENT_TRANSACTIONS]
        assert client.init("name", patient=False)[0] is ErrorCode.CONCURRENT_TRANSACTIONS
        assert client.end(producer, commit=commit, patient=False) is ErrorCode.CONCURRENT_TRANSACTIONS
        assert client.end(producer, commit=not commit, patient=False) is ErrorCode.INVALID_TXN_STATE
        client.await_state("name", "CompleteCommit" if commit else "CompleteAbort")
        assert client.fetch_committed("t").values == ([b"a"] if commit else [])
        assert client.end_offset("t") == 2  # one marker


def test_a_marker_whose_sync_fails_is_not_taken_for_written(tmp_path: Path) -> None:
    files = failing_files(tmp_path)
    with fencepost.Server(tmp_path, sync="always", files=files) as server, TransactionClient(server.address) as client:
        producer = begin(client, b"a")
        files.fail_next("sync", errno.EIO, times=-1)  # it is tried again at once
        assert client.end(producer, commit=False, patient=False) is NONE
        assert client.describe("name").transaction_state == "PrepareAbort"
        files.heal()
        client.await_state("name", "CompleteAbort")
    files.lose_power()
    with fencepost.Server(tmp_path, sync="always") as server, TransactionClient(server.address) as client:
        assert client.fetch_committed("t") == (2, [], [(producer.pid, 0)])


def test_a_store_that_refuses_the_decision_leaves_the_transaction_open(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        producer = begin(client, b"a")
        with sqlite3.connect(tmp_path / "meta.sqlite", timeout=60) as other:
            other.execute("CREATE TRIGGER no BEFORE INSERT ON transactions BEGIN SELECT RAISE(ABORT, 'no'); END")
        assert client.end(producer, commit=True, patient=False) is LATER
        assert client.describe("name").transaction_state == "Ongoing"
        assert client.add(producer, {"u": [0]}, patient=False) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        assert client.init("name", patient=False)[0] is LATER
        assert client.write(producer, "t", [b"b"]).error is NONE
        with sqlite3.connect(tmp_path / "meta.sqlite", timeout=60) as other:
            other.execute("DROP TRIGGER no")
        assert client.end(producer, commit=True) is NONE
        assert client.fetch_committed("t").values == [b"a", b"b"]


def test_offsets_that_could_not_be_stored_do_not_hold_up_readers(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        producer = begin(client)
        assert client.add_offsets(producer, "group") is NONE
        assert client.commit_offsets(producer, "group", {"t": {0: 3}}) == [NONE]
        with sqlite3.connect(tmp_path / "meta.sqlite", timeout=60) as other:
            other.execute("CREATE TRIGGER no BEFORE INSERT ON transactions BEGIN SELECT RAISE(ABORT, 'no'); END")
        assert client.commit_offsets(producer, "group", {"t": {0: 9}}, patient=False) == [LATER]
        with sqlite3.connect(tmp_path / "meta.sqlite", timeout=60) as other:
            other.execute("DROP TRIGGER no")
        assert client.end(producer, commit=True) is NONE
        assert client.group_offset("group", "t") == (NONE, 3)


def test_an_open_transaction_survives_a_restart_with_its_offsets(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path, process=True) as server, TransactionClient(server.address) as client:
        producer = begin(client, b"a")
        client.add_offsets(producer, "group")
        client.commit_offsets(producer, "group", {"t": {0: 5}})
        server.kill()
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        assert client.fetch_committed("t") == (0, [], [])
        assert client.group_offset("group", "t")[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert client.write(producer, "t", [b"b"]).error is NONE
        assert client.end(producer, commit=True) is NONE
        assert client.fetch_committed("t").values == [b"a", b"b"]
        assert client.group_offset("group", "t") == (NONE, 5)


def test_an_open_transaction_times_out_after_a_restart_too(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        client.create_topic("t")
        producer = TransactionalProducer.start(client, "name", timeout_ms=500)
        client.add(producer, {"t": [0]})
        client.write(producer, "t", [b"a"])
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        client.await_state("name", "CompleteAbort")
        assert client.fetch_committed("t") == (2, [], [(producer.pid, 0)])
        assert client.write(producer, "t", [b"late"]).error is ErrorCode.INVALID_PRODUCER_EPOCH


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_what_was_aborted_stays_aborted_through_restarts(tmp_path: Path, how: str) -> None:
    with fencepost.Server(tmp_path, process=True) as server, TransactionClient(server.address) as client:
        producer = begin(client, b"0")
        client.end(producer, commit=False)
        for number in range(1, 6):
            client.add(producer, {"t": [0]})
            client.write(producer, "t", [b"%d" % number])
            client.end(producer, commit=number % 2 == 1)
        expected = client.fetch_committed("t")
        assert expected.values == [b"1", b"3", b"5"]
        if how == "killed":
            server.kill()
    for _ in range(2):
        with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
            assert client.fetch_committed("t") == expected
            assert client.fetch_committed("t", 3).values == [b"3", b"5"]


def test_the_last_epoch_is_followed_by_a_new_pid(tmp_path: Path) -> None:
    """The old pid stays fenced, with whatever it writes."""
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        client.create_topic("t")
        producer = TransactionalProducer.start(client, "name")
    with sqlite3.connect(tmp_path / "meta.sqlite") as stored:
        stored.execute("UPDATE transactions SET epoch = 32765")
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        last = TransactionalProducer("name", producer.pid, 32766)
        assert client.init("name") == (NONE, last.pid, last.epoch)
        assert client.add(last, {"t": [0]}) == [NONE]
        assert client.write(last, "t", [b"dropped"]).error is NONE
        error, pid, epoch = client.init("name", expected=(last.pid, last.epoch))
        assert (error, epoch) == (NONE, 0)  # 32767 is kept for the fence, and nobody is given it
        assert pid != last.pid
        assert client.init("name", expected=(last.pid, last.epoch)) == (NONE, pid, 0)
        for transactional, code in (
            (True, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
            (False, ErrorCode.INVALID_PRODUCER_EPOCH),
        ):
            assert client.write(last, "t", [b"zombie"], transactional=transactional).error is code
        assert client.add(last, {"t": [0]}) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
        assert client.end(last, commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        retired = client.write(last, "t", [b"zombie"], transactional=False)
        assert retired.error is ErrorCode.INVALID_PRODUCER_EPOCH
        assert client.fetch_committed("t").values == []


def test_a_plain_commit_after_staged_offsets_stays_also_through_a_restart(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        client.create_topic("t", partitions=2)
        await_coordinator(client, "group")
        producer = TransactionalProducer.start(client, "name")
        assert client.add_offsets(producer, "group") is NONE
        assert client.commit_offsets(producer, "group", {"t": {0: 5, 1: 6}}) == [NONE, NONE]
        assert plain_commit(client, "group", "t", 3) is NONE
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        assert client.group_offset("group", "t")[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT
        assert client.end(producer, commit=True) is NONE
        client.await_state("name", "CompleteCommit")
        assert [client.stable_group_offset("group", "t", partition=index) for index in (0, 1)] == [3, 6]
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        assert [client.stable_group_offset("group", "t", partition=index) for index in (0, 1)] == [3, 6]
