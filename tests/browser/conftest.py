"""The browser of these tests, and servers with a console."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

import fencepost
from tests.support.browser import MISSING, Visitor, find_chromium, open_browser
from tests.support.http_client import ANY
from tests.support.make_runs import without_tool

os.environ.setdefault("NODE_OPTIONS", "--no-deprecation")  # the driver's own warnings are not ours


_opened: list[tuple[Browser, ExitStack]] = []


@pytest.fixture
def browser() -> Browser:
    """The browser of all files of this folder that a process runs one after the other."""
    if not _opened:
        executable = find_chromium()
        if executable is None:
            without_tool(MISSING)
            raise AssertionError
        with ExitStack() as stack:
            _opened.append((stack.enter_context(open_browser(executable)), stack.pop_all()))
    return _opened[0][0]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Close the browser behind the last test of this folder: playwright keeps a loop running in this thread, with
    which `asyncio.run` of other tests would fail."""
    yield
    if _opened and (nextitem is None or nextitem.path.parent != item.path.parent):
        _, stack = _opened.pop()
        stack.close()


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
