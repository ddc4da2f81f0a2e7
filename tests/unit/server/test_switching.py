"""`switch_threads_soon`: a thread gets the interpreter's lock soon, also beside a busy loop."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from fencepost.server import server
from fencepost.server.settings import ServerConfig
from fencepost.server.switching import switch_threads_soon

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


def test_a_thread_waits_for_a_moment_only() -> None:
    switch_threads_soon()
    assert sys.getswitchinterval() <= 0.001


def test_a_server_process_switches_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a server within another program leaves that program's setting alone."""
    seen: list[float] = []
    for name in ("keep_freed_memory", "keep_collections_short"):
        monkeypatch.setattr(server, name, lambda: None)

    def run_loop(main: object) -> None:
        seen.append(sys.getswitchinterval())
        main.close()  # type: ignore[attr-defined]

    monkeypatch.setattr(server, "_run_loop", run_loop)
    server.run(ServerConfig(), on_ready=lambda where: None)
    assert seen[0] <= 0.001
