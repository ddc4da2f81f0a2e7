"""Topics that fencepost creates for itself: with how many replicas, and what happens where a cluster refuses that."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from fencepost.client.admin.lasting import Weak, create_lasting_topic, weak_topics
from fencepost.client.cluster.settings import ClientSettings
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.wire.apis import Key
from tests.support.fake_cluster import FakeCluster

pytestmark = pytest.mark.unit


def cluster_of(brokers: int, *answers: ErrorCode) -> FakeCluster:
    """`answers`: the codes that CreateTopics is answered with, one after the other."""
    cluster = FakeCluster(brokers)
    described = [
        {"broker_id": node, "host": "fake", "port": 9000 + node, "rack": None, "is_fenced": False}
        for node in cluster.brokers
    ]
    cluster.on(
        Key.DESCRIBE_CLUSTER,
        lambda request, version: {
            "error_code": 0,
            "error_message": None,
            "cluster_id": "fake",
            "controller_id": 1,
            "brokers": described,
        },
    )

    def created(code: ErrorCode) -> Callable[[Any, int], Mapping[str, Any]]:
        def answer(request: Any, version: int) -> Mapping[str, Any]:
            (topic,) = request.topics
            if code is ErrorCode.NONE:
                cluster.topics[topic.name] = [1] * topic.num_partitions
            return {"topics": [{"name": topic.name, "error_code": int(code), "error_message": "said the server"}]}

        return answer

    cluster.on(Key.CREATE_TOPICS, *(created(code) for code in answers or (ErrorCode.NONE,)))
    return cluster


def asked(cluster: FakeCluster) -> list[tuple[int, dict[str, str | None]]]:
    """Replication and configs of each topic that was to be created."""
    return [
        (topic.replication_factor, {config.name: config.value for config in topic.configs})
        for each in cluster.requests(Key.CREATE_TOPICS)
        for topic in each.request.topics
    ]


@pytest.mark.parametrize(
    ("brokers", "factor", "configs"),
    [
        (1, -1, {}),  # what the server takes for itself
        (2, 2, {"min.insync.replicas": "1"}),
        (3, 3, {"min.insync.replicas": "2"}),
        (5, 3, {"min.insync.replicas": "2"}),
    ],
)
def test_a_topic_is_on_three_brokers_or_on_all(brokers: int, factor: int, configs: dict[str, str]) -> None:
    cluster = cluster_of(brokers)
    with cluster.admin() as admin:
        assert create_lasting_topic(admin, "kept", 1)
    assert asked(cluster) == [(factor, configs)]


def test_the_users_own_number_is_taken_as_it_is() -> None:
    cluster = cluster_of(3)
    with cluster.admin(replication=2) as admin:
        create_lasting_topic(admin, "kept", 1, configs={"cleanup.policy": "compact"})
    assert asked(cluster) == [(2, {"cleanup.policy": "compact", "min.insync.replicas": "1"})]


def test_the_number_is_a_setting_with_a_name() -> None:
    assert ClientSettings.from_config({"fencepost.replication.factor": "2"}).replication == 2
    with pytest.raises(ConfigError, match=r"fencepost\.replication\.factor must be a positive number"):
        ClientSettings.from_config({"fencepost.replication.factor": "0"})


@pytest.mark.parametrize(("brokers", "given", "taken"), [(3, "1", "1"), (3, "3", "2"), (2, "2", "1"), (1, "2", "1")])
def test_a_copied_config_stays_unless_it_would_stop_the_topic(brokers: int, given: str, taken: str) -> None:
    cluster = cluster_of(brokers)
    with cluster.admin() as admin:
        create_lasting_topic(admin, "copy", 1, configs={"min.insync.replicas": given})
    assert asked(cluster)[0][1] == {"min.insync.replicas": taken}


def test_a_topic_that_is_there_already_is_fine() -> None:
    with cluster_of(3, ErrorCode.TOPIC_ALREADY_EXISTS).admin() as admin:
        assert not create_lasting_topic(admin, "kept", 1)


def test_a_broker_that_goes_while_they_are_counted_costs_another_try() -> None:
    cluster = cluster_of(3, ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE)
    with cluster.admin() as admin:
        assert create_lasting_topic(admin, "kept", 1)
    assert len(asked(cluster)) == 2


def test_too_few_brokers_for_the_users_own_number_is_said_at_once() -> None:
    cluster = cluster_of(3, ErrorCode.INVALID_REPLICATION_FACTOR)
    with cluster.admin(replication=5) as admin, pytest.raises(ServerError, match="INVALID_REPLICATION_FACTOR"):
        create_lasting_topic(admin, "kept", 1)
    assert len(asked(cluster)) == 1


def test_a_cluster_that_forbids_it_gets_its_own_defaults(caplog: pytest.LogCaptureFixture) -> None:
    cluster = cluster_of(3, ErrorCode.POLICY_VIOLATION, ErrorCode.NONE)
    with cluster.admin() as admin, caplog.at_level(logging.WARNING):
        assert create_lasting_topic(admin, "kept", 1, configs={"cleanup.policy": "compact"})
    assert asked(cluster)[-1] == (-1, {"cleanup.policy": "compact"})
    assert "kept" in caplog.text


def test_a_topic_that_is_replicated_once_is_named() -> None:
    cluster = cluster_of(3)
    cluster.topics["weak"] = [2]
    cluster.on(
        Key.DESCRIBE_CONFIGS,
        lambda request, version: {
            "results": [
                {"error_code": 0, "error_message": None, "resource_type": 2, "resource_name": "weak", "configs": []}
            ]
        },
    )
    with cluster.admin() as admin:
        (weak,) = weak_topics(admin, ["weak", "not there"])
    assert weak.topic == "weak"
    assert "replicated once although there are 3 brokers" in weak.why
    assert isinstance(weak, Weak)
