"""The source's options: Spark's names and defaults, and an error that names what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.errors import ConfigError
from fencepost.spark.source_options import Offsets, parse
from fencepost.types import EARLIEST, LATEST

pytestmark = pytest.mark.unit

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}


def options(streaming: bool = True, **given: str) -> Any:
    """As Spark hands them over: names in lower case."""
    return parse({**SERVERS, **{key.lower(): value for key, value in given.items()}}, streaming=streaming)


def test_the_defaults_are_sparks() -> None:
    stream, batch = options(subscribe="a, b"), options(streaming=False, subscribe="a")
    assert (stream.topics, stream.starting, batch.starting) == (("a", "b"), Offsets(LATEST), Offsets(EARLIEST))
    assert (stream.fail_on_data_loss, stream.headers, stream.committed) == (True, False, True)


def test_offsets_come_as_words_json_and_times() -> None:
    assert options(subscribe="a", startingOffsets="Earliest").starting == Offsets(EARLIEST)
    by_partition = options(subscribe="a", startingOffsets='{"a": {"0": 23, "1": -2}}').starting
    assert by_partition.by_partition == {"a": {0: 23, 1: -2}}
    assert options(subscribe="a", startingTimestamp="5").starting == Offsets(timestamp=5)
    by_time = options(subscribe="a", startingOffsetsByTimestamp='{"a": {"0": 5}}', startingOffsets="latest").starting
    assert by_time.timestamps == {"a": {0: 5}}
    loose = options(subscribe="a", startingTimestamp="5", startingOffsetsByTimestampStrategy="latest").starting
    assert not loose.strict


def test_limits_and_switches() -> None:
    given = options(
        subscribe="a",
        maxOffsetsPerTrigger="7",
        minOffsetsPerTrigger="3",
        maxTriggerDelay="2m",
        minPartitions="4",
        failOnDataLoss="false",
        includeHeaders="true",
        isolation="read_uncommitted",
    )
    assert (given.max_offsets, given.min_offsets, given.max_delay, given.min_partitions) == (7, 3, 120, 4)
    assert (given.fail_on_data_loss, given.headers, given.committed) == (False, True, False)
    assert not parse(
        {**SERVERS, "subscribe": "a", "kafka.isolation.level": "read_uncommitted"}, streaming=True
    ).committed


def test_one_partition_can_be_assigned_and_topics_chosen_by_pattern() -> None:
    assert options(assign='{"a": [0, 2]}').assigned == {"a": (0, 2)}
    assert options(subscribePattern="a.*").pattern == "a.*"


def test_client_settings_are_applied_and_java_consumer_settings_are_ignored() -> None:
    given = parse(
        {**SERVERS, "subscribe": "a", "kafka.request.timeout.ms": "1500", "kafka.fetch.min.bytes": "1"}, streaming=True
    )
    assert given.settings.request_timeout == 1.5


@pytest.mark.parametrize(
    ("streaming", "given", "match"),
    [
        (True, {}, "expected one of subscribe, subscribePattern and assign, but none is given"),
        (True, {"subscribe": "a", "assign": "{}"}, "subscribe and assign are given"),
        (True, {"subscribe": "a", "startingOffset": "x"}, "unknown option.*did you mean 'startingOffsets'"),
        (True, {"subscribe": "a", "startingOffsets": "first"}, "startingOffsets is not valid JSON"),
        (True, {"subscribe": "a", "startingOffsets": '{"a": 1}'}, "JSON like"),
        (True, {"subscribe": "a", "endingOffsets": "latest"}, "a stream has no end"),
        (False, {"subscribe": "a", "startingOffsets": "latest"}, "reads nothing in a batch"),
        (False, {"subscribe": "a", "endingOffsets": "earliest"}, "endingOffsets=earliest reads nothing"),
        (True, {"subscribe": "a", "maxOffsetsPerTrigger": "0"}, "expected 1 or more"),
        (True, {"subscribe": "a", "minPartitions": "many"}, "expected a whole number"),
        (True, {"subscribe": "a", "failOnDataLoss": "perhaps"}, "true or false"),
        (True, {"subscribe": "a", "isolation": "none"}, "read_committed or read_uncommitted"),
        (True, {"subscribe": "a", "maxTriggerDelay": "soon"}, "a duration like 15m"),
        (True, {"subscribePattern": "("}, "subscribePattern"),
        (True, {"assign": '{"a": 0}'}, "assign must be JSON like"),
    ],
)
def test_a_wrong_option_is_named(streaming: bool, given: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        options(streaming, **given)


def test_servers_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        parse({"subscribe": "a"}, streaming=True)
