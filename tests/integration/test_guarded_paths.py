"""Every way to change a guarded topic asks its guard (OWN-9): the APIs by class, and those that ask, tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

import fencepost
from fencepost.errors import ErrorCode, Fenced, SendFailed, ServerError
from fencepost.server.api import APIS
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.batches import batch
from tests.support.raw import RawClient

pytestmark = pytest.mark.integration

READERS: Final = "readers-of-the-guarded"

ASK: Final = {0, 1, 8, 20, 21, 24, 27, 28, 42, 47}
"""They change or hand out records, or change how far readers are: the guard decides."""
ADMINISTER: Final = {19, 30, 31, 33, 37, 44, 49, 51}
"""They make topics, partitions, guards, ACLs, quotas and users. Who may take a guard off is not held up by it."""
END_TRANSACTIONS: Final = {22, 25, 26}
"""By transactional id, whose epoch is the fence. The partitions and offsets in it were judged when they were added, and
are judged again when their owner changes (`server/coordinators/transactions.py`)."""
LOG_IN: Final = {17, 36}
"""Who the client is."""
MEMBERSHIP: Final = {11, 12, 13, 14, 68}
"""Who is in a consumer group; what they read and commit is asked above."""
TELL: Final = {
    2, 3, 9, 10, 15, 16, 18, 23, 29, 32, 34, 35, 43, 45, 46, 48, 50, 55, 57, 60, 61, 65, 66, 69, 74, 75,
    10_001,
}  # fmt: skip
"""They tell of names, numbers and states, and change nothing."""
OWN: Final = {10_000}


def test_every_api_that_is_served_is_classified() -> None:
    """A new API has to say whether it asks the guard; the test below tries those that do."""
    classes = [ASK, ADMINISTER, END_TRANSACTIONS, LOG_IN, MEMBERSHIP, TELL, OWN]
    assert sorted(key for each in classes for key in each) == sorted(APIS)


@pytest.fixture
def guarded(ours: TestedServer, name: str) -> str:
    """Ten records; a group that has read five; both guards."""
    with fencepost.Admin(ours.address) as admin:
        admin.create_topic(name, 1)
        with fencepost.Producer(ours.address) as producer:
            for number in range(10):
                producer.send(name, b"%d" % number, partition=0)
        with fencepost.Reader(ours.address, (name, 0), group=f"{READERS}-{name}") as reader:
            reader.commit({TopicPartition(name, 0): 5})
        admin.alter_topic(name, {"fencepost.writer.group": name, "fencepost.reader.group": name})
    return name


def produce(client: RawClient, topic: str) -> int:
    return int(client.produce(topic, batch([b"x"])).error)


def fetch(client: RawClient, topic: str) -> int:
    return int(client.fetch(topic, 0).error)


def commit(client: RawClient, topic: str) -> int:
    row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = client.call(
        8, 7, group_id=f"{READERS}-{topic}", generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[{"name": topic, "partitions": [row]}],
    )  # fmt: skip
    return int(answer.topics[0].partitions[0].error_code)


def delete_topic(client: RawClient, topic: str) -> int:
    return int(client.call(20, 5, topic_names=[topic], timeout=1000).responses[0].error_code)


def delete_records(client: RawClient, topic: str) -> int:
    topics = [{"name": topic, "partitions": [{"partition_index": 0, "offset": 3}]}]
    return int(client.call(21, 1, topics=topics, timeout=1000).topics[0].partitions[0].error_code)


def transact(client: RawClient, topic: str) -> int:
    who = client.call(
        22, 4, transactional_id=f"t-{topic}", transaction_timeout=10_000, producer_id=-1, producer_epoch=-1
    )
    answer = client.call(
        24, 3,
        v3_and_below_transactional_id=f"t-{topic}",
        v3_and_below_producer_id=who.producer_id,
        v3_and_below_producer_epoch=who.producer_epoch,
        v3_and_below_topics=[{"name": topic, "partitions": [0]}],
    )  # fmt: skip
    return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)


def write_marker(client: RawClient, topic: str) -> int:
    marker = {
        "producer_id": 77, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0,
        "topics": [{"name": topic, "partition_indexes": [0]}],
    }  # fmt: skip
    return int(client.call(27, 1, markers=[marker]).markers[0].topics[0].partitions[0].error_code)


def commit_in_transaction(client: RawClient, topic: str) -> int:
    name, group = f"o-{topic}", f"{READERS}-{topic}"
    who = client.call(22, 4, transactional_id=name, transaction_timeout=10_000, producer_id=-1, producer_epoch=-1)
    identity = {"producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
    client.call(25, 3, transactional_id=name, group_id=group, **identity)
    row = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}
    answer = client.call(
        28, 3, transactional_id=name, group_id=group, generation_id=-1, member_id="", group_instance_id=None,
        topics=[{"name": topic, "partitions": [row]}], **identity,
    )  # fmt: skip
    return int(answer.topics[0].partitions[0].error_code)


def delete_group(client: RawClient, topic: str) -> int:
    return int(client.call(42, 1, groups_names=[f"{READERS}-{topic}"]).results[0].error_code)


def delete_offsets(client: RawClient, topic: str) -> int:
    topics = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    answer = client.call(47, 0, group_id=f"{READERS}-{topic}", topics=topics)
    return int(answer.topics[0].partitions[0].error_code)


WAYS: Final[dict[int, Callable[[RawClient, str], int]]] = {
    0: produce,
    1: fetch,
    8: commit,
    21: delete_records,
    24: transact,
    27: write_marker,
    28: commit_in_transaction,
    47: delete_offsets,
    42: delete_group,
    20: delete_topic,
}


def test_what_asks_the_guard_is_tried() -> None:
    assert WAYS.keys() == ASK


@pytest.mark.parametrize("key", WAYS, ids=lambda key: APIS[key].name)
def test_a_stranger_is_refused_and_the_owner_is_not(ours: TestedServer, guarded: str, key: int) -> None:
    way = WAYS[key]
    refusals = {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED}
    with ours.connect() as stranger, ours.connect() as owner:
        assert way(stranger, guarded) in refusals
        assert owner.call(
            10_000, 1, group=guarded, wait_ms=0, resources=[{"resource": f"{guarded}-0", "generation": 1}]
        ).error_code == ErrorCode.NONE  # fmt: skip
        assert way(stranger, guarded) in refusals, "somebody else owns it"
        assert way(owner, guarded) == ErrorCode.NONE


# --- a guard that names transactional ids ---


@pytest.fixture
def by_id(ours: TestedServer, name: str) -> str:
    with fencepost.Admin(ours.address) as admin:
        admin.create_topic(name, 2, configs={"fencepost.writer.transactional.ids": f"writer-of-{name}, jobs-{name}.*"})
    return name


@pytest.fixture
def named(ours: TestedServer) -> Iterator[Callable[[str | None], fencepost.Producer]]:
    made: list[fencepost.Producer] = []

    def make(transactional_id: str | None) -> fencepost.Producer:
        made.append(fencepost.Producer(ours.address, name=transactional_id))
        return made[-1]

    yield make
    for producer in made:
        try:
            producer.close()
        except (Fenced, fencepost.Undelivered):
            continue


def values(server: TestedServer, topic: str) -> list[bytes]:
    with fencepost.Reader(server.address, topic, stop="latest") as reader:
        return sorted(record.value or b"" for record in reader)


def test_only_the_named_transactional_ids_write_over_whichever_connection(
    ours: TestedServer, by_id: str, named: Any
) -> None:
    """A pipeline writes over many connections, none of which could be the owner."""
    for stranger in (None, "another", f"jobs-{by_id}"):
        refusal = named(stranger).send(by_id, b"stranger", partition=0).exception(30)
        assert isinstance(refusal, SendFailed)
        assert (refusal.code, refusal.persisted) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "no")
    writer, job = named(f"writer-of-{by_id}"), named(f"jobs-{by_id}.1")
    with writer.transaction():
        writer.send(by_id, b"in a transaction", partition=0)
    job.send(by_id, b"outside of one", partition=1).result(30)
    assert values(ours, by_id) == [b"in a transaction", b"outside of one"]
    with pytest.raises(ServerError, match="TOPIC_AUTHORIZATION_FAILED"), fencepost.Admin(ours.address) as admin:
        admin.delete_topic(by_id)


def test_the_older_producer_of_the_id_is_fenced_exactly(ours: TestedServer, by_id: str, named: Any) -> None:
    """OWN-9: once its successor has its epoch, nothing of the older one gets in, also where nobody wrote yet."""
    older = named(f"writer-of-{by_id}")
    older.send(by_id, b"older", partition=0).result(30)
    newer = named(f"writer-of-{by_id}")
    with newer.transaction():
        newer.send(by_id, b"newer", partition=0)
        late = older.send(by_id, b"late", partition=1).exception(30)
        assert isinstance(late, Fenced)
        assert late.persisted == "no"
    assert values(ours, by_id) == [b"newer", b"older"]


def test_a_topic_has_one_guard_for_its_writers(ours: TestedServer, by_id: str, name: str) -> None:
    both = {"fencepost.writer.group": "g", "fencepost.writer.transactional.ids": "t"}
    with fencepost.Admin(ours.address) as admin:
        with pytest.raises(ServerError, match="one guard for writers"):
            admin.create_topic(f"{name}-both", 1, configs=both)
        with pytest.raises(ServerError, match="one guard for writers"):
            admin.alter_topic(by_id, {"fencepost.writer.group": "g"})
        with pytest.raises(ServerError, match=r"must be transactional ids or NAME\*"):
            admin.alter_topic(by_id, {"fencepost.writer.transactional.ids": "a*b"})
