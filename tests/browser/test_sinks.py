"""The console's page of sinks: the last micro-batch while a sink writes, and a driver that was replaced."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator

import pytest
from click.testing import CliRunner
from playwright.sync_api import Locator, Page, expect

import fencepost
from fencepost.cli import main
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.runner import Runner
from fencepost.core.micro_batch.protocol import Replaced
from tests.support.browser import WAIT_MS, Visitor
from tests.support.committed import committed_values
from tests.support.sink_rows import Rows

pytestmark = pytest.mark.browser


@pytest.fixture
def make_runner(console_server: fencepost.Server, name: str) -> Iterator[Callable[..., Runner]]:
    with fencepost.Admin(console_server.address) as admin:
        admin.create_topic(name)
    made: list[Runner] = []

    def make(on_step: Callable[[str], object] | None = None) -> Runner:
        made.append(Runner(ClientSettings.of(console_server.address), name, on_step=on_step))
        return made[-1]

    yield make
    for runner in made:
        runner.close()


def row_of(page: Page, sink: str) -> Locator:
    return page.get_by_role("region", name="Sinks").locator("tbody tr", has_text=sink)


def test_a_sink_is_watched_while_it_writes(
    console_server: fencepost.Server, visit: Callable[..., Visitor], make_runner: Callable[..., Runner], name: str
) -> None:
    runner = make_runner()
    runner.carry_out(Rows(runner, name, 3), "query-1", 0)
    window = visit(console_server)
    page = window.go(f"/sinks?find={name}")
    window.wait_until_live()
    cells = row_of(page, name).locator("td")
    expect(cells.nth(0)).to_have_text("0")
    expect(cells.nth(1)).to_have_text("3")
    expect(cells.nth(9)).to_have_text("-")  # there was no commit before
    runner.carry_out(Rows(runner, name, 1234), "query-1", 1)
    expect(cells.nth(0)).to_have_text("1", timeout=WAIT_MS)
    done = CliRunner().invoke(main, ["sink", "list", "--json", "--servers", console_server.address])
    printed = json.loads(done.output)[name]
    assert printed["rows"] == 1234
    steps = [printed[f"{step}_ms"] for step in ("fence", "look", "freeze", "publish", "previous_commit")]
    assert None not in steps
    expected = ["1", "1,234", f"process {os.getpid()} on {socket.gethostname()}", str(printed["incarnation"])]
    assert [cells.nth(at).inner_text() for at in range(4)] == expected
    assert [cells.nth(at).inner_text() for at in range(5, 10)] == [f"{took:,} ms" for took in steps]
    assert cells.nth(10).inner_text() == "query-1"
    expect(page.locator(".attention")).to_have_count(0)


def test_a_driver_that_was_replaced_and_still_writes_is_a_warning(
    console_server: fencepost.Server, visit: Callable[..., Visitor], make_runner: Callable[..., Runner], name: str
) -> None:
    successor = make_runner()

    def replace_it(step: str) -> None:
        if step == "writing" and not replaced:
            replaced.append(step)
            successor.carry_out(Rows(successor, name, 5), "query-1", 0)

    replaced: list[str] = []
    paused = make_runner(replace_it)
    with pytest.raises(Replaced):
        paused.carry_out(Rows(paused, name, 5), "query-1", 0)
    window = visit(console_server)
    page = window.go(f"/sinks?find={name}")
    expect(page.locator(".attention")).to_contain_text(
        f"Sink {name}: A driver or task from before incarnation 2 still wrote after it was replaced", timeout=WAIT_MS
    )
    expect(row_of(page, name)).to_contain_text("zombie")
    successor.carry_out(Rows(successor, name, 7), "query-1", 1)
    assert len(committed_values(console_server.address, name)) == 5 + 7
