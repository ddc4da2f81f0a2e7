"""What lies in a data directory and is not the server's, or is all that is left of it, outlives every start."""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fencepost
from fencepost.client.admin_client import Admin
from fencepost.errors import DataDirectoryError
from tests.support.batches import batch
from tests.support.raw import RawClient

pytestmark = pytest.mark.fault


def written(data: Path, *topics: str) -> list[Path]:
    """A server's run that wrote a record to each topic; their folders."""
    with fencepost.Server(data) as server, RawClient(server.address) as client:
        for topic in topics:
            client.create_topic(topic)
            client.produce(topic, batch([b"kept"]))
    return sorted((data / "logs").iterdir())


def files_in(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}


def no_store(data: Path) -> None:
    for path in data.glob("meta.sqlite*"):
        path.unlink()


def empty_store(data: Path) -> None:
    no_store(data)
    (data / "meta.sqlite").touch()


@pytest.mark.parametrize("lose", [no_store, empty_store])
def test_a_lost_metadata_store_does_not_cost_the_records(tmp_path: Path, lose: Callable[[Path], None]) -> None:
    written(tmp_path, "orders")
    lose(tmp_path)
    before = files_in(tmp_path)
    with pytest.raises(DataDirectoryError, match=r"logs is not empty, but there is no meta\.sqlite"):
        fencepost.Server(tmp_path).start()
    assert files_in(tmp_path) == before


def test_a_directory_of_somebody_else_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "logs" / "2026").mkdir(parents=True)
    (tmp_path / "logs" / "2026" / "access.log").write_bytes(b"GET /")
    with pytest.raises(DataDirectoryError, match="nothing was changed"):
        fencepost.Server(tmp_path).start()
    assert files_in(tmp_path) == {tmp_path / "logs" / "2026" / "access.log": b"GET /"}


def test_a_folder_that_is_no_topics_is_named_and_kept(tmp_path: Path) -> None:
    written(tmp_path, "orders")
    stranger = tmp_path / "logs" / "backup-of-orders"
    stranger.mkdir()
    before = files_in(tmp_path)
    with pytest.raises(DataDirectoryError, match=r"backup-of-orders is not a topic's folder"):
        fencepost.Server(tmp_path).start()
    assert stranger.is_dir()
    assert files_in(tmp_path) == before


def test_a_topic_that_a_restored_older_store_does_not_know_keeps_its_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = tmp_path / "data"
    written(data, "old")
    shutil.copy(data / "meta.sqlite", tmp_path / "backup.sqlite")
    both = written(data, "new")
    no_store(data)
    shutil.copy(tmp_path / "backup.sqlite", data / "meta.sqlite")
    with fencepost.Server(data) as server, RawClient(server.address) as client:
        assert client.fetch("old", 0).values == [b"kept"]
    assert sorted((data / "logs").iterdir()) == both
    assert [record.message.partition(" ")[2] for record in caplog.records if record.levelno == logging.WARNING] == [
        "belongs to no topic; the server leaves it alone"
    ]


def test_a_deleted_topics_folder_left_by_a_crash_is_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (folder,) = written(tmp_path, "orders")
    with monkeypatch.context() as killed_before_the_removal:
        killed_before_the_removal.setattr(shutil, "rmtree", lambda folder, ignore_errors: None)
        with fencepost.Server(tmp_path) as server, Admin(server.address) as admin:
            admin.delete_topics(["orders"])
    assert folder.exists()
    with caplog.at_level(logging.INFO), fencepost.Server(tmp_path):
        while folder.exists():
            time.sleep(0.01)
    assert f"removing {folder}: its topic was deleted" in caplog.messages


def test_the_folder_of_a_topic_that_is_made_during_the_sweep_is_not_called_strange(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever believes that a folder belongs to no topic deletes it."""
    (folder,) = written(tmp_path, "old")
    with sqlite3.connect(tmp_path / "meta.sqlite") as store:
        store.execute("DELETE FROM topics")
        store.execute("INSERT INTO deleted_folders (folder) VALUES (?)", (folder.name,))
    store.close()
    made = threading.Event()
    remove = shutil.rmtree

    def late(path: Path, *, ignore_errors: bool = False) -> None:
        made.wait()
        remove(path, ignore_errors=ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", late)
    with fencepost.Server(tmp_path) as server, RawClient(server.address) as client:
        client.create_topic("new")
        client.produce("new", batch([b"live"]))
        made.set()
        while folder.exists():
            time.sleep(0.005)
    assert "belongs to no topic" not in caplog.text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_nobody_else_can_read_what_the_server_makes(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        data = tmp_path / "above" / "data"
        with fencepost.Server(data) as server, RawClient(server.address) as client:
            client.create_topic("t", configs={"segment.bytes": "200"})
            for _ in range(3):
                client.produce("t", batch([b"x" * 100]))
            while_running = [data, *data.rglob("*")]
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in while_running}
        modes |= {path.name: stat.S_IMODE(path.stat().st_mode) for path in data.rglob("*")}
    finally:
        os.umask(old)
    assert {"meta.sqlite-wal", "fencepost.lock"} <= set(modes)
    assert any(name.endswith(".snapshot") for name in modes)
    wrong = {name: oct(mode) for name, mode in modes.items() if mode not in (0o700, 0o600)}
    assert wrong == {}


def test_a_directory_that_was_there_before_becomes_private(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "logs").mkdir(parents=True)
    data.chmod(0o755)
    (data / "logs").chmod(0o755)
    written(data, "t")
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (data, data / "logs")] == [0o700, 0o700]
