"""Requests that wait for long and were sent in a megabyte, of which the server needs almost nothing meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.support.group_client import GroupMember
from tests.support.raw import FETCH, RawClient

MIB: Final = 1024 * 1024
FOR_LONG: Final = 10**8
EMPTY: Final = "empty"
"""A topic without a record."""
_JOIN_GROUP: Final = 11
_OWN: Final = 10_000


def prepare(client: RawClient, group: str) -> None:
    """Give a resource an owner and a group a member that does not come back, so that the requests below have to wait.
    The topic must exist."""
    client.call(
        _OWN, 1, group=group, wait_ms=0, resources=[{"resource": "held", "generation": 0}], session_ms=0, release=[]
    )
    GroupMember(client, group, EMPTY).enter()


def claim(client: RawClient, group: str) -> None:
    client.send(
        _OWN, 1, group=group, wait_ms=FOR_LONG, resources=[{"resource": "held", "generation": 1}], session_ms=0,
        release=["x" * 240] * 4000,
    )  # fmt: skip


def fetch(client: RawClient, group: str) -> None:
    row = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "partition_max_bytes": 1000}
    client.send(
        FETCH, 11, replica_id=-1, max_wait=FOR_LONG, min_bytes=10**6, max_bytes=10**6, isolation_level=0, session_id=0,
        session_epoch=-1, topics=[{"topic": EMPTY, "partitions": [row]}],
        forgotten_topics_data=[{"topic": "x" * 30_000, "partitions": []}] * 33, rack_id="",
    )  # fmt: skip


def join(client: RawClient, group: str) -> None:
    client.send(
        _JOIN_GROUP, 8, group_id=group, session_timeout=60_000, rebalance_timeout=300_000, member_id="",
        group_instance_id=str(id(client)), protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
        reason="x" * (MIB - 1000),
    )  # fmt: skip


WAITING: Final[dict[str, Callable[[RawClient, str], None]]] = {"Own": claim, "Fetch": fetch, "JoinGroup": join}
