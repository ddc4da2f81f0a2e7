"""Addresses that count as one client."""

from __future__ import annotations

import pytest

from fencepost.server.config.addresses import one_client

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("first", "second", "are_one"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("fe80::1%eth0", "fe80::2%eth0", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("::ffff:192.0.2.1", "192.0.2.1", True),
        ("::FFFF:c000:201%eth0", "192.0.2.1", True),
        ("::ffff:192.0.2.1", "::1", False),
        ("not:an:address", "not:an:other", False),
        ("", "192.0.2.2", False),
    ],
)
def test_one_client_is_an_ipv4_address_or_a_network_of_ipv6(first: str, second: str, are_one: bool) -> None:
    assert (one_client(first) == one_client(second)) is are_one
