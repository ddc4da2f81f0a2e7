"""Names of entities, and the bucket that measures the use of a quota."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.quotas import (
    CONNECTION_CREATION_RATE,
    MAX_OVERDRAWN_SECONDS,
    QuotaTable,
    TokenBucket,
    entity_of,
    stored_entity,
)

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("spelling", ["2001:DB8:0::1", "2001:db8::1", "2001:0db8:0:0:0:0:0:0001"])
def test_a_quota_is_for_an_address_however_it_is_spelled(spelling: str) -> None:
    table = QuotaTable()
    table.set(stored_entity(entity_of({"ip": spelling})), CONNECTION_CREATION_RATE, 5.0)
    assert table.of_address("2001:db8::1", CONNECTION_CREATION_RATE) == 5.0
    assert table.of_address("2001:DB8::0:1", CONNECTION_CREATION_RATE) == 5.0


def test_other_names_stay_as_they_are() -> None:
    for entity in (entity_of({"user": "::0:1", "client-id": None}), entity_of({"ip": None}), entity_of({"ip": "x"})):
        assert stored_entity(entity) == entity


def test_a_client_below_its_rate_never_waits() -> None:
    bucket = TokenBucket(100.0, 10.0, 0.0)
    assert [bucket.spend(100.0, float(second)) for second in range(1, 50)] == [0.0] * 49


def test_after_a_pause_a_burst_is_free_and_then_each_unit_takes_its_time() -> None:
    bucket = TokenBucket(100.0, 10.0, 0.0)
    assert bucket.spend(1000.0, 0.0) == 0.0
    assert bucket.spend(50.0, 0.0) == 0.5
    assert bucket.spend(0.0, 0.25) == 0.25
    assert bucket.spend(0.0, 0.5) == 0.0
    assert bucket.spend(1001.0, 1000.0) == pytest.approx(0.01), "a long pause gives one burst, not more"


def test_a_clock_that_stands_still_or_goes_back_fills_nothing() -> None:
    bucket = TokenBucket(1.0, 1.0, 10.0)
    assert bucket.spend(2.0, 10.0) == 1.0
    assert bucket.spend(0.0, 5.0) == 1.0


def test_a_higher_rate_pays_the_debt_sooner() -> None:
    bucket = TokenBucket(1.0, 1.0, 0.0)
    assert bucket.spend(11.0, 0.0) == 10.0
    bucket.change(10.0, 1.0, 0.0)
    assert bucket.spend(0.0, 0.0) == 1.0


def test_a_lower_rate_takes_the_rest_of_the_burst_away() -> None:
    bucket = TokenBucket(100.0, 10.0, 0.0)
    bucket.change(1.0, 10.0, 0.0)
    assert bucket.spend(11.0, 0.0) == 1.0


def test_no_request_mutes_for_days() -> None:
    bucket = TokenBucket(1.0, 1.0, 0.0)
    assert bucket.spend(1e12, 0.0) == MAX_OVERDRAWN_SECONDS


def test_a_bucket_is_available_until_it_is_empty() -> None:
    bucket = TokenBucket(1.0, 2.0, 0.0)
    assert bucket.is_available(0.0)
    bucket.spend(2.0, 0.0)
    assert not bucket.is_available(0.0)
    assert bucket.is_available(0.5)


@given(
    st.floats(0.5, 1e9),
    st.floats(0.1, 100.0),
    st.lists(st.tuples(st.floats(0.0, 30.0), st.floats(0.0, 20.0)), min_size=1, max_size=50),
)
def test_a_client_that_waits_as_told_uses_no_more_than_burst_and_rate(
    rate: float, burst: float, requests: list[tuple[float, float]]
) -> None:
    """Each request uses some seconds' worth of the rate, after a pause; the client waits as long as it is told."""
    bucket = TokenBucket(rate, burst, 0.0)
    now = used = last = 0.0
    for pause, worth in requests:
        now += pause
        used += worth * rate
        last = worth * rate
        now += bucket.spend(worth * rate, now)
    # Only the last request may be beyond the rate when it is sent, and it is paid for when its wait is over.
    assert used <= rate * (burst + now) * (1 + 1e-6) + 1e-6 * last
