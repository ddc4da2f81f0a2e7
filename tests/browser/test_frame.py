"""The frame of every page: many windows, logins that end, and long names."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

import fencepost
from tests.support.browser import WAIT_MS, Visitor
from tests.support.http import ANY
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
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
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
