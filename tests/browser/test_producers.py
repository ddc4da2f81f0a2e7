"""The console's pages of producers and transactions: the numbers of the command line, and the cure of a transaction."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import Page, expect

import fencepost
from fencepost.cli import main
from fencepost.errors import ErrorCode
from fencepost.server.http.console import overview
from tests.support.browser import Visitor, table_rows
from tests.support.http_client import ANY
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.browser

NONE = ErrorCode.NONE
FOR_LONG_MS = 600_000
"""Longer than a test takes on a busy machine."""


def told(server: fencepost.Server, *arguments: str) -> Any:
    """The answer of a command as JSON."""
    answered = CliRunner(env={"FENCEPOST_SERVERS": server.address}).invoke(main, [*arguments, "--json"])
    assert answered.exit_code == 0, answered.output
    return json.loads(answered.stdout)


def press_with_keyboard(page: Page, words: str) -> None:
    """Go with the tab key to the link or button that begins with these words, and press it."""
    for _ in range(100):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent").strip().startswith(words):
            page.keyboard.press("Enter")
            return
    raise AssertionError(f"the tab key does not lead to {words!r}")


@pytest.fixture
def client(console_server: fencepost.Server) -> Iterator[TransactionClient]:
    with TransactionClient(console_server.address) as connection:
        yield connection


def begin(client: TransactionClient, topic: str, partitions: list[int], name: str) -> TransactionalProducer:
    code, pid, epoch = client.init(name, timeout_ms=FOR_LONG_MS)
    assert code is NONE
    producer = TransactionalProducer(name, pid, epoch)
    assert client.add(producer, {topic: partitions}) == [NONE] * len(partitions)
    return producer


def test_the_numbers_are_those_of_the_command_line(
    console_server: fencepost.Server, visit: Callable[..., Visitor], client: TransactionClient, name: str
) -> None:
    server = console_server
    client.create_topic(name, partitions=2)
    with fencepost.Producer(server.address) as producer:
        for number in range(30):
            producer.send(name, b"x", partition=number % 2)
    page = visit(server).go("/producers")
    page.get_by_role("textbox", name="Topic").fill(name)
    page.get_by_role("textbox", name="Topic").press("Enter")
    expect(page.locator("#producers tbody tr")).to_have_count(2)
    writer = begin(client, name, [1], f"{name}/id")
    for values in ([b"a", b"b"], [b"c"]):
        assert client.write(writer, name, values, partition=1).error is NONE
    for sequence in (2, 2, 2):
        assert client.write(writer, name, [b"c"], partition=1, sequence=sequence).error is NONE
    # Partition, pid, epoch, H(P), and the open transaction; without a reload.
    expect(page.locator("#producers tbody tr")).to_have_count(3)
    expect(page.locator("#producers tbody tr").last.locator("td").nth(6)).to_have_text("3")
    rows = table_rows(page, "producers")
    listed = told(server, "producers", name)
    assert [row[:4] for row in rows] == [
        [str(each[field]) for field in ("partition", "pid", "epoch", "last_sequence")] for each in listed
    ]
    assert [row[7].startswith("since offset") for row in rows] == [
        each["transaction_start"] is not None for each in listed
    ]
    assert rows[-1][7] == f"since offset {listed[-1]['transaction_start']}: {writer.name}"
    assert [row[6] for row in rows] == ["0", "0", "3"]
    # The open transaction.
    [opened] = [row for row in table_rows(page, "open-transactions") if row[0] == writer.name]
    [listed_one] = [row for row in told(server, "transactions", "list", "--open") if row["name"] == writer.name]
    assert opened[:3] == [listed_one["name"], listed_one["state"], str(listed_one["pid"])]
    assert opened[8] == "3 offsets in 1 partition"
    # The pid, in all topics.
    page.locator("#producers").get_by_role("link", name=str(writer.pid), exact=True).click()
    expect(page.get_by_role("heading", name=f"Producers with pid {writer.pid}")).to_be_visible()
    assert [row[:2] for row in table_rows(page, "producers")] == [[name, "1"]]
    page.locator("#producers").get_by_role("link", name=writer.name).click()
    expect(page.get_by_role("heading", name=f"Transactional id {writer.name}")).to_be_visible()
    assert client.end(writer, commit=True) is NONE
    page.get_by_role("link", name="Look again").click()
    expect(page.get_by_text("It holds nobody back")).to_be_visible()
    page.get_by_role("link", name="All transactional ids").click()
    page.get_by_role("textbox", name="Transactional id").fill(name)
    page.get_by_role("button", name="Search").click()
    [row] = table_rows(page, "transactions")
    [listed_one] = [each for each in told(server, "transactions", "list") if each["name"] == writer.name]
    assert row[:3] == [listed_one["name"], listed_one["state"], str(listed_one["pid"])]


def test_a_transaction_that_holds_readers_back_is_aborted_with_the_keyboard(
    console_server: fencepost.Server,
    visit: Callable[..., Visitor],
    client: TransactionClient,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(overview, "_OLD_TRANSACTION_MS", 0)  # the server runs in this process
    server = console_server
    client.create_topic(name, partitions=3)
    old = begin(client, name, [0, 1], f"{name}-old")
    assert client.write(old, name, [b"undecided"] * 5).error is NONE
    other = begin(client, name, [0], f"{name}-other")
    assert client.write(other, name, [b"later"] * 2).error is NONE
    page = visit(server, color_scheme="dark").go("/")
    sentence = f"Transaction {old.name} of producer {old.pid} has held readers of {name} back for"
    expect(page.get_by_role("link", name=sentence)).to_be_visible()
    press_with_keyboard(page, sentence)
    expect(page.get_by_role("heading", name="What an abort will do")).to_be_visible()
    preview = page.locator(".steps")
    expect(preview).to_contain_text("2 partitions get an abort marker")
    expect(preview).to_contain_text(f"pid {old.pid}, epoch {old.epoch} is fenced")
    # Partition, first offset, where readers stop, after the abort, the end, held back.
    assert table_rows(page, "effects") == [
        [f"{name}-0", "0", "0", "5", "7", "7"],
        [f"{name}-1", "-", "0", "1", "0", "0"],
    ]
    # It changes after it was shown: nothing is done, and what is shown next is new.
    assert client.add(old, {name: [2]}) == [NONE]
    press_with_keyboard(page, "Abort this transaction")
    expect(page.get_by_role("status").filter(has_text="Nothing was changed")).to_be_visible()
    expect(preview).to_contain_text("3 partitions get an abort marker")
    assert told(server, "transactions", "describe", old.name)["state"] == "Ongoing"
    after = [int(row[3]) for row in table_rows(page, "effects")]
    press_with_keyboard(page, "Abort this transaction")
    said = f"Aborted the transaction of {old.name}: pid {old.pid}, epoch {old.epoch} is fenced; 3 partitions have"
    expect(page.get_by_role("status").filter(has_text=said)).to_be_visible()
    expect(page.get_by_text("It holds nobody back")).to_be_visible()
    assert [client.stable_offset(name, partition=index) for index in range(3)] == after == [5, 1, 1]
    assert client.end(old, commit=True) is ErrorCode.PRODUCER_FENCED
    assert client.end(other, commit=True) is NONE
    assert client.fetch_committed(name).values == [b"later"] * 2
    page.goto(server.http)
    expect(page.get_by_text(f"Transaction {old.name}")).to_have_count(0)


def test_a_transaction_that_nobody_knows_is_found_on_the_overview_and_cured(
    visit: Callable[..., Visitor], tmp_path: Path
) -> None:
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        client.create_topic("payments")
        producer = begin(client, "payments", [0], "payer")
        assert client.write(producer, "payments", [b"lost"] * 3).error is NONE
    with sqlite3.connect(tmp_path / "meta.sqlite") as stored:
        stored.execute("DELETE FROM transactions")  # its coordinator forgets it
    with (
        fencepost.Server(tmp_path, http_address=ANY) as server,
        TransactionClient(server.address) as client,
        fencepost.Producer(server.address) as plain,
    ):
        plain.send("payments", b"paid").result()
        assert client.fetch_committed("payments").values == []
        page = visit(server, color_scheme="light").go("/")
        sentence = page.get_by_role("link", name=f"A transaction of producer {producer.pid} hangs in payments-0")
        expect(sentence).to_be_visible()
        sentence.click()
        expect(page.locator(".steps")).to_contain_text("payments-0 gets an abort marker")
        assert table_rows(page, "effects") == [["payments-0", "0", "0", "5", "4", "4"]]
        assert client.stable_offset("payments") == 0
        press_with_keyboard(page, "Abort this transaction")
        said = f"Aborted the hanging transaction of pid {producer.pid} in payments-0."
        expect(page.get_by_role("status").filter(has_text=said)).to_be_visible()
        expect(page.get_by_text("has no open transaction in payments-0")).to_be_visible()
        assert client.stable_offset("payments") == 5
        assert client.fetch_committed("payments").values == [b"paid"]
        page.goto(server.http)
        expect(page.get_by_text("Nothing: no chore fails")).to_be_visible()
        page.goto("about:blank")  # before the server stops


def test_pages_of_producers_and_owners_fit_on_a_phone_in_both_themes(
    console_server: fencepost.Server, visit: Callable[..., Visitor], client: TransactionClient, name: str
) -> None:
    client.create_topic(name)
    odd = f"{name}<b>/../?&"
    writer = begin(client, name, [0], odd)
    assert client.write(writer, name, [b"x"]).error is NONE
    colours = set()
    for scheme in ("light", "dark"):
        window = visit(console_server, color_scheme=scheme, viewport={"width": 360, "height": 740})
        for path in ("/producers", f"/producers?topic={name}", "/transactions", "/owners"):
            page = window.go(path)
            window.wait_until_live()
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
        page = window.go("/producers")
        page.locator("#open-transactions").get_by_role("link", name=odd, exact=True).click()
        expect(page.get_by_role("heading", name=f"Transactional id {odd}")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= 360
        colours.add(page.evaluate("getComputedStyle(document.querySelector('#effects td')).color"))
    assert len(colours) == 2
    assert client.end(writer, commit=False) is NONE
