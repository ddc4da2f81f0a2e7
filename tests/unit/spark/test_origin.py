"""The hash of a batch's source offsets, from entries of Spark's offset log (PIPE-4)."""

from __future__ import annotations

import json

import pytest

from fencepost.spark.origin import hash_of

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
