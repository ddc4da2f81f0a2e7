"""ListOffsets: the first offset, the next one, and the first at or after a time."""

from __future__ import annotations

import pytest

from fencepost.errors import ErrorCode
from tests.support.batches import NOW, batch
from tests.support.raw import EARLIEST, LATEST, LIST_OFFSETS, MAX_TIMESTAMP, RawClient

pytestmark = pytest.mark.integration


@pytest.fixture
def timed(client: RawClient, topic: str) -> str:
    """Offsets 0 to 7, in three batches, whose times rise, and then fall once (as clocks do)."""
    client.produce(topic, batch([b"0", b"1", b"2"], timestamps=[NOW, NOW + 10, NOW + 20]))
    client.produce(topic, batch([b"3", b"4"], timestamps=[NOW + 100, NOW + 90]))
    client.produce(topic, batch([b"5", b"6", b"7"], timestamps=[NOW + 50, NOW + 60, NOW + 70]))
    return topic


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_answers_with_the_first_and_the_next_offset(client: RawClient, timed: str, version: int) -> None:
    assert client.list_offset(timed, EARLIEST, version=version) == (0, -1)
    assert client.list_offset(timed, LATEST, version=version) == (8, -1)


def test_an_empty_partition_starts_and_ends_at_0(client: RawClient, topic: str) -> None:
    assert client.list_offset(topic, EARLIEST) == (0, -1)
    assert client.list_offset(topic, LATEST) == (0, -1)
    assert client.list_offset(topic, NOW) == (-1, -1)
    assert client.list_offset(topic, MAX_TIMESTAMP) == (-1, -1)


@pytest.mark.parametrize(
    ("time", "offset", "found"),
    [
        pytest.param(0, 0, NOW, id="before-all"),
        pytest.param(NOW, 0, NOW, id="the-very-first"),
        pytest.param(NOW + 1, 1, NOW + 10, id="between-two-records"),
        pytest.param(NOW + 20, 2, NOW + 20, id="the-last-of-a-batch"),
        pytest.param(NOW + 21, 3, NOW + 100, id="between-two-batches"),
        pytest.param(NOW + 95, 3, NOW + 100, id="first-in-the-log-not-nearest-in-time"),
        pytest.param(NOW + 100, 3, NOW + 100, id="the-largest"),
    ],
)
def test_a_time_is_answered_with_the_first_record_not_older(
    client: RawClient, timed: str, time: int, offset: int, found: int
) -> None:
    assert client.list_offset(timed, time) == (offset, found)


def test_a_time_after_all_records_has_no_offset(client: RawClient, timed: str) -> None:
    assert client.list_offset(timed, NOW + 101) == (-1, -1)


def test_the_record_with_the_largest_time_is_found(client: RawClient, timed: str) -> None:
    assert client.list_offset(timed, MAX_TIMESTAMP, version=7) == (3, NOW + 100)


def test_a_time_is_found_among_many_batches(client: RawClient, topic: str) -> None:
    """More than one entry of the sparse time index."""
    for number in range(120):
        client.produce(topic, batch([b"x" * 400] * 2, timestamps=[NOW + 100 * number, NOW + 100 * number + 50]))
    for number in (0, 1, 59, 118, 119):
        assert client.list_offset(topic, NOW + 100 * number) == (2 * number, NOW + 100 * number)
        assert client.list_offset(topic, NOW + 100 * number + 1) == (2 * number + 1, NOW + 100 * number + 50)


def test_unknown_topics_and_partitions_are_named(client: RawClient, topic: str) -> None:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.ask_offset("no-such-topic", LATEST).error_code == unknown
    assert client.ask_offset(topic, LATEST, partition=1).error_code == unknown


def test_several_partitions_are_answered_each_by_itself(client: RawClient, name: str) -> None:
    client.create_topic(name, partitions=2)
    client.produce(name, batch([b"a"] * 3), partition=1)
    answer = client.call(
        LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=0,
        topics=[
            {
                "name": name,
                "partitions": [{"partition_index": index, "timestamp": LATEST} for index in (0, 1, 2)],
            }
        ],
    )
    got = {part.partition_index: (part.error_code, part.offset) for part in answer.topics[0].partitions}
    assert got == {0: (0, 0), 1: (0, 3), 2: (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)}


def test_the_log_is_readable_up_to_the_latest_offset_for_committed_readers_too(client: RawClient, timed: str) -> None:
    answer = client.call(
        LIST_OFFSETS,
        7,
        replica_id=-1,
        isolation_level=1,
        topics=[{"name": timed, "partitions": [{"partition_index": 0, "timestamp": LATEST}]}],
    )
    assert answer.topics[0].partitions[0].offset == 8


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        pytest.param(-3, 6, id="largest-time-before-version-7"),
        pytest.param(-4, 7, id="local-start-before-version-8"),
        pytest.param(-5, 8, id="tiered-end-before-version-9"),
        pytest.param(-6, 10, id="pending-upload-before-version-11"),
        pytest.param(-99, 11, id="never-heard-of"),
    ],
)
def test_a_special_time_that_the_version_does_not_have_is_unsupported(
    client: RawClient, timed: str, asked: int, version: int
) -> None:
    assert client.ask_offset(timed, asked, version=version).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_the_local_log_starts_where_the_log_starts(client: RawClient, timed: str) -> None:
    """KIP-405: without tiered storage there is no difference, and nothing is tiered."""
    assert client.list_offset(timed, -4, version=8) == (0, -1)
    assert client.list_offset(timed, -5, version=9) == (-1, -1)
    assert client.list_offset(timed, -6, version=11) == (-1, -1)
