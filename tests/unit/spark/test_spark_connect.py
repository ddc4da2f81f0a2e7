"""Spark Connect is refused, wherever it shows: by a DataFrame, by a session, or by sending the sink elsewhere."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError
from fencepost.spark.copy import Copy
from fencepost.spark.jobs import write
from fencepost.spark.readiness import check
from fencepost.spark.sink import Sink

pytestmark = pytest.mark.unit

NOBODY = "127.0.0.1:1"


def of_connect(name: str) -> Any:
    """An object whose class says that it comes from Spark Connect, as its DataFrames and sessions do."""
    return type(name, (), {"__module__": f"pyspark.sql.connect.{name.lower()}"})()


def test_a_dataframe_of_spark_connect_is_refused() -> None:
    sink = Sink(NOBODY, topic="t", name="n")
    with pytest.raises(ConfigError, match=r"Spark Connect runs .*format.*classic session \(.*\(…\)\)$"):
        sink(of_connect("DataFrame"), 0)
    with pytest.raises(ConfigError, match="Spark Connect"):
        write(of_connect("DataFrame"), NOBODY, topic="t", job="j")


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
