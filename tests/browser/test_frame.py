"""The frame of every page: many windows, logins that end, and long names."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import fencepost
from fencepost.core.micro_batch.protocol import PROGRESS_KEY, PROGRESS_TOPIC_PREFIX, Progress
from fencepost.server.http.console import overview
from tests.support.browser import WAIT_MS, Visitor
from tests.support.http_client import ANY
from tests.support.logins import add_users, login_listener

pytestmark = pytest.mark.browser

CONNECTIONS = 6
"""Those that Chromium opens to one server."""


def hide(page: Page, *, hidden: bool) -> None:
    """Tell the page that its window is behind others, or in front again: without a screen every window is in front."""
    page.evaluate(
        "(hidden) => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
        " document.dispatchEvent(new Event('visibilitychange')); }",
        hidden,
    )


def test_more_windows_than_connections_can_be_open(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    window = visit(console_server)
    first = window.go(f"/groups?find={name}")
    window.wait_until_live()
    hide(first, hidden=True)
    for _ in range(CONNECTIONS):
        other = window.context.new_page()
        other.goto(f"{console_server.http}/groups")
        other.locator("#connection.live").wait_for()
        hide(other, hidden=True)
    with fencepost.Admin(console_server.address) as admin:
        admin.create_topic(name)
        admin.commit_group_offsets(name, name, {0: 0})
    hide(first, hidden=False)
    expect(first.get_by_role("link", name=name)).to_be_visible(timeout=WAIT_MS)


def test_names_of_any_length_fit_on_a_phone(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "_NO_COMMIT_MS", 0)  # the server runs in this process
    group = f"{name}{'W' * 200}"
    with fencepost.Admin(console_server.address) as admin, fencepost.Producer(console_server.address) as producer:
        admin.create_topic(name)
        producer.send(name, b"a record")
        producer.flush()
        admin.commit_group_offsets(group, name, {0: 0})
    window = visit(console_server, viewport={"width": 360, "height": 740})
    expect(window.go("/").locator(".attention")).to_contain_text(group, timeout=WAIT_MS)
    paths = ("/", f"/groups/{group}", f"/groups/{group}/reset?topic={name}&to=latest", f"/groups?find={group}")
    widths = {path: window.go(path).evaluate("document.documentElement.scrollWidth") for path in paths}
    assert set(widths.values()) == {360}, widths


@pytest.mark.parametrize("width", [360, 1360])
def test_no_column_of_a_table_is_cut_off(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str, width: int
) -> None:
    with (
        fencepost.Admin(console_server.address) as admin,
        fencepost.Producer(console_server.address, name=f"{name}-writer") as producer,
    ):
        admin.create_topic(name)
        admin.commit_group_offsets(f"{name}-readers", name, {0: 0})
        producer.own(f"{name}-owners", [f"{name}-0"], generation=0)
        with producer.transaction():
            producer.send(name, b"a record")
            progress = Progress("3f0c1d22-5c1e-4a3e-9f0e-0123456789ab", 71_000, 3, "t", "worker-17.example", 1234, 1)
            producer.send(PROGRESS_TOPIC_PREFIX + name, progress.encode(), key=PROGRESS_KEY).result()
            window = visit(console_server, viewport={"width": width, "height": 900})
            for path in (
                "/topics", f"/topics/{name}", "/groups", f"/groups/{name}-readers", "/owners", "/sinks",
                "/producers", f"/producers?topic={name}", "/transactions", f"/transactions/{name}-writer",
            ):  # fmt: skip
                page = window.go(path)
                assert page.locator(".table").count() > 0, path
                wide = page.locator(".table").evaluate_all(
                    "all => all.map(each => each.scrollWidth - each.clientWidth)"
                )
                assert max(wide) <= 0, path
                if width == 360:
                    named = page.locator("tbody td").first.get_attribute("data-name")
                    assert named, path


def test_a_title_names_what_the_page_shows(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    with fencepost.Admin(console_server.address) as admin:
        admin.create_topic(name)
        admin.commit_group_offsets(name, name, {0: 0})
    window = visit(console_server)
    pages = {f"/topics/{name}": "Topic", f"/topics/{name}/records": "Records of", f"/groups/{name}": "Group"}
    assert {path: window.go(path).title() for path in pages} == {
        path: f"{words} {name} · fencepost" for path, words in pages.items()
    }
    assert window.go("/topics").title() == "Topics · fencepost"


def test_a_chart_has_hours_of_the_day_that_do_not_overlap(
    console_server: fencepost.Server, visit: Callable[..., Visitor]
) -> None:
    window = visit(console_server)
    page = window.go("/")
    window.wait_until_live()
    page.locator("#chart-lag canvas").wait_for()
    hour = [list(range(1_700_000_000, 1_700_003_600, 5)), [1] * 720]
    found = page.evaluate(
        """async points => { const {plot} = charts.get("chart-lag"); plot.setData(points);
           await new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)));
           const axis = plot.axes[0]; return [axis._values, axis._splits.map(at => plot.valToPos(at, "x"))]; }""",
        hour,
    )
    labels, places = found
    assert all(re.fullmatch("[0-2][0-9]:[0-5][0-9](:[0-5][0-9])?", label) for label in labels), labels
    assert len(labels) > 2
    assert min(b - a for a, b in pairwise(places)) >= 60


def test_a_stream_without_a_login_leads_to_the_login_page(visit: Callable[..., Visitor], tmp_path: Path) -> None:
    """As after a restart of the server, which forgets all sessions."""
    with ThreadPoolExecutor(1) as thread:  # the browser's driver has an event loop in this one
        thread.submit(add_users, tmp_path / "data", {"admin": "admin-secret"}).result()
    with fencepost.Server(
        tmp_path / "data", listeners=login_listener("PLAIN"), authorization_enabled=True,
        authorization_super_users=("User:admin",), http_address=ANY,
    ) as server:  # fmt: skip
        window = visit(server)
        page = window.go("/groups")
        page.get_by_label("User").fill("admin")
        page.get_by_label("Password").fill("admin-secret")
        page.keyboard.press("Enter")
        window.wait_until_live()
        hide(page, hidden=True)
        window.context.clear_cookies()
        hide(page, hidden=False)
        expect(page.get_by_label("Password")).to_be_visible(timeout=WAIT_MS)
        assert page.url.endswith("/login?next=%2Fgroups")
        window.complaints.clear()  # the browser says that the stream has ended
