"""InitProducerId without a name, and DescribeProducers: where a producer stands in a partition."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost.core.producers.sequence import MAX_SEQUENCE
from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.batches import NOW, batch
from tests.support.raw import DESCRIBE_PRODUCERS, RawClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE


def describe(client: RawClient, topic: str, partition: int = 0) -> Any:
    answer = client.call(DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [partition]}])
    [described] = answer.topics[0].partitions
    return described


@pytest.mark.parametrize("version", range(6))
def test_every_version_gives_a_fresh_pid_with_epoch_0(client: RawClient, version: int) -> None:
    seen = set()
    for _ in range(3):
        answer = client.init_producer_id(version)
        assert (answer.error_code, answer.producer_epoch) == (NONE, 0)
        assert answer.producer_id >= 0
        seen.add(answer.producer_id)
    assert len(seen) == 3


def test_pids_of_many_connections_are_all_different(server: TestedServer) -> None:
    connections = [server.connect() for _ in range(10)]
    pids = [connection.new_pid() for _ in range(20) for connection in connections]
    assert len(set(pids)) == len(pids) == 200
    for connection in connections:
        connection.close()


def test_a_known_pid_without_a_name_is_not_bumped_but_replaced(client: RawClient) -> None:
    """KIP-360 is for producers with a name; one without gets a new pid whatever it says it had."""
    pid = client.new_pid()
    answer = client.init_producer_id(producer_id=pid, producer_epoch=0)
    assert (answer.error_code, answer.producer_epoch) == (NONE, 0)
    assert answer.producer_id != pid


def test_an_empty_name_is_an_invalid_request(client: RawClient) -> None:
    answer = client.init_producer_id(transactional_id="")
    assert answer.error_code == ErrorCode.INVALID_REQUEST


def test_a_partition_without_producers_describes_none(client: RawClient, topic: str) -> None:
    client.produce(topic, batch([b"a"]))
    described = describe(client, topic)
    assert (described.error_code, described.active_producers) == (NONE, ())


def test_a_producer_is_described_by_its_last_sequence(client: RawClient, topic: str) -> None:
    """H(P)."""
    pid = client.new_pid()
    client.produce(topic, batch([b"a"] * 3, pid=pid, epoch=0, sequence=0))
    client.produce(topic, batch([b"b"] * 2, pid=pid, epoch=0, sequence=3, timestamps=[NOW + 1, NOW + 5]))
    [state] = describe(client, topic).active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence) == (pid, 0, 4)
    assert state.last_timestamp == NOW + 5
    assert state.current_txn_start_offset == -1


def test_duplicates_and_refused_batches_do_not_move_the_last_sequence(client: RawClient, topic: str) -> None:
    pid = client.new_pid()
    for sequence in (0, 1, 0, 5):
        client.produce(topic, batch([b"a"], pid=pid, epoch=0, sequence=sequence))
    assert [state.last_sequence for state in describe(client, topic).active_producers] == [1]


def test_a_new_epoch_and_the_wrap_are_seen(client: RawClient, topic: str) -> None:
    pid = (1 << 40) + client.new_pid()  # one that this server has issued would have to begin at 0
    client.produce(topic, batch([b"a"] * 4, pid=pid, epoch=2, sequence=MAX_SEQUENCE - 1))
    [state] = describe(client, topic).active_producers
    assert (state.producer_epoch, state.last_sequence) == (2, 1)
    client.produce(topic, batch([b"a"], pid=pid, epoch=3, sequence=0))
    [state] = describe(client, topic).active_producers
    assert (state.producer_epoch, state.last_sequence) == (3, 0)


def test_every_producer_of_a_partition_is_described(client: RawClient, topic: str) -> None:
    pids = [client.new_pid() for _ in range(5)]
    for number, pid in enumerate(pids):
        client.produce(topic, batch([b"a"] * (number + 1), pid=pid, epoch=0, sequence=0))
    states = {state.producer_id: state.last_sequence for state in describe(client, topic).active_producers}
    assert states == {pid: number for number, pid in enumerate(pids)}


def test_unknown_topics_and_partitions_are_named(client: RawClient, topic: str) -> None:
    assert describe(client, "no-such-topic").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe(client, topic, 3).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
