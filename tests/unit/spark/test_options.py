"""The options of source and sink: Spark's names and defaults, and an error that names what is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.errors import ConfigError
from fencepost.spark.options import INLINE_BYTES, Offsets, imported, parse_source, parse_writer
from fencepost.types import EARLIEST, LATEST, TopicPartition

pytestmark = pytest.mark.unit

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:1"}
A0, A1 = TopicPartition("a", 0), TopicPartition("a", 1)


def options(streaming: bool = True, **given: str) -> Any:
    """As Spark hands them over: names in lower case."""
    return parse_source({**SERVERS, **{key.lower(): value for key, value in given.items()}}, streaming=streaming)


def test_the_defaults_are_sparks() -> None:
    stream, batch = options(subscribe="a, b"), options(streaming=False, subscribe="a")
    assert (stream.topics, stream.starting, batch.starting) == (("a", "b"), Offsets(LATEST), Offsets(EARLIEST))
    assert (stream.fail_on_data_loss, stream.headers, stream.committed) == (True, False, True)


def test_offsets_come_as_words_json_and_times() -> None:
    assert options(subscribe="a", startingOffsets="Earliest").starting == Offsets(EARLIEST)
    by_partition = options(subscribe="a", startingOffsets='{"a": {"0": 23, "1": -2}}').starting
    assert by_partition.by_partition == {A0: 23, A1: -2}
    assert options(subscribe="a", startingTimestamp="5").starting == Offsets(timestamp=5)
    loose = options(subscribe="a", startingTimestamp="5", startingOffsetsByTimestampStrategy="latest").starting
    assert not loose.strict


def test_one_time_comes_before_times_by_partition_before_offsets() -> None:
    """PIPE-1: in this order, as Spark's documentation says."""
    for side in ("starting", "ending"):
        given = {
            f"{side}Timestamp": "5",
            f"{side}OffsetsByTimestamp": '{"a": {"0": 6}}',
            f"{side}Offsets": '{"a": {"0": 7}}',
        }
        strict = side == "starting"
        for wanted in (
            Offsets(timestamp=5, strict=strict),
            Offsets(timestamps={A0: 6}, strict=strict),
            Offsets(by_partition={A0: 7}),
        ):
            parsed = options(False, subscribe="a", **given)
            assert (parsed.starting if strict else parsed.ending) == wanted
            del given[next(iter(given))]


def test_offsets_may_be_copied_from_a_checkpoint() -> None:
    stored = '{"a": {"0": 23, "1": 9, "id": "6f1d", "began": {"1": 4}}}'
    assert options(subscribe="a", startingOffsets=stored).starting.by_partition == {A0: 23, A1: 9}


def test_limits_and_switches() -> None:
    given = options(
        subscribe="a",
        maxOffsetsPerTrigger="7",
        minOffsetsPerTrigger="3",
        maxTriggerDelay="2m",
        minPartitions="4",
        maxRecordsPerPartition="9",
        timestampOutOfRange="null",
        failOnDataLoss="false",
        includeHeaders="true",
        isolation="read_uncommitted",
    )
    assert (given.max_offsets, given.min_offsets, given.max_delay, given.min_partitions) == (7, 3, 120, 4)
    assert (given.fail_on_data_loss, given.headers, given.committed) == (False, True, False)
    assert (given.max_records, given.null_times, options(subscribe="a").null_times) == (9, True, False)
    assert not parse_source(
        {**SERVERS, "subscribe": "a", "kafka.isolation.level": "read_uncommitted"}, streaming=True
    ).committed


def test_one_partition_can_be_assigned_and_topics_chosen_by_pattern() -> None:
    assert options(assign='{"a": [0, 2]}').assigned == {"a": (0, 2)}
    assert options(subscribePattern=r"\Qa.\E").pattern.search("a.b")


def test_client_settings_are_applied_and_java_consumer_settings_are_ignored() -> None:
    given = parse_source(
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
        (True, {"subscribePattern": "[a&&b]"}, "cannot translate it to Python"),
        (
            False,
            {"subscribe": "a", "startingOffsets": '{"a": {"0": 3, "1": -1}}'},
            r"-1 \(latest\) for a-1 reads nothing",
        ),
        (False, {"subscribe": "a", "endingOffsets": '{"a": {"0": -2}}'}, r"-2 \(earliest\) for a-0 reads nothing"),
        (True, {"subscribe": "a", "startingOffsets": '{"a": {"0": -3}}'}, "-3 for a-0: expected an offset, -1 or -2"),
        (True, {"subscribe": "a", "startingOffsetsByTimestampStrategy": "lates"}, "'lates': expected error or latest"),
        (True, {"subscribe": "a", "maxRecordsPerPartition": "0"}, "expected 1 or more"),
        (True, {"subscribe": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "3"}, "is more than"),
        (True, {"subscribe": "a", "timestampOutOfRange": "skip"}, "expected error or null"),
        (True, {"subscribe": "a", "kafka.sasl.kerberos.service.name": "kafka"}, "Kerberos .GSSAPI. is not supported"),
        (True, {"subscribe": "a", "kafka.auto.offset.reset": "latest"}, "cannot be set: use startingOffsets"),
        (True, {"subscribe": "a", "kafka.enable.auto.commit": "true"}, "cannot be set: the position is in"),
        (True, {"subscribe": " , "}, "subscribe=' , ' names no topic"),
        (True, {"assign": '{"a": 0}'}, "assign must be JSON like"),
    ],
)
def test_a_wrong_option_is_named(streaming: bool, given: dict[str, str], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        options(streaming, **given)


def test_servers_must_be_given() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.bootstrap\.servers is missing"):
        parse_source({"subscribe": "a"}, streaming=True)


# --- the sink as a format ---


def test_the_options_of_a_stream_reach_the_sink_whatever_their_spelling() -> None:
    given = {**SERVERS, "TOPIC": "t", "name": "n", "deadletter": "d", "batch_bytes": "9", "keepTimestamps": "True"}
    found = parse_writer({**given, "create": "3", "compression": "lz4", "checkpointLocation": "/c"}, streaming=True)
    assert (found.name, found.sink.targets, found.checkpoint, found.inline_bytes) == ("n", "t", "/c", INLINE_BYTES)
    sink = found.sink
    assert (sink.dead_letter, sink.batch_bytes, sink.keep_timestamps, sink.create) == ("d", 9, True, 3)
    assert (sink.compression, sink.adopt, sink.topics) == ("lz4", False, ())


def test_a_job_has_a_name_of_its_own_and_topics_are_a_list() -> None:
    found = parse_writer({**SERVERS, "job": "j", "topics": "a, b,"}, streaming=False)
    assert (found.name, found.sink.topics, found.sink.targets) == ("job.j", ("a", "b"), "the column topic")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"topic": "t", "name": "n"}, "kafka.bootstrap.servers is missing"),
        ({**SERVERS, "topic": "t"}, "the option name is missing"),
        ({**SERVERS, "name": "n", "job": "j"}, "the option job is for a batch DataFrame"),
        ({**SERVERS, "name": "no blanks"}, "name"),
        ({**SERVERS, "name": "n", "dead_leter": "d"}, "unknown option 'dead_leter'.*deadLetter"),
        ({**SERVERS, "name": "n", "adopt": "yes"}, "adopt='yes': expected true, false, or the text"),
        ({**SERVERS, "name": "n", "stageRetention": "nan"}, "stageRetention='nan'"),
        ({**SERVERS, "name": "n", "stageRetention": "0"}, "stageRetention=0"),
        ({**SERVERS, "name": "n", "patience": "long"}, "patience='long': expected a number of seconds"),
        ({**SERVERS, "name": "n", "transactionTimeout": "nan"}, "transactionTimeout='nan': expected a number of sec"),
        ({**SERVERS, "name": "n", "transactionTimeout": "inf"}, "transactionTimeout='inf': expected a number of sec"),
        ({**SERVERS, "name": "n", "transactionTimeout": "0"}, "transaction_timeout=0.0: expected a positive number"),
        ({**SERVERS, "name": "n", "ifWritten": "maybe"}, "ifWritten='maybe': expected skip or fail"),
        ({**SERVERS, "name": "n", "inlineBytes": "-1"}, "inlineBytes=-1: expected 0 or more"),
        ({**SERVERS, "name": "n", "create": "0"}, "create=0: expected 1 or more"),
        ({**SERVERS, "name": "n", "compression": "rar"}, "compression='rar'"),
        ({**SERVERS, "name": "n", "onReport": "function"}, "expected module:function"),
    ],
)
def test_a_wrong_option_of_the_sink_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_writer(given, streaming=True)


def test_what_an_option_names_is_imported_or_the_error_says_why() -> None:
    assert imported("partitioner", "json:dumps")({}) == "{}"
    for named in ("nowhere:f", "json:nothing"):
        with pytest.raises(ConfigError, match=f"partitioner='{named}' cannot be imported"):
            imported("partitioner", named)


@pytest.mark.parametrize("adopt", [True, False, "nobody", "1b4e28ba-2fa1-41d2-883f-0016d3cca427", "f" * 32])
def test_adopt_is_a_truth_or_the_text_that_the_error_names(adopt: bool | str) -> None:
    assert parse_writer({**SERVERS, "name": "n", "adopt": str(adopt)}, streaming=True).sink.adopt == adopt
