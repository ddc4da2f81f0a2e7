"""Requests that wait keep nothing of what they were sent in: others are read meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.batches import batch
from tests.support.raw import FETCH, RawClient
from tests.support.waiting_requests import EMPTY, FOR_LONG, MIB, WAITING, prepare

pytestmark = pytest.mark.integration

DESCRIBE_GROUPS = 15


@pytest.mark.parametrize("wait", list(WAITING.values()))
def test_requests_that_wait_do_not_use_up_the_memory_for_requests(wait: Callable[[RawClient, str], None]) -> None:
    large = batch([bytes(500_000)])
    with fencepost.Server(request_memory=8 * MIB) as server, ExitStack() as stack:
        client = stack.enter_context(RawClient(server.address))
        client.create_topic("t")
        client.create_topic(EMPTY)
        prepare(client, "g")
        for _ in range(8):
            wait(stack.enter_context(RawClient(server.address)), "g")
            assert client.produce("t", large).error is ErrorCode.NONE


def test_requests_behind_one_that_waits_do_not_use_up_the_memory_either() -> None:
    """Nor do they hold up those that are small, though these come several at a time."""
    with fencepost.Server(request_memory=8 * MIB) as server, ExitStack() as stack:
        client = stack.enter_context(RawClient(server.address))
        client.create_topic(EMPTY)
        client.create_topic("t")
        row = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1000}
        for _ in range(8):
            greedy = stack.enter_context(RawClient(server.address))
            greedy.send(
                FETCH, 4, replica_id=-1, max_wait=FOR_LONG, min_bytes=10**6, max_bytes=10**6, isolation_level=0,
                topics=[{"topic": EMPTY, "partitions": [row]}],
            )  # fmt: skip
            greedy.send(DESCRIBE_GROUPS, 0, groups=["x" * 30_000] * 34)
        for _ in range(5):
            for _ in range(10):
                client.send_produce("t", batch([b"small"]))
            for _ in range(10):
                assert client.receive_produced().error is ErrorCode.NONE
        assert client.produce("t", batch([bytes(500_000)])).error is ErrorCode.NONE
