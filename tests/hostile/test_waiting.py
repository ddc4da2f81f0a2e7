"""Attacks with requests that wait: what they were sent in, and what stands behind them, must not use up the memory."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from fencepost.errors import ErrorCode
from tests.support import waiting_requests
from tests.support.attacks import Siege
from tests.support.batches import batch
from tests.support.raw import FETCH

pytestmark = pytest.mark.hostile

DESCRIBE_GROUPS = 15


@pytest.mark.parametrize("name", list(waiting_requests.WAITING))
def test_requests_of_a_megabyte_that_wait_hold_nothing(siege: Siege, name: str) -> None:
    siege.create_topic("target")
    siege.create_topic(waiting_requests.EMPTY)
    with siege.connect() as client, ExitStack() as stack:
        waiting_requests.prepare(client, name)
        with siege.attack(f"{name}: requests of a megabyte that wait"):
            for _ in range(siege.size(30, 300)):
                waiting_requests.WAITING[name](stack.enter_context(siege.connect()), name)
            for _ in range(siege.size(2, 20)):
                assert client.produce("target", batch([bytes(500_000)])).error is ErrorCode.NONE
            siege.linger(siege.size(20, 200))


def test_requests_behind_one_that_waits_hold_up_nobody(siege: Siege) -> None:
    siege.create_topic("target")
    row = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1000}
    siege.create_topic(waiting_requests.EMPTY)
    with siege.connect() as client, ExitStack() as stack, siege.attack("a megabyte behind a request that waits"):
        for _ in range(siege.size(30, 300)):
            greedy = stack.enter_context(siege.connect())
            greedy.send(
                FETCH, 4, replica_id=-1, max_wait=waiting_requests.FOR_LONG, min_bytes=10**6, max_bytes=10**6,
                isolation_level=0, topics=[{"topic": waiting_requests.EMPTY, "partitions": [row]}],
            )  # fmt: skip
            greedy.send(DESCRIBE_GROUPS, 0, groups=["x" * 30_000] * 34)
        for _ in range(siege.size(2, 20)):
            assert client.produce("target", batch([bytes(500_000)])).error is ErrorCode.NONE
        siege.linger(siege.size(20, 200))
