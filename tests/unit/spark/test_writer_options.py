"""The options of `format("fencepost")` as a sink: parsed once, and a mistake is named."""

from __future__ import annotations

import pytest

from fencepost.errors import ConfigError
from fencepost.spark.writer_options import INLINE_BYTES, imported, parse

pytestmark = pytest.mark.unit

SERVERS = {"kafka.bootstrap.servers": "127.0.0.1:9092"}


def test_the_options_of_a_stream_reach_the_sink_whatever_their_spelling() -> None:
    given = {**SERVERS, "TOPIC": "t", "name": "n", "deadletter": "d", "batch_bytes": "9", "keepTimestamps": "True"}
    found = parse({**given, "create": "3", "compression": "lz4", "checkpointLocation": "/c"}, streaming=True)
    assert (found.name, found.sink.targets, found.checkpoint, found.inline_bytes) == ("n", "t", "/c", INLINE_BYTES)
    sink = found.sink
    assert (sink.dead_letter, sink.batch_bytes, sink.keep_timestamps, sink.create) == ("d", 9, True, 3)
    assert (sink.compression, sink.adopt, sink.topics) == ("lz4", False, ())


def test_a_job_has_a_name_of_its_own_and_topics_are_a_list() -> None:
    found = parse({**SERVERS, "job": "j", "topics": "a, b,"}, streaming=False)
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
def test_a_mistake_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(given, streaming=True)


def test_what_an_option_names_is_imported_or_the_error_says_why() -> None:
    assert imported("partitioner", "json:dumps")({}) == "{}"
    for named in ("nowhere:f", "json:nothing"):
        with pytest.raises(ConfigError, match=f"partitioner='{named}' cannot be imported"):
            imported("partitioner", named)


@pytest.mark.parametrize("adopt", [True, False, "nobody", "1b4e28ba-2fa1-41d2-883f-0016d3cca427", "f" * 32])
def test_adopt_is_a_truth_or_the_text_that_the_error_names(adopt: bool | str) -> None:
    assert parse({**SERVERS, "name": "n", "adopt": str(adopt)}, streaming=True).sink.adopt == adopt
