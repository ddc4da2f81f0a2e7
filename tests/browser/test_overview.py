"""The first page of the console, its frame, and what every page has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

import fencepost
from tests.support.browser import Visitor

pytestmark = pytest.mark.browser


def test_the_first_page_shows_what_was_written(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    window = visit(console_server)
    page = window.go("/")
    window.wait_until_live()
    with fencepost.Producer(console_server.address) as producer:
        for _ in range(1000):
            producer.send(name, b"a record")
    written = page.locator(".tile", has_text="Written").locator(".value")
    expect(written).not_to_have_text("0 records/s", timeout=60_000)
    expect(page.locator("#chart-written canvas")).to_be_visible()


def test_the_theme_can_be_chosen_and_is_remembered(
    console_server: fencepost.Server, visit: Callable[..., Visitor]
) -> None:
    window = visit(console_server, color_scheme="light")
    page = window.go("/")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Theme").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark


def test_a_dark_system_has_a_dark_page(console_server: fencepost.Server, visit: Callable[..., Visitor]) -> None:
    colours = [
        visit(console_server, color_scheme=scheme).go("/").evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert colours[0] != colours[1]


def test_the_first_page_is_small(console_server: fencepost.Server, visit: Callable[..., Visitor]) -> None:
    window = visit(console_server)
    sizes: list[int] = []
    # The stream never ends, so its body cannot be asked for.
    window.page.on("response", lambda answer: None if "/live" in answer.url else sizes.append(len(answer.body())))
    window.go("/")
    window.wait_until_live()
    assert 0 < sum(sizes) < 200_000


def test_a_phone_needs_no_sideways_scrolling(console_server: fencepost.Server, visit: Callable[..., Visitor]) -> None:
    page = visit(console_server, viewport={"width": 360, "height": 740}).go("/")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_the_first_key_leads_past_the_navigation(
    console_server: fencepost.Server, visit: Callable[..., Visitor]
) -> None:
    page = visit(console_server).go("/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"


def test_a_stopped_server_is_said(
    visit: Callable[..., Visitor], fencepost_server_factory: Callable[..., fencepost.Server]
) -> None:
    server = fencepost_server_factory(http_address="127.0.0.1:0")
    window = visit(server)
    page = window.go("/")
    window.wait_until_live()
    server.stop()
    expect(page.locator("#connection.lost")).to_be_visible(timeout=60_000)
    window.complaints.clear()  # the browser says that the connection was refused
