"""Pages of producers, transactions and owners for users with some permissions: what they see, and may change."""

from __future__ import annotations

import base64
import http.client
import re
import sqlite3
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

import fencepost
from fencepost.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from fencepost.errors import ErrorCode
from tests.support.http_client import ANY, get
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE
PASSWORDS = {name: f"{name}-secret" for name in ("admin", "alice", "bob", "carol")}
"""alice may see some things, bob may also abort, carol may abort what hangs."""


class LoggedIn(TransactionClient):
    def __init__(self, address: str, user: str) -> None:
        super().__init__(address)
        self.call(17, 1, mechanism="PLAIN")
        answer = self.call(36, 2, auth_bytes=f"\0{user}\0{PASSWORDS[user]}".encode())
        assert answer.error_code == NONE


class User:
    def __init__(self, server: fencepost.Server, name: str) -> None:
        self._url = server.http
        login = base64.b64encode(f"{name}:{PASSWORDS[name]}".encode()).decode()
        self._headers = {"Authorization": f"Basic {login}"}

    def see(self, path: str, status: int = 200) -> str:
        page = get(self._url + path, self._headers)
        assert page.status == status, (path, page.status, page.text)
        return page.text

    def post(self, path: str, *, origin: str | None = "", **fields: str) -> tuple[int, str]:
        """Send a form; return the status, and the address or the text of the answer."""
        headers = {**self._headers, "Content-Type": "application/x-www-form-urlencoded"}
        if origin is not None:
            headers["Origin"] = origin or self._url
        line = http.client.HTTPConnection(self._url.partition("://")[2], timeout=60)
        try:
            line.request("POST", path, urlencode(fields), headers)
            answer = line.getresponse()
            text = answer.read().decode()
        finally:
            line.close()
        return answer.status, answer.getheader("location", "") or text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fencepost.Server]:
    data = tmp_path_factory.mktemp("server") / "data"
    add_users(data, PASSWORDS)
    settings: dict[str, Any] = {
        "listeners": login_listener("PLAIN"), "authorization_enabled": True,
        "authorization_super_users": ("User:admin",),
    }  # fmt: skip
    with fencepost.Server(data, **settings) as started, LoggedIn(started.address, "admin") as client:
        client.create_topic("payments")
        begin(client, "forgotten", {"payments": [0]})
    with sqlite3.connect(data / "meta.sqlite") as stored:
        stored.execute("DELETE FROM transactions")  # its coordinator forgets it
    with fencepost.Server(data, **settings, http_address=ANY) as started:
        with log_in(started.address, "admin", PASSWORDS["admin"]) as client:
            names = ("alice", "bob")
            create_acls(
                client,
                [
                    *(grant(name, ResourceType.TOPIC, "orders", Operation.READ) for name in names),
                    *(grant(name, ResourceType.GROUP, "writers", Operation.DESCRIBE) for name in names),
                    *(grant(name, ResourceType.TRANSACTIONAL_ID, "pays", Operation.DESCRIBE) for name in names),
                    grant("bob", ResourceType.TRANSACTIONAL_ID, "pays", Operation.WRITE),
                    grant("alice", ResourceType.TOPIC, "payments", Operation.READ),
                    grant("carol", ResourceType.TOPIC, "payments", Operation.READ),
                    grant("carol", ResourceType.CLUSTER, CLUSTER_NAME, Operation.ALTER),
                ],
            )
        yield started


@pytest.fixture(scope="module")
def client(server: fencepost.Server) -> Iterator[TransactionClient]:
    with LoggedIn(server.address, "admin") as connection:
        connection.create_topic("orders", partitions=2)
        connection.create_topic("secret")
        yield connection


def begin(client: TransactionClient, name: str, partitions: dict[str, list[int]]) -> TransactionalProducer:
    code, pid, epoch = client.init(name, timeout_ms=600_000)
    assert code is NONE
    producer = TransactionalProducer(name, pid, epoch)
    assert set(client.add(producer, partitions)) == {NONE}
    for topic, indexes in partitions.items():
        for index in indexes:
            assert client.write(producer, topic, [b"x"], partition=index).error is NONE
    return producer


@pytest.fixture
def pays(client: TransactionClient) -> Iterator[TransactionalProducer]:
    """An open transaction."""
    producer = begin(client, "pays", {"orders": [0, 1], "secret": [0]})
    yield producer
    client.end(producer, commit=False)


def shown_in(page: str) -> str:
    [found] = re.findall(r'name="shown" value="(\w+)"', page)
    return str(found)


def test_a_user_sees_what_its_permissions_show(
    server: fencepost.Server, client: TransactionClient, pays: TransactionalProducer
) -> None:
    hidden = begin(client, "hidden", {"secret": [0]})
    alice = User(server, "alice")
    page = alice.see("/producers")
    assert "/transactions/pays" in page
    assert "hidden" not in page
    assert "secret" not in page
    assert "2 offsets in 2 partitions" in page  # that of the secret topic is not counted
    assert f">{pays.pid}<" in alice.see("/producers?topic=orders")
    assert "No topic whose name contains" in alice.see("/producers?topic=secret")
    assert "secret" not in alice.see(f"/producers?pid={pays.pid}")
    assert f"remembers pid {hidden.pid}" in alice.see(f"/producers?pid={hidden.pid}")
    alice.see(f"/producers?topic=secret&pid={pays.pid}", 403)
    alice.see("/producers?pid=many", 400)
    alice.see("/transactions/hidden", 403)
    alice.see("/transactions/nobody", 403)  # the same, whether it exists or not
    User(server, "admin").see("/transactions/nobody", 404)
    assert "hidden" not in alice.see("/transactions")
    page = alice.see("/transactions/pays")
    assert "orders-0" in page
    assert "secret" not in page
    assert "1 more partition, of topics that you may not see" in page
    assert "may not WRITE transactional id pays" in page
    assert "<button class=" not in page
    alice.see("/producers/hanging?topic=secret&partition=0&pid=1", 403)
    alice.see("/producers/hanging?topic=orders&partition=x&pid=1", 400)
    client.end(hidden, commit=False)


def test_an_abort_needs_the_permission_of_the_command_line(
    server: fencepost.Server, client: TransactionClient, pays: TransactionalProducer
) -> None:
    alice, bob = User(server, "alice"), User(server, "bob")
    shown = shown_in(bob.see("/transactions/pays"))
    assert alice.post("/transactions/pays", shown=shown)[0] == 403
    for origin in ("http://evil.example", "null", None):
        assert bob.post("/transactions/pays", origin=origin, shown=shown)[0] == 403
    status, where = bob.post("/transactions/pays", shown="something else")
    assert status == 303
    assert "Nothing was changed" in bob.see(where)
    assert client.stable_offset("orders") < client.end_offset("orders")
    status, where = bob.post("/transactions/pays", shown=shown)
    assert status == 303
    said = bob.see(where)
    assert f"Aborted the transaction of pays: pid {pays.pid}, epoch {pays.epoch} is fenced; 3 partitions have" in said
    assert client.stable_offset("orders") == client.end_offset("orders")
    status, where = bob.post("/transactions/pays", shown=shown)
    assert "Nothing was changed: pays has no open transaction" in bob.see(where)


def test_a_hanging_transaction_needs_alter_on_the_cluster(server: fencepost.Server, client: TransactionClient) -> None:
    assert client.stable_offset("payments") == 0
    alice, carol = User(server, "alice"), User(server, "carol")
    listed = client.call(61, 0, topics=[{"name": "payments", "partition_indexes": [0]}])
    [producer] = listed.topics[0].partitions[0].active_producers
    pid = str(producer.producer_id)
    path = f"/producers/hanging?topic=payments&partition=0&pid={pid}"
    assert "may not ALTER the cluster" in alice.see(path)
    fields = {"topic": "payments", "partition": "0", "pid": pid, "epoch": "0", "first_offset": "0"}
    assert alice.post("/producers/hanging", **fields)[0] == 403
    assert carol.post("/producers/hanging", origin="http://evil.example", **fields)[0] == 403
    status, where = carol.post("/producers/hanging", **{**fields, "first_offset": "1"})
    assert status == 303
    assert "Nothing was changed" in carol.see(where)
    assert client.stable_offset("payments") == 0
    status, where = carol.post("/producers/hanging", **fields)
    assert f"Aborted the hanging transaction of pid {pid} in payments-0." in carol.see(where)
    assert client.stable_offset("payments") == 2
    status, where = carol.post("/producers/hanging", **fields)
    assert f"pid {pid} has no open transaction" in carol.see(where)


def test_an_open_transaction_that_does_not_hang_is_not_aborted_by_hand(
    server: fencepost.Server, client: TransactionClient
) -> None:
    known = begin(client, "known", {"orders": [0]})
    admin = User(server, "admin")
    start = client.end_offset("orders") - 1
    page = admin.see(f"/producers/hanging?topic=orders&partition=0&pid={known.pid}")
    assert "It does not hang" in page
    fields = {"topic": "orders", "partition": "0", "pid": str(known.pid), "epoch": str(known.epoch)}
    status, said = admin.post("/producers/hanging", **fields, first_offset=str(start))
    assert (status, "is not hanging: abort it by its name" in said) == (409, True)
    assert client.end(known, commit=True) is NONE


def test_owners_are_shown_by_group(server: fencepost.Server) -> None:
    login = {
        "bootstrap.servers": server.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "admin", "sasl.password": PASSWORDS["admin"],
    }  # fmt: skip
    with (
        fencepost.Producer.from_config({**login, "client.id": "one"}) as one,
        fencepost.Producer.from_config({**login, "client.id": "two"}) as two,
    ):
        for owner in (one, two):
            owner.own("writers", ["seen-0"], generation=0)
            owner.own("hidden group", ["unseen-0"], generation=0)
        alice = User(server, "alice")
        page = alice.see("/owners")
        assert "seen-0" in page
        assert 'id="takeover-1"' in page
        assert "unseen" not in page
        assert "hidden group" not in page
        admin = User(server, "admin").see(f"/owners?find={quote('hidden gr')}")
        assert "unseen-0" in admin
        assert ">seen-0" not in admin
        User(server, "admin").see("/owners?cursor=nonsense", 400)


def test_a_name_that_looks_like_html_stays_text(server: fencepost.Server, client: TransactionClient) -> None:
    odd = '<script>alert("1")</script>/?&#'
    producer = begin(client, odd, {"orders": [1]})
    admin = User(server, "admin")
    for path in ("/producers", "/transactions", f"/transactions/{quote(odd, safe='')}"):
        page = admin.see(path)
        assert "<script>alert" not in page
        assert "&lt;script&gt;alert" in page
    assert client.end(producer, commit=False) is NONE


def test_a_pid_in_many_topics_comes_in_pages(server: fencepost.Server, client: TransactionClient) -> None:
    for at in range(3):
        client.create_topic(f"wide-{at}", partitions=50)
    writer = begin(client, "wide", {f"wide-{at}": list(range(50)) for at in range(3)})
    admin = User(server, "admin")
    seen: list[tuple[str, str]] = []
    path = f"/producers?pid={writer.pid}"
    for rows in (100, 50):
        page = admin.see(path)
        found = re.findall(r'topic=(wide-\d)">wide-\d</a></td><td class="n">(\d+)</td>', page)
        assert len(found) == rows
        seen += found
        path = "/producers" + "".join(re.findall(r'rel="next" href="([^"]*)"', page)).replace("&amp;", "&")
    assert seen == [(f"wide-{at}", str(index)) for at in range(3) for index in range(50)]
    assert client.end(writer, commit=False) is NONE
