"""`fencepost check` finds what was damaged in a stopped server's data, and repairs only a torn end."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import fencepost
from fencepost.log.checking import FlawKind, check_log
from fencepost.log.files import OsFiles
from fencepost.server.backup.checking import CheckReport, check
from tests.support.backups import command, create, files_below, ignore, read, write
from tests.support.log_bed import NOW, SMALL, LogBed, append, make_batch

pytestmark = pytest.mark.fault


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The data of a stopped server: a topic with several segments."""
    with fencepost.Server(tmp_path / "data") as server:
        create(server.address, "orders", segment_bytes="1000", index_interval_bytes="100")
        for number in range(12):
            write(server.address, "orders", [b"%d" % number + b"." * 200])
    return tmp_path / "data"


def look(data: Path, *, repair: bool = False) -> CheckReport:
    return check(data, repair=repair, advance=ignore)


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def test_what_a_server_leaves_is_whole(data: Path) -> None:
    report = look(data)
    assert report.findings == []
    assert (report.partitions, report.batches) == (1, 12)


def test_what_a_killed_server_leaves_is_whole(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path / "data", process=True) as server:
        create(server.address, "orders", segment_bytes="1000")
        write(server.address, "orders", [b"." * 200] * 12)
        server.kill()
    assert not look(tmp_path / "data").is_damaged


def _first_log(data: Path) -> Path:
    path = files_below(data, "*.log")[0]
    flip(path, 100)
    return path


def _last_log_behind(data: Path) -> Path:
    """A batch that is followed by a good one, behind the last snapshot: damage, not a torn end."""
    for snapshot in files_below(data, "*.snapshot"):
        snapshot.unlink()
    path = files_below(data, "*.log")[0]
    for later in files_below(data, "*.log")[1:]:
        later.unlink()
    flip(path, 100)
    return path


def _index(data: Path) -> Path:
    path = next(path for path in files_below(data, "*.index") if path.stat().st_size)
    flip(path, 0)
    return path


def _snapshot(data: Path) -> Path:
    path = files_below(data, "*.snapshot")[-1]
    flip(path, 40)
    return path


def _store(data: Path) -> Path:
    path = data / "meta.sqlite"
    content = bytearray(path.read_bytes())
    content[100:] = bytes(len(content) - 100)
    path.write_bytes(content)
    return path


def _row(data: Path) -> Path:
    with closing(sqlite3.connect(data / "meta.sqlite")) as store, store:
        store.execute("INSERT INTO transactions VALUES ('relay', 1, 1, 'Nonsense', 0, '{}')")
    return data / "meta.sqlite"


def _missing_segment(data: Path) -> Path:
    logs = files_below(data, "*.log")
    logs[1].unlink()
    return logs[2]


def _missing_first_segment(data: Path) -> Path:
    logs = files_below(data, "*.log")
    logs[0].unlink()
    return logs[1]


DAMAGES = [_first_log, _last_log_behind, _index, _snapshot, _store, _row, _missing_segment, _missing_first_segment]


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_damage_is_found_and_left_alone(data: Path, damage: Callable[[Path], Path]) -> None:
    path = damage(data)
    before = {file: file.read_bytes() for file in files_below(data / "logs", "*")}
    report = look(data, repair=True)
    assert str(path) in [found.file for found in report.findings if found.kind is FlawKind.DAMAGE]
    assert report.is_damaged
    assert {file: file.read_bytes() for file in files_below(data / "logs", "*")} == before


def test_what_retention_leaves_is_whole(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path / "data", background_interval_ms=20) as server:
        create(server.address, "orders", segment_bytes="1000", retention_bytes="1000")
        for _ in range(12):
            write(server.address, "orders", [b"." * 200])
        ends = time.monotonic() + 60
        while files_below(tmp_path / "data" / "logs", "*.log")[0].stem == f"{0:020d}":
            assert time.monotonic() < ends, "retention has removed nothing"
            time.sleep(0.02)
    assert look(tmp_path / "data").findings == []


def test_damage_is_one_line_and_an_exit_code(data: Path) -> None:
    path = _first_log(data)
    done = command("check", "--data", data)
    assert done.returncode == 1
    assert f"damage: {path}: damaged at position 0" in done.stdout
    found = json.loads(command("check", "--data", data, "--json").stdout)
    assert [each["file"] for each in found["findings"]] == [str(path)]


def test_only_a_torn_end_is_repaired(data: Path) -> None:
    path = files_below(data, "*.log")[-1]
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    report = look(data)
    assert [(found.kind, found.file) for found in report.findings] == [(FlawKind.TORN, str(path))]
    assert not report.is_damaged
    assert path.read_bytes() != whole
    repaired = look(data, repair=True)
    assert repaired.findings == []
    assert repaired.repaired == [str(path.parent)]
    assert path.read_bytes() == whole
    with fencepost.Server(data) as server:
        assert len(read(server.address, "orders")) == 12


def interrupted_compaction(folder: Path, *, renamed: bool = False) -> tuple[LogBed, list[Path]]:
    """Leave a log whose compaction was decided, but not completed; return it and the new segments' files."""
    config = dataclasses.replace(SMALL, cleanup_policy="compact", retention_ms=-1, min_dirty_ratio=0.0)
    bed = LogBed(folder, config)
    for number in range(20):
        append(bed.log, make_batch(b"%d" % number + b"." * 100, key=b"key %d" % (number % 9)))
    bed.log.sync()
    bed.log.advance_high_watermark(bed.log.end_offset)
    job = bed.log.compaction(NOW)
    assert job is not None
    job.write()
    cleaned = files_below(folder, "*.cleaned")
    assert cleaned
    assert files_below(folder, "swap")
    if renamed:  # the first exchange was completed before the crash
        path = cleaned[0].with_name(cleaned[0].name.split(".")[0] + ".log")
        cleaned[0].rename(path)
        cleaned[0] = path
    return bed, cleaned


@pytest.mark.parametrize("renamed", [False, True])
def test_an_interrupted_compaction_is_checked_as_it_will_be(tmp_path: Path, renamed: bool) -> None:
    bed, _ = interrupted_compaction(tmp_path, renamed=renamed)
    before = check_log(OsFiles(), bed.log.directory)
    assert [(found.kind, Path(found.file).name) for found in before.findings] == [(FlawKind.NOTE, "swap")]
    bed.reopen()
    after = check_log(OsFiles(), bed.log.directory)
    assert [found for found in after.findings if ".log" in Path(found.file).name] == []
    assert (before.batches, before.bytes) == (after.batches, after.bytes)
    assert before.batches < 20


def test_damage_in_what_a_compaction_wrote_is_found(tmp_path: Path) -> None:
    bed, cleaned = interrupted_compaction(tmp_path)
    flip(cleaned[0], 70)
    found = [(found.kind, found.file) for found in check_log(OsFiles(), bed.log.directory).findings]
    assert (FlawKind.DAMAGE, str(cleaned[0])) in found


def test_a_compaction_whose_new_segment_is_gone_is_damage(tmp_path: Path) -> None:
    bed, cleaned = interrupted_compaction(tmp_path)
    cleaned[-1].unlink()
    (found,) = check_log(OsFiles(), bed.log.directory).findings
    assert (found.kind, Path(found.file).name) == (FlawKind.DAMAGE, "swap")
    assert "names a segment at offset" in found.text


def test_a_torn_segment_with_others_behind_it_is_damage(data: Path) -> None:
    """A power failure may leave it. The next start cuts the log off there and removes what follows: whole batches, so
    it must not look like a torn end, and `--repair` leaves it alone."""
    for snapshot in files_below(data, "*.snapshot"):
        snapshot.unlink()
    logs = files_below(data, "*.log")
    torn = logs[1]
    torn.write_bytes(torn.read_bytes()[:-10])
    before = {file: file.read_bytes() for file in files_below(data / "logs", "*")}
    report = look(data, repair=True)
    (found,) = [found for found in report.findings if found.kind is not FlawKind.NOTE]
    assert (found.kind, found.file) == (FlawKind.DAMAGE, str(torn))
    assert found.text.endswith(
        f"; the next start cuts the log off there and removes the segments behind it ({len(logs) - 2})"
    )
    assert report.repaired == []
    assert {file: file.read_bytes() for file in files_below(data / "logs", "*")} == before
    with fencepost.Server(data) as server:
        kept = read(server.address, "orders")
    assert 0 < len(kept) < 12
    assert files_below(data, "*.log") == logs[:2]
    assert not look(data).is_damaged


def test_the_progress_ends_at_its_total(data: Path) -> None:
    path = files_below(data, "*.log")[-1]
    path.write_bytes(path.read_bytes() + b"torn")
    totals: list[int] = []
    done: list[int] = []
    check(data, repair=True, advance=done.append, total=totals.append)
    assert totals == [sum(done)]


def test_a_directory_in_use_is_not_checked(data: Path) -> None:
    with fencepost.Server(data, process=True):
        done = command("check", "--data", data)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "is in use by another fencepost server" in line
