"""The first batches of a transaction's partitions go in one request, and each is there once, whatever the line does."""

from __future__ import annotations

from contextlib import ExitStack
from threading import Timer

import pytest

from fencepost.client.admin_client import Admin
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.transactions.coordinator import Transactional
from fencepost.client.transactions.shared_writer import (
    LeaderChannels,
    PartitionWriter,
    SharedTransaction,
    write_first_batches,
)
from fencepost.kernel import encode_batch, read_header
from fencepost.spark import publish
from fencepost.spark.freeze import FrozenBatch, ManifestEntry, manifest_of_frozen
from fencepost.types import TopicPartition
from tests.integration.conftest import TestedServer
from tests.support.committed import await_decided, committed_values
from tests.support.proxy import Proxy
from tests.support.scripted.fates import Api, Fate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PARTITIONS = 3


@pytest.mark.parametrize("fate", [Fate.ANSWER, Fate.CUT, Fate.LOSE, Fate.DUPLICATE])
def test_first_batches_of_all_partitions_are_there_once(server: TestedServer, name: str, fate: Fate) -> None:
    """PIPE-2."""
    topics = [f"{name}-a", f"{name}-b"]
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(server.address))
        proxy = stack.enter_context(Proxy(server.address))
        routes = stack.enter_context(Routes(ClientSettings.of(proxy.address)))
        channels = stack.enter_context(LeaderChannels(routes))
        for topic in topics:
            admin.create_topic(topic, PARTITIONS)
        wanted = [TopicPartition(topic, partition) for topic in topics for partition in range(PARTITIONS)]
        batches = {where: encode_batch([(None, str(where).encode(), 0, None)] * 2) for where in wanted}
        name_of_it = Transactional(routes, f"{name}-id")
        identity = name_of_it.init(60_000)
        name_of_it.add_partitions(identity, wanted)
        transaction = SharedTransaction(name_of_it.name, identity)
        proxy.next(Api.PRODUCE, fate)
        confirmed = write_first_batches(channels, transaction, batches)
        if fate is Fate.ANSWER and server.name == "fencepost":  # Apache Kafka may answer `again` while it verifies
            assert confirmed == dict.fromkeys(wanted, 1)
        if fate in (Fate.CUT, Fate.LOSE):
            assert confirmed == {}
        for where in wanted:
            if where not in confirmed:
                writer = PartitionWriter(channels, transaction, where)
                writer.write(batches[where])
                assert writer.finish() == 1
        name_of_it.end(identity, commit=True)
        name_of_it.end(identity, commit=True)
    for topic in topics:
        expected = [str(TopicPartition(topic, partition)).encode() for partition in range(PARTITIONS) for _ in "12"]
        await_decided(server.address, topic)
        assert committed_values(server.address, topic) == expected


def test_a_server_that_is_away_for_a_moment_does_not_fail_the_driver(server: TestedServer, name: str) -> None:
    """PIPE-4: a restart of the server in the middle of a small micro-batch costs none of its attempts."""
    with ExitStack() as stack:
        admin = stack.enter_context(Admin(server.address))
        proxy = stack.enter_context(Proxy(server.address))
        routes = stack.enter_context(Routes(ClientSettings.of(proxy.address)))
        channels = stack.enter_context(LeaderChannels(routes))
        admin.create_topic(name, PARTITIONS)
        wanted = [TopicPartition(name, partition) for partition in range(PARTITIONS)]
        contents = [encode_batch([(None, str(where).encode(), 0, None)]) for where in wanted]
        manifest = manifest_of_frozen(
            FrozenBatch(where, ManifestEntry(0, 0, 1, len(content), read_header(content).crc), content)
            for where, content in zip(wanted, contents, strict=True)
        )
        name_of_it = Transactional(routes, f"{name}-id")
        identity = name_of_it.init(60_000)
        name_of_it.add_partitions(identity, wanted)
        channels.to_leaders(wanted)
        proxy.refuse()
        proxy.cut()
        back = Timer(1.0, proxy.refuse, [False])
        back.start()
        stack.callback(back.join)
        publish.by_driver(channels, SharedTransaction(name_of_it.name, identity), manifest.batches)
        name_of_it.end(identity, commit=True)
        name_of_it.end(identity, commit=True)
    assert committed_values(server.address, name) == [str(where).encode() for where in wanted]
