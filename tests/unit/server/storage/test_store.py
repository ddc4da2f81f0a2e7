"""The metadata store: shared commits, all or nothing, one owner, one format."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from fencepost.errors import DataDirectoryError, StorageError
from fencepost.log import snapshot
from fencepost.server.config.settings import Sync
from fencepost.server.storage.datadir import DataDirectory
from fencepost.server.storage.store import FORMAT_VERSION, Store

pytestmark = pytest.mark.unit


def set_meta(name: str, value: str) -> tuple[str, tuple[str, str]]:
    return "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, value)


async def test_what_was_executed_is_there_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "always")
    await store.execute([set_meta("a", "1"), set_meta("b", "2")])
    store.close()
    again = Store(tmp_path / "meta.sqlite", "always")
    assert again.query("SELECT name, value FROM meta ORDER BY name") == [("a", "1"), ("b", "2")]
    again.close()


async def test_many_waiting_changes_share_a_few_commits(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "always")
    await asyncio.gather(*(store.execute([set_meta(str(i), "x")]) for i in range(1000)))
    store.close()
    assert store.commits < 100


@pytest.mark.parametrize("value", [2**70, "\ud800", object()], ids=["number", "text", "object"])
@pytest.mark.parametrize("together", [False, True], ids=["alone", "with others"])
async def test_a_value_that_cannot_be_stored_is_refused_and_the_store_goes_on(
    tmp_path: Path, value: object, together: bool
) -> None:
    """Not all of these are SQLite's own errors. One that is not once ended the thread, and all changes waited
    forever."""
    store = Store(tmp_path / "meta.sqlite", "os")
    change = [("INSERT OR REPLACE INTO meta (name, value) VALUES ('a', ?)", (value,))]
    wrong = store.execute([*change, set_meta("c", "3")] if together else change)
    right = store.execute([set_meta("b", "2")])
    with pytest.raises(StorageError):
        await asyncio.wait_for(wrong, 30)
    await asyncio.wait_for(right, 30)
    assert store.query("SELECT name FROM meta") == [("b",)]
    store.close()


async def test_a_statement_that_fails_changes_nothing_and_the_store_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "os")
    wrong = store.execute([set_meta("a", "1"), ("INSERT INTO nowhere VALUES (1)", ())])
    right = store.execute([set_meta("b", "2")])
    with pytest.raises(StorageError):
        await wrong
    await right
    assert store.query("SELECT name FROM meta") == [("b",)]
    store.close()


@pytest.mark.parametrize("sync", ["os", "always"])
async def test_one_statement_alone_is_a_transaction_by_itself(tmp_path: Path, sync: Sync) -> None:
    store = Store(tmp_path / "meta.sqlite", sync)
    seen: list[str] = []
    store._connection.set_trace_callback(seen.append)
    await store.execute([set_meta("a", "1")])
    with pytest.raises(StorageError, match="cannot write metadata"):
        await store.execute([("INSERT INTO nowhere VALUES (1)", ())])
    await store.execute([set_meta("b", "2")])
    store.close()
    assert [statement for statement in seen if not statement.startswith("INSERT")] == ["ROLLBACK"]
    again = Store(tmp_path / "meta.sqlite", sync)
    assert again.query("SELECT name FROM meta ORDER BY name") == [("a",), ("b",)]
    again.close()


@pytest.mark.parametrize(("found", "age"), [(FORMAT_VERSION + 1, "newer"), (FORMAT_VERSION - 1, "older")])
def test_another_format_is_refused_with_both_numbers(tmp_path: Path, found: int, age: str) -> None:
    path = tmp_path / "meta.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {found}")
    connection.close()
    with pytest.raises(
        DataDirectoryError, match=rf"{age} fencepost \(format {found}, this version supports {FORMAT_VERSION}\)"
    ):
        Store(path, "os")


def test_the_format_version_covers_the_snapshots_too() -> None:
    """An older server takes a snapshot with an unknown head for damage: change both numbers together."""
    assert (FORMAT_VERSION, snapshot._MAGIC) == (2, b"fencepS2")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "meta.sqlite"
    path.write_bytes(b"this is not a database, it only has the name of one" * 100)
    with pytest.raises(DataDirectoryError, match=r"meta\.sqlite"):
        Store(path, "os")


def test_a_data_directory_has_one_owner(tmp_path: Path) -> None:
    first = DataDirectory(tmp_path / "data")
    with pytest.raises(DataDirectoryError, match="in use by another fencepost server"):
        DataDirectory(first.path)
    first.close()
    DataDirectory(tmp_path / "data").close()


def test_a_temporary_directory_goes_away() -> None:
    directory = DataDirectory(None)
    assert directory.logs.is_dir()
    directory.close()
    assert not directory.path.exists()


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot use"):
        DataDirectory(tmp_path / "file" / "data")


def test_a_look_shows_what_was_executed_before_it_and_nothing_later(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "os")
    put = "INSERT INTO meta (name, value) VALUES (?, '')"

    async def main() -> list[str]:
        before = [store.execute([(put, (f"before {number}",))]) for number in range(50)]
        looking = store.look()
        after = [store.execute([(put, (f"after {number}",))]) for number in range(50)]
        with closing(await looking) as reading:
            await asyncio.gather(*before, *after)
            return [str(name) for (name,) in reading.execute("SELECT name FROM meta")]

    try:
        assert sorted(asyncio.run(main())) == sorted(f"before {number}" for number in range(50))
        assert len(store.query("SELECT name FROM meta")) == 100
    finally:
        store.close()


# --- commits on the loop ---


def put_token(store: Store, number: int) -> asyncio.Future[None]:
    return store.execute([set_meta("token", str(number))], at_once=True)


async def test_a_commit_on_the_loop_is_done_at_once_and_there_after_a_restart(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "os")
    await put_token(store, 1)  # by the thread, which opens the loop's connection
    for number in range(2, 1200):
        done = put_token(store, number)
        if not done.done():  # now and then it is the thread's turn
            await done
    assert store._here is not None
    await store.execute([set_meta("other", "x")])
    assert store.query("SELECT value FROM meta WHERE name = 'token'") == [("1199",)]
    store.close()
    again = Store(tmp_path / "meta.sqlite", "os")
    assert again.query("SELECT value FROM meta WHERE name = 'token'") == [("1199",)]
    again.close()


async def test_a_commit_beside_an_earlier_change_makes_the_next_one_the_loops(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "os")
    released = threading.Event()
    store._connection.create_function("wait", 0, released.wait)
    earlier = store.execute([("SELECT wait()", ())])
    beside = put_token(store, 1)
    assert not beside.done()
    released.set()
    await asyncio.gather(earlier, beside)
    while store._handed_over != store._done:
        await asyncio.sleep(0.001)
    assert put_token(store, 2).done()
    store.close()


async def test_most_commits_on_the_loop_do_not_wait_for_the_thread(tmp_path: Path) -> None:
    """But some do, since only the thread copies the write-ahead log back, which would grow for ever."""
    store = Store(tmp_path / "meta.sqlite", "os")
    await put_token(store, 1)
    late = 0
    for number in range(3000):
        done = put_token(store, number)
        late += not done.done()
        await done
        while store._handed_over != store._done:
            await asyncio.sleep(0.001)
    assert 3000 // 501 <= late <= 3000 // 500 + 1
    assert (tmp_path / "meta.sqlite-wal").stat().st_size < 2000 * 4200
    store.close()


async def test_no_commit_on_the_loop_begins_the_write_ahead_log_anew(tmp_path: Path) -> None:
    """SQLite syncs the new beginning, also with --sync os: the loop would wait for the disk."""
    store = Store(tmp_path / "meta.sqlite", "os")
    log = tmp_path / "meta.sqlite-wal"

    def beginning() -> bytes:
        with log.open("rb") as file:
            return file.read(32)

    here, changes = 0, set()
    await put_token(store, 1)
    for number in range(2500):
        while store._handed_over != store._done:
            await asyncio.sleep(0.001)
        before = beginning()
        done = put_token(store, number)
        if done.done():
            here += 1
            assert beginning() == before
        changes.add(before)
        await done
    assert here > 2000
    assert len(changes) > 1
    store.close()


async def test_with_a_sync_every_commit_is_the_threads(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "always")
    for number in range(3):
        done = put_token(store, number)
        assert not done.done()
        await done
    assert store._here is None
    store.close()


async def test_a_commit_on_the_loop_does_not_overtake_an_earlier_change(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "os")
    await put_token(store, 1)
    for number in range(200):
        earlier = store.execute([set_meta("token", "earlier")])
        await asyncio.gather(earlier, put_token(store, number))
    assert store.query("SELECT value FROM meta WHERE name = 'token'") == [("199",)]
    store.close()


async def test_a_failed_commit_on_the_loop_is_reported_and_the_store_goes_on(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "os")
    await put_token(store, 1)
    with pytest.raises(StorageError, match="cannot write metadata"):
        await store.execute([("INSERT INTO nowhere VALUES (1)", ())], at_once=True)
    await put_token(store, 2)
    assert store.query("SELECT value FROM meta WHERE name = 'token'") == [("2",)]
    store.close()


async def test_a_store_in_exclusive_mode_commits_nothing_on_the_loop(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "os")
    store._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    await store.execute([set_meta("first", "takes the lock")])
    for number in range(5):
        await put_token(store, number)
    assert store._here is None
    assert store.query("SELECT value FROM meta WHERE name = 'token'") == [("4",)]
    store.close()


def test_a_look_shows_what_was_committed_on_the_loop_before_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "meta.sqlite", "os")

    async def main() -> str:
        for number in range(3):
            await put_token(store, number)
        looking = store.look()
        after = put_token(store, 3)
        with closing(await looking) as reading:
            await after
            (value,) = reading.execute("SELECT value FROM meta WHERE name = 'token'").fetchone()
            return str(value)

    try:
        assert asyncio.run(main()) == "2"
    finally:
        store.close()
