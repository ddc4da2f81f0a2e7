"""Whatever goes wrong in a chore stays with what it went wrong for: the others go on, `Server.health` says it, and it
is over when the chore succeeds. An exception is planted in every chore there is."""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fencepost
from fencepost.errors import ErrorCode
from fencepost.log.compaction.job import CompactionJob
from fencepost.log.partition import PartitionLog
from fencepost.server.broker import Broker
from fencepost.server.config.listener import ListenerConfig
from fencepost.server.config.settings import ServerConfig
from fencepost.server.coordinators import groups, owners, transaction_rows, transactions
from fencepost.server.coordinators.markers import Markers
from fencepost.server.health import MAX_TROUBLES, Chore, Health, Trouble
from fencepost.server.net import listener
from fencepost.server.security.audit_places import AuditFile
from fencepost.server.storage import housekeeping
from fencepost.server.storage.housekeeping import Housekeeping
from fencepost.server.storage.partition import Partition
from fencepost.server.storage.space import Space
from tests.support.batches import batch, record
from tests.support.certificates import make as make_certificates
from tests.support.clock import HandWoundClock
from tests.support.log_bed import append
from tests.support.raw import RawClient, new_topic
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.fault

EVEN_IF_NEVER = 60.0


class Planted(Exception):
    """No error that any code expects."""


class Plant:
    """Makes a method raise for whatever `is_bad` picks by the method's first arguments, until it is lifted."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: Any, method: str, is_bad: Callable[..., bool]) -> None:
        self.lifted = False
        self.spared = 0
        """Calls for others than the bad one, since the bad one failed first."""
        self.failed = 0
        original = getattr(owner, method)

        def planted(*args: Any, **kwargs: Any) -> Any:
            if not self.lifted and is_bad(*args):
                self.failed += 1
                raise Planted("planted")
            self.spared += self.failed > 0
            return original(*args, **kwargs)

        patch.setattr(owner, method, planted)


class Bed:
    def __init__(self, server: fencepost.Server, client: RawClient, patch: pytest.MonkeyPatch) -> None:
        self.server = server
        self.client = client
        self.patch = patch

    def troubles(self) -> set[tuple[Chore, str]]:
        return {(trouble.chore, trouble.subject) for trouble in self.server.health}

    def await_health(self, *expected: tuple[Chore, str]) -> None:
        await_that(lambda: self.troubles() == set(expected))


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + EVEN_IF_NEVER
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def of_bad(log: PartitionLog, *_: Any) -> bool:
    return "/bad." in log.directory


def named_bad(thing: Any, *_: Any) -> bool:
    return bool(thing.name.topic == "bad")


def in_partitions(owner: Any, method: str, is_bad: Callable[..., bool], chore: Chore) -> Callable[[Bed], None]:
    def play(bed: Bed) -> None:
        for topic in ("bad", "good"):
            bed.client.create_topic(topic, configs={"cleanup.policy": "compact,delete"})
            bed.client.produce(topic, batch([b"x"], records=record(b"x", b"key")))
        plant = Plant(bed.patch, owner, method, is_bad)
        await_that(lambda: plant.failed > 2 and plant.spared > 2)
        bed.await_health((chore, "bad-0"))
        plant.lifted = True
        bed.await_health()

    return play


def opening(bed: Bed) -> None:
    plant = Plant(bed.patch, Partition, "open", named_bad)
    bed.patch.setattr(housekeeping, "_overdue", lambda *_: [0])
    for topic in ("bad", "good"):
        create_closed(bed.client, topic)
    await_that(lambda: plant.failed > 0 and plant.spared > 0)
    bed.await_health((Chore.OPENING, "bad-0"))
    plant.lifted = True
    bed.await_health()


def create_closed(client: RawClient, topic: str) -> None:
    """Without a look at its offsets, which would open it."""
    client.call(19, 7, topics=[new_topic(topic, 1)], timeout=10_000)


def looking_around(bed: Bed) -> None:
    plant = Plant(bed.patch, housekeeping, "_overdue", lambda *_: True)
    create_closed(bed.client, "closed")
    bed.client.create_topic("good")
    bed.client.produce("good", batch([b"x"]))
    retention = Plant(bed.patch, PartitionLog, "apply_retention", lambda *_: False)
    retention.failed = 1
    await_that(lambda: plant.failed > 1 and retention.spared > 1)
    bed.await_health((Chore.LOOKING_AROUND, ""))
    plant.lifted = True
    bed.await_health()


def sync(bed: Bed) -> None:
    for topic in ("bad", "good"):
        bed.client.create_topic(topic)
        bed.client.produce(topic, batch([b"first"]))
    plant = Plant(bed.patch, PartitionLog, "sync", of_bad)
    assert bed.client.produce("bad", batch([b"x"])).error is ErrorCode.KAFKA_STORAGE_ERROR
    assert bed.client.produce("good", batch([b"x"])).error is ErrorCode.NONE
    bed.await_health((Chore.SYNC, "bad-0"))
    plant.lifted = True
    assert bed.client.produce("bad", batch([b"x"])).error is ErrorCode.NONE
    bed.await_health()


def space(bed: Bed) -> None:
    plant = Plant(bed.patch, Space, "keep_reserve", lambda *_: True)
    bed.client.create_topic("good")
    bed.client.produce("good", batch([b"x"]))
    retention = Plant(bed.patch, PartitionLog, "apply_retention", lambda *_: False)
    retention.failed = 1
    await_that(lambda: plant.failed > 1 and retention.spared > 1)
    bed.await_health((Chore.SPACE, ""))
    plant.lifted = True
    bed.await_health()


def folders(bed: Bed) -> None:
    ids = {topic: bed.client.create_topic(topic) for topic in ("bad", "good")}
    for topic in ids:
        bed.client.produce(topic, batch([b"x"]))
    plant = Plant(bed.patch, shutil, "rmtree", lambda folder, **_: folder.name.startswith("bad."))
    for topic_id in ids.values():
        bed.client.call(20, 6, topics=[{"name": None, "topic_id": topic_id}], timeout=10_000)
        await_that(lambda: plant.failed > 0)
    await_that(lambda: not list((bed.server.data / "logs").glob("good.*")))
    (left,) = (bed.server.data / "logs").glob("bad.*")
    bed.await_health((Chore.FOLDERS, left.name))
    plant.lifted = True
    bed.await_health()
    assert not left.exists()


def committed_offsets(bed: Bed) -> None:
    plant = Plant(bed.patch, groups.GroupCoordinator, "_expire_offsets", lambda _, entry: entry.group_id == "bad")
    bed.client.create_topic("t")
    for group in ("bad", "good"):
        partition = {
            "partition_index": 0,
            "committed_offset": 0,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        bed.client.call(
            8, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
            topics=[{"name": "t", "partitions": [partition]}],
        )  # fmt: skip
    await_that(lambda: plant.failed > 1 and plant.spared > 1)
    bed.await_health((Chore.OFFSETS, "bad"))
    plant.lifted = True
    bed.await_health()


def group_deadlines(bed: Bed) -> None:
    bed.patch.setattr(groups, "_AFTER_A_FAILURE_MS", 10)
    plant = Plant(bed.patch, groups.GroupCoordinator, "_tick", lambda _, entry, now: entry.group_id == "bad")
    for group in ("bad", "good"):
        joined = bed.client.call(
            11, 3, group_id=group, session_timeout=50, rebalance_timeout=50, member_id="", protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b""}],
        )  # fmt: skip
        assert joined.error_code == ErrorCode.NONE
    await_that(lambda: plant.failed > 1 and plant.spared > 0)
    bed.await_health((Chore.GROUPS, "bad"))
    plant.lifted = True
    bed.await_health()
    assert bed.client.call(15, 4, groups=["bad"], include_authorized_operations=False).groups[0].members == ()


def transaction_timeouts(bed: Bed) -> None:
    bed.patch.setattr(transactions, "_is_forgettable", lambda *_: True)
    plant = Plant(bed.patch, transaction_rows, "drop", lambda name: name == "bad")
    with TransactionClient(bed.server.address) as client:
        for name in ("bad", "good"):
            client.init(name)
        await_that(lambda: plant.failed > 1 and plant.spared > 0)
        bed.await_health((Chore.TRANSACTIONS, "bad"))
        plant.lifted = True
        bed.await_health()


def markers(bed: Bed) -> None:
    plant = Plant(bed.patch, Markers, "_append", lambda _, partition, *__: partition.topic.name == "bad")
    with TransactionClient(bed.server.address) as client:
        for topic in ("bad", "good"):
            client.create_topic(topic)
        producer = TransactionalProducer.start(client, "both")
        for topic in ("bad", "good"):
            client.add(producer, {topic: [0]})
            client.write(producer, topic, [b"x"])
        client.end(producer, commit=True)
        await_that(lambda: plant.failed > 1)
        assert client.stable_offset("good") == 2
        bed.await_health((Chore.MARKERS, "both"))
        plant.lifted = True
        bed.await_health()
        assert client.stable_offset("bad") == 2


def silent_owners(bed: Bed) -> None:
    with RawClient(bed.server.address, client_id="bad") as bad, RawClient(bed.server.address) as good:
        plant = Plant(
            bed.patch, owners.Owners, "_sever_if_silent", lambda _, connection: connection.peer.endswith(port_of(bad))
        )
        for client, name in ((bad, "r1"), (good, "r2")):
            answer = client.call(
                10_000, 0, group="g", wait_ms=0, session_ms=50, resources=[{"name": name, "generation": 1}]
            )
            assert answer.error_code == ErrorCode.NONE
        assert good.is_closed_by_server()
        bed.await_health((Chore.OWNERS, ""))
        plant.lifted = True
        assert bad.is_closed_by_server()
        bed.client.call(10_000, 0, group="g", wait_ms=0, session_ms=60_000, resources=[{"name": "r", "generation": 1}])
        bed.await_health()


def idle_connections(bed: Bed) -> None:
    with RawClient(bed.server.address) as bad, RawClient(bed.server.address) as good:
        plant = Plant(
            bed.patch, listener.Listener, "_close_if_stalled",
            lambda _, connection: connection.peer.endswith(port_of(bad)),
        )  # fmt: skip
        for client in (bad, good):
            client.metadata([])
        await_that(lambda: plant.failed > 1 and plant.spared > 1)
        bed.await_health((Chore.CONNECTIONS, ""))
        plant.lifted = True
        bed.await_health()


def port_of(client: RawClient) -> str:
    return f":{client._socket.getsockname()[1]}"


def certificates(bed: Bed) -> None:
    pem = make_certificates(bed.server.data).server
    bad, good = (
        ListenerConfig(name=name, address="127.0.0.1:0", protocol="ssl", certificate=pem) for name in ("bad", "good")
    )
    with fencepost.Server(listeners=(bad, good)) as server:
        secured = Bed(server, bed.client, bed.patch)
        plant = Plant(bed.patch, listener, "look_at_files", lambda config: config.name == "bad")
        await_that(lambda: plant.failed > 2 and plant.spared > 2)
        secured.await_health((Chore.CERTIFICATES, "bad"))
        plant.lifted = True
        secured.await_health()


def audit(bed: Bed) -> None:
    file = bed.server.data / "audit.log"
    with fencepost.Server(audit_file=file, authorization_enabled=True) as server:
        audited = Bed(server, bed.client, bed.patch)
        plant = Plant(bed.patch, AuditFile, "write", lambda *_: True)
        with RawClient(server.address) as stranger:
            stranger.call(20, 6, topics=[{"name": "orders", "topic_id": uuid.UUID(int=0)}], timeout=1000)
        await_that(lambda: plant.failed > 1)
        audited.await_health((Chore.AUDIT, ""))
        plant.lifted = True
        audited.await_health()
        await_that(lambda: "access.denied" in file.read_text())


PLAYS: dict[Chore, Callable[[Bed], None]] = {
    Chore.RETENTION: in_partitions(PartitionLog, "apply_retention", of_bad, Chore.RETENTION),
    Chore.FORGETTING_PRODUCERS: in_partitions(PartitionLog, "expire_producers", of_bad, Chore.FORGETTING_PRODUCERS),
    Chore.SNAPSHOT: in_partitions(PartitionLog, "wants_snapshot", of_bad, Chore.SNAPSHOT),
    Chore.COMPACTION: in_partitions(PartitionLog, "wants_compaction", of_bad, Chore.COMPACTION),
    Chore.OPENING: opening,
    Chore.SYNC: sync,
    Chore.SPACE: space,
    Chore.LOOKING_AROUND: looking_around,
    Chore.FOLDERS: folders,
    Chore.OFFSETS: committed_offsets,
    Chore.GROUPS: group_deadlines,
    Chore.TRANSACTIONS: transaction_timeouts,
    Chore.MARKERS: markers,
    Chore.OWNERS: silent_owners,
    Chore.CONNECTIONS: idle_connections,
    Chore.CERTIFICATES: certificates,
    Chore.AUDIT: audit,
}


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    for module in (listener, owners, transactions):
        monkeypatch.setattr(module, "_PATROL_SECONDS", 0.01)
    monkeypatch.setattr(groups, "_EXPIRY_CHECK_SECONDS", 0.01)
    monkeypatch.setattr(housekeeping, "_ROUNDS_BETWEEN_SWEEPS", 1)
    settings: dict[str, Any] = {"background_interval_ms": 10, "group_min_session_timeout_ms": 10}
    with (
        fencepost.Server(tmp_path / "data", sync="always", **settings) as server,
        RawClient(server.address) as client,
    ):
        yield Bed(server, client, monkeypatch)


@pytest.mark.parametrize("chore", Chore)
def test_what_fails_in_a_chore_is_reported_and_the_rest_goes_on(bed: Bed, chore: Chore) -> None:
    PLAYS[chore](bed)


def test_a_deleted_topic_takes_its_troubles_with_it(bed: Bed) -> None:
    topic_id = bed.client.create_topic("bad")
    bed.client.produce("bad", batch([b"x"]))
    Plant(bed.patch, PartitionLog, "apply_retention", of_bad)
    bed.await_health((Chore.RETENTION, "bad-0"))
    bed.client.call(20, 6, topics=[{"name": None, "topic_id": topic_id}], timeout=10_000)
    bed.await_health()


def test_a_server_of_another_process_is_not_asked_for_its_health(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="process=True"):
        _ = fencepost.Server(tmp_path, process=True).health


def test_a_trouble_says_since_when_how_often_and_why() -> None:
    clock = HandWoundClock()
    health = Health(clock)
    began = clock.now_ms()
    health.note(Chore.RETENTION, "t-0", Planted("first"))
    clock.advance(5)
    health.note(Chore.RETENTION, "t-0", OSError("second"))
    assert health.troubles == (Trouble(Chore.RETENTION, "t-0", "second", began, began + 5000, 2),)
    health.clear(Chore.RETENTION, "t-1")
    assert len(health.troubles) == 1
    health.clear(Chore.RETENTION, "t-0")
    assert not health.troubles


def test_health_keeps_a_bounded_number_of_troubles_apart() -> None:
    health = Health(HandWoundClock())
    for number in range(MAX_TROUBLES + 7):
        health.note(Chore.RETENTION, f"t-{number}", Planted())
    assert len(health.troubles) == MAX_TROUBLES
    assert health.troubles[0].reason == "Planted"


async def test_compaction_goes_on_until_all_keys_are_done_and_partitions_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log with more keys than one pass holds in memory took one pass per round, and never caught up."""
    config = ServerConfig(data=tmp_path, sync="os", background_interval_ms=3_600_000)
    monkeypatch.setattr("fencepost.server.storage.housekeeping.COMPACTION_KEYS", 10)
    passes: list[str] = []
    broker = Broker(config)
    await broker.start()
    configs = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.5"}
    for topic in ("many", "few"):
        await broker.topics.create(topic, 1, configs)
        log = await broker.partition(topic, 0).open()
        for number in range(200 if topic == "many" else 30):
            append(log, bytearray(batch([b"v" * 50], records=record(b"v" * 50, b"key %d" % number))))
        log.advance_high_watermark(log.end_offset)
    write = CompactionJob.write

    def noted(job: CompactionJob) -> None:
        passes.append(job._log.directory)
        write(job)

    monkeypatch.setattr(CompactionJob, "write", noted)
    await Housekeeping(broker).compact()
    for topic in ("many", "few"):
        log = await broker.partition(topic, 0).open()
        assert log.cleaned_offset == log.segments[-1].base_offset
    assert broker.health.troubles == ()
    await broker.close()
    order = ["many" if "many." in directory else "few" for directory in passes]
    assert order.count("many") > 15
    assert order[:4] == ["many", "few", "many", "few"]
