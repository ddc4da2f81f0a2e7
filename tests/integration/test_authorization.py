"""Permissions of every API, on fencepost's server and on Apache Kafka with its StandardAuthorizer.

A client without permissions hears the same codes from both. The listed permissions suffice, and none of them can be
left out; another principal's permissions do not count; super users need none.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

import pytest

import fencepost
from bench.secured import CHECKS_PER_BATCH
from fencepost.core.security.access import NEEDS
from fencepost.core.security.acls import CLUSTER_NAME, Acl, Operation, ResourceType
from fencepost.errors import ErrorCode
from fencepost.server.api import APIS
from fencepost.server.security.authorizer import Authorizer
from fencepost.wire.hot import FetchRequest
from tests.support import access_matrix
from tests.support.access_cases import CASES, CLUSTER, GROUP, REFUSALS, TOPIC, Case, Names, attempt, codes
from tests.support.access_matrix import Answers, Row
from tests.support.batches import batch
from tests.support.group_client import ConsumerMember, await_coordinator
from tests.support.logins import add_users, create_acls, delete_acls, grant, log_in, login_listener
from tests.support.plain_servers import plain_fencepost, plain_kafka
from tests.support.raw import FETCH, PRODUCE, RawClient

pytestmark = pytest.mark.integration

USERS: Final = {name: f"{name}-secret" for name in ("admin", "alice", "mallory")}
WITHOUT_CASES: Final = {17, 36, 10_000, 10_001}
"""The login itself, and what Kafka does not have; other tests are about them."""
STARTING: Final = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
"""Kafka's answers until its coordinator is ready."""
NO_TOPIC_ID: Final = UUID(int=0)


class SecuredServer(NamedTuple):
    name: Literal["fencepost", "kafka"]
    address: str
    admin: RawClient

    def log_in(self, user: str) -> RawClient:
        return log_in(self.address, user, USERS[user])

    def permit(self, acls: list[Acl]) -> None:
        """Gives alice these permissions instead of those she had."""
        self.forbid()
        create_acls(self.admin, [*acls, grant("alice", TOPIC, "settled", Operation.DESCRIBE)])
        self._await(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def forbid(self) -> None:
        delete_acls(self.admin, "User:alice")
        self._await(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _await(self, code: ErrorCode) -> None:
        """Kafka's broker decides by new ACLs only a moment after it has answered."""
        asked = {"topics": [{"topic_id": None, "name": "settled"}], "allow_auto_topic_creation": False}
        with self.log_in("alice") as client:
            while client.call(3, 12, **asked, include_topic_authorized_operations=False).topics[0].error_code != code:
                pass


@pytest.fixture(scope="module")
def our_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with plain_fencepost(tmp_path_factory.mktemp("secured"), USERS) as address:
        yield address


@pytest.fixture(scope="module")
def kafka_address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with plain_kafka(tmp_path_factory.mktemp("kafka"), USERS) as address:
        with log_in(address, "admin", USERS["admin"]) as admin:
            while codes(admin.call(10, 4, key_type=1, coordinator_keys=["warm"])) or codes(
                begin_producing(admin, "warm")
            ):
                pass
        yield address


@pytest.fixture(params=["fencepost", pytest.param("kafka", marks=pytest.mark.kafka)])
def secured(request: pytest.FixtureRequest) -> Iterator[SecuredServer]:
    address = request.getfixturevalue("our_address" if request.param == "fencepost" else "kafka_address")
    with log_in(address, "admin", USERS["admin"]) as admin:
        yield SecuredServer(request.param, address, admin)


def make_names(secured: SecuredServer, case_name: str, *, topic: bool) -> Names:
    """Fresh resources of the case."""
    plain = case_name.replace(" ", "-")
    names = Names(f"topic-{plain}", NO_TOPIC_ID, f"group-{plain}", f"txn-{plain}")
    if topic:
        names = names._replace(topic_id=secured.admin.create_topic(names.topic))
    if CASES[case_name].after:
        assert codes(attempt(secured.admin, CASES[CASES[case_name].after], names)) == ()
    return names


def grants_of(case: Case, names: Names, *, without: int | None = None) -> list[Acl]:
    return [
        grant("alice", kind, names.of(kind), operation)
        for number, (kind, operation) in enumerate(case.grants)
        if number != without
    ]


def is_refused(case: Case, answer: Any) -> bool:
    if case.hidden:
        return not getattr(answer, case.hidden)
    return codes(answer) == case.refused


def test_every_api_has_a_rule_and_a_case() -> None:
    assert set(NEEDS) == set(APIS)
    assert {case.key for case in CASES.values()} | WITHOUT_CASES == set(APIS)


def said(case: Case, answer: Any) -> str:
    """The answer as the matrix shows it."""
    if case.hidden:
        return "shown" if getattr(answer, case.hidden) else "hidden"
    return " ".join(code.name for code in codes(answer)) or "OK"


_PLAYED: Final[dict[tuple[str, str], Answers]] = {}


def play(secured: SecuredServer, case_name: str) -> Answers:
    """Try an API as everybody, once per server, and check the permissions on the way."""
    played = _PLAYED.get((secured.address, case_name))
    return played or _PLAYED.setdefault((secured.address, case_name), _play(secured, case_name))


def _play(secured: SecuredServer, case_name: str) -> Answers:
    case = CASES[case_name]
    names = make_names(secured, case_name, topic=case.needs_topic)
    with secured.log_in("mallory") as client:
        denied = attempt(client, case, names)
        assert is_refused(case, denied)
    for number in range(len(case.grants) if len(case.grants) > 1 else 0):
        secured.permit(grants_of(case, names, without=number))
        with secured.log_in("alice") as client:
            assert REFUSALS.intersection(codes(attempt(client, case, names))), case.grants[number]
    secured.permit(grants_of(case, names))
    with secured.log_in("mallory") as client:
        other = attempt(client, case, names)
        assert is_refused(case, other)
    with secured.log_in("alice") as client:
        while STARTING.intersection(codes(allowed := attempt(client, case, names))):
            pass
    assert not REFUSALS.intersection(codes(allowed))
    assert not case.hidden or getattr(allowed, case.hidden)
    secured.forbid()
    by_admin = attempt(secured.admin, case, names)
    assert not REFUSALS.intersection(codes(by_admin))
    return Answers(*(said(case, each) for each in (denied, other, allowed, by_admin)))


@pytest.mark.parametrize("case_name", CASES)
def test_who_has_no_permission_is_refused(secured: SecuredServer, case_name: str) -> None:
    play(secured, case_name)


@pytest.mark.kafka
def test_both_servers_answer_alike(our_address: str, kafka_address: str, request: pytest.FixtureRequest) -> None:
    """Also to those who have the permission; `make access` prints the whole matrix."""
    with (
        log_in(our_address, "admin", USERS["admin"]) as our_admin,
        log_in(kafka_address, "admin", USERS["admin"]) as kafka_admin,
    ):
        ours = SecuredServer("fencepost", our_address, our_admin)
        kafka = SecuredServer("kafka", kafka_address, kafka_admin)
        rows = [Row(name, play(ours, name), play(kafka, name)) for name in CASES]
    if request.config.getoption("access_matrix"):
        access_matrix.remember(request.node, rows)
    found = {(row.api, who) for row in rows for who in row.differences}
    assert found == access_matrix.documented(), access_matrix.lines(row for row in rows if row.differences)


READ_BITS: Final = 1 << Operation.READ | 1 << Operation.DESCRIBE


def metadata(client: RawClient, topic: str, version: int = 9) -> Any:
    return client.call(
        3,
        version,
        topics=[{"topic_id": None, "name": topic}],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )


def test_authorized_operations_are_reported(secured: SecuredServer) -> None:
    secured.admin.create_topic("reported")
    await_coordinator(secured.admin, "reported")
    secured.permit(
        [
            grant("alice", TOPIC, "reported", Operation.READ),
            grant("alice", GROUP, "reported", Operation.READ),
            grant("alice", CLUSTER, CLUSTER_NAME, Operation.ALTER),
        ]
    )
    cluster = 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    with secured.log_in("alice") as client:
        answer = metadata(client, "reported")
        assert answer.topics[0].topic_authorized_operations == READ_BITS
        assert answer.cluster_authorized_operations == cluster
        described = client.call(60, 0, include_cluster_authorized_operations=True)
        assert described.cluster_authorized_operations == cluster
        [group] = client.call(15, 5, groups=["reported"], include_authorized_operations=True).groups
        assert group.authorized_operations == READ_BITS
        listed = client.call(75, 0, topics=[{"name": "reported"}], response_partition_limit=10, cursor=None)
        assert listed.topics[0].topic_authorized_operations == READ_BITS
    with secured.log_in("mallory") as client:
        assert client.call(60, 0, include_cluster_authorized_operations=True).cluster_authorized_operations == 0


def test_a_topic_that_a_client_may_not_describe_looks_as_if_it_did_not_exist(secured: SecuredServer) -> None:
    secured.admin.create_topic("existing")
    with secured.log_in("mallory") as client:
        rows = []
        for name in ("existing", "missing"):
            [row] = metadata(client, name).topics
            assert row.name == name
            rows.append((row.error_code, row.is_internal, row.partitions, row.topic_authorized_operations))
        assert rows[0] == rows[1]


def test_an_acl_counts_from_the_next_request_on(our_address: str) -> None:
    with log_in(our_address, "admin", USERS["admin"]) as admin, log_in(our_address, "alice", USERS["alice"]) as alice:
        admin.create_topic("moment")
        for _ in range(2):
            assert alice.fetch("moment", 0).error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            create_acls(admin, [grant("alice", TOPIC, "moment", Operation.READ)])
            assert alice.fetch("moment", 0).error == ErrorCode.NONE
            delete_acls(admin, "User:alice")


def test_a_batch_costs_few_checks(our_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python -m bench.secured` computes their share of the server's time from these numbers."""
    checked: list[int] = []
    allows = Authorizer.allows

    def note(self: Authorizer, key: int, session: Any, need: Any, name: str) -> bool:
        checked.append(key)
        return allows(self, key, session, need, name)

    with log_in(our_address, "admin", USERS["admin"]) as admin:
        admin.create_topic("checked")
        monkeypatch.setattr(Authorizer, "allows", note)
        admin.produce("checked", batch([b"x"] * 1000))
        admin.fetch("checked", 0)
    assert len(checked) <= CHECKS_PER_BATCH
    assert set(checked) == {PRODUCE, FETCH}


def test_acls_outlive_a_restart(tmp_path: Path) -> None:
    add_users(tmp_path / "data", USERS)
    given = grant("alice", TOPIC, "lasting", Operation.READ)
    for number in range(2):
        with (
            fencepost.Server(
                tmp_path / "data",
                listeners=login_listener("PLAIN"),
                authorization_enabled=True,
                authorization_super_users=("User:admin",),
            ) as server,
            log_in(server.address, "admin", USERS["admin"]) as admin,
        ):
            if not number:
                create_acls(admin, [given])
            found = admin.call(29, 2, **ANY_ACL).resources
            assert [(row.resource_name, [acl.principal for acl in row.acls]) for row in found] == [
                ("lasting", ["User:alice"])
            ]


ANY_ACL: Final = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def claim(client: RawClient, group: str, *names: str) -> ErrorCode:
    resources = [{"resource": name, "name": name, "generation": 1, "after_token": -1} for name in names]
    answer = client.call(10_000, 0, group=group, wait_ms=0, session_ms=0, release=[], resources=resources)
    return ErrorCode.of(answer.error_code)


def owners(client: RawClient, group: str | None) -> Any:
    return client.call(10_001, 0, group=group)


def test_own_needs_the_group_and_the_topic_of_a_partition(our_address: str) -> None:
    with log_in(our_address, "admin", USERS["admin"]) as admin, log_in(our_address, "alice", USERS["alice"]) as alice:
        admin.create_topic("owned")
        assert claim(alice, "crew", "lamp") is ErrorCode.GROUP_AUTHORIZATION_FAILED
        create_acls(admin, [grant("alice", GROUP, "crew", Operation.READ)])
        assert claim(alice, "crew", "lamp") is ErrorCode.NONE
        assert claim(alice, "crew", "lamp", "owned-0") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert claim(alice, "crew", "missing-0") is ErrorCode.TOPIC_AUTHORIZATION_FAILED
        create_acls(admin, [grant("alice", TOPIC, "owned", Operation.WRITE)])
        assert claim(alice, "crew", "owned-0") is ErrorCode.NONE
        assert [row.name for row in owners(alice, None).owners] == ["lamp", "owned-0"]
        with log_in(our_address, "mallory", USERS["mallory"]) as mallory:
            assert owners(mallory, None).owners == ()
            assert owners(mallory, "crew").error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        delete_acls(admin, "User:alice")


def test_a_reader_may_own_a_partition_whose_readers_alone_are_guarded(our_address: str) -> None:
    with log_in(our_address, "admin", USERS["admin"]) as admin, log_in(our_address, "alice", USERS["alice"]) as alice:
        admin.create_topic("read-only", configs={"fencepost.reader.group": "crew"})
        grants = [grant("alice", GROUP, "crew", Operation.READ), grant("alice", TOPIC, "read-only", Operation.READ)]
        create_acls(admin, grants)
        assert claim(alice, "crew", "read-only-0") is ErrorCode.NONE
        delete_acls(admin, "User:alice")


def test_a_refused_claim_does_not_tell_that_the_topic_exists(our_address: str) -> None:
    with log_in(our_address, "admin", USERS["admin"]) as admin, log_in(our_address, "alice", USERS["alice"]) as alice:
        admin.create_topic("secret", configs={"fencepost.reader.group": "crew"})
        create_acls(admin, [grant("alice", GROUP, "crew", Operation.READ)])
        said = []
        for name in ("secret", "absent"):
            wanted = [{"resource": f"{name}-0", "generation": 1, "after_token": -1}]
            asked = {"group": "crew", "wait_ms": 0, "session_ms": 0, "release": []}
            answer = alice.call(10_000, 1, **asked, resources=wanted)
            said.append((answer.error_code, answer.error_message.replace(name, "it")))
        assert said[0] == said[1]
        delete_acls(admin, "User:alice")


def test_a_claim_that_waits_needs_the_permission_until_its_end(our_address: str) -> None:
    with (
        log_in(our_address, "admin", USERS["admin"]) as admin,
        log_in(our_address, "admin", USERS["admin"]) as owner,
        log_in(our_address, "alice", USERS["alice"]) as alice,
    ):
        create_acls(admin, [grant("alice", GROUP, "queue", Operation.READ)])
        assert claim(owner, "queue", "lamp") is ErrorCode.NONE
        lamp = [{"resource": "lamp", "name": "lamp", "generation": 1, "after_token": -1}]
        alice.send(10_000, 0, group="queue", wait_ms=60_000, session_ms=0, release=[], resources=lamp)
        while not owners(admin, "queue").waiting:
            pass
        delete_acls(admin, "User:alice")
        owner.close()
        assert alice.receive()[1].error_code == ErrorCode.GROUP_AUTHORIZATION_FAILED
        assert owners(admin, "queue").owners == ()


def test_a_fetch_session_ends_with_the_permission(our_address: str) -> None:
    with log_in(our_address, "admin", USERS["admin"]) as admin, log_in(our_address, "alice", USERS["alice"]) as alice:
        admin.create_topic("session")
        create_acls(admin, [grant("alice", TOPIC, "session", Operation.READ)])
        alice.send_fetch("session", 0, session_epoch=0)
        session_id = alice.receive()[1].session_id
        assert session_id
        delete_acls(admin, "User:alice")
        admin.produce("session", batch([b"secret"]))
        alice.send_fetch_request(
            FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 20,
                isolation_level=0,
                topics=[],
                session_id=session_id,
                session_epoch=1,
            )
        )
        [topic] = alice.receive()[1].topics
        assert [row.error_code for row in topic.partitions] == [ErrorCode.TOPIC_AUTHORIZATION_FAILED]


def test_an_expression_matches_only_topics_that_the_member_may_describe(secured: SecuredServer) -> None:
    seen = secured.admin.create_topic("matched-seen")
    secured.admin.create_topic("matched-hidden")
    await_coordinator(secured.admin, "matching")
    secured.permit(
        [grant("alice", GROUP, "matching", Operation.READ), grant("alice", TOPIC, "matched-seen", Operation.DESCRIBE)]
    )
    with secured.log_in("alice") as client:
        member = ConsumerMember(client, "matching", "a", subscribed_topic_regex="matched-.*")
        while not member.owned:
            assert member.beat().error_code == ErrorCode.NONE
        assert {topic_id for topic_id, _ in member.owned} == {seen}
        member.leave()


def test_an_expression_is_matched_again_when_an_acl_changes(our_address: str) -> None:
    with log_in(our_address, "admin", USERS["admin"]) as admin, log_in(our_address, "alice", USERS["alice"]) as alice:
        admin.create_topic("later-seen")
        create_acls(admin, [grant("alice", GROUP, "later", Operation.READ)])
        member = ConsumerMember(alice, "later", "a", subscribed_topic_regex="later-.*")
        member.beat()
        assert not member.owned
        create_acls(admin, [grant("alice", TOPIC, "later-seen", Operation.DESCRIBE)])
        member.beat()
        assert len(member.owned) == 1
        delete_acls(admin, "User:alice")


def begin_producing(client: RawClient, transactional_id: str) -> Any:
    return client.call(22, 4, transactional_id=transactional_id, transaction_timeout=60_000)


def test_nobody_else_begins_a_transaction_without_partitions(our_address: str) -> None:
    with (
        log_in(our_address, "admin", USERS["admin"]) as admin,
        log_in(our_address, "mallory", USERS["mallory"]) as thief,
    ):
        given = begin_producing(admin, "empty")
        thief.call(
            24,
            3,
            v3_and_below_transactional_id="empty",
            v3_and_below_producer_id=given.producer_id,
            v3_and_below_producer_epoch=given.producer_epoch,
            v3_and_below_topics=[],
        )
        [found] = admin.call(65, 0, transactional_ids=["empty"]).transaction_states
        assert found.transaction_state == "Empty"


def test_nobody_else_writes_with_the_pid_of_a_transactional_id(our_address: str) -> None:
    """Pids are small numbers: whoever may write to the topic could get past its guard by guessing one."""
    with log_in(our_address, "admin", USERS["admin"]) as admin, log_in(our_address, "alice", USERS["alice"]) as alice:
        admin.create_topic("guarded", configs={"fencepost.writer.transactional.ids": "keeper"})
        given = begin_producing(admin, "keeper")
        create_acls(admin, [grant("alice", TOPIC, "guarded", Operation.WRITE)])
        written = batch([b"forged"], pid=given.producer_id, epoch=given.producer_epoch, sequence=0)
        assert alice.produce("guarded", written).error == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        create_acls(admin, [grant("alice", ResourceType.TRANSACTIONAL_ID, "keeper", Operation.WRITE)])
        assert alice.produce("guarded", written).error == ErrorCode.NONE
        delete_acls(admin, "User:alice")


def test_a_refusal_names_what_is_missing_but_no_topic_that_came_by_its_id(our_address: str) -> None:
    with log_in(our_address, "admin", USERS["admin"]) as admin, log_in(our_address, "alice", USERS["alice"]) as alice:
        hidden = admin.create_topic("hidden-by-id")
        by_name = {"name": "hidden-by-id", "topic_id": None}
        by_id = {"name": None, "topic_id": hidden}
        said = [alice.call(20, 6, topics=[each], timeout=1000).responses[0] for each in (by_name, by_id)]
        assert said[0].error_message == "User:alice may not DELETE topic hidden-by-id"
        assert (said[1].error_message, said[1].name) == ("not authorized", None)
        produced = alice.produce("hidden-by-id", bytes(batch([b"x"])))
        assert produced.message == "User:alice may not WRITE topic hidden-by-id"
        produced = alice.produce(hidden, bytes(batch([b"x"])), version=13)
        assert (produced.error, produced.message) == (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "not authorized")
