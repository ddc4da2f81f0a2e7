"""The hash of a batch's source offsets, from entries of Spark's offset log (PIPE-4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fencepost.spark.origin import checkpoint_hash, hash_of

pytestmark = pytest.mark.unit


def entry(*sources: str, planned: int = 1, version: int = 1) -> str:
    """As Spark writes it: a version, the metadata, and a line per source."""
    metadata = json.dumps({"batchWatermarkMs": planned, "batchTimestampMs": planned, "conf": {}})
    return "\n".join([f"v{version}", metadata, *sources])


def test_the_same_offsets_have_the_same_hash_whenever_they_were_planned() -> None:
    begin, end = entry('{"a": {"0": 1, "1": 2}}'), entry('{"a": {"0": 3, "1": 4}}')
    again = entry('{"a":{"1":4,"0":3}}', planned=2)
    assert hash_of(begin, end) == hash_of(begin, again)


def test_other_offsets_another_beginning_or_another_source_have_another_hash() -> None:
    zero, one, two = (entry(f'{{"a": {{"0": {at}}}}}') for at in range(3))
    hashes = {
        hash_of("", one),
        hash_of(zero, one),
        hash_of(zero, two),
        hash_of(one, two),
        hash_of(zero, entry("-")),
        hash_of(zero, entry('{"a": {"0": 1}}', '{"b": {"0": 1}}')),
        hash_of(zero, entry('{"b": {"0": 1}}', '{"a": {"0": 1}}')),
    }
    assert len(hashes) == 7


@pytest.mark.parametrize(
    "source", ['{"logOffset":1}', '0:{"logOffset":1}', 'orders_2:{"logOffset":1}', '{"logOffset": 1}']
)
def test_a_batch_of_files_is_known_by_the_time_it_was_planned(source: str) -> None:
    """The file source only counts its batches: which files one has is not in its offset. Since Spark 4.2 a source may
    have a name, which the second version of the log has before the offset."""
    begin = entry('{"logOffset":0}')
    assert hash_of(begin, entry(source)) == hash_of(begin, entry(source))
    assert hash_of(begin, entry(source)) != hash_of(begin, entry(source, planned=2))


@pytest.mark.parametrize(("scheme", "advice"), [("", "fs.defaultFS"), ("file://", "reach it")])
def test_a_checkpoint_that_cannot_be_read_is_warned_of_once(
    scheme: str, advice: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """PIPE-4: a checkpoint restored from a backup is not noticed then. Spark resolves a path without a scheme by
    fs.defaultFS, and this process cannot."""
    checkpoint = f"{scheme}{tmp_path}/elsewhere"
    assert [checkpoint_hash(checkpoint, batch) for batch in (3, 4)] == ["", ""]
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert checkpoint in warning.getMessage()
    assert "restored from a backup is not noticed" in warning.getMessage()
    assert advice in warning.getMessage()
