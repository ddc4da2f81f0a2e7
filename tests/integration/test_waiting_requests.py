"""Requests that wait keep nothing of what they were sent in: others are read meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.batches import batch
from tests.support.group_client import GroupMember
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration

MIB = 1024 * 1024
FETCH = 1
JOIN_GROUP = 11
DESCRIBE_GROUPS = 15
OWN = 10_000
FOR_LONG = 10**8


def claim(client: RawClient) -> None:
    client.send(
        OWN, 1, group="g", wait_ms=FOR_LONG, resources=[{"resource": "held", "generation": 1}], session_ms=0,
        release=["x" * 240] * 4000,
    )  # fmt: skip


def fetch(client: RawClient) -> None:
    row = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1000}
    client.send(
        FETCH, 11, replica_id=-1, max_wait=FOR_LONG, min_bytes=10**6, max_bytes=10**6, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[{"topic": "empty", "partitions": [row]}],
        forgotten_topics_data=[{"topic": "x" * 30_000, "partitions": []}] * 33, rack_id="",
    )  # fmt: skip


def join(client: RawClient) -> None:
    """Beside a member that does not come back: the group waits for it."""
    client.send(
        JOIN_GROUP, 8, group_id="g", session_timeout=60_000, rebalance_timeout=300_000, member_id="",
        group_instance_id=str(id(client)), protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
        reason="x" * (MIB - 1000),
    )  # fmt: skip


@pytest.mark.parametrize("wait", [claim, fetch, join])
def test_requests_that_wait_do_not_use_up_the_memory_for_requests(wait: Callable[[RawClient], None]) -> None:
    large = batch([bytes(500_000)])
    with fencepost.Server(request_memory=8 * MIB) as server, ExitStack() as stack:
        client = stack.enter_context(RawClient(server.address))
        client.create_topic("empty")
        client.create_topic("t")
        client.call(OWN, 1, group="g", wait_ms=0, resources=[{"resource": "held", "generation": 1}], session_ms=0,
                    release=[])  # fmt: skip
        GroupMember(client, "g", "t").enter()
        for _ in range(8):
            wait(stack.enter_context(RawClient(server.address)))
            assert client.produce("t", large).error is ErrorCode.NONE


def test_requests_behind_one_that_waits_do_not_use_up_the_memory_either() -> None:
    """Nor do they hold up those that are small, though these come several at a time."""
    with fencepost.Server(request_memory=8 * MIB) as server, ExitStack() as stack:
        client = stack.enter_context(RawClient(server.address))
        client.create_topic("empty")
        client.create_topic("t")
        row = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1000}
        for _ in range(8):
            greedy = stack.enter_context(RawClient(server.address))
            greedy.send(
                FETCH, 4, replica_id=-1, max_wait=FOR_LONG, min_bytes=10**6, max_bytes=10**6, isolation_level=0,
                topics=[{"topic": "empty", "partitions": [row]}],
            )  # fmt: skip
            greedy.send(DESCRIBE_GROUPS, 0, groups=["x" * 30_000] * 34)
        for _ in range(5):
            for _ in range(10):
                client.send_produce("t", batch([b"small"]))
            for _ in range(10):
                assert client.receive_produced().error is ErrorCode.NONE
        assert client.produce("t", batch([bytes(500_000)])).error is ErrorCode.NONE
