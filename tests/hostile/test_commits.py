"""Attacks with commits of very many offsets."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any

import pytest

from fencepost.errors import ErrorCode
from tests.support.attacks import LONGEST_WAIT, Siege

pytestmark = pytest.mark.hostile

OFFSET_COMMIT = 8


def commit_fields(group: str, count: int) -> dict[str, Any]:
    rows = [{"partition_index": n, "committed_offset": 1, "committed_metadata": ""} for n in range(count)]
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "topics": [{"name": "committed", "partitions": rows}],
    }


def test_large_commits_at_once_are_limited_together_and_hold_up_no_small_one(siege: Siege) -> None:
    rows = siege.size(4_000, 40_000)
    siege.create_topic("committed", rows)
    attackers = siege.size(4, 12)
    with siege.attack(f"OffsetCommit: {attackers} at once of {rows:,} rows"), ExitStack() as stack:
        small = stack.enter_context(siege.connect())
        clients = [stack.enter_context(siege.connect()) for _ in range(attackers)]
        for number, client in enumerate(clients):
            client.send(OFFSET_COMMIT, 8, **commit_fields(f"large-{number}", rows))
        longest = 0.0
        for _ in range(siege.size(10, 100)):
            began = time.monotonic()
            small.call(OFFSET_COMMIT, 8, **commit_fields("small", 1))
            longest = max(longest, time.monotonic() - began)
        codes = set()
        for client in clients:
            codes |= {row.error_code for topic in client.receive()[1].topics for row in topic.partitions}
    print(f"the longest commit of one row took {longest:.3f} s")
    assert ErrorCode.NONE in codes
    if siege.long:  # twelve of them have 137 MiB, and all groups together may have 64 MiB
        assert ErrorCode.INVALID_COMMIT_OFFSET_SIZE in codes
        assert longest < LONGEST_WAIT
