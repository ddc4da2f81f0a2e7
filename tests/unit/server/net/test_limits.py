"""Connections that are not authenticated yet: who makes way, and who is late."""

from __future__ import annotations

import pytest

from fencepost.server.net.limits import PendingConnections

pytestmark = pytest.mark.unit


class Silent:
    def __init__(self, client_host: str) -> None:
        self.client_host = client_host

    def refuse(self, why: str) -> None: ...


def test_the_oldest_of_the_same_address_makes_way_then_the_oldest_of_all() -> None:
    pending = PendingConnections()
    first, second, third, other, last = (
        Silent(host) for host in ("1.1.1.1", "2.2.2.2", "2.2.2.2", "3.3.3.3", "4.4.4.4")
    )
    assert pending.add(first, 0.0, most=4, most_per_address=1) is None
    assert pending.add(second, 1.0, most=4, most_per_address=1) is None
    assert pending.add(third, 2.0, most=4, most_per_address=1) is second
    assert pending.add(other, 3.0, most=4, most_per_address=1) is None
    assert pending.add(last, 4.0, most=4, most_per_address=1) is first


def test_a_network_of_ipv6_is_one_address() -> None:
    pending = PendingConnections()
    first, second = Silent("2001:db8::1"), Silent("2001:db8::2")
    assert pending.add(first, 0.0, most=9, most_per_address=1) is None
    assert pending.add(second, 0.0, most=9, most_per_address=1) is first


def test_those_accepted_before_a_time_are_late_until_they_are_settled() -> None:
    pending = PendingConnections()
    early, late = Silent("1.1.1.1"), Silent("1.1.1.1")
    pending.add(early, 1.0, most=9, most_per_address=9)
    pending.add(late, 2.0, most=9, most_per_address=9)
    assert pending.late(1.0) == []
    assert pending.late(1.5) == [early]
    pending.discard(early)
    pending.discard(early)
    assert pending.late(9.0) == [late] == list(pending)
    pending.discard(late)
    assert len(pending) == 0
