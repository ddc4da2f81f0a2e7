"""The names of partitions, there and back."""

from __future__ import annotations

import pytest

from fencepost.types import TopicPartition, partition_named

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("partition", [TopicPartition("orders", 0), TopicPartition("a-b-1", 12)], ids=str)
def test_the_name_of_a_partition_names_it(partition: TopicPartition) -> None:
    assert partition_named(str(partition)) == partition


@pytest.mark.parametrize("name", ["orders", "orders-", "-1", "orders-x", "orders-1.5", "orders-²", ""])
def test_a_name_that_cannot_be_a_partitions_names_none(name: str) -> None:
    assert partition_named(name) is None
