"""The console's pages of groups, sinks and security: who sees what, and whose forms are taken."""

from __future__ import annotations

import html
import http.client
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest

import fencepost
from fencepost.client.cluster.settings import ClientSettings
from fencepost.core.micro_batch.protocol import PROGRESS_KEY, PROGRESS_TOPIC_PREFIX, Progress
from fencepost.core.security.acls import Operation, ResourceType
from tests.support.http_client import ANY, basic, get
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener

pytestmark = pytest.mark.integration

ADMIN, ALICE = basic("admin", "admin-secret"), basic("alice", "alice-secret")
GROUP = "bill & ship/<b>"
SINK = "enrich"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[fencepost.Server]:
    folder: Path = tmp_path_factory.mktemp("console")
    add_users(folder / "data", {"admin": "admin-secret", "alice": "alice-secret"})
    with fencepost.Server(
        folder / "data", listeners=login_listener("PLAIN"), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY, audit_file=folder / "audit.log",
    ) as started:  # fmt: skip
        config = {
            "bootstrap.servers": started.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.username": "admin", "sasl.password": "admin-secret",
        }  # fmt: skip
        settings = ClientSettings.from_config(config)
        with fencepost.Admin(settings) as admin, fencepost.Producer.from_config(config) as producer:
            for topic in ("orders", "secret", PROGRESS_TOPIC_PREFIX + SINK):
                admin.create_topic(topic, partitions=1)
                producer.send(topic, b"a record")
            progress = Progress("query-7", 41, 2, "token", "host", 7, 1_700_000_000_000)
            producer.send(PROGRESS_TOPIC_PREFIX + SINK, progress.encode(), key=PROGRESS_KEY)
            producer.flush()
            for group in (GROUP, "hidden"):
                admin.commit_group_offsets(group, "orders", {0: 0})
                admin.commit_group_offsets(group, "secret", {0: 0})
        with log_in(started.address, "admin", "admin-secret") as client:
            create_acls(
                client,
                [
                    grant("alice", ResourceType.GROUP, GROUP, Operation.DESCRIBE),
                    grant("alice", ResourceType.TOPIC, "orders", Operation.DESCRIBE),
                    grant("alice", ResourceType.TOPIC, PROGRESS_TOPIC_PREFIX + SINK, Operation.DESCRIBE),
                ],
            )
        yield started


def text_of(server: fencepost.Server, path: str, who: dict[str, str]) -> str:
    page = get(server.http + path, who)
    assert page.status == 200, page
    return html.unescape(re.sub("<[^>]*>", " ", page.text))


def reset(
    server: fencepost.Server, who: dict[str, str], changes: str, origin: str | None = None, topic: str = "orders"
) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=30)
    try:
        connection.request(
            "POST", f"/groups/{quote(GROUP, safe='')}/reset", urlencode({"topic": topic, "changes": changes}),
            {**who, "Origin": origin or server.http, "Content-Type": "application/x-www-form-urlencoded"},
        )  # fmt: skip
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def committed(server: fencepost.Server) -> str:
    page = text_of(server, f"/groups/{quote(GROUP, safe='')}", ADMIN)
    found = re.search(r"orders\s+0\s+(\d+)", page)
    assert found, page
    return found[1]


def test_a_user_sees_only_their_groups_and_the_lag_of_their_topics(server: fencepost.Server) -> None:
    everything, little = text_of(server, "/groups", ADMIN), text_of(server, "/groups", ALICE)
    assert "hidden" in everything
    assert "hidden" not in little
    assert re.search(re.escape(GROUP) + r"\s+Empty\s+2\s+0\s+classic\b", everything)
    assert re.search(re.escape(GROUP) + r"\s+Empty\s+1\s+0\s+classic\b", little)
    page = text_of(server, f"/groups/{quote(GROUP, safe='')}", ALICE)
    assert "orders" in page
    assert "secret" not in page
    assert get(f"{server.http}/groups/hidden", ALICE).status == 403


def test_names_of_strangers_are_text(server: fencepost.Server) -> None:
    page = get(f"{server.http}/groups", ADMIN).text
    assert "<b>" not in page
    assert "bill &amp; ship/&lt;b&gt;" in page


def test_a_reset_needs_the_permission_to_commit_and_an_own_form(server: fencepost.Server) -> None:
    preview = get(f"{server.http}/groups/{quote(GROUP, safe='')}/reset?topic=orders&to=latest", ALICE)
    assert 'value="0.0.1"' in preview.text
    assert reset(server, ALICE, "0.0.1")[0] == 403
    assert committed(server) == "0"
    assert reset(server, ADMIN, "0.0.1", origin="http://evil.example")[0] == 403
    assert committed(server) == "0"
    for wrong in ("", "0.0", "7.0.1"):
        assert reset(server, ADMIN, wrong)[0] == 400
    assert reset(server, ADMIN, "0.0.2")[0] == 303  # outside the log by now: a new preview
    assert committed(server) == "0"
    assert reset(server, ADMIN, "0.0.1")[0] == 303
    assert committed(server) == "1"
    assert reset(server, ADMIN, "0.1.0")[0] == 303


def test_a_form_that_is_sent_twice_ends_well(server: fencepost.Server) -> None:
    path = f"/groups/{quote(GROUP, safe='')}/reset"
    for expected in ("were moved as shown.", "are as shown already."):
        fields = urlencode({"topic": "orders", "changes": "0.0.1"})
        with closing(http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=30)) as line:
            line.request("POST", path, fields, {**ADMIN, "Origin": server.http})
            with line.getresponse() as answer:
                assert answer.status == 303
                assert expected in text_of(server, answer.headers["location"], ADMIN)
    assert reset(server, ADMIN, "0.1.0")[0] == 303
    assert committed(server) == "0"


def test_a_refused_reset_tells_nothing_about_a_topic(server: fencepost.Server) -> None:
    """Neither that it exists nor how many partitions it has."""
    for changes in ("0.0.1", "7.-.1"):
        answers = [reset(server, ALICE, changes, topic=topic) for topic in ("secret", "nowhere")]
        assert [status for status, _ in answers] == [403, 403]
        assert answers[0][1].replace("secret", "") == answers[1][1].replace("nowhere", "")


def test_a_sink_is_read_by_those_who_may(server: fencepost.Server) -> None:
    assert re.search(r"enrich\s+41\s+-\s+process 7 on host\s+2\s", text_of(server, "/sinks", ADMIN))
    little = text_of(server, "/sinks", ALICE)
    assert "You may not READ its progress" in little
    assert "query-7" not in little


def test_the_audit_trail_of_a_file_is_for_super_users(server: fencepost.Server) -> None:
    assert "acl.created" in text_of(server, "/security/audit?find=acl.created", ADMIN)
    little = text_of(server, "/security/audit", ALICE)
    assert "User:alice may not read the audit trail: only super users may." in little
    assert "acl.created" not in little


def test_an_open_port_takes_changes_only_at_an_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A web page whose name points to this server (DNS rebinding) sends its own name as Host and Origin."""
    monkeypatch.setattr("fencepost.server.http.access.is_loopback", lambda _: False)  # as if it were open to others
    with fencepost.Server(http_address=ANY) as server, fencepost.Admin(server.address) as admin:
        admin.create_topic("orders")
        with fencepost.Producer(server.address) as producer:
            producer.send("orders", b"a record").result()
        admin.commit_group_offsets("billing", "orders", {0: 0})
        own = server.http.removeprefix("http://")
        assert get(server.http, {"Host": "evil.example:9644"}).status == 200  # reading is open to everyone there
        statuses = []
        for host in ("evil.example:9644", own):
            with closing(http.client.HTTPConnection(own, timeout=30)) as line:
                fields = urlencode({"topic": "orders", "changes": "0.0.1"})
                line.request("POST", "/groups/billing/reset", fields, {"Host": host, "Origin": f"http://{host}"})
                statuses.append(line.getresponse().status)
        assert statuses == [403, 303]
        assert [row.committed for row in admin.group_offsets("billing")] == [1]
