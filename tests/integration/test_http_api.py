"""The HTTP API of a real server: the answers fit the OpenAPI description, and are those of the Kafka APIs."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import confluent_kafka
import pytest

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.micro_batch.protocol import PROGRESS_KEY, PROGRESS_TOPIC_PREFIX, Progress
from fencepost.core.rows import plain
from fencepost.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from fencepost.server.http.v1.routes import ROUTES
from tests.support.http_client import ANY, basic, get
from tests.support.json_schema import check
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener

pytestmark = pytest.mark.integration

ADMIN = ("admin", "admin-secret")
ALICE = ("alice", "alice-secret")
GROUP = "readers/of orders"
"""Kafka lets a group have any name."""


def eventually(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true: other processes and threads make it so."""
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "it did not become true"
        time.sleep(0.02)


class Api:
    def __init__(self, server: fencepost.Server, user: tuple[str, str] | None = None) -> None:
        self._url = f"{server.http}/api/v1"
        self._headers = basic(*user) if user else {}

    def status(self, path: str) -> tuple[int, Any]:
        page = get(self._url + path, self._headers)
        return page.status, json.loads(page.text)

    def __call__(self, path: str) -> Any:
        status, answer = self.status(path)
        assert status == 200, (path, answer)
        return answer

    def names(self, path: str) -> list[str]:
        return [row["name"] for row in self(path)["items"]]

    def everything(self, path: str, limit: int) -> list[Any]:
        """Return all rows, page by page."""
        rows: list[Any] = []
        cursor = ""
        while True:
            page = self(f"{path}?limit={limit}{cursor}")
            assert len(page["items"]) <= limit
            rows += page["items"]
            if page["next_cursor"] is None:
                return rows
            cursor = "&cursor=" + quote(page["next_cursor"])


def config_of(server: fencepost.Server) -> dict[str, str]:
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    return {
        "bootstrap.servers": server.address, **login, "sasl.username": ADMIN[0], "sasl.password": ADMIN[1],
    }  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fencepost.Server]:
    """A server with users and ACLs that has one of everything, and more of some."""
    data = tmp_path_factory.mktemp("server") / "data"
    add_users(data, dict((ADMIN, ALICE)))
    with (
        fencepost.Server(
            data,
            listeners=login_listener("PLAIN"),
            authorization_enabled=True,
            authorization_super_users=("User:admin",),
            http_address=ANY,
        ) as started,
        ExitStack() as stack,
    ):
        config = config_of(started)
        with log_in(started.address, *ADMIN) as client:
            create_acls(
                client,
                [
                    grant("alice", ResourceType.TOPIC, "orders", Operation.DESCRIBE),
                    grant("alice", ResourceType.GROUP, "writers", Operation.DESCRIBE),
                    grant("alice", ResourceType.TRANSACTIONAL_ID, "pays-1", Operation.DESCRIBE),
                ],
            )
        admin = stack.enter_context(fencepost.Admin(ClientSettings.from_config(config)))
        for name, partitions in (("orders", 7), ("secret", 1), ("journal", 2)):
            admin.create_topic(name, partitions)
        admin.set_quotas({"user": "alice"}, {"producer_byte_rate": 1e6, "consumer_byte_rate": 2e6})
        producer = stack.enter_context(fencepost.Producer.from_config(config))
        producer.own("writers", ["journal-0", "journal-1"], generation=0)
        for rival in ("first", "second", "third"):
            owner = stack.enter_context(fencepost.Producer.from_config({**config, "client.id": rival}))
            owner.own("rivals", ["leader"], generation=0)
        for number in range(70):
            producer.send("orders", b"x", partition=number % 7)
        producer.flush()
        admin.commit_group_offsets(GROUP, "orders", {index: index for index in range(7)})
        admin.commit_group_offsets("secret readers", "secret", {0: 0})
        for number in range(3):
            # One stays open until the last test of this file has ended, also on a busy machine.
            payer = confluent_kafka.Producer(
                {**config, "transactional.id": f"pays-{number}", "transaction.timeout.ms": 900_000}
            )
            payer.init_transactions()
            payer.begin_transaction()
            payer.produce("orders", b"undecided", partition=number)
            payer.flush()
            if number != 1:
                payer.commit_transaction()
            stack.callback(payer.flush)
        sink = confluent_kafka.Producer({**config, "transactional.id": "sink"})
        sink.init_transactions()
        sink.begin_transaction()
        progress = Progress("query", 41, 2, "token", "host", 7, 1_700_000_000_000)
        sink.produce(PROGRESS_TOPIC_PREFIX + "enrich", progress.encode(), key=PROGRESS_KEY)
        sink.commit_transaction()
        yield started


@pytest.fixture(scope="module")
def api(server: fencepost.Server) -> Api:
    return Api(server, ADMIN)


EXAMPLES = {"topic": "orders", "group": quote(GROUP, safe=""), "name": "pays-1"}


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_answer_has_the_described_form(api: Api, route: Any) -> None:
    description = api("/openapi.json")
    named = description["components"]["schemas"]
    path = re.sub(r"{(\w+):path}", r"{\1}", route.path)
    described = {
        status: row["content"]["application/json"]["schema"]
        for status, row in description["paths"][f"/api/v1{path}"]["get"]["responses"].items()
    }
    answer = api(path.format(**EXAMPLES))
    check(answer, described["200"], named)
    if route.is_paged and route.name != "list_waiting_claims":
        assert answer["items"], "an empty list shows nothing"
    status, problem = api.status(f"{path.format(**EXAMPLES)}?nonsense=1")
    check(problem, described["400"], named)
    assert status == 400
    assert "nonsense" in problem["message"]


@pytest.mark.parametrize("route", [each for each in ROUTES if each.is_paged], ids=lambda route: route.name)
@pytest.mark.parametrize("limit", [1, 2, 1000])
def test_pages_together_are_the_whole_list(api: Api, route: Any, limit: int) -> None:
    path = re.sub(r"{(\w+):path}", r"{\1}", route.path).format(**EXAMPLES)
    assert api.everything(path, limit) == api(path)["items"]


def test_the_numbers_are_those_of_the_log(api: Api) -> None:
    partitions = api("/topics/orders/partitions")["items"]
    assert [row["partition"] for row in partitions] == list(range(7))
    assert [row["end_offset"] for row in partitions] == [12, 11, 12, 10, 10, 10, 10]
    assert [row["stable_offset"] for row in partitions] == [12, 10, 12, 10, 10, 10, 10]
    assert all(row["size"] > 0 and row["start_offset"] == 0 for row in partitions)
    offsets = api(f"/groups/{EXAMPLES['group']}/offsets")["items"]
    assert [row["lag"] for row in offsets] == [12, 10, 10, 7, 6, 5, 4]
    topic = api("/topics/orders")
    assert {row["name"]: row["value"] for row in topic["configs"]}["cleanup.policy"] == "delete"
    transaction = api("/transactions/pays-1")
    assert transaction["state"] == "Ongoing"
    assert transaction["partitions"] == [{"topic": "orders", "partition": 1}]
    assert transaction["started_ms"] > 0
    assert api("/transactions/pays-0")["started_ms"] is None
    [sink] = api("/sinks")["items"]
    assert (sink["name"], sink["query"], sink["batch"], sink["incarnation"]) == ("enrich", "query", 41, 2)
    assert [row["resource"] for row in api("/owners?group=writers")["items"]] == ["journal-0", "journal-1"]
    assert api("/owners?group=others")["items"] == []


def test_the_answers_are_those_that_the_command_line_prints(server: fencepost.Server, api: Api) -> None:
    with fencepost.Admin(ClientSettings.from_config(config_of(server))) as admin:
        offsets = plain([{**plain(row), "lag": row.lag} for row in admin.group_offsets(GROUP)])
        assert sorted_rows(api(f"/groups/{EXAMPLES['group']}/offsets")["items"]) == sorted_rows(offsets)
        producers = api("/topics/orders/producers")["items"]
        shown = [{name: row[name] for name in row if name not in NOT_IN_KAFKA} for row in producers]
        assert sorted_rows(shown) == sorted_rows(plain(admin.producers("orders")))
        assert sorted_rows(api("/groups")["items"]) == sorted_rows(plain(admin.groups()))
        owners = plain(admin.owners().owners)
        assert sorted_rows(api("/owners")["items"]) == sorted_rows(owners)
        described = plain(admin.describe_transaction("pays-1"))
        del described["coordinator"]
        assert api("/transactions/pays-1") == described


NOT_IN_KAFKA = {"last_offset", "duplicates", "transactional_id"}
"""Fields of a producer that Kafka's DescribeProducers has no place for."""


def test_takeovers_are_listed_newest_first(server: fencepost.Server, api: Api) -> None:
    rows = api("/owners/takeovers")["items"]
    assert [(row["number"], row["severed_client_id"], row["by_client_id"]) for row in rows] == [
        (2, "second", "third"),
        (1, "first", "second"),
    ]
    assert {(row["group"], row["reason"], row["refused_writes"]) for row in rows} == {
        ("rivals", "another owner takes over", 0)
    }
    [owner] = api("/owners?group=rivals")["items"]
    taken = {"resource": "leader", "generation": 1, "token": owner["token"]}
    assert (rows[0]["resources"], rows[0]["resource_count"]) == ([taken], 1)
    assert rows[0]["by_time_ms"] == rows[0]["time_ms"] == owner["since_ms"]
    assert api("/owners/takeovers?group=writers")["items"] == []
    assert Api(server, ALICE)("/owners/takeovers")["items"] == []
    assert Api(server, ALICE).status("/owners/takeovers?group=rivals")[0] == 403


def test_producers_are_shown_with_what_kafka_does_not_tell(api: Api) -> None:
    rows = api("/topics/orders/producers")["items"]
    named = {row["partition"]: row for row in rows if row["transactional_id"] is not None}
    assert {index: row["transactional_id"] for index, row in named.items()} == {0: "pays-0", 1: "pays-1", 2: "pays-2"}
    assert (named[1]["last_offset"], named[1]["transaction_start"], named[1]["duplicates"]) == (10, 10, 0)


def sorted_rows(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def test_claims_that_wait_are_shown_in_their_order() -> None:
    with fencepost.Server(http_address=ANY) as started, ExitStack() as stack:
        api = Api(started)
        owner = stack.enter_context(fencepost.Producer(started.address))
        owned = owner.own("writers", ["journal-0", "journal-1"], generation=0)
        threads = stack.enter_context(ThreadPoolExecutor(3))
        waiting = []
        for number, names in enumerate((["journal-0"], ["journal-1", "journal-0"])):
            config = {"bootstrap.servers": started.address, "client.id": f"standby-{number}"}
            standby = stack.enter_context(fencepost.Producer.from_config(config))
            waiting.append(threads.submit(standby.own, "writers", names, wait=300))
            eventually(lambda: len(api("/owners/waiting")["items"]) == len(waiting))
        elsewhere = stack.enter_context(fencepost.Producer(started.address))
        others = elsewhere.own("others", ["journal-0"], generation=0)
        rows = api("/owners/waiting")["items"]
        assert [(row["group"], row["place"], row["resources"], row["client_id"]) for row in rows] == [
            ("writers", 0, ["journal-0"], "standby-0"),
            ("writers", 1, ["journal-1", "journal-0"], "standby-1"),
        ]
        assert {row["address"].rpartition(":")[0] for row in rows} == {"127.0.0.1"}
        assert api.everything("/owners/waiting", 1) == rows
        assert api("/owners/waiting?group=others")["items"] == []
        description = api("/openapi.json")
        described = description["paths"]["/api/v1/owners/waiting"]["get"]
        check(
            {"items": rows, "next_cursor": None},
            described["responses"]["200"]["content"]["application/json"]["schema"],
            description["components"]["schemas"],
        )
        owned.release()
        first = waiting[0].result(60)
        eventually(lambda: [row["place"] for row in api("/owners/waiting")["items"]] == [0])
        assert [row["client_id"] for row in api("/owners?group=writers")["items"]] == ["standby-0"]
        first.release()
        waiting[1].result(60)
        assert api("/owners/waiting")["items"] == []
        others.release()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_members_of_a_group_are_shown_with_their_partitions(protocol: str) -> None:
    with fencepost.Server(http_address=ANY) as started, ExitStack() as stack:
        api = Api(started)
        with fencepost.Admin(started.address) as admin:
            admin.create_topic("orders", 4)
        consumers = []
        for number in range(2):
            config = {
                "bootstrap.servers": started.address, "group.id": "readers", "client.id": f"reader-{number}",
                "group.instance.id": f"instance-{number}", "group.protocol": protocol,
            }  # fmt: skip
            consumers.append(confluent_kafka.Consumer(config))
            stack.callback(consumers[-1].close)
            consumers[-1].subscribe(["orders"])

        def assigned() -> dict[str, list[tuple[str, int]]]:
            """Return the partitions by client, as the clients know them."""
            for each in consumers:
                each.poll(0.1)
            return {
                f"reader-{number}": sorted((row.topic, row.partition) for row in each.assignment())
                for number, each in enumerate(consumers)
            }

        eventually(lambda: sorted(len(rows) for rows in assigned().values()) == [2, 2])

        def shown() -> dict[str, list[tuple[str, int]]]:
            return {
                row["client_id"]: sorted((each["topic"], each["partition"]) for each in row["assignment"])
                for row in api("/groups/readers")["members"]
            }

        eventually(lambda: shown() == assigned())
        eventually(lambda: api("/groups/readers")["state"] == "Stable")
        group = api("/groups/readers")
        assert group["kind"] == protocol
        assert {row["instance_id"] for row in group["members"]} == {"instance-0", "instance-1"}
        assert {row["host"].strip("/") for row in group["members"]} == {"127.0.0.1"}
        assert sorted(chain.from_iterable(shown().values())) == [("orders", index) for index in range(4)]
        [row] = api("/groups")["items"]
        assert (row["name"], row["kind"]) == ("readers", protocol)


def test_an_open_transaction_is_the_one_that_producers_show(api: Api) -> None:
    rows = api("/topics/orders/producers")["items"]
    [open_one] = [row for row in rows if row["transaction_start"] is not None]
    assert (open_one["partition"], open_one["transaction_start"]) == (1, 10)
    assert open_one["pid"] == api("/transactions/pays-1")["pid"]


def test_a_user_sees_only_what_it_may_describe(server: fencepost.Server) -> None:
    alice = Api(server, ALICE)
    assert alice.names("/topics") == ["orders"]
    assert alice.names("/groups") == []
    assert alice.names("/transactions") == ["pays-1"]
    assert alice.names("/sinks") == []
    assert [row["group"] for row in alice("/owners")["items"]] == ["writers"] * 2
    assert alice("/topics/orders")["configs"] is None
    assert {row["size"] for row in alice("/topics/orders/partitions")["items"]} == {None}
    for path, code in (
        ("/topics/secret", "TOPIC_AUTHORIZATION_FAILED"),
        ("/topics/nothing", "TOPIC_AUTHORIZATION_FAILED"),  # the same, whether it exists or not
        ("/topics/orders/producers", "TOPIC_AUTHORIZATION_FAILED"),
        (f"/groups/{EXAMPLES['group']}", "GROUP_AUTHORIZATION_FAILED"),
        (f"/groups/{EXAMPLES['group']}/offsets", "GROUP_AUTHORIZATION_FAILED"),
        ("/transactions/pays-0", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"),
        ("/users", "CLUSTER_AUTHORIZATION_FAILED"),
        ("/acls", "CLUSTER_AUTHORIZATION_FAILED"),
        ("/quotas", "CLUSTER_AUTHORIZATION_FAILED"),
    ):
        status, problem = alice.status(path)
        assert (status, problem["code"]) == (403, code), path


def test_what_does_not_exist_is_not_found(api: Api) -> None:
    for path, code in (
        ("/topics/nothing", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("/topics/nothing/partitions", "UNKNOWN_TOPIC_OR_PARTITION"),
        ("/groups/nobody", "GROUP_ID_NOT_FOUND"),
        ("/groups/nobody/offsets", "GROUP_ID_NOT_FOUND"),
        ("/transactions/nobody", "TRANSACTIONAL_ID_NOT_FOUND"),
        ("/nothing", "NOT_FOUND"),
    ):
        status, problem = api.status(path)
        assert (status, problem["code"]) == (404, code), path


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=1001",
        "limit=x",
        "limit=" + "1" * 5000,
        "cursor=x",
        "cursor=e30=",
        "cursor=W1tdXQ==",
        "cursor=W10=",
    ],
    ids=lambda query: query[:15],
)
@pytest.mark.parametrize("path", ["/topics", "/topics/orders/producers"])
def test_a_wrong_page_is_a_bad_request(api: Api, path: str, query: str) -> None:
    status, problem = api.status(f"{path}?{query}")
    assert (status, problem["code"]) == (400, "BAD_REQUEST")
    assert query.partition("=")[0] in problem["message"]


def test_a_stranger_must_log_in(server: fencepost.Server) -> None:
    for user in (None, ("alice", "wrong")):
        assert Api(server, user).status("/cluster")[0] == 401
    status, description = Api(server).status("/openapi.json")
    assert (status, description["openapi"]) == (200, "3.1.0")


def test_without_authorization_everyone_sees_everything(tmp_path: Path) -> None:
    with fencepost.Server(http_address=ANY) as started:
        with fencepost.Admin(started.address) as admin:
            admin.create_topic("orders", 3)
        api = Api(started)
        assert api.names("/topics") == ["orders"]
        assert api.status("/acls")[1]["code"] == "SECURITY_DISABLED"
        assert api("/cluster")["brokers"][0]["port"] == int(started.address.rpartition(":")[2])


def test_a_permission_on_the_cluster_shows_sizes_and_users(server: fencepost.Server) -> None:
    with log_in(server.address, *ADMIN) as client:
        create_acls(client, [grant("bob", ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)])
    admin = Api(server, ADMIN)
    assert admin.names("/users") == ["admin", "alice"]
    assert {row["principal"] for row in admin("/acls")["items"]} == {"User:alice", "User:bob"}
    assert [row["quota"] for row in admin("/quotas")["items"]] == ["consumer_byte_rate", "producer_byte_rate"]
