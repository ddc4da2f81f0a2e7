"""Many files with a limit on the open ones."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from fencepost.log.files import OsFiles
from fencepost.log.handles import FileHandle, Handles
from tests.support.failing_files import FailingFiles

pytestmark = pytest.mark.unit


@pytest.fixture
def files(tmp_path: Path) -> FailingFiles:
    return FailingFiles(tmp_path)


def make_handles(tmp_path: Path, count: int) -> list[FileHandle]:
    for number in range(count):
        (tmp_path / f"{number}").write_bytes(b"%d" % number)
    return [FileHandle(str(tmp_path / f"{number}")) for number in range(count)]


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def test_no_more_files_are_open_than_allowed(tmp_path: Path) -> None:
    handles = Handles(OsFiles(), limit=3)
    for handle in make_handles(tmp_path, 10):
        with handles.using(handle) as fd:
            assert os.pread(fd, 1, 0) == Path(handle.path).read_bytes()
        assert len(handles) <= 3
    handles.close()
    assert len(handles) == 0


def test_the_one_used_longest_ago_is_closed_first(tmp_path: Path) -> None:
    handles = Handles(OsFiles(), limit=2)
    first, second, third = make_handles(tmp_path, 3)
    for handle in (first, second, first, third):
        with handles.using(handle):
            pass
    assert (first.fd >= 0, second.fd >= 0, third.fd >= 0) == (True, False, True)


def test_a_file_that_somebody_uses_is_not_closed_under_him(tmp_path: Path) -> None:
    handles = Handles(OsFiles(), limit=1)
    first, second, third = make_handles(tmp_path, 3)
    fd = handles.acquire(first)
    for handle in (second, third):
        with handles.using(handle):
            assert is_open(fd)
    assert os.pread(fd, 1, 0) == b"0"
    handles.release(first)
    assert len(handles) <= 1


def test_the_limit_is_kept_again_when_all_are_released(tmp_path: Path) -> None:
    handles = Handles(OsFiles(), limit=2)
    held = make_handles(tmp_path, 5)
    for handle in held:
        handles.acquire(handle)
    assert len(handles) == 5
    for handle in held:
        handles.release(handle)
    assert len(handles) == 2


def test_a_discarded_file_is_closed_when_its_last_user_is_done(tmp_path: Path) -> None:
    handles = Handles(OsFiles(), limit=5)
    (handle,) = make_handles(tmp_path, 1)
    fd = handles.acquire(handle)
    handles.acquire(handle)
    handles.discard(handle)
    handles.release(handle)
    assert is_open(fd)
    handles.release(handle)
    assert not is_open(fd)
    assert len(handles) == 0


def test_a_discarded_file_can_be_opened_again(tmp_path: Path) -> None:
    handles = Handles(OsFiles(), limit=5)
    (handle,) = make_handles(tmp_path, 1)
    with handles.using(handle):
        pass
    handles.discard(handle)
    handles.discard(handle)
    with handles.using(handle) as fd:
        assert is_open(fd)


def test_when_the_process_may_open_no_more_some_are_closed_and_it_is_tried_again(
    tmp_path: Path, files: FailingFiles, caplog: pytest.LogCaptureFixture
) -> None:
    made = make_handles(tmp_path, 5)
    files = FailingFiles(tmp_path)
    handles = Handles(files, limit=100)
    for handle in made[:4]:
        with handles.using(handle):
            pass
    files.fail_next("open", errno.EMFILE)
    with handles.using(made[4]) as fd:
        assert is_open(fd)
    assert len(handles) == 3
    files.fail_next("open", errno.EMFILE)
    with handles.using(made[0]):
        assert [record.getMessage() for record in caplog.records] == [
            (
                "the process may open no more files (Too many open files), of which 4 are logs: raise its limit "
                "(ulimit -n), or lower max_connections"
            )
        ], "one line a minute"


def test_another_error_is_passed_on_and_nothing_is_held(tmp_path: Path, files: FailingFiles) -> None:
    handles = Handles(files, limit=2)
    handle = FileHandle(str(tmp_path / "missing"))
    with pytest.raises(FileNotFoundError):
        handles.acquire(handle)
    assert len(handles) == 0
    assert handle.users == 0


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Handles(OsFiles(), limit=0)


def test_threads_that_share_few_handles_each_read_the_right_file(tmp_path: Path) -> None:
    """Handles are evicted while other threads read; every read must come from the right file."""
    handles = Handles(OsFiles(), limit=2)
    made = make_handles(tmp_path, 8)
    wrong: list[tuple[int, bytes]] = []
    start = threading.Barrier(4)

    def work(seed: int) -> None:
        start.wait()
        for step in range(500):
            number = (seed * 7 + step * 5) % len(made)
            with handles.using(made[number]) as fd:
                content = os.pread(fd, 1, 0)
            if content != b"%d" % number:
                wrong.append((number, content))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(handles) <= 2
