"""What counts as written when a transaction is about to be committed: what a dying leader does not take along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fencepost.client.transactions.shared_writer import replicated_sequences
from fencepost.core.producers.pid import Identity
from fencepost.errors import TimedOut
from fencepost.types import Epoch, Pid
from fencepost.wire.apis import Key
from tests.support.fake_cluster import FakeCluster, Handler

pytestmark = pytest.mark.unit

WHO = Identity(Pid(7), Epoch(3))


def sequences(*last: int) -> list[Handler]:
    """One answer to DescribeProducers after the other."""

    def answer(sequence: int) -> Handler:
        state = {
            "producer_id": WHO.pid,
            "producer_epoch": WHO.epoch,
            "last_sequence": sequence,
            "last_timestamp": 0,
            "coordinator_epoch": -1,
            "current_txn_start_offset": 0,
        }
        partition = {"partition_index": 0, "error_code": 0, "error_message": None, "active_producers": [state]}
        return lambda request, version: {"topics": [{"name": "t", "partitions": [partition]}]}

    return [answer(sequence) for sequence in last]


def ends(log: list[int], readable: list[int]) -> Handler:
    """ListOffsets: the end of the log, and the high watermark, each time the next; the last of them for ever."""

    def answer(request: Any, version: int) -> Mapping[str, Any]:
        given = log if request.replica_id == -2 else readable
        offset = given.pop(0) if len(given) > 1 else given[0]
        row = {"partition_index": 0, "error_code": 0, "timestamp": -1, "offset": offset, "leader_epoch": 0}
        return {"topics": [{"name": "t", "partitions": [row]}]}

    return answer


def cluster(answers: list[Handler], offsets: Handler) -> FakeCluster:
    fake = FakeCluster(topics={"t": [1]})
    fake.on(Key.DESCRIBE_PRODUCERS, *answers)
    fake.on(Key.LIST_OFFSETS, offsets)
    return fake


def test_what_is_replicated_is_answered_at_once() -> None:
    with cluster(sequences(9, 9), ends([10], [10])).admin() as admin:
        assert replicated_sequences(admin, "t", [0], WHO) == {0: 9}


def test_what_only_the_leader_has_is_waited_for() -> None:
    with cluster(sequences(9), ends([10], [5, 8, 10])).admin() as admin:
        assert replicated_sequences(admin, "t", [0], WHO) == {0: 9}


def test_others_who_write_on_and_on_are_not_waited_for() -> None:
    with cluster(sequences(9), ends([10, 20, 30, 40], [5, 12, 12])).admin() as admin:
        assert replicated_sequences(admin, "t", [0], WHO) == {0: 9}


def test_a_leader_that_took_records_along_is_found_out() -> None:
    with cluster(sequences(9, 4, 4), ends([10, 5], [5])).admin() as admin:
        assert replicated_sequences(admin, "t", [0], WHO) == {0: 4}


def test_a_new_leader_with_a_shorter_log_does_not_hold_it_up() -> None:
    """Ours is there; what was lost is somebody else's, and will not come back."""
    with cluster(sequences(9), ends([30, 20], [10, 20])).admin() as admin:
        assert replicated_sequences(admin, "t", [0], WHO) == {0: 9}


def test_what_is_not_replicated_in_time_is_an_error() -> None:
    with (
        cluster(sequences(9), ends([10], [5])).admin() as admin,
        pytest.raises(TimedOut, match=r"t, partition 0: .* not replicated"),
    ):
        replicated_sequences(admin, "t", [0], WHO, patience=0)
