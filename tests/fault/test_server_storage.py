"""The server on a disk that fails: nothing acknowledged is lost, nothing unsynced is shown, and it recovers."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.batches import batch
from tests.support.failing_files import FailingFiles, GatedFiles
from tests.support.raw import RawClient

pytestmark = pytest.mark.fault


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[tuple[RawClient, RawClient, GatedFiles]]:
    files = GatedFiles()
    with (
        fencepost.Server(tmp_path / "data", sync="always", files=files) as server,
        RawClient(server.address) as writer,
        RawClient(server.address) as reader,
    ):
        writer.create_topic("t")
        writer.produce("t", batch([b"before"]))
        yield writer, reader, files
        files.gate.set()


def test_a_record_is_neither_acknowledged_nor_readable_before_its_sync(
    gated: tuple[RawClient, RawClient, GatedFiles],
) -> None:
    writer, reader, files = gated
    files.gate.clear()
    writer.send_produce("t", batch([b"waiting"]))
    assert reader.end_offset("t") == 1  # answered, although the other connection's sync hangs
    assert reader.fetch("t", 0).values == [b"before"]
    assert not writer.has_answer()
    files.gate.set()
    assert writer.receive_produced().base_offset == 1
    assert reader.end_offset("t") == 2


def test_pipelined_batches_share_a_sync_and_are_answered_in_order(
    gated: tuple[RawClient, RawClient, GatedFiles],
) -> None:
    writer, _, files = gated
    files.gate.clear()
    for number in range(20):
        writer.send_produce("t", batch([b"%d" % number]))
    files.gate.set()
    assert [writer.receive_produced().base_offset for _ in range(20)] == list(range(1, 21))


def test_after_a_failed_sync_nothing_is_acknowledged_until_the_log_is_reopened(tmp_path: Path) -> None:
    (tmp_path / "data" / "logs").mkdir(parents=True)
    files = FailingFiles(tmp_path)
    with (
        fencepost.Server(tmp_path / "data", sync="always", files=files) as server,
        RawClient(server.address) as client,
    ):
        client.create_topic("t")
        assert client.produce("t", batch([b"kept"])).base_offset == 0
        files.fail_next("sync", errno.EIO)
        assert client.produce("t", batch([b"doubtful"])).error is ErrorCode.KAFKA_STORAGE_ERROR
        acknowledged = None
        for _ in range(1000):
            answer = client.produce("t", batch([b"after"]))
            if answer.error is ErrorCode.NONE:
                acknowledged = answer.base_offset
                break
            assert answer.error is ErrorCode.KAFKA_STORAGE_ERROR
        assert acknowledged is not None, "the partition did not come back"
        values = client.fetch("t", 0).values
        assert values[0] == b"kept"
        assert values[acknowledged] == b"after"


@pytest.mark.parametrize("sync", ["always", "os"])
def test_a_full_disk_refuses_writes_serves_reads_and_recovers_when_there_is_room(tmp_path: Path, sync: str) -> None:
    (tmp_path / "data" / "logs").mkdir(parents=True)
    files = FailingFiles(tmp_path)
    with (
        fencepost.Server(tmp_path / "data", sync=sync, files=files) as server,  # type: ignore[arg-type]
        RawClient(server.address) as client,
    ):
        client.create_topic("t")
        assert client.produce("t", batch([b"kept"])).base_offset == 0
        files.free_bytes = 10
        for _ in range(3):
            assert client.produce("t", batch([b"too much"])).error is ErrorCode.KAFKA_STORAGE_ERROR
        assert client.fetch("t", 0).values == [b"kept"]
        files.free_bytes = None
        assert client.produce("t", batch([b"room again"])).base_offset == 1
        assert client.fetch("t", 0).values == [b"kept", b"room again"]
