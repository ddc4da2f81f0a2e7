"""What `check` tries disturbs no sink that is running under the same name."""

from __future__ import annotations

import time

import pytest

from fencepost import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.transactions.coordinator import Transactional
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SharedTransaction
from fencepost.core.micro_batch.protocol import SINK_ID_PREFIX
from fencepost.kernel import encode_batch
from fencepost.spark.readiness import try_name, try_read, try_write
from fencepost.types import TopicPartition
from tests.support.committed import committed_values

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("tried", ["first", "later"])
def test_what_a_check_tries_leaves_an_open_transaction_alone(servers: str, name: str, tried: str) -> None:
    with Admin(servers) as admin, Routes(ClientSettings.of(servers)) as routes:
        admin.create_topic(name, 1)
        if tried == "first":
            try_name(routes, name, 60_000)
        steps = Transactional(routes, SINK_ID_PREFIX + name)
        who = steps.init(60_000)
        steps.add_partitions(who, [TopicPartition(name, 0)])
        links = LeaderChannels(routes)
        writer = PartitionWriter(links, SharedTransaction(steps.name, who), TopicPartition(name, 0))
        writer.write(encode_batch([(None, b"kept", time.time_ns() // 1_000_000, None)]))
        writer.finish()
        try_name(routes, name, 60_000)
        try_write(routes, name, name)
        try_write(routes, name, f"{name}-not-there")
        try_read(routes, name)
        try_read(routes, f"{name}-not-there")
        steps.end(who, commit=True)
        steps.end(who, commit=True)
        links.close()
    assert committed_values(servers, name) == [b"kept"]
