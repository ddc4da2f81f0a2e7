"""The rules of staging (PIPE-2)."""

from __future__ import annotations

import pytest

from fencepost.core.micro_batch.staging import Staged, ends_of, partition_for, partitions_for, share_of
from fencepost.types import TopicPartition

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("tasks", [1, 2, 7, 200])
def test_an_evenly_spread_micro_batch_of_the_limit_is_not_staged(tasks: int) -> None:
    limit = 64 << 20
    assert all(limit // tasks <= share_of(limit, task) for task in range(tasks))


def test_what_all_tasks_may_send_stays_below_sparks_limit_of_a_gibibyte() -> None:
    """spark.driver.maxResultSize is 1 g by default, and the driver's memory too."""
    assert sum(share_of(64 << 20, task) for task in range(10_000)) < 850 << 20


def test_a_share_is_never_more_than_the_limit_and_never_tiny() -> None:
    assert [share_of(10, task) for task in (0, 1, 500)] == [10, 10, 10]
    assert [share_of(0, task) for task in (0, 500)] == [0, 0]
    assert share_of(64 << 20, 100_000) == 32 << 10


def test_neighbouring_target_partitions_use_different_stage_partitions() -> None:
    assert [partitions_for(targets) for targets in (0, 1, 12, 500)] == [1, 1, 12, 32]
    for topic in ("a", "b", "long-name"):
        assert {partition_for(TopicPartition(topic, partition), 12) for partition in range(12)} == set(range(12))


def test_the_stage_may_be_cleared_up_to_the_last_place_of_each_partition() -> None:
    assert ends_of([Staged(0, 7), Staged(3, 0), Staged(0, 5)]) == {0: 8, 3: 1}
    assert ends_of([]) == {}
