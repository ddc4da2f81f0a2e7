"""The proxy that injects faults ends without leaving anything behind."""

from __future__ import annotations

import gc
import socket

import pytest

import fencepost
from tests.support.proxy import Proxy

pytestmark = pytest.mark.integration


def test_connections_that_are_only_just_accepted_end_with_the_proxy(fencepost_server: fencepost.Server) -> None:
    """Otherwise their sockets are left to the garbage collector, whose warning hits some later test."""
    for _ in range(20):
        with Proxy(fencepost_server.address) as proxy:
            host, _, port = proxy.address.rpartition(":")
            clients = [socket.create_connection((host, int(port))) for _ in range(10)]
        for client in clients:
            client.close()
    gc.collect()
