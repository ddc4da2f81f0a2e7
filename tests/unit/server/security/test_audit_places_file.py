"""The file of the audit log: its mode, its rotation, and disks that are full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fencepost.errors import StorageError
from fencepost.server.security.audit_places import AuditFile

pytestmark = pytest.mark.unit


def lines(*numbers: int) -> list[bytes]:
    return [f"line {number:04}\n".encode() for number in numbers]  # 10 bytes each


def test_only_the_servers_user_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    path.touch(mode=0o644)
    AuditFile(path, 100, 3).close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_files_are_rotated_by_size_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, 25, 3)
    given = lines(*range(9))
    file.write(given)
    file.close()
    assert given == []
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {
        "audit.log": b"".join(lines(8)),
        "audit.log.1": b"".join(lines(6, 7)),
        "audit.log.2": b"".join(lines(4, 5)),
    }
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}


def test_one_file_is_emptied(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, 25, 1)
    file.write([*lines(1, 2, 3), b"x" * 100])
    file.close()
    assert [each.name for each in tmp_path.iterdir()] == ["audit.log"]
    assert path.read_bytes() == b"x" * 100


def test_a_file_that_another_tool_has_moved_is_opened_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, 1000, 3)
    file.write(lines(1))
    path.rename(tmp_path / "moved")
    file.write(lines(2))
    path.unlink()
    file.write(lines(3))
    file.close()
    assert (tmp_path / "moved").read_bytes() == b"line 0001\n"
    assert path.read_bytes() == b"line 0003\n"


def test_it_continues_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for number in (1, 2, 3):
        file = AuditFile(path, 25, 3)
        file.write(lines(number))
        file.close()
    assert path.read_bytes() == b"line 0003\n"
    assert (tmp_path / "audit.log.1").read_bytes() == b"line 0001\nline 0002\n"


def test_a_full_disk_leaves_no_half_line_and_the_rest_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.log"
    file = AuditFile(path, 1000, 3)
    file.write(lines(1))
    room = 4
    really = os.write

    def write(fd: int, data: memoryview) -> int:
        nonlocal room
        if room <= 0:
            raise OSError(28, "No space left on device")
        written = really(fd, data[:room])
        room -= written
        return written

    rest = lines(2, 3)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(StorageError, match="No space left"):
            file.write(rest)
    assert path.read_bytes() == b"line 0001\n"
    file.write(rest)
    file.close()
    assert path.read_bytes() == b"line 0001\nline 0002\nline 0003\n"


@pytest.mark.parametrize("wrong", ["missing/audit.log", "folder", "link"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=f"audit log {tmp_path / wrong}"):
        AuditFile(tmp_path / wrong, 100, 3)
