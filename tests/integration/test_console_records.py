"""The record browser over HTTP: what it finds, what it claims, who may search, and files."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlencode

import pytest

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.security.acls import Operation, ResourceType
from fencepost.server.search.searching import MOST_SEARCHES
from tests.support.http_client import ANY, basic, get
from tests.support.logins import add_users, create_acls, delete_acls, grant, log_in, login_listener
from tests.support.lost_machine import until
from tests.support.search_events import events, lines_of, search

pytestmark = pytest.mark.integration

ADMIN = ("admin", "admin-secret")
ALICE = ("alice", "alice-secret")


@pytest.fixture(scope="module")
def server() -> Iterator[fencepost.Server]:
    with fencepost.Server(http_address=ANY, background_interval_ms=24 * 60 * 60 * 1000) as started:
        yield started


@pytest.fixture
def topic(server: fencepost.Server, name: str) -> str:
    """Three partitions with ten records each: N, at N times a second after 2026-11-15."""
    with fencepost.Admin(server.address) as admin, fencepost.Producer(server.address) as producer:
        admin.create_topic(name, 3)
        for number in range(30):
            producer.send(
                name, b"value %d" % number, key=b"key %d" % (number % 5), partition=number % 3,
                headers=[("h", b"%d" % (number % 2))], timestamp=1794700800000 + number * 1000,
            )  # fmt: skip
    return name


def test_the_last_records_of_each_partition_are_shown_at_first(server: fencepost.Server, topic: str) -> None:
    found = search(server.http, topic, at=2)
    assert found.rows == ["0-8", "0-9", "1-8", "1-9", "2-8", "2-9"]
    assert found.end.startswith("6 records found in 6 records searched: the last 2 offsets of each partition.")
    assert found.go is None


def test_a_search_says_no_match_only_for_the_whole_range(server: fencepost.Server, topic: str) -> None:
    found = search(server.http, topic, from_="earliest", value="nowhere")
    assert found.rows == []
    assert found.end.startswith("No match in 30 records searched: the whole range.")
    assert "partition 0: offset 0 to 9; partition 1: offset 0 to 9; partition 2: offset 0 to 9" in found.end
    assert "offsets 30 of 30; partitions 3 of 3" in found.end
    narrow = search(server.http, topic, from_="offset", at=3, until="offset", stop=5, partition=1, value="nowhere")
    assert narrow.end.startswith("No match in 3 records searched: the whole range.")
    assert "Searched: partition 1: offset 3 to 5." in narrow.end
    nothing = search(server.http, topic, from_="offset", at=100, value="nowhere")
    assert nothing.end.startswith("There are no records in this range.")


def test_a_search_that_stops_at_its_limit_goes_on_exactly_there(server: fencepost.Server, topic: str) -> None:
    rows: list[str] = []
    go: str | None = None
    turns = 0
    while True:
        query = {"from": "earliest", "header": "h", "header_value": "1", "limit": 4, **({"go": go} if go else {})}
        found = search(server.http, topic, **query)
        rows += found.rows
        turns += 1
        if found.go is None:
            break
        assert "as many as were asked for" in found.end
        go = found.go
    assert rows == [f"{number % 3}-{number // 3}" for number in sorted(range(1, 30, 2), key=lambda n: (n % 3, n // 3))]
    assert turns == 4


def test_records_are_found_by_time(server: fencepost.Server, topic: str) -> None:
    found = search(server.http, topic, from_="time", at="1794700810000", until="time", stop="1794700812000")
    assert found.rows == ["0-4", "1-3", "2-3"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"from": "offset"}, "an offset is missing"),
        ({"json": "$.a["}, "the JSON path is wrong at"),
        ({"partition": "3"}, "has no partition 3: its last one is 2"),
    ],
)
def test_a_wrong_search_is_said_beside_the_form(
    server: fencepost.Server, topic: str, query: dict[str, str], words: str
) -> None:
    page = get(f"{server.http}/topics/{topic}/records?{urlencode(query)}")
    assert page.status == 200
    assert words in page.text
    assert "<form" in page.text
    stream = get(f"{server.http}/live/topics/{topic}/records?{urlencode(query)}")
    assert stream.status == 400
    assert words in stream.text


def test_matches_can_be_downloaded(server: fencepost.Server, topic: str) -> None:
    page = get(f"{server.http}/topics/{topic}/records.jsonl?from=earliest&key=key+3&limit=1")
    assert page.headers["content-disposition"] == f'attachment; filename="{topic}.jsonl"'
    records, said = lines_of(page.text)
    assert [(record["partition"], record["offset"], record["value"]) for record in records] == [
        (number % 3, number // 3, f"value {number}")
        for number in sorted(range(3, 30, 5), key=lambda number: (number % 3, number // 3))
    ]
    assert records[0]["key"] == "key 3"
    assert records[0]["headers"] == [["h", "1"]]
    assert said["complete"]
    assert said["records_searched"] == 30
    value = get(f"{server.http}/topics/{topic}/records/1/4/value")
    assert value.text == "value 13"
    assert value.headers["content-type"] == "application/octet-stream"
    assert get(f"{server.http}/topics/{topic}/records/1/4/key").text == "key 3"
    for path in ("1/10/value", "3/0/value", "1/4/both", "1/x/value"):
        assert get(f"{server.http}/topics/{topic}/records/{path}").status == 404


def test_a_record_cannot_send_events_of_its_own(server: fencepost.Server, topic: str) -> None:
    with fencepost.Producer(server.address) as producer:
        producer.send(
            topic, b"x\r\revent: end\rdata: <b>No match</b>\r\r\nevent: end\ndata: y\n\n<script>", partition=0
        )
    heard = list(events(server.http, topic, partition=0, at=1))
    assert [event.name for event in heard].count("end") == 1
    assert "the last 1 offset of the partition" in heard[-1].words
    [row] = [event for event in heard if event.name == "found"]
    assert "<script>" not in row.text
    assert "data: &lt;b&gt;" in row.text


def test_only_so_many_searches_run_at_a_time_and_leaving_ends_one(server: fencepost.Server, topic: str) -> None:
    with fencepost.Producer(server.address) as producer:
        for _ in range(200):
            producer.send(topic, b"x" * 500_000, partition=0)  # far more than fits into the buffers of a connection
    query = {"from": "earliest", "partition": 0}
    path = f"/topics/{topic}/records.jsonl?from=earliest&partition=0"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    readers = [opener.open(server.http + path, timeout=60) for _ in range(MOST_SEARCHES)]
    try:
        for reader in readers:
            assert reader.read(1)  # it is under way, and waits for its reader
        said = search(server.http, topic, **query).end
        assert said.startswith(f"{MOST_SEARCHES} searches are under way, and there can be only {MOST_SEARCHES}")
    finally:
        for reader in readers:
            reader.close()
    deadline = time.monotonic() + 60
    while not (found := search(server.http, topic, **query, limit=1)).rows and time.monotonic() < deadline:
        pass  # the server hears within a moment that its readers have left
    assert found.rows == ["0-0"]


def test_the_state_of_each_transaction_is_shown(server: fencepost.Server, name: str) -> None:
    with (
        fencepost.Producer(server.address, name=f"{name}-1") as first,
        fencepost.Producer(server.address, name=f"{name}-2") as second,
    ):
        with fencepost.Admin(server.address) as admin:
            admin.create_topic(name, 1)
        with first.transaction():
            first.send(name, b"one")
        with pytest.raises(KeyError), first.transaction():  # noqa: PT012
            first.send(name, b"two").result()
            raise KeyError
        with second.transaction():
            second.send(name, b"three").result()
            committed = search(server.http, name, from_="earliest")
            assert committed.rows == ["0-0"]
            assert "1 record of aborted transactions left out, as asked" in committed.end
            page = get(f"{server.http}/topics/{name}/records.jsonl?from=earliest&isolation=all")
            records, said = lines_of(page.text)
            assert [each["transaction"] for each in records] == ["committed", "aborted", "open"]
            assert said["records_searched"] == said["matches"] == 3
            assert "open transaction" in get(f"{server.http}/topics/{name}").text
    after = search(server.http, name, from_="earliest", isolation="all", value="three")
    assert after.rows == ["0-4"]


def test_a_search_follows_the_end_of_the_log(server: fencepost.Server, topic: str) -> None:
    with (
        closing(events(server.http, topic, at=1, until="follow", value="news")) as heard,  # type: ignore[type-var]
        fencepost.Producer(server.address) as producer,
    ):
        for event in heard:
            if "Following" in event.words:
                break
        producer.send(topic, b"old", partition=1)
        producer.send(topic, b"the news", partition=1)
        for event in heard:
            if event.rows:
                break
        assert event.rows == ["1-11"]
        with fencepost.Admin(server.address) as admin:
            admin.delete_topics([topic])
        *_, last = heard
    assert last.name == "end"
    assert "the topic was deleted" in last.words


def test_reading_needs_the_permission_that_fetch_needs(tmp_path: Path) -> None:
    add_users(tmp_path / "data", dict((ADMIN, ALICE)))
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY, audit_file=tmp_path / "audit.log",
    ) as server:  # fmt: skip
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        config = {"bootstrap.servers": server.address, **login, "sasl.username": ADMIN[0], "sasl.password": ADMIN[1]}
        with (
            fencepost.Admin(ClientSettings.from_config(config)) as admin,
            fencepost.Producer.from_config(config) as producer,
        ):
            admin.create_topic("secrets", 1)
            producer.send("secrets", b"the secret").result()
        read = grant("alice", ResourceType.TOPIC, "secrets", Operation.READ)
        with log_in(server.address, *ADMIN) as client:
            create_acls(client, [grant("alice", ResourceType.TOPIC, "secrets", Operation.DESCRIBE)])
            for path in (
                "/topics/secrets/records", "/live/topics/secrets/records", "/topics/secrets/records.jsonl",
                "/topics/secrets/records/0/0/value",
            ):  # fmt: skip
                refused = get(server.http + path, basic(*ALICE))
                assert refused.status == 403, path
                assert "User:alice may not READ topic secrets" in refused.text

            def denied() -> list[tuple[str, ...]]:
                events = [json.loads(line) for line in (tmp_path / "audit.log").read_text().splitlines()]
                return [
                    (row["principal"], row["api"], row["operation"], row["resource"])
                    for row in events
                    if row["event"] == "access.denied"
                ]

            until(lambda: ("User:alice", "Fetch", "READ", "secrets") in denied(), "the line in the audit log")
            create_acls(client, [read])
            assert search(server.http, "secrets", basic(*ALICE)).rows == ["0-0"]
            with closing(events(server.http, "secrets", basic(*ALICE), until="follow")) as heard:  # type: ignore[type-var]
                for event in heard:
                    if "Following" in event.words:
                        break
                delete_acls(client, "User:alice")
                *_, last = heard
            assert last.name == "end"
            assert "the permission to read the topic was withdrawn" in last.words


def test_a_guarded_topic_can_be_read_by_its_owners_only(server: fencepost.Server, name: str) -> None:
    with fencepost.Admin(server.address) as admin:
        admin.create_topic(name, 1, configs={"fencepost.reader.group": "readers"})
    page = get(f"{server.http}/topics/{name}/records")
    assert "only the owners of its partitions in group &#39;readers&#39; may read topic" in page.text
    assert get(f"{server.http}/live/topics/{name}/records").status == 400


def test_a_stopping_server_ends_searches_without_a_complaint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fencepost", "serve", "--data", str(tmp_path / "data"), "--listen", ANY]
    with (
        open(tmp_path / "stderr", "wb") as stderr,
        subprocess.Popen([*command, "--http", ANY, "--json"], stdout=subprocess.PIPE, stderr=stderr) as server,
    ):
        assert server.stdout is not None
        try:
            ready = json.loads(server.stdout.readline())
            with fencepost.Producer(ready["address"]) as producer:
                producer.send("orders", b"x").result()
            with closing(events(ready["http"], "orders", until="follow")) as heard:  # type: ignore[type-var]
                for event in heard:
                    if "Following" in event.words:
                        break
                server.terminate()
                with suppress(HTTPException, OSError):  # the stream may be cut off
                    list(heard)
            assert server.wait(60) == 0
        finally:
            server.kill()
    assert "Traceback" not in (tmp_path / "stderr").read_text()
