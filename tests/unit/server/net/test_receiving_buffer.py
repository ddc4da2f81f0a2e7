"""The receive buffer: shared by the connections of one loop, and by no other."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from fencepost.server.net.receiving import ReceiveBuffers

pytestmark = pytest.mark.unit


def test_each_thread_has_its_own() -> None:
    buffers = ReceiveBuffers(100)
    ours = buffers.for_connection()
    with ThreadPoolExecutor(1) as pool:
        theirs = pool.submit(buffers.for_connection).result()
    ours[:] = b"x" * 100
    assert bytes(theirs) == bytes(100)


@pytest.mark.skipif(sys.platform == "win32", reason="there each connection has its own")
def test_connections_of_one_thread_share_it() -> None:
    buffers = ReceiveBuffers(100)
    assert buffers.for_connection() is buffers.for_connection()
