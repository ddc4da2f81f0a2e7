"""The real file operations, and those that fail on purpose."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path

import pytest

from fencepost.log.files import (
    OsFiles,
    WouldBlock,
    make_directories,
    read_file,
    write_all,
    write_file,
    write_file_atomically,
)
from tests.support.failing_files import FailingFiles, Stopped

pytestmark = pytest.mark.unit


class TestOsFiles:
    def test_bytes_are_written_and_read_at_positions(self, tmp_path: Path) -> None:
        files = OsFiles()
        fd = files.open(str(tmp_path / "file"), create=True)
        assert files.write(fd, b"hello world", 0) == 11
        assert files.write(fd, b"W", 6) == 1
        assert bytes(files.read(fd, 5, 6)) == b"World"
        assert bytes(files.read(fd, 100, 6)) == b"World"
        assert bytes(files.read(fd, 100, 50)) == b""
        files.truncate(fd, 5)
        files.sync(fd)
        files.close(fd)
        assert files.size(str(tmp_path / "file")) == 5

    def test_a_missing_file_is_made_only_if_asked_for(self, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            OsFiles().open(str(tmp_path / "missing"), create=False)
        assert not (tmp_path / "missing").exists()

    @pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="this system cannot be asked")
    def test_what_was_just_written_is_in_the_page_cache(self, tmp_path: Path) -> None:
        files = OsFiles()
        fd = files.open(str(tmp_path / "file"), create=True)
        files.write(fd, b"x" * 100_000, 0)
        try:
            assert bytes(files.read_nowait(fd, 100_000, 0)) == b"x" * 100_000
            assert bytes(files.read_nowait(fd, 10, 99_995)) == b"x" * 5
        except WouldBlock:
            assert files._nowait_flag is None  # a file system that does not support it says so once and for all
        files.close(fd)

    def test_a_read_cut_short_by_the_system_is_taken_up_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        files = OsFiles()
        fd = files.open(str(tmp_path / "file"), create=True)
        files.write(fd, bytes(range(200)), 0)
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, size, at: pread(fd, min(size, 7), at))
        assert bytes(files.read(fd, 150, 20)) == bytes(range(20, 170))
        assert bytes(files.read(fd, 500, 20)) == bytes(range(20, 200))
        files.close(fd)

    @pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EINVAL])
    def test_a_file_system_that_cannot_say_is_asked_once(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
    ) -> None:
        files = OsFiles()
        files._nowait_flag = 8
        fd = files.open(str(tmp_path / "file"), create=True)
        asked = []

        def refuse(*_: object) -> int:
            asked.append(1)
            raise OSError(error, "no")

        monkeypatch.setattr(os, "preadv", refuse)
        for _ in range(3):
            with pytest.raises(WouldBlock):
                files.read_nowait(fd, 10, 0)
        assert len(asked) == 1
        files.close(fd)

    def test_without_durability_nothing_is_synced(self, tmp_path: Path) -> None:
        files = OsFiles(durable=False)
        files.sync(-1)  # would fail, if it did anything
        files.sync_directory("/nowhere")


class TestHelpers:
    def test_short_writes_are_taken_up_again(self, tmp_path: Path) -> None:
        files = FailingFiles(tmp_path)
        fd = files.open(str(tmp_path / "file"), create=True)
        files.short_write(3)
        write_all(files, fd, b"0123456789", 0)
        files.close(fd)
        assert (tmp_path / "file").read_bytes() == b"0123456789"

    def test_a_disk_that_takes_nothing_is_an_error(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files = OsFiles()
        monkeypatch.setattr(files, "write", lambda *_: 0)
        with pytest.raises(OSError, match="nothing"):
            write_all(files, 0, b"x", 0)

    def test_a_file_is_replaced_as_a_whole(self, tmp_path: Path) -> None:
        files = FailingFiles(tmp_path)
        path = str(tmp_path / "file")
        write_file(files, path, b"a long content")
        write_file(files, path, b"short")
        assert read_file(files, path) == b"short"

    def test_written_atomically_it_is_the_old_or_the_new_one_at_every_stop(self, tmp_path: Path) -> None:
        for stop in range(20):
            root = tmp_path / f"{stop}"
            root.mkdir()
            files = FailingFiles(root)
            write_file_atomically(files, str(root), "file", b"old")
            files.stop_at(files.changes + stop)
            try:
                write_file_atomically(files, str(root), "file", b"the new one")
            except Stopped:
                files.lose_power(random.Random(stop))
                assert (root / "file").read_bytes() in (b"old", b"the new one")
            else:
                files.lose_power()
                assert (root / "file").read_bytes() == b"the new one"
                assert stop == 6
                return
        pytest.fail("it never came to its end")

    def test_missing_directories_are_made_and_named(self, tmp_path: Path) -> None:
        files = FailingFiles(tmp_path)
        path = str(tmp_path / "a" / "b")
        unsynced: list[str] = []
        make_directories(files, path, unsynced)
        assert unsynced == [path, str(tmp_path / "a"), str(tmp_path)]
        make_directories(files, path, unsynced)
        assert len(unsynced) == 3


class TestPowerFailure:
    """The model of a disk that other tests use."""

    @pytest.fixture
    def files(self, tmp_path: Path) -> FailingFiles:
        return FailingFiles(tmp_path)

    def test_bytes_survive_from_the_last_sync(self, tmp_path: Path, files: FailingFiles) -> None:
        fd = files.open(str(tmp_path / "file"), create=True)
        files.sync_directory(str(tmp_path))
        files.write(fd, b"synced", 0)
        files.sync(fd)
        files.write(fd, b"not", 6)
        files.write(fd, b"S", 0)
        files.lose_power()
        assert (tmp_path / "file").read_bytes() == b"synced"

    def test_a_name_survives_from_the_last_sync_of_its_directory(self, tmp_path: Path, files: FailingFiles) -> None:
        write_file(files, str(tmp_path / "a"), b"1")
        files.sync_directory(str(tmp_path))
        files.rename(str(tmp_path / "a"), str(tmp_path / "b"))
        write_file(files, str(tmp_path / "c"), b"1")
        files.lose_power()
        assert os.listdir(tmp_path) == ["a"]

    def test_a_removed_file_comes_back(self, tmp_path: Path, files: FailingFiles) -> None:
        write_file(files, str(tmp_path / "a"), b"1")
        files.sync_directory(str(tmp_path))
        files.remove(str(tmp_path / "a"))
        files.lose_power()
        assert (tmp_path / "a").read_bytes() == b"1"

    def test_a_failed_sync_forgets_what_it_should_have_written(self, tmp_path: Path, files: FailingFiles) -> None:
        fd = files.open(str(tmp_path / "file"), create=True)
        files.sync_directory(str(tmp_path))
        files.write(fd, b"lost", 0)
        files.fail_next("sync", errno.EIO)
        with pytest.raises(OSError, match="Input/output"):
            files.sync(fd)
        files.write(fd, b"kept", 4)
        files.sync(fd)
        assert bytes(files.read(fd, 8, 0)) == b"lostkept"
        files.lose_power()
        assert (tmp_path / "file").read_bytes() == b"\0\0\0\0kept"

    def test_by_chance_some_of_it_survives(self, tmp_path: Path) -> None:
        outcomes = set()
        for seed in range(60):
            root = tmp_path / f"{seed}"
            root.mkdir()
            files = FailingFiles(root)
            fd = files.open(str(root / "file"), create=True)
            files.sync_directory(str(root))
            files.write(fd, b"data", 0)
            files.lose_power(random.Random(seed))
            outcomes.add((root / "file").read_bytes())
            files.close(fd)
        assert {b"", b"data", bytes(4)} < outcomes

    def test_a_stopped_process_changes_nothing_any_more(self, tmp_path: Path, files: FailingFiles) -> None:
        fd = files.open(str(tmp_path / "file"), create=True)
        files.stop_at(files.changes)
        with pytest.raises(Stopped):
            files.write(fd, b"0123456789", 0)
        assert (tmp_path / "file").read_bytes() == b"01234"  # half of the interrupted write took effect
        for attempt in (
            lambda: files.sync(fd),
            lambda: files.truncate(fd, 0),
            lambda: files.rename(str(tmp_path / "file"), str(tmp_path / "other")),
            lambda: files.remove(str(tmp_path / "file")),
            lambda: files.open(str(tmp_path / "new"), create=True),
        ):
            with pytest.raises(Stopped):
                attempt()
        assert os.listdir(tmp_path) == ["file"]

    def test_a_full_disk_takes_what_fits_and_has_room_again_after_a_cut(
        self, tmp_path: Path, files: FailingFiles
    ) -> None:
        fd = files.open(str(tmp_path / "file"), create=True)
        files.free_bytes = 6
        assert files.write(fd, b"0123456789", 0) == 6
        with pytest.raises(OSError, match="No space"):
            files.write(fd, b"x", 6)
        assert files.write(fd, b"x", 0) == 1  # nothing grows
        files.truncate(fd, 2)
        assert files.write(fd, b"abc", 2) == 3
