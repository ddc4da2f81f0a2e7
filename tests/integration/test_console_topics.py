"""The console's pages about topics, over HTTP: who sees what, long lists, and the numbers of the command line."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.security.acls import Operation, ResourceType
from tests.support.http_client import ANY, Page, basic, get
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener

pytestmark = pytest.mark.integration

ADMIN = ("admin", "admin-secret")
ALICE = ("alice", "alice-secret")


@pytest.fixture(scope="module")
def server() -> Iterator[fencepost.Server]:
    with fencepost.Server(http_address=ANY, background_interval_ms=24 * 60 * 60 * 1000) as started:
        yield started


def rows(page: Page) -> list[list[str]]:
    """Return the cells of the page's tables."""
    assert page.status == 200, page
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", page.text, re.DOTALL)
    return [
        [html.unescape(re.sub("<[^>]*>", "", cell)).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in found
    ]


def row(page: Page, first: str) -> list[str]:
    [found] = [each for each in rows(page) if each and each[0] == first]
    return found


def test_the_numbers_are_those_of_the_command_line(server: fencepost.Server, name: str) -> None:
    with fencepost.Admin(server.address) as admin, fencepost.Producer(server.address) as producer:
        admin.create_topic(name, 3, configs={"retention.ms": "7200000"})
        for number in range(10):
            producer.send(name, b"x" * number, partition=number % 2)
        producer.flush()
        admin.delete_records(name, {0: 2})
    command = [sys.executable, "-m", "fencepost", "topic", "describe", name, "--servers", server.address, "--json"]
    printed = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    page = get(f"{server.http}/topics/{name}")
    for each in printed["partitions"]:
        _, start, stable, end, records, _ = row(page, str(each["partition"]))
        assert (start, end) == (str(each["start_offset"]), str(each["end_offset"]))
        assert stable == end
        assert records == str(each["end_offset"] - each["start_offset"])
    for each in printed["configs"]:
        assert row(page, each["name"])[1:] == [each["value"], each["source"]]
    listed = row(get(f"{server.http}/topics?find={name}"), name)
    assert listed[1:3] == ["3", "8"]


def test_a_topic_that_does_not_exist_is_said(server: fencepost.Server) -> None:
    for path in ("/topics/nowhere", "/topics/nowhere/records", "/topics/nowhere/records.jsonl"):
        page = get(server.http + path)
        assert page.status == 404
        assert "nowhere" in page.text


def test_a_thousand_topics_come_in_pages(server: fencepost.Server, name: str) -> None:
    with fencepost.Admin(server.address) as admin:
        for number in range(230):
            admin.create_topic(f"{name}-{number:04}", 1)
    seen: list[str] = []
    path = f"/topics?find={name}"
    pages = 0
    while True:
        page = get(server.http + path)
        seen += [each[0] for each in rows(page) if each and each[0].startswith(name)]
        pages += 1
        following = re.search(r'rel="next" href="([^"]+)"', page.text)
        if following is None:
            break
        path = "/topics" + html.unescape(following[1])
    assert seen == [f"{name}-{number:04}" for number in range(230)]
    assert pages == 3
    assert [each[0] for each in rows(get(f"{server.http}/topics?find={name}-0042"))][1:] == [f"{name}-0042"]


def test_ten_thousand_partitions_come_in_pages(server: fencepost.Server, name: str) -> None:
    with fencepost.Admin(server.address) as admin:
        admin.create_topic(name, 10_000)
    page = get(f"{server.http}/topics/{name}")
    assert [each[0] for each in rows(page)][1:101] == [str(index) for index in range(100)]
    following = re.search(r'rel="next" href="([^"]+)"', page.text)
    assert following is not None
    page = get(f"{server.http}/topics/{name}{html.unescape(following[1])}")
    assert rows(page)[1][0] == "100"
    assert len(page.text) < 100_000
    assert row(get(f"{server.http}/topics?find={name}"), name)[1:4] == ["10,000", "-", "-"]


def test_a_user_sees_what_the_acls_allow(tmp_path_factory: pytest.TempPathFactory) -> None:
    data = tmp_path_factory.mktemp("server") / "data"
    add_users(data, dict((ADMIN, ALICE)))
    with fencepost.Server(
        data, listeners=login_listener("PLAIN"), authorization_enabled=True, authorization_super_users=("User:admin",),
        http_address=ANY,
    ) as server:  # fmt: skip
        login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
        config = {"bootstrap.servers": server.address, **login, "sasl.username": ADMIN[0], "sasl.password": ADMIN[1]}
        with fencepost.Admin(ClientSettings.from_config(config)) as admin:
            admin.create_topic("seen", 1)
            admin.create_topic("hidden", 1)
        with log_in(server.address, *ADMIN) as client:
            create_acls(client, [grant("alice", ResourceType.TOPIC, "seen", Operation.DESCRIBE)])
        listed = get(f"{server.http}/topics", basic(*ALICE))
        assert row(listed, "seen")[1:4] == ["1", "0", "-"]
        assert "hidden" not in listed.text
        assert row(get(f"{server.http}/topics", basic(*ADMIN)), "hidden")[1:4] == ["1", "0", "0 B"]
        assert get(f"{server.http}/topics/hidden", basic(*ALICE)).status == 403
        page = get(f"{server.http}/topics/seen", basic(*ALICE))
        assert "You may not see the configs of this topic" in page.text
        assert "Browse its records" not in page.text
        assert get(f"{server.http}/topics").text.count("Password") == 1  # the login
