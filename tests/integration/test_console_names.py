"""The console with names and requests that nobody expects: clients choose the names of their groups."""

from __future__ import annotations

import html
import http.client
import re
from collections.abc import Iterator
from urllib.parse import quote

import pytest

import fencepost
from tests.support.http_client import ANY, get

pytestmark = pytest.mark.integration

NAMES = ["a/b", "a%2Fb", "a?b=c", "a#b", "a b", "tab\tx", "cr\rx", '"><b>', "%", "100%25", "é☃", "nul\0x"]


@pytest.fixture(scope="module")
def server() -> Iterator[fencepost.Server]:
    with fencepost.Server(http_address=ANY) as started, fencepost.Admin(started.address) as admin:
        admin.create_topic("orders", partitions=2)
        for name in NAMES:
            admin.commit_group_offsets(name, "orders", {0: 0})
        yield started


@pytest.mark.parametrize("name", NAMES)
def test_the_stream_of_a_page_is_about_the_same_group(server: fencepost.Server, name: str) -> None:
    page = get(f"{server.http}/groups/{quote(name, safe='')}?find=a%26b")
    assert f"<h1>Group {html.escape(name)}</h1>" in page.text.replace("&#34;", "&quot;")
    (live,) = re.findall('sse-connect="([^"]*)"', page.text)
    assert html.unescape(live) == f"/live/groups/{quote(name, safe='')}?find=a%26b"


def test_a_question_for_the_headers_of_a_stream_is_answered(server: fencepost.Server) -> None:
    line = http.client.HTTPConnection(server.http.removeprefix("http://"), timeout=60)
    try:
        for _ in range(2):  # the answer must end, or the connection takes no second request
            line.request("HEAD", "/live/groups")
            with line.getresponse() as answer:
                assert answer.status == 200
                assert answer.headers["content-type"].startswith("text/event-stream")
                assert answer.read() == b""
    finally:
        line.close()
