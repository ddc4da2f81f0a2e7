"""The record browser, in a browser: it finds, it says how far it has searched, it follows, and it stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from playwright.sync_api import Page, expect

import fencepost
from tests.support.browser import WAIT_MS, Visitor
from tests.support.search_events import lines_of

pytestmark = pytest.mark.browser

MILLION = 1_000_000


def rows(page: Page) -> list[str]:
    """Return the places of the records on the page, as PARTITION-OFFSET."""
    return [str(each.get_attribute("id")).removeprefix("r") for each in page.locator("#records tbody tr").all()]


def wait_for_the_end(page: Page, state: str = "ended") -> None:
    expect(page.locator(f'#search[data-state="{state}"]')).to_be_visible(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def million(console_server: fencepost.Server) -> str:
    """A topic with a million records."""
    numbers = pc.cast(pa.array(range(MILLION)), pa.string())
    values = pc.binary_join_element_wise(
        "record ", numbers, " with a value of about a hundred bytes, as many have ", ""
    )
    with fencepost.Producer(console_server.address, compression="lz4") as producer:
        producer.send_arrow("million", pa.table({"value": pc.cast(values, pa.binary())}))
    return "million"


def test_one_record_is_found_among_a_million(
    console_server: fencepost.Server, visit: Callable[..., Visitor], million: str
) -> None:
    page = visit(console_server).go(f"/topics/{million}/records?from=earliest&value=record+765432+")
    wait_for_the_end(page)
    expect(page.locator("#count .state")).to_have_text("1 match in 1,000,000 records searched: the whole range.")
    expect(page.locator("#records tbody tr")).to_have_count(1)
    expect(page.locator("#records tbody tr")).to_contain_text("record 765432 with a value")
    expect(page.locator("#count progress")).to_have_attribute("value", "100.0")


def test_no_match_is_claimed_for_what_was_searched(
    console_server: fencepost.Server, visit: Callable[..., Visitor], million: str
) -> None:
    page = visit(console_server).go(f"/topics/{million}/records?from=earliest&value=record+1000000")
    wait_for_the_end(page)
    expect(page.locator("#count .state")).to_have_text("No match in 1,000,000 records searched: the whole range.")
    expect(page.locator("#count")).to_contain_text("offsets 1,000,000 of 1,000,000; partitions 1 of 1")
    expect(page.locator("#count")).to_contain_text("partition 0: offset 0 to 999,999")


def test_a_search_with_the_keyboard_alone_stops_at_its_limit_and_goes_on(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    with fencepost.Producer(console_server.address) as producer:
        for number in range(30):
            producer.send(name, f"value {number}", key=f"key {number % 3}")
    page = visit(console_server).go(f"/topics/{name}/records")
    wait_for_the_end(page)

    def tab_to(label: str) -> None:
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.labels?.[0]?.textContent.trim().startsWith({label!r})"):
                return
        raise AssertionError(f"no key leads to {label}")

    tab_to("From")
    page.keyboard.type("the earliest")
    tab_to("Key")
    page.keyboard.type("key 1")
    tab_to("Stop at matches")
    page.keyboard.type("4")
    page.keyboard.press("Enter")
    page.wait_for_url("**key=key+1**")
    wait_for_the_end(page)
    assert rows(page) == ["0-10", "0-7", "0-4", "0-1"]  # the newest first
    expect(page.locator("#count .state")).to_contain_text("4 matches, as many as were asked for")
    page.get_by_role("link", name="Go on from partition 0, offset").focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**go=0%3A**")
    wait_for_the_end(page)
    assert rows(page) == ["0-22", "0-19", "0-16", "0-13"]
    expect(page.get_by_label("Key", exact=True)).to_have_value("key 1")


def test_a_search_follows_until_it_is_stopped(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    with fencepost.Producer(console_server.address) as producer:
        producer.send(name, b"before").result()
        page = visit(console_server).go(f"/topics/{name}/records?until=follow")
        expect(page.locator("#count .state")).to_contain_text("Following", timeout=WAIT_MS)
        assert rows(page) == ["0-0"]
        producer.send(name, b"live").result()
        expect(page.locator("#records tbody tr")).to_have_count(2, timeout=WAIT_MS)
        assert rows(page) == ["0-1", "0-0"]
        page.get_by_role("button", name="Stop").focus()
        page.keyboard.press("Enter")
        wait_for_the_end(page, "stopped")
        expect(page.get_by_text("You have stopped the search")).to_be_visible()
        expect(page.get_by_role("button", name="Stop")).to_be_hidden()


def test_a_wrong_path_is_said_and_can_be_corrected(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    with fencepost.Producer(console_server.address) as producer:
        for number in range(5):
            producer.send(name, f'{{"order": {{"items": [{{"sku": "A-{number}", "n": {number}.50}}]}}}}')
        producer.send(name, b"no JSON: A-3")
    page = visit(console_server).go(f"/topics/{name}/records")
    path = page.get_by_label("JSON field of the value")
    path.fill("order.items[0].sku = A-3")
    path.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("a JSON path begins with $")
    path.fill('$.order.items[0].sku = "A-3"')
    path.press("Enter")
    page.wait_for_url("**json=%24**")
    wait_for_the_end(page)
    assert rows(page) == ["0-3"]
    expect(page.locator("#records pre").first).to_contain_text('"n": 3.50')


def test_values_are_shown_as_what_they_are(
    console_server: fencepost.Server, visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    with fencepost.Producer(console_server.address, name="pays") as producer:
        with producer.transaction():
            producer.send("values", b'{"b": [1, 2.50]}', key=b"key json")
            producer.send("values", b"\xff\xfe\x00", key=b"key hex")
            producer.send("values", b"<b>text</b>", key=b"key text", headers=[("trace", b"abc")])
            producer.send("values", None, key=b"key tombstone")
        with pytest.raises(KeyError), producer.transaction():  # noqa: PT012
            producer.send("values", b"taken back", key=b"key aborted").result()
            raise KeyError
        with producer.transaction():
            producer.send("values", b"not decided", key=b"key open").result()
            page = visit(console_server).go("/topics/values/records?from=earliest&isolation=all")
            wait_for_the_end(page)

            def row(key: str) -> str:
                return page.locator("#records tbody tr", has=page.get_by_text(key, exact=True)).inner_text()

            assert "2.50" in row("key json")
            assert "000000  ff fe 00" in row("key hex")
            assert "<b>text</b>" in row("key text")
            assert "trace" in row("key text")
            assert "null" in row("key tombstone")
            assert "committed" in row("key text")
            assert "aborted" in row("key aborted")
            assert "open" in row("key open")
            expect(page.locator("#count .state")).to_have_text(
                "6 records found in 6 records searched: the whole range."
            )
            with page.expect_download() as download:
                page.get_by_role("link", name="Download all matches").click()
            download.value.save_as(tmp_path / "matches.jsonl")
            records, said = lines_of((tmp_path / "matches.jsonl").read_text())
            assert [each["transaction"] for each in records] == ["committed"] * 4 + ["aborted", "open"]
            assert said["complete"]
            with page.expect_download() as download:
                page.locator("#records tbody tr", has_text="key hex").locator("td.value a").first.click()
            download.value.save_as(tmp_path / "value")
            assert (tmp_path / "value").read_bytes() == b"\xff\xfe\x00"
