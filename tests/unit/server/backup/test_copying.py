"""Copies: exact for every size, past the page cache where the file system can do that, and cloned where it can be."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from fencepost.log.files import Buffer, OsFiles
from fencepost.server.backup.copying import CHUNK, Copier, DirectFiles, direct
from tests.support.backups import ignore

pytestmark = pytest.mark.unit

SIZES = [0, 1, 4095, 4096, 65_536, 65_537, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 4097]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(random.Random(1).randbytes(max(SIZES) + 10))
    return path


class WatchedDisk(DirectFiles):
    """A disk that notes which writes go past the page cache."""

    def __init__(self) -> None:
        super().__init__()
        self.direct: list[bool] = []

    def write(self, fd: int, data: Buffer, position: int) -> int:
        is_direct = direct(fd, on=False)
        if is_direct:
            direct(fd, on=True)
        self.direct.append(is_direct)
        return super().write(fd, data, position)


def supports_direct(folder: Path) -> bool:
    if not hasattr(os, "O_DIRECT"):
        return False
    try:
        os.close(os.open(folder / "probe", os.O_CREAT | os.O_RDWR | os.O_DIRECT))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("disk", [OsFiles, DirectFiles])
def test_a_copy_has_the_bytes_and_their_checksum(source: Path, size: int, disk: type[OsFiles]) -> None:
    target = source.with_name("target")
    done: list[int] = []
    checksum = Copier(disk(), done.append).copy(source, target, size)
    assert target.read_bytes() == source.read_bytes()[:size]
    assert checksum == crc32c(source.read_bytes()[:size])
    assert sum(done) == size


def test_a_large_file_does_not_go_through_the_page_cache(source: Path) -> None:
    disk = WatchedDisk()
    Copier(disk, ignore).copy(source, source.with_name("target"), 2 * CHUNK)
    assert disk.direct == [supports_direct(source.parent)] * 2


def test_an_old_kernel_copies_the_same(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preadv = os.preadv

    def refuse(fd: int, buffers: Any, position: int, flags: int = 0) -> int:
        if flags:
            raise OSError(errno.EOPNOTSUPP, "Operation not supported")
        return preadv(fd, buffers, position)

    def refuse_space(*_: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr("os.preadv", refuse)
    monkeypatch.setattr("os.posix_fallocate", refuse_space)
    target = source.with_name("target")
    Copier(DirectFiles(), ignore).copy(source, target, 2 * CHUNK + 5)
    assert target.read_bytes() == source.read_bytes()[: 2 * CHUNK + 5]


def test_space_that_is_missing_is_known_before_the_first_byte(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if not supports_direct(source.parent):
        return
    monkeypatch.setattr("os.posix_fallocate", full)
    disk = WatchedDisk()
    with pytest.raises(OSError, match="No space left"):
        Copier(disk, ignore).copy(source, source.with_name("target"), 2 * CHUNK)
    assert disk.direct == []
