"""A server process: collections look only at newer objects, and a thread gets the interpreter's lock soon."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from fencepost.server import server
from fencepost.server.config.settings import ServerConfig

pytestmark = pytest.mark.unit

# The setting affects the whole process, so each test starts a new one.
_BEGIN = """
    import gc, sys, weakref
    from fencepost.server.process import tuning as garbage
    garbage.keep_collections_short()
    garbage.keep_collections_short()

    class Node:
        pass

    def cycle():
        one = Node()
        one.me = one
        return one
"""


def run(code: str) -> str:
    source = textwrap.dedent(_BEGIN) + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True).stdout


def test_what_survives_a_full_collection_is_set_aside() -> None:
    output = run("""
        kept = [Node() for _ in range(1000)]
        gc.collect()
        print(gc.get_freeze_count() > 1000, len(gc.get_objects()) < 100, len(gc.callbacks))
    """)
    assert output.split() == ["True", "True", "1"]


def test_what_exists_at_the_start_is_set_aside_without_a_collection() -> None:
    output = run("""
        print(gc.get_freeze_count() > 1000, gc.get_stats()[2]["collections"] < 2)
    """)
    assert output.split() == ["True", "True"]


def test_cycles_that_came_since_are_found() -> None:
    output = run("""
        gc.collect()
        seen = weakref.ref(cycle())
        gc.collect()
        print(seen() is None)
    """)
    assert output.split() == ["True"]


def test_cycles_that_were_set_aside_are_found_after_an_hour() -> None:
    output = run("""
        now = 0.0
        garbage.monotonic = lambda: now
        gc.callbacks[-1]._whole_at = now
        kept = cycle()
        seen = weakref.ref(kept)
        gc.collect()
        del kept
        gc.collect()
        print(seen() is None)
        now = 3601.0
        gc.collect()
        print(seen() is None)
    """)
    assert output.split() == ["False", "True"]


def test_a_server_process_switches_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a server within another program leaves that program's setting alone."""
    seen: list[float] = []
    for name in ("keep_freed_memory", "keep_collections_short"):
        monkeypatch.setattr(server, name, lambda: None)

    def run_loop(main: object) -> None:
        seen.append(sys.getswitchinterval())
        main.close()  # type: ignore[attr-defined]

    monkeypatch.setattr(server, "_run_loop", run_loop)
    before = sys.getswitchinterval()
    try:
        server.run(ServerConfig(), on_ready=lambda where: None)
    finally:
        sys.setswitchinterval(before)
    assert seen[0] <= 0.001
