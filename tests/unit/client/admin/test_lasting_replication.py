"""How often topics of fencepost's own are replicated: one broker may fail, and nothing is lost or stuck."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.client.admin.lasting import Replication, fitting, weakness

pytestmark = pytest.mark.unit

brokers = st.integers(1, 9)


@pytest.mark.parametrize(
    ("brokers", "wanted", "expected"),
    [(1, None, (1, 1)), (2, None, (2, 1)), (3, None, (3, 2)), (7, None, (3, 2)), (7, 5, (5, 2)), (3, 1, (1, 1))],
)
def test_three_replicas_or_as_many_as_there_are_brokers(
    brokers: int, wanted: int | None, expected: tuple[int, int]
) -> None:
    assert fitting(brokers, wanted) == expected


def survives_a_broker(topic: Replication, brokers: int) -> bool:
    """By counting: whichever broker fails, what was acknowledged is on another one, and writing goes on."""
    left = topic.factor - 1
    is_kept = topic.min_insync - 1 >= 1  # those that had the record for certain, less the one that fails
    is_writable = left >= topic.min_insync
    return left >= 1 and is_writable and (is_kept or brokers < 3)


@given(brokers.filter(lambda count: count > 1))
def test_what_is_created_survives_a_broker_and_is_not_warned_of(count: int) -> None:
    assert survives_a_broker(fitting(count), count)
    assert weakness(fitting(count), count) is None


@given(brokers.filter(lambda count: count > 1), st.integers(1, 5), st.integers(1, 5))
def test_whatever_does_not_survive_a_broker_is_warned_of(count: int, factor: int, min_insync: int) -> None:
    found = Replication(factor, min_insync)
    if not survives_a_broker(found, count):
        assert weakness(found, count) is not None


@given(st.integers(1, 5))
def test_one_broker_alone_is_not_warned_of(min_insync: int) -> None:
    assert weakness(Replication(1, min_insync), 1) is None


def test_a_warning_says_what_is_wrong_and_what_to_do() -> None:
    assert "replicated once although there are 3 brokers" in (weakness(Replication(1, 1), 3) or "")
    assert "set it to 2" in (weakness(Replication(3, 1), 3) or "")
    assert "nothing can be written while one broker is away; set it to 2" in (weakness(Replication(3, 3), 3) or "")
