"""The browser of these tests, and servers with a console."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

import fencepost
from tests.conftest import without_tool
from tests.support.browser import MISSING, Visitor, find_chromium, open_browser
from tests.support.http import ANY

os.environ.setdefault("NODE_OPTIONS", "--no-deprecation")  # the driver's own warnings are not ours


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """The browser of this folder, and no longer: playwright keeps a loop running in this thread, with
    which `asyncio.run` of other tests would fail."""
    executable = find_chromium()
    if executable is None:
        without_tool(MISSING)
        raise AssertionError
    with open_browser(executable) as opened:
        yield opened


@pytest.fixture(scope="session")
def console_server() -> Iterator[fencepost.Server]:
    """A server with a console, shared by all tests of the session: use names of your own."""
    with fencepost.Server(http_address=ANY, background_interval_ms=24 * 60 * 60 * 1000) as server:
        yield server


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Visitor]]:
    """Open windows: `visit(server)`. At the end of the test no browser may have complained about anything."""
    visitors: list[Visitor] = []

    def open_window(server: fencepost.Server, **options: object) -> Visitor:
        visitors.append(Visitor(browser, server.http, **options))
        return visitors[-1]

    yield open_window
    for visitor in visitors:
        visitor.close()
    assert [complaint for visitor in visitors for complaint in visitor.complaints] == []
