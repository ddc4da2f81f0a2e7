"""What cannot work over Spark Connect is refused, wherever it shows: by a DataFrame, a session, or a sent sink."""

from __future__ import annotations

import dataclasses
import pickle
from typing import Any

import pytest

from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError
from fencepost.spark import sink as sinks
from fencepost.spark.copy import Copy
from fencepost.spark.options import SinkOptions, parse_writer
from fencepost.spark.readiness import check
from fencepost.spark.sink import Sink, write

pytestmark = pytest.mark.unit

NOBODY = "127.0.0.1:1"


def of_connect(name: str) -> Any:
    """An object whose class says that it comes from Spark Connect, as its DataFrames and sessions do."""
    return type(name, (), {"__module__": f"pyspark.sql.connect.{name.lower()}"})()


def test_a_dataframe_of_spark_connect_is_refused() -> None:
    sink = Sink(NOBODY, topic="t", name="n")
    with pytest.raises(ConfigError, match=r"Spark Connect runs .*format.*classic session \(.*\(…\)\)$"):
        sink(of_connect("DataFrame"), 0)


def test_a_job_over_spark_connect_is_told_what_cannot_go_there() -> None:
    """The rest goes through `write.format("fencepost")`: tests/spark/test_connect.py."""
    df = of_connect("DataFrame")
    with pytest.raises(ConfigError, match="the server side connects to the cluster: give `servers` as HOST:PORT"):
        write(df, ClientSettings.of(NOBODY), topic="t", job="j")
    with pytest.raises(ConfigError, match="partitioner: over Spark Connect a function must be named"):
        write(df, NOBODY, topic="t", job="j", partitioner=len)


def test_every_option_of_a_sink_can_be_given_to_a_job_over_spark_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[str, str] = {}
    monkeypatch.setattr(sinks, "_by_format", lambda _df, _query, options: sent.update(options))
    given = {field.name: getattr(SinkOptions(), field.name) for field in dataclasses.fields(SinkOptions)}
    given |= {
        "topics": ("a", "b"),
        "partitioner": "some.module:function",
        "dead_letter": "d",
        "create": 3,
        "topic": "a",
    }
    write(of_connect("DataFrame"), NOBODY, job="j", **given)
    parsed = parse_writer(sent, streaming=False)
    assert parsed.sink == SinkOptions(**{**given, "partitioner": None})
    assert parsed.partitioner == "some.module:function"


def test_a_session_of_spark_connect_is_refused() -> None:
    with pytest.raises(ConfigError, match="Spark Connect"):
        check(of_connect("Session"), NOBODY)
    settings = ClientSettings.of(NOBODY)
    with pytest.raises(ConfigError, match="Spark Connect"):
        Copy(of_connect("Session"), settings, "a", settings, "b")


def test_a_sink_that_is_sent_to_another_process_says_why_it_does_not_go() -> None:
    """Spark Connect serialises what foreachBatch is given; its error carries ours."""
    with pytest.raises(ConfigError, match="Spark Connect"):
        pickle.dumps(Sink(NOBODY, topic="t", name="n"))
