"""One server for all programs of this folder, and a fresh topic for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import fencepost


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    with fencepost.Server() as server:
        yield server.address


@pytest.fixture
def topic(address: str, name: str) -> str:
    """A fresh topic with one partition."""
    with fencepost.Admin(address) as admin:
        admin.create_topic(name, partitions=1)
    return name
