"""The steps of a transaction, one by one: what is asked again, and what is not."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest

from fencepost.client.transactions.coordinator import Transactional
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, ServerError
from fencepost.types import Epoch, Offset, Pid, TopicPartition
from fencepost.wire.apis import Key
from tests.support.fake_cluster import FakeCluster, Handler

pytestmark = pytest.mark.unit

WHO = Identity(Pid(7), Epoch(1))


def ends_with(code: ErrorCode) -> Handler:
    def handle(_request: Any, _version: int) -> Mapping[str, Any]:
        return {"error_code": code}

    return handle


def found(request: Any, _version: int) -> Mapping[str, Any]:
    here = {"node_id": 1, "host": "fake", "port": 9001, "error_code": 0, "error_message": None}
    return {"coordinators": [{"key": key, **here} for key in request.coordinator_keys]}


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster()
    cluster.on(Key.FIND_COORDINATOR, found)
    return cluster


def test_an_end_that_kafka_answers_with_an_unknown_error_is_asked_again(cluster: FakeCluster) -> None:
    """Kafka says that while somebody fences the name. Taken for a failure, it hid from the owner that it was fenced."""
    cluster.on(Key.END_TXN, ends_with(ErrorCode.UNKNOWN_SERVER_ERROR), ends_with(ErrorCode.PRODUCER_FENCED))
    with cluster.admin() as admin:
        steps = Transactional(admin._routes, "writer")
        with pytest.raises(ServerError) as raised:
            steps.end(WHO, commit=True)
    assert raised.value.code is ErrorCode.PRODUCER_FENCED
    assert len(cluster.requests(Key.END_TXN)) == 2
    assert steps.doubts == 1  # it may have taken effect the first time: whoever asks has to look


def test_an_end_that_is_refused_is_not_asked_again(cluster: FakeCluster) -> None:
    cluster.on(Key.END_TXN, ends_with(ErrorCode.INVALID_TXN_STATE))
    with cluster.admin() as admin, pytest.raises(ServerError):
        Transactional(admin._routes, "writer").end(WHO, commit=True)
    assert len(cluster.requests(Key.END_TXN)) == 1


@pytest.mark.parametrize("code", [ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED])
def test_a_groups_coordinator_ends_a_transaction_but_not_its_producer(cluster: FakeCluster, code: ErrorCode) -> None:
    """IDEM-5: it may have hung, and answer by what it knew before. The name's coordinator decides at the abort."""
    rows = [{"partition_index": 0, "error_code": code}]
    cluster.on(Key.ADD_OFFSETS_TO_TXN, ends_with(ErrorCode.NONE))
    cluster.on(Key.TXN_OFFSET_COMMIT, lambda *_: {"topics": [{"name": "t", "partitions": rows}]})
    with cluster.admin() as admin, pytest.raises(ServerError) as raised:
        Transactional(admin._routes, "writer").add_offsets(WHO, "g", {TopicPartition("t", 0): Offset(1)})
    assert raised.value.code is ErrorCode.TRANSACTION_ABORTABLE


def test_a_partition_is_not_added_after_the_transaction_was_aborted_meanwhile(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would begin another one, under an epoch that is about to be replaced."""

    def busy(_request: Any, _version: int) -> Mapping[str, Any]:
        rows = [{"partition_index": 0, "partition_error_code": ErrorCode.CONCURRENT_TRANSACTIONS}]
        topic = {"name": "t", "results_by_partition": rows}
        return {"results_by_topic_v3_and_below": [topic]}

    cluster.on(Key.ADD_PARTITIONS_TO_TXN, busy)
    cluster.on(Key.END_TXN, ends_with(ErrorCode.NONE))
    with cluster.admin() as admin:
        steps = Transactional(admin._routes, "writer")
        monkeypatch.setattr(time, "sleep", lambda _: steps.end(WHO, commit=False))  # while it waits to ask again
        with pytest.raises(ServerError) as raised:
            steps.add_partitions(WHO, [TopicPartition("t", 0)])
    assert raised.value.code is ErrorCode.INVALID_TXN_STATE
    assert len(cluster.requests(Key.ADD_PARTITIONS_TO_TXN)) == 1
