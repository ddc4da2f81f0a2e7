"""A real broker in pytest: no Docker, no ports to choose, nothing to clean up.

    pytest examples/pytest_fixture.py

The fixture comes with fencepost: one server per session, or per xdist worker. `fencepost_server_factory` starts a
server for one test, which may give it other settings or kill it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import fencepost


def place_order(producer: fencepost.Producer, number: int) -> None:
    """Place an order; this is the code under test."""
    if number < 0:
        raise ValueError("an order's number must not be negative")
    producer.send("orders", f"order {number}", key=str(number))


def values(servers: str, topic: str) -> list[bytes | None]:
    with fencepost.Reader(servers, topic, stop="latest") as reader:
        return [record.value for record in reader]


def test_an_order_reaches_the_log(fencepost_server: fencepost.Server) -> None:
    with fencepost.Producer(fencepost_server.address) as producer:
        place_order(producer, 7)
    assert values(fencepost_server.address, "orders") == [b"order 7"]


def test_a_failed_transaction_leaves_nothing(fencepost_server: fencepost.Server) -> None:
    with fencepost.Producer(fencepost_server.address, name="orders") as producer:
        try:
            with producer.transaction():
                place_order(producer, 8)
                place_order(producer, -1)
        except ValueError:
            pass
    assert b"order 8" not in values(fencepost_server.address, "orders")


def test_nothing_is_lost_when_the_broker_is_killed(
    fencepost_server_factory: Callable[..., Any], tmp_path: Path
) -> None:
    server = fencepost_server_factory(tmp_path, process=True)
    with fencepost.Producer(server.address) as producer:
        place_order(producer, 9)
    server.kill()
    again = fencepost_server_factory(tmp_path)
    assert values(again.address, "orders") == [b"order 9"]
