"""The files are Kafka's own: its tool DumpLogSegments reads a `.log`, and finds both indexes right."""

from __future__ import annotations

import dataclasses
import re
import subprocess
from pathlib import Path

import pytest

from fencepost.kernel import encode_batch
from tests.support.logs import NOW, SMALL, LogBed, append, make_batch

pytestmark = pytest.mark.kafka


def dump(jars: str, *files: Path) -> str:
    """What the tool says about these files; it exits with 0 even where it complains."""
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
