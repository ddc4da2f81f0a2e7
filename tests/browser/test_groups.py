"""The console's pages of consumer groups: lag while a group reads, and resets that are confirmed as shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from playwright.sync_api import Page, expect

import fencepost
from fencepost.cli import main
from tests.support.browser import WAIT_MS, Visitor

pytestmark = pytest.mark.browser

RECORDS = 200
"""Per partition."""


@pytest.fixture
def topic(console_server: fencepost.Server, name: str) -> str:
    """A topic with two partitions and records in both."""
    with fencepost.Admin(console_server.address) as admin:
        admin.create_topic(name, partitions=2)
    with fencepost.Producer(console_server.address) as producer:
        for number in range(2 * RECORDS):
            producer.send(name, b"a record", partition=number % 2)
    return name


@contextmanager
def member(server: fencepost.Server, group: str, topic: str) -> Iterator[confluent_kafka.Consumer]:
    """A consumer that has joined the group and has all partitions."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": server.address, "group.id": group, "auto.offset.reset": "earliest",
            "enable.auto.commit": False, "client.id": "reader-of-the-test",
        }
    )  # fmt: skip
    try:
        assigned: list[Any] = []
        consumer.subscribe([topic], on_assign=lambda _consumer, partitions: assigned.extend(partitions))
        while len(assigned) < 2:
            consumer.poll(0.1)
        yield consumer
    finally:
        consumer.close()


def read_and_commit(consumer: confluent_kafka.Consumer, topic: str, offset: int) -> None:
    """Commit this offset in both partitions, as a consumer does that has read up to it."""
    offsets = [confluent_kafka.TopicPartition(topic, index, offset) for index in range(2)]
    consumer.commit(offsets=offsets, asynchronous=False)


def described(server: fencepost.Server, group: str) -> dict[str, Any]:
    """The group as the command line prints it."""
    done = CliRunner().invoke(main, ["group", "describe", group, "--json", "--servers", server.address])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def cells(page: Page, region: str) -> list[list[str]]:
    rows = page.get_by_role("region", name=region).locator("tbody tr").all()
    return [[cell.inner_text() for cell in row.locator("th, td").all()] for row in rows]


def commit(server: fencepost.Server, group: str, topic: str, offsets: dict[int, int]) -> None:
    with fencepost.Admin(server.address) as admin:
        admin.set_group_offsets(group, topic, offsets)


def committed(server: fencepost.Server, group: str) -> list[int]:
    return [row["committed"] for row in described(server, group)["offsets"]]


def tab_to(page: Page, text: str) -> None:
    """Press the tabulator key until the element with this name or text has the focus."""
    for _ in range(80):
        page.keyboard.press("Tab")
        found = page.evaluate("(e => [e.name, e.textContent.trim()])(document.activeElement)")
        if text in found:
            return
    raise AssertionError(f"no {text!r} can be reached with the keyboard")


def test_the_lag_of_a_group_falls_while_somebody_watches(
    console_server: fencepost.Server, visit: Callable[..., Visitor], topic: str
) -> None:
    group = topic
    window = visit(console_server)
    with member(console_server, group, topic) as consumer:
        read_and_commit(consumer, topic, 10)
        page = window.go(f"/groups?find={group.upper()}")
        row = page.get_by_role("region", name="Groups").locator("tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text(f"{2 * (RECORDS - 10)}", timeout=WAIT_MS)
        page.get_by_role("link", name=group).click()
        window.wait_until_live()
        lag = page.locator(".tile", has=page.get_by_role("heading", name="Lag")).locator(".value")
        expect(lag).to_have_text(f"{2 * (RECORDS - 10)}", timeout=WAIT_MS)
        expect(page.get_by_role("region", name="Members")).to_contain_text("reader-of-the-test")
        for offset in (100, RECORDS):
            read_and_commit(consumer, topic, offset)
            expect(lag).to_have_text(f"{2 * (RECORDS - offset)}", timeout=WAIT_MS)
        shown = [row[:6] for row in cells(page, "Partitions")]
        printed = described(console_server, group)
        assert shown == [
            [topic, *(str(row[field]) for field in ("partition", "committed", "end", "lag")), "reader-of-the-test"]
            for row in printed["offsets"]
        ]
        assert printed["members"][0]["client_id"] == "reader-of-the-test"
    expect(page.get_by_text("The group has no members.")).to_be_visible(timeout=WAIT_MS)


def test_offsets_are_reset_as_shown_with_the_keyboard_alone(
    console_server: fencepost.Server, visit: Callable[..., Visitor], topic: str
) -> None:
    group = topic
    commit(console_server, group, topic, {0: 150, 1: 20})
    page = visit(console_server).go(f"/groups?find={group}")
    tab_to(page, group)
    page.keyboard.press("Enter")
    page.wait_for_url("**/groups/*")
    tab_to(page, "Reset offsets …")
    page.keyboard.press("Enter")
    page.wait_for_url("**/reset")
    tab_to(page, "to")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("-50")
    page.keyboard.press("Enter")
    page.wait_for_url("**/reset?*")
    assert cells(page, "Preview") == [
        ["0", "150", "100", "50 back: offsets are read again"],
        ["1", "20", "0", "20 back: offsets are read again"],
    ]
    assert committed(console_server, group) == [150, 20]
    tab_to(page, "Move these offsets")
    page.keyboard.press("Enter")
    expect(page.locator(".said")).to_have_text(
        f"The committed offsets of 2 partitions of {topic} were moved as shown.", timeout=WAIT_MS
    )
    assert committed(console_server, group) == [100, 0]
    assert [row[2] for row in cells(page, "Partitions")] == ["100", "0"]


def test_a_reset_is_refused_if_the_group_is_not_as_it_was_shown(
    console_server: fencepost.Server, visit: Callable[..., Visitor], topic: str
) -> None:
    group = topic
    commit(console_server, group, topic, {0: 150, 1: 20})
    page = visit(console_server).go(f"/groups/{group}/reset?topic={topic}&to=latest&partitions=1")
    assert [row[:3] for row in cells(page, "Preview")] == [["1", "20", str(RECORDS)]]
    commit(console_server, group, topic, {1: 30})
    page.get_by_role("button", name="Move these offsets").click()
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("Nothing was changed", timeout=WAIT_MS)
    expect(problem).to_contain_text(f"{topic}-1 has the committed offset 30 now, not 20")
    assert [row[:3] for row in cells(page, "Preview")] == [["1", "30", str(RECORDS)]]
    with member(console_server, group, topic):
        page.get_by_role("button", name="Move these offsets").click()
        expect(page.get_by_role("alert").first).to_contain_text("Nothing was changed", timeout=WAIT_MS)
        expect(page.get_by_role("alert").first).to_contain_text("with 1 member(s): stop its consumers first")
        expect(page.get_by_role("button", name="Move these offsets")).to_have_count(0)
        assert committed(console_server, group) == [150, 30]
