"""The console's page of owners: a take-over seen while it happens, and the same rows as the command line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import expect

import fencepost
from fencepost.cli import main
from tests.support.browser import Visitor, table_rows
from tests.support.process import Child
from tests.support.raw import RawClient
from tests.support.takeover_process import Contender
from tests.workers.late_owner import CLIENT_ID

pytestmark = pytest.mark.browser

OWN = 10_000
FOR_LONG_MS = 600_000


def owners_of(server: fencepost.Server, group: str) -> Any:
    """The answer of `fencepost owners GROUP --json`."""
    answered = CliRunner(env={"FENCEPOST_SERVERS": server.address}).invoke(main, ["owners", group, "--json"])
    assert answered.exit_code == 0, answered.output
    return json.loads(answered.stdout)


def shown(server: fencepost.Server, group: str) -> list[list[str]]:
    """The rows of the page, without the time, as the command line has them."""
    return [
        [
            row["group"],
            row["resource"],
            str(row["generation"]),
            str(row["token"]),
            f"{row['client_id']}\n{row['address']}",
        ]
        for row in owners_of(server, group)["owners"]
    ]


def without_time(rows: list[list[str]]) -> list[list[str]]:
    return [[*row[:4], row[5]] for row in rows]


def test_a_takeover_is_seen_while_it_happens(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str, tmp_path: Path
) -> None:
    """The owner is stopped, `fencepost own` takes over, and when the old owner wakes up and writes, it is refused."""
    server, group = console_server, f"{name}-group"
    with fencepost.Admin(server.address) as admin:
        admin.create_topic(name, 1, configs={"fencepost.writer.group": group})
    window = visit(server)
    page = window.go(f"/owners?find={name}")
    page.evaluate("window.notReloaded = true")
    expect(page.get_by_text("Nothing is owned")).to_be_visible()
    with ExitStack() as stack:
        old = Contender("tests.workers.late_owner", server.address, name, group)
        stack.callback(old.close)
        old.claim("claim 0")
        owner = page.locator("#owners tbody tr")
        expect(owner).to_contain_text(CLIENT_ID)
        assert without_time(table_rows(page, "owners")) == shown(server, group)
        old.stop()
        command = [sys.executable, "-m", "fencepost", "own", group, f"{name}-0", "--generation", str(old.generation)]
        new = Child(
            [*command, "--servers", server.address, "-X", "client.id=successor", "--", "sleep", "600"],
            log=tmp_path / "new.log",
        )
        stack.callback(new.stop)
        takeover = page.locator("#takeovers tbody tr")
        expect(takeover).to_have_count(1)
        cells = takeover.locator("td")
        expect(cells.nth(1)).to_contain_text(f"{name}-0")
        expect(cells.nth(2)).to_contain_text(CLIENT_ID)
        expect(cells.nth(3)).to_contain_text("successor")
        expect(cells.nth(4)).to_have_text("0")
        expect(cells.nth(5)).to_have_text("another owner takes over")
        expect(owner).to_contain_text("successor")
        [row] = owners_of(server, group)["owners"]
        assert (row["generation"], row["client_id"]) == (old.generation + 1, "successor")
        assert without_time(table_rows(page, "owners")) == shown(server, group)
        old.wake()
        old.say("write 3")
        assert old.numbers("refused") == (3,)
        expect(cells.nth(4)).to_have_text("3")
        old.say("write 2")
        assert old.numbers("refused") == (2,)
        expect(cells.nth(4)).to_have_text("5")
    expect(page.get_by_text("Nothing is owned")).to_be_visible()
    expect(takeover).to_have_count(1)
    assert page.evaluate("window.notReloaded")


def test_many_owners_come_in_pages_and_the_line_in_its_order(
    console_server: fencepost.Server, visit: Callable[..., Visitor], name: str
) -> None:
    server = console_server
    resources = [f"{name}-{at:03}" for at in range(150)]
    page = visit(server).go(f"/owners?find={name}")
    with ExitStack() as stack:
        owner = stack.enter_context(fencepost.Producer(server.address))
        owner.own(name, resources, generation=0)
        for at, wanted in enumerate((resources[7:9], resources[:20])):
            standby = stack.enter_context(RawClient(server.address, client_id=f"standby-{at}"))
            claimed = [{"name": resource, "generation": 1} for resource in wanted]
            standby.send(OWN, 0, group=name, wait_ms=FOR_LONG_MS, resources=claimed)
            expect(page.locator("#waiting tbody tr")).to_have_count(at + 1)
        expect(page.locator("#owners tbody tr")).to_have_count(100)
        first = table_rows(page, "owners")
        waiting = table_rows(page, "waiting")
        assert [row[1] for row in waiting] == ["1", "2"]
        assert [row[3].split("\n")[0] for row in waiting] == ["standby-0", "standby-1"]
        assert waiting[0][2] == ", ".join(resources[7:9])
        assert waiting[1][2] == f"{', '.join(resources[:10])} and 10 more"
        listed = owners_of(server, name)["waiting"]
        assert [row["client_id"] for row in listed] == ["standby-0", "standby-1"]
        page.get_by_role("link", name="Next page").click()
        expect(page.locator("#owners tbody tr")).to_have_count(50)
        assert without_time(first + table_rows(page, "owners")) == shown(server, name)
        page.get_by_label("Group or resource").fill(f"{name}-04")
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#owners tbody tr")).to_have_count(10)
        assert [row[1] for row in table_rows(page, "owners")] == resources[40:50]
