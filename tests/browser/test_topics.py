"""The pages about topics, in a browser."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

import fencepost
from tests.support.browser import WAIT_MS, Visitor

pytestmark = pytest.mark.browser


def test_a_list_of_topics_is_live_and_leads_to_the_records(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    with fencepost.Admin(console_server.address) as admin, fencepost.Producer(console_server.address) as producer:
        admin.create_topic(f"{name}-a", 2)
        admin.create_topic(f"{name}-b", 1)
        window = visit(console_server)
        page = window.go("/topics")
        page.get_by_label("Find a topic").fill(name)
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(2)
        window.wait_until_live()
        cells = page.locator(f"#topic-{name}-a td")
        expect(cells.nth(0)).to_have_text("2")
        expect(cells.nth(1)).to_have_text("0")
        for number in range(7):
            producer.send(f"{name}-a", b"x", partition=number % 2)
        expect(cells.nth(1)).to_have_text("7", timeout=WAIT_MS)
        page.get_by_role("link", name=f"{name}-a").click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"Topic {name}-a")
        expect(page.locator("#partition-0 td").nth(2)).to_have_text("4")
        window.wait_until_live()
        producer.send(f"{name}-a", b"x", partition=0)
        expect(page.locator("#partition-0 td").nth(2)).to_have_text("5", timeout=WAIT_MS)
        expect(page.get_by_role("row", name="retention.ms").first).to_contain_text("default")
        page.get_by_role("link", name="Browse its records").click()
        expect(page.locator("#records tbody tr")).to_have_count(8, timeout=WAIT_MS)


def test_a_phone_can_show_topics_and_records(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    with fencepost.Producer(console_server.address) as producer:
        producer.send(name, b"v" * 3000, key=b"k" * 200, headers=[("h" * 100, b"w" * 200)]).result()
    window = visit(console_server, viewport={"width": 360, "height": 740})
    for path in ("/topics", f"/topics/{name}", f"/topics/{name}/records"):
        page = window.go(path)
        if path.endswith("records"):
            expect(page.locator("#records tbody tr")).to_have_count(1, timeout=WAIT_MS)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
