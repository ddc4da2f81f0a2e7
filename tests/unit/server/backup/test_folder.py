"""Backups in a folder: which of its contents are backups, and what a new one may remove."""

from __future__ import annotations

from pathlib import Path

import pytest

from fencepost.errors import StorageError
from fencepost.server.backup.folder import BackupReport, back_up, backups_in, name_of, newest_in
from fencepost.server.backup.manifest import MANIFEST, STORE, Point, PointFile
from fencepost.server.backup.point import PointFiles
from tests.support.backups import ignore

pytestmark = pytest.mark.unit

NOW = 1_790_000_000_000


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder


def take(dest: Path, at: int, *, keep: int | None = None, cluster: str = "ours") -> BackupReport:
    store = dest.parent / STORE
    store.write_bytes(b"rows")
    point = Point("0.1.0", at, cluster, (PointFile(STORE, 4),))
    return back_up(PointFiles(point, dest.parent, store), dest, advance=ignore, keep=keep)


@pytest.mark.parametrize("name", ["00-website", "before-the-upgrade", "zz-extension"])
def test_a_folder_with_another_name_is_neither_removed_nor_restored(dest: Path, name: str) -> None:
    (dest / name).mkdir()
    (dest / name / MANIFEST).write_text("{}")
    for at in range(3):
        made = take(dest, NOW + at, keep=1)
    assert (dest / name / MANIFEST).exists()
    assert backups_in(dest) == [made.backup]
    assert newest_in(dest) == made.backup


def test_what_others_leave_half_done_stays_there(dest: Path) -> None:
    (dest / ".all.part").write_bytes(b"somebody else's")
    (dest / ".download.part").mkdir()
    (dest / f".{name_of(NOW)}.part").mkdir()
    made = take(dest, NOW + 1)
    left = {path.name for path in dest.iterdir()}
    assert left == {".lock", ".all.part", ".download.part", made.backup.name}


def test_backups_of_another_server_are_not_mixed_with_ours(dest: Path) -> None:
    theirs = take(dest, NOW, cluster="theirs")
    with pytest.raises(StorageError, match=r"backups of another server \(cluster theirs"):
        take(dest, NOW + 1, keep=1)
    assert backups_in(dest) == [theirs.backup]


@pytest.mark.parametrize("earlier", [0, 1, 3_600_000])
def test_a_backup_that_would_not_be_the_newest_is_refused(dest: Path, earlier: int) -> None:
    made = take(dest, NOW)
    with pytest.raises(StorageError, match="set the clock of this machine right"):
        take(dest, NOW - earlier, keep=1)
    assert backups_in(dest) == [made.backup]


def test_a_file_that_became_shorter_ends_the_backup(dest: Path) -> None:
    store = dest.parent / STORE
    store.write_bytes(b"rows")
    files = PointFiles(Point("0.1.0", NOW, "ours", (PointFile(STORE, 5),)), dest.parent, store)
    with pytest.raises(StorageError, match="a file changed while it was copied"):
        back_up(files, dest, advance=ignore)
    assert [path.name for path in dest.iterdir()] == [".lock"]
