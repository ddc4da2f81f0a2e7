"""A pin: a log's files at one moment, in another directory, where they are a log of their own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fencepost.log.checking import check_log
from fencepost.log.files import OsFiles
from fencepost.log.snapshot_job import PinJob
from tests.support.log_bed import NOW, SMALL, LogBed, append, make_batch

pytestmark = pytest.mark.unit

COMPACTED = dataclasses.replace(SMALL, cleanup_policy="compact", retention_ms=-1, min_dirty_ratio=0.0)


def fill(bed: LogBed, count: int = 20) -> None:
    for number in range(count):
        append(bed.log, make_batch(b"%d" % number + b"." * 100, key=b"key %d" % (number % 9)))
    bed.log.sync()
    bed.log.advance_high_watermark(bed.log.end_offset)


def test_a_segment_without_a_known_index_is_pinned_with_one(tmp_path: Path) -> None:
    """It was compacted after the last snapshot, and then the server was killed."""
    bed = LogBed(tmp_path, COMPACTED)
    fill(bed)
    job = bed.log.compaction(NOW)
    assert job is not None
    job.write()
    job.install()
    job.finish()
    bed.reopen()
    assert any(segment.index is None and segment.index_mark is None for segment in bed.log.segments)
    linked = PinJob(bed.log, NOW).link_into(str(tmp_path / "pinned"))
    assert check_log(OsFiles(), str(tmp_path / "pinned")).findings == []
    assert {file.name for file in linked} == {path.name for path in (tmp_path / "pinned").iterdir()}
