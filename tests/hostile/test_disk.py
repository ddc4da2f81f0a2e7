"""Attacks on the threads that work on the disk, which the syncs of everybody must not wait for."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from fencepost.errors import ErrorCode
from tests.support.attacks import Siege
from tests.support.batches import batch

pytestmark = pytest.mark.hostile

DESCRIBE_LOG_DIRS = 35
UNUSED = "unused"
MOST_NAMED = 50_000


@pytest.mark.parametrize("named", [False, True])
def test_sizes_of_partitions_that_nobody_has_used_cost_nothing(siege: Siege, named: bool) -> None:
    count = siege.size(5_000, 75_000)
    for number in range(2):
        siege.create_topic(f"{UNUSED}-{number}", count)
    rows = [{"topic": f"{UNUSED}-0", "partitions": list(range(min(count, MOST_NAMED)))}]
    what = "partitions by name" if named else "all partitions"
    with siege.attack(f"DescribeLogDirs: {what}, by many clients"), ExitStack() as stack:
        clients = [stack.enter_context(siege.connect()) for _ in range(siege.size(4, 20))]
        for client in clients:
            client.send(DESCRIBE_LOG_DIRS, 4, topics=rows if named else None)
        for client in clients:
            [answer] = client.receive()[1].results
            shown = sum(len(topic.partitions) for topic in answer.topics)
            assert shown >= (len(rows[0]["partitions"]) if named else 2 * count)


def test_partitions_that_are_opened_hold_up_nobody(siege: Siege) -> None:
    count = siege.size(200, 4_000)
    clients_count = siege.size(40, 400)
    siege.create_topic("opened", count)
    with siege.attack(f"{clients_count} connections that open unused partitions"), ExitStack() as stack:
        clients = [stack.enter_context(siege.connect()) for _ in range(clients_count)]
        each = count // clients_count
        for number, client in enumerate(clients):
            mine = range(number * each, number * each + each)
            client.send_produce_many({"opened": dict.fromkeys(mine, batch([b"x"]))})
        for client in clients:
            [topic] = client.receive()[1].topics
            assert {row.error_code for row in topic.partitions} == {ErrorCode.NONE}
