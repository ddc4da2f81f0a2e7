"""What strangers make the server keep has limits, each with an error that says so; what is there already goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.batches import batch
from tests.support.group_client import ConsumerMember, GroupMember, commit, delete_group, describe
from tests.support.raw import CREATE_TOPICS, DELETE_TOPICS, RawClient, new_topic

pytestmark = pytest.mark.integration

CREATE_PARTITIONS = 37
INCREMENTAL_ALTER_CONFIGS = 44
OWN = 10_000


@contextmanager
def connected(**settings: Any) -> Iterator[RawClient]:
    with fencepost.Server(**settings) as server, RawClient(server.address) as client:
        yield client


def create(client: RawClient, *topics: dict[str, Any]) -> list[tuple[ErrorCode, str | None]]:
    rows = client.call(CREATE_TOPICS, 5, topics=topics, timeout=30_000, validate_only=False).topics
    return [(ErrorCode.of(row.error_code), row.error_message) for row in rows]


def test_there_are_so_many_topics_and_no_more() -> None:
    with connected(max_topics=3) as client:
        codes = [code for code, _ in create(client, *(new_topic(f"t{number}") for number in range(5)))]
        assert sorted(codes) == [ErrorCode.NONE] * 3 + [ErrorCode.POLICY_VIOLATION] * 2
        [(code, message)] = create(client, new_topic("another"))
        assert code is ErrorCode.POLICY_VIOLATION
        assert message is not None
        assert "max_topics" in message
        # Nor does a client get one by asking for it.
        assert client.metadata(["another"], create=True).topics[0].error_code == ErrorCode.POLICY_VIOLATION
        there = client.metadata(None).topics[0].name
        client.call(DELETE_TOPICS, 5, topic_names=[there], timeout=30_000)
        assert create(client, new_topic("another"))[0][0] is ErrorCode.NONE


def test_there_are_so_many_partitions_and_no_more() -> None:
    with connected(max_partitions=10) as client:
        assert create(client, new_topic("a", 6))[0][0] is ErrorCode.NONE
        [(code, message)] = create(client, new_topic("b", 5))
        assert code is ErrorCode.POLICY_VIOLATION
        assert message is not None
        assert "max_partitions" in message
        assert create(client, new_topic("c", 3))[0][0] is ErrorCode.NONE

        def more(topic: str, count: int) -> Any:
            wanted = [{"name": topic, "count": count, "assignments": None}]
            return client.call(CREATE_PARTITIONS, 1, topics=wanted, timeout=30_000, validate_only=False).results[0]

        assert more("c", 5).error_code == ErrorCode.POLICY_VIOLATION
        assert more("c", 4).error_code == ErrorCode.NONE
        client.call(DELETE_TOPICS, 5, topic_names=["a"], timeout=30_000)
        assert more("c", 10).error_code == ErrorCode.NONE


def test_there_are_so_many_groups_and_no_more() -> None:
    with connected(max_groups=2) as client:
        client.create_topic("t")
        member = GroupMember(client, "first", "t")
        member.enter()
        assert commit(client, "second", "t", 1) is ErrorCode.NONE
        assert commit(client, "third", "t", 1) is ErrorCode.GROUP_MAX_SIZE_REACHED
        assert GroupMember(client, "third", "t").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        beat = ConsumerMember(client, "third", "m", "t").beat()
        assert beat.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert "max_groups" in beat.error_message
        assert member.commit("t", 1) is ErrorCode.NONE
        assert commit(client, "second", "t", 2) is ErrorCode.NONE
        assert delete_group(client, "second") is ErrorCode.NONE
        assert commit(client, "third", "t", 1) is ErrorCode.NONE


def test_what_members_say_of_themselves_is_limited() -> None:
    with connected(group_memory=100_000) as client, RawClient(client.address) as other:
        large = [{"name": "range", "metadata": bytes(60_000)}]
        first, second = GroupMember(client, "a"), GroupMember(other, "b")
        first.protocols = second.protocols = large
        first.enter()
        assert second.join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        # Who is in comes back, and a small one fits beside it.
        assert first.join().error_code == ErrorCode.NONE
        assert first.sync({first.member_id: b"x"}).error_code == ErrorCode.NONE
        GroupMember(other, "c", "t").enter()
        assert first.sync({first.member_id: bytes(60_000)}).error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        first.leave()
        assert second.join().error_code == ErrorCode.NONE


def test_what_members_of_the_new_protocol_say_is_limited() -> None:
    with connected(group_memory=50_000) as client:
        names = [f"{number:0200}" for number in range(100)]
        first, second, third = (ConsumerMember(client, "g", f"m{n}", *names) for n in range(3))
        assert first.beat().error_code == ErrorCode.NONE
        assert second.beat().error_code == ErrorCode.NONE
        refused = third.beat()
        assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert "group_memory" in refused.error_message
        assert first.beat().error_code == ErrorCode.NONE
        assert second.leave().error_code == ErrorCode.NONE
        assert third.beat().error_code == ErrorCode.NONE


def test_names_of_groups_and_members_count_as_what_they_say() -> None:
    with connected(group_memory=50_000) as client:
        client.create_topic("t")
        long = "n" * 30_000

        def static(group: str) -> GroupMember:
            member = GroupMember(client, group, "t")
            member.instance_id = long
            return member

        assert static("a").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert commit(client, long, "t", 1) is ErrorCode.NONE
        assert commit(client, "x" + long, "t", 1) is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        assert GroupMember(client, "x" + long, "t").join().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert ConsumerMember(client, "g", long, "t").beat().error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
        assert ConsumerMember(client, "g", "m", "t").beat().error_code == ErrorCode.NONE


def own(client: RawClient, *names: str, group: str = "g", wait_ms: int = 0, release: Sequence[str] = ()) -> Any:
    resources = [{"resource": name, "generation": 1} for name in names]
    return client.call(OWN, 1, group=group, wait_ms=wait_ms, resources=resources, session_ms=0, release=release)


def test_so_many_resources_are_remembered_and_no_more() -> None:
    with connected(max_resources=3) as client:
        assert own(client, "a", "b").error_code == ErrorCode.NONE
        refused = own(client, "c", "d")
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "max_resources" in refused.error_message
        assert own(client, "c", release=["a"]).error_code == ErrorCode.NONE
        assert own(client, "d").error_code == ErrorCode.POLICY_VIOLATION
        assert own(client, "a", wait_ms=1000).error_code == ErrorCode.NONE
        assert own(client, "d", wait_ms=1000).error_code == ErrorCode.POLICY_VIOLATION


def test_so_many_resources_are_waited_for_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.server.coordinators.owners.MOST_WAITING_RESOURCES", 3)
    with connected() as client, RawClient(client.address) as other:
        assert own(client, "a").error_code == ErrorCode.NONE
        refused = own(other, "a", "b", "c", "d", wait_ms=1000)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "claim fewer at once (all claims together: 3)" in refused.error_message
        assert own(other, "a", "b", "c", wait_ms=1).error_code == ErrorCode.REQUEST_TIMED_OUT
        assert own(other, "b", "c", "d", wait_ms=1000).error_code == ErrorCode.NONE


def test_a_transactional_id_has_a_length() -> None:
    with connected() as client:
        assert client.init_producer_id(transactional_id="t" * 4096).error_code == ErrorCode.NONE
        assert client.init_producer_id(transactional_id="t" * 4097).error_code == ErrorCode.INVALID_REQUEST


def test_a_topic_config_has_a_length_and_is_appended_to_in_no_time() -> None:
    with connected() as client:
        client.create_topic("t")

        def alter(operation: int, value: str) -> Any:
            change = {"name": "fencepost.writer.transactional.ids", "config_operation": operation, "value": value}
            resource = {"resource_type": 2, "resource_name": "t", "configs": [change]}
            return client.call(INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False).responses[0]

        assert alter(0, ",".join(f"a{number}" for number in range(500))).error_code == ErrorCode.NONE
        refused = alter(0, "a" * 5000)
        assert refused.error_code == ErrorCode.INVALID_CONFIG
        assert "at most 4096" in refused.error_message
        # Compared item by item, these would take minutes.
        assert alter(2, ",".join(f"b{number}" for number in range(100_000))).error_code == ErrorCode.INVALID_CONFIG
        assert alter(2, "a1,b1,a2").error_code == ErrorCode.NONE
        assert alter(3, ",".join(f"a{number}" for number in range(499))).error_code == ErrorCode.NONE


def test_texts_that_are_committed_with_offsets_are_limited() -> None:
    with connected(group_memory=10_000) as client:
        client.create_topic("t", 3)
        assert commit(client, "g", "t", 1, metadata="x" * 4000) is ErrorCode.NONE
        assert commit(client, "g", "t", 1, partition=1, metadata="x" * 4000) is ErrorCode.NONE
        refused = commit(client, "g", "t", 1, partition=2, metadata="x" * 4000)
        assert refused is ErrorCode.INVALID_COMMIT_OFFSET_SIZE
        # An offset that moves on takes no more than it has.
        assert commit(client, "g", "t", 2, metadata="y" * 4000) is ErrorCode.NONE
        assert commit(client, "g", "t", 2, partition=1) is ErrorCode.NONE
        assert commit(client, "g", "t", 1, partition=2, metadata="x" * 4000) is ErrorCode.NONE


def test_ids_that_are_only_asked_for_do_not_pile_up() -> None:
    with connected(group_max_size=5) as client:
        codes = []
        for _ in range(8):
            member = GroupMember(client, "g")
            member.send_join()
            codes.append(ErrorCode.of(member.receive_join().error_code))
        assert codes == [ErrorCode.MEMBER_ID_REQUIRED] * 5 + [ErrorCode.GROUP_MAX_SIZE_REACHED] * 3


def test_a_member_offers_a_hundred_protocols_at_most() -> None:
    with connected() as client:
        member = GroupMember(client, "g")
        member.protocols = [{"name": f"p{number}", "metadata": b""} for number in range(101)]
        assert member.join().error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        member.protocols.pop()
        assert member.join().error_code == ErrorCode.NONE


def test_so_many_producers_are_remembered_and_no_more() -> None:
    """IDEM-3."""
    with connected(max_producers=3) as client:
        client.create_topic("t", 2)

        def write(pid: int, sequence: int = 0, partition: int = 0) -> Any:
            return client.produce("t", batch([b"x"], pid=pid, epoch=0, sequence=sequence), partition=partition)

        assert [write(pid).error for pid in (1, 2)] == [ErrorCode.NONE] * 2
        assert write(1, partition=1).error is ErrorCode.NONE
        refused = write(4)
        assert refused.error is ErrorCode.POLICY_VIOLATION
        assert refused.message is not None
        assert "max_producers" in refused.message
        # Who is known goes on, and so does who is not idempotent.
        assert write(1, sequence=1).error is ErrorCode.NONE
        assert client.produce("t", batch([b"x"])).error is ErrorCode.NONE


def test_there_are_so_many_transactional_ids_and_no_more() -> None:
    with connected(max_transactional_ids=2) as client:
        codes = [client.init_producer_id(transactional_id=f"t{number}").error_code for number in range(3)]
        assert codes == [ErrorCode.NONE, ErrorCode.NONE, ErrorCode.POLICY_VIOLATION]
        assert client.init_producer_id(transactional_id="t0").error_code == ErrorCode.NONE
        assert client.init_producer_id().error_code == ErrorCode.NONE


def test_of_a_long_client_name_only_the_beginning_is_kept() -> None:
    with fencepost.Server() as server, RawClient(server.address, client_id="n" * 30_000) as client:
        member = GroupMember(client, "g", "t")
        member.enter()
        [described] = describe(client, "g").members
        assert described.client_id == "n" * 255
        assert len(described.member_id) < 300
