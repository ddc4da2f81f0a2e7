"""Our source beside Spark's own: what an option means, and what a query reads after a crash (PIPE-1, PIPE-4)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fencepost
from tests.support.kafka import KafkaUnavailable
from tests.support.make_runs import without_tool
from tests.workers.spark_connector import connector_jars
from tests.workers.spark_sources import BATCHES

pytestmark = [
    pytest.mark.compat,
    pytest.mark.kafka,
    pytest.mark.spark,
    pytest.mark.long,
    pytest.mark.timeout(400),
]

TEN = list(range(10))
REFUSED = None
WANTED: dict[str, list[int] | None] = {
    "one time before times": TEN[2:],
    "times before offsets": TEN[7:],
    "one time before times, at the end": TEN[:2],
    "misspelt strategy": REFUSED,
    "latest at the start": REFUSED,
    "earliest at the end": REFUSED,
    "no offset": REFUSED,
    "start behind the end": REFUSED,
    "start behind the log": REFUSED,
    "a topic that is not read": REFUSED,
    "pattern, quoted": TEN,
    "pattern, class": TEN,
    "pattern, a part of the name": TEN,
    "at most three records": TEN,
    "no records": REFUSED,
    "a setting of the consumer": REFUSED,
    "a time out of range": REFUSED,
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The outcomes of all cases: one JVM has both sources."""
    try:
        jars = connector_jars()
    except KafkaUnavailable as error:
        without_tool(str(error))
        raise
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    with fencepost.Server(background_interval_ms=24 * 60 * 60 * 1000) as server:  # no retention by itself
        command = [sys.executable, "-m", "tests.workers.spark_sources", server.address, str(folder), jars]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = map(json.loads, done.stdout.splitlines())
    return {outcome.pop("case"): outcome for outcome in found}


@pytest.mark.parametrize("case", BATCHES)
def test_an_option_means_what_it_means_to_sparks_own_source(outcomes: dict[str, dict[str, Any]], case: str) -> None:
    for source, found in outcomes[case].items():
        assert (REFUSED if isinstance(found, str) else found) == WANTED[case], (source, found)


def test_a_record_whose_time_spark_cannot_hold_is_named_and_can_be_read(outcomes: dict[str, dict[str, Any]]) -> None:
    said = outcomes["a time out of range"]["fencepost"]
    assert f"far-off-0: the record at offset 1 has the time {2**63 - 1} ms" in said
    assert outcomes["a time out of range, as null"]["fencepost"] == [[0, True], [1, False]]


@pytest.mark.parametrize("source", ["kafka", "fencepost"])
def test_no_row_of_a_first_micro_batch_that_crashed_is_lost(outcomes: dict[str, dict[str, Any]], source: str) -> None:
    """The start was the end of a partition without a record of the given time: it has moved when the query restarts."""
    assert outcomes["crash behind a time"][source] == {"crashed": True, "lost": [], "error": ""}


@pytest.mark.parametrize(
    ("source", "said"), [("kafka", "Some data may have been lost"), ("fencepost", "the log starts at 600 now")]
)
def test_a_first_micro_batch_that_crashed_and_lost_records_since_stops_the_query(
    outcomes: dict[str, dict[str, Any]], source: str, said: str
) -> None:
    found = outcomes["crash before retention"][source]
    assert (found["crashed"], found["found"], found["left"]) == (1000, [], [[600], 400])
    assert said in found["error"]
