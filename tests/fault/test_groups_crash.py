"""Groups through kill -9: what was acknowledged is there, and members go on as if nothing had happened."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.group_client import ConsumerMember, GroupMember, commit, describe, fetch_offsets
from tests.support.raw import ConnectionEnded, RawClient

pytestmark = pytest.mark.fault

NONE = ErrorCode.NONE


class Killable:
    """A server process on one data directory, killed and started over."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._server = fencepost.Server(data, sync="always", process=True).start()
        self._clients: list[RawClient] = []

    def connect(self) -> RawClient:
        client = RawClient(self._server.address)
        self._clients.append(client)
        return client

    def kill(self) -> None:
        self._server.kill()
        while self._clients:
            self._clients.pop().close()

    def kill_and_restart(self) -> None:
        self.kill()
        self._server = fencepost.Server(self._data, sync="always", process=True).start()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Killable]:
    running = Killable(tmp_path)
    yield running
    running.kill()


def test_a_classic_group_goes_on_with_heartbeats_and_commits(server: Killable) -> None:
    server.connect().create_topic("t")
    member = GroupMember(server.connect(), "g", "t", instance_id="one")
    member.enter()
    assert member.commit("t", 5) is NONE
    server.kill_and_restart()
    member.client = server.connect()
    assert member.heartbeat() is NONE
    assert member.commit("t", 6) is NONE
    assert member.sync().assignment == b"all"
    found = describe(server.connect(), "g")
    assert (found.group_state, found.members[0].group_instance_id) == ("Stable", "one")
    assert fetch_offsets(server.connect(), "g", {"t": [0]})["t", 0].committed_offset == 6


def test_a_member_that_was_not_yet_told_its_assignment_joins_anew(server: Killable) -> None:
    member = GroupMember(server.connect(), "g", "t")
    member.join()
    server.kill_and_restart()
    member.client = server.connect()
    assert member.heartbeat() is ErrorCode.UNKNOWN_MEMBER_ID
    member.member_id = ""
    member.enter()


def test_a_consumer_group_goes_on_at_its_epochs_in_mid_rebalance(server: Killable) -> None:
    server.connect().create_topic("t", partitions=4)
    first = ConsumerMember(server.connect(), "g", "a", "t")
    second = ConsumerMember(server.connect(), "g", "b", "t")
    first.beat()
    second.beat()
    told = first.quick_beat()
    assert told.assignment is not None
    server.kill_and_restart()
    first.client, second.client = server.connect(), server.connect()
    second.beat()
    assert second.owned == set(), "the first has not given anything up yet"
    while len(second.owned) < 2:
        assert first.beat().error_code == NONE
        assert second.beat().error_code == NONE
    assert first.owned.isdisjoint(second.owned)
    assert len(first.owned) == 2


def test_every_acknowledged_commit_is_there_after_kills_at_random_moments(server: Killable) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    server.connect().create_topic("t", partitions=8)
    acknowledged = dict.fromkeys(range(8), -1)
    sent = dict.fromkeys(range(8), -1)
    for _ in range(4):
        client = server.connect()
        for _ in range(dice.randrange(20, 60)):
            partition = dice.randrange(8)
            sent[partition] += 1
            assert commit(client, "g", "t", sent[partition], partition=partition, metadata="m") is NONE
            acknowledged[partition] = sent[partition]
        # Some more are under way when the server dies: those may be there or not.
        for _ in range(dice.randrange(1, 10)):
            partition = dice.randrange(8)
            sent[partition] += 1
            send_commit(client, partition, sent[partition])
        server.kill_and_restart()
        found = fetch_offsets(server.connect(), "g", {"t": list(range(8))})
        for partition in range(8):
            offset = found["t", partition].committed_offset
            assert acknowledged[partition] <= offset <= sent[partition]
            acknowledged[partition] = sent[partition] = offset


def send_commit(client: RawClient, partition: int, offset: int) -> None:
    try:
        client.send(
            8,
            8,
            group_id="g",
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=[
                {
                    "name": "t",
                    "partitions": [
                        {
                            "partition_index": partition,
                            "committed_offset": offset,
                            "committed_leader_epoch": -1,
                            "committed_metadata": "",
                        }
                    ],
                }
            ],
        )
    except (ConnectionEnded, OSError):
        pytest.fail("the server was still alive")
