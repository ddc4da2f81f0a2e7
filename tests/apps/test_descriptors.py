"""Producers and readers that nobody closed give their descriptors back when they are garbage-collected."""

from __future__ import annotations

import pytest

from tests.support.programs import run

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "what", ["Producer({address!r})", "Reader({address!r}, {topic!r})"], ids=["producer", "reader"]
)
def test_unclosed_and_unused_clients_leak_no_descriptors(address: str, topic: str, what: str) -> None:
    client = what.format(address=address, topic=topic)
    ended = run(f"""
import gc, os, fencepost
def create(number):
    for _ in range(number):
        fencepost.{client}
    gc.collect()
    return len(os.listdir("/proc/self/fd"))
print(create(3), create(50))
""")
    few, many = ended.stdout.split()
    assert few == many, ended.stderr
