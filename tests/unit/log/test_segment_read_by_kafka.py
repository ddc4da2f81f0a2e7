"""The files have Kafka's format: its tool DumpLogSegments reads a `.log` and accepts both indexes."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from fencepost.kernel import encode_batch
from tests.support.log_bed import NOW, SMALL, LogBed, append, make_batch

pytestmark = pytest.mark.kafka


def dump(jars: str, *files: Path) -> str:
    """Return the tool's output for these files; it exits with 0 even if it reports errors."""
    command = [
        "java",
        "-Xmx128m",
        "-cp",
        jars,
        "org.apache.kafka.tools.DumpLogSegments",
        "--deep-iteration",
        "--print-data-log",
    ]
    command += ["--files", ",".join(map(str, files))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Exception" not in done.stderr, done.stderr
    return done.stdout


def test_kafkas_dump_log_segments_reads_segments_and_indexes(tmp_path: Path, kafka_jars: str) -> None:
    bed = LogBed(tmp_path, dataclasses.replace(SMALL, segment_bytes=3000))
    append(bed.log, make_batch(b"first", b"second", pid=77, epoch=3, sequence=5))
    for number in range(40):
        append(bed.log, make_batch(b"value %d" % number, b"another", timestamp=NOW + 10 * number))
    for codec in range(5):
        append(bed.log, encode_batch([(b"key", b"codec %d" % codec, NOW + 1000, ())], codec=codec))
    append(bed.log, make_batch(b"in a transaction", pid=78, epoch=0, sequence=0, transactional=True))
    bed.log.close(NOW)
    assert len(bed.log.segments) >= 2

    files = sorted(bed.directory.glob("*.log")) + sorted(bed.directory.glob("*.index"))
    files += sorted(bed.directory.glob("*.timeindex"))
    said = dump(kafka_jars, *files)
    (tmp_path / "said.txt").write_text(said)

    offsets = [int(offset) for offset in re.findall(r"^\| offset: (\d+) ", said, re.MULTILINE)]
    assert offsets == list(range(bed.log.end_offset))
    assert said.count("isvalid: true") == 47
    assert "isvalid: false" not in said
    assert "producerId: 77 producerEpoch: 3" in said
    assert "payload: value 39" in said
    assert all(f"payload: codec {codec}" in said for codec in range(5))
    assert "isTransactional: true" in said
    assert said.count("timestamp: ") > 0
    for complaint in ("mismatch", "Mismatch", "Found ", "out of order", "not found"):
        assert complaint not in said, said


def test_kafkas_dump_log_segments_reads_what_compaction_left(tmp_path: Path, kafka_jars: str) -> None:
    """Batches with gaps, a tombstone with its horizon, and an empty batch with only a producer's ids."""
    config = dataclasses.replace(SMALL, segment_bytes=3000, cleanup_policy="compact")
    bed = LogBed(tmp_path, config)
    append(bed.log, encode_batch([(b"a", b"1", NOW, ())], pid=77, epoch=3, base_sequence=0))
    for number in range(30):
        rows = [(b"a", b"%d" % number, NOW + number, ()), (b"b", b"%d" % number, NOW + number, ())]
        append(bed.log, encode_batch(rows, codec=number % 5))
    append(bed.log, encode_batch([(b"gone", None, NOW, ()), (b"a", b"last", NOW, ())]))
    bed.log.config = dataclasses.replace(config, segment_bytes=1)
    append(bed.log, encode_batch([(b"c", b"active", NOW, ())]))
    bed.log.advance_high_watermark(bed.log.end_offset)
    job = bed.log.compaction(NOW)
    assert job is not None
    job.write()
    job.install()
    job.finish()
    bed.log.close(NOW)

    said = dump(
        kafka_jars,
        *(path for suffix in ("log", "index", "timeindex") for path in sorted(bed.directory.glob(f"*.{suffix}"))),
    )
    assert re.findall(r"^\| offset: (\d+) .*key: (\w+)", said, re.MULTILINE) == [
        ("60", "b"),
        ("61", "gone"),
        ("62", "a"),
        ("63", "c"),
    ]
    assert "isvalid: false" not in said
    assert (
        "baseOffset: 0 lastOffset: 0 count: 0 baseSequence: 0 lastSequence: 0 producerId: 77 producerEpoch: 3" in said
    )
    assert f"deleteHorizonMs: OptionalLong[{NOW + config.delete_retention_ms}]" in said
    for complaint in ("mismatch", "Mismatch", "Found ", "out of order", "not found"):
        assert complaint not in said, said
