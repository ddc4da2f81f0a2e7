"""Spark's settings while our jobs run are given back as they were."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.spark import tuning

pytestmark = pytest.mark.unit


class Conf:
    """As `spark.conf`: some settings have a value, some can be set, one is of a newer Spark."""

    def __init__(self, given: dict[str, str]) -> None:
        self.given = given

    def isModifiable(self, name: str) -> bool:
        return name != "newer"

    def get(self, name: str, default: str | None) -> str | None:
        return self.given.get(name, default)

    def set(self, name: str, value: str) -> None:
        assert self.isModifiable(name)
        self.given[name] = value

    def unset(self, name: str) -> None:
        del self.given[name]


class Session:
    def __init__(self, given: dict[str, str]) -> None:
        self.conf = Conf(given)


def session(**given: str) -> Any:
    return Session(given)


def test_settings_hold_inside_and_are_the_users_again_afterwards() -> None:
    """PIPE-2: a session is its user's; those that it did not have are gone again, those it does not know never set."""
    spark = session(rows="7", other="x")
    with tuning.settings(spark, {"rows": "16", "bytes": "1", "newer": "1"}):
        assert spark.conf.given == {"rows": "16", "bytes": "1", "other": "x"}
    assert spark.conf.given == {"rows": "7", "other": "x"}


@pytest.mark.parametrize("first", [0, 1])
def test_blocks_of_several_threads_give_back_what_was_before_all_of_them(first: int) -> None:
    """PIPE-2: two writes side by side on one session."""
    spark = session(rows="7")
    blocks = [tuning.settings(spark, {"rows": "16", "bytes": "1"}), tuning.settings(spark, {"rows": "4"})]
    for block in blocks:
        block.__enter__()
    assert spark.conf.given["rows"] == "4"
    for block in (blocks[first], blocks[1 - first]):
        assert spark.conf.given["rows"] != "7"
        block.__exit__(None, None, None)
    assert spark.conf.given == {"rows": "7"}


def test_settings_are_given_back_when_the_job_fails() -> None:
    """PIPE-2."""
    spark = session(rows="7")
    with pytest.raises(RuntimeError), tuning.settings(spark, {"rows": "16"}):
        raise RuntimeError("the job failed")
    assert spark.conf.given == {"rows": "7"}


def test_arrow_batches_are_small_where_rows_may_be_large() -> None:
    """PIPE-5: a thousand rows of a megabyte, which is what a topic takes at most by default, are one gigabyte."""
    wanted = tuning.arrow_batches(are_short=False)
    assert wanted["spark.sql.execution.arrow.maxRecordsPerBatch"] == "1000"
    assert wanted["spark.sql.execution.arrow.maxBytesPerBatch"] == str(16 << 20)


def test_arrow_batches_of_short_rows_are_limited_by_their_number_alone() -> None:
    """PIPE-5: all together they are as large as a worker may hold."""
    wanted = tuning.arrow_batches(are_short=True)
    assert wanted["spark.sql.execution.arrow.maxBytesPerBatch"] == str(2**31 - 1)
    assert int(wanted["spark.sql.execution.arrow.maxRecordsPerBatch"]) * tuning.LONGEST_SHORT_ROW <= 64 << 20


def test_a_spark_that_cannot_limit_the_bytes_takes_few_rows() -> None:
    """PIPE-5."""
    wanted = tuning.arrow_batches(are_short=False, limits_bytes=False)
    assert wanted == {"spark.sql.execution.arrow.maxRecordsPerBatch": "50"}
