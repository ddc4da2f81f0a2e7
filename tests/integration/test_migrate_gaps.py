"""`fencepost migrate`: offsets without a record stay without one, wherever an earlier run was killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import fencepost
from fencepost.cli.migrate_copy import OffsetCopier, _PartitionCopy
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.read.ranges import Range
from fencepost.client.transactions.coordinator import Transactional
from fencepost.client.transactions.shared_writer import LeaderChannels, PartitionWriter, SharedTransaction
from fencepost.core.migration import copy_steps
from fencepost.errors import ErrorCode, ServerError
from fencepost.kernel import encode_batch
from fencepost.server.api import k27_write_txn_markers
from fencepost.server.net.router import Fields
from fencepost.types import TopicPartition
from tests.conftest import Engine
from tests.support.migration import Abort, abort, command, log, migrate, write_with_gaps
from tests.support.process import Child

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COMPACTED = {"cleanup.policy": "compact", "segment.bytes": "2000", "min.cleanable.dirty.ratio": "0.01"}


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_compacted_source_keeps_its_offsets(engine: Engine, name: str, tmp_path: Path) -> None:
    with fencepost.Server(tmp_path / "data", background_interval_ms=50) as tidy:
        with fencepost.Admin(tidy.address) as admin, fencepost.Producer(tidy.address, linger=0) as producer:
            admin.create_topic(name, 1, configs=COMPACTED)
            for number in range(60):
                for key in (b"a-%d" % number, b"hot", b"b-%d" % number, b"hot", b"hot", b"hot"):
                    producer.send(name, b"%d" % number, key=key, partition=0)
                producer.flush()  # a batch of six; compaction removes single offsets and runs of three inside of it

        def gaps() -> set[int]:
            with fencepost.Reader(tidy.address, name, start="earliest", stop="latest") as reader:
                offsets = [record.offset for record in reader]
            return {after - before - 1 for before, after in itertools.pairwise(offsets)}

        until(lambda: {1, 3} <= gaps())
    with fencepost.Server(tmp_path / "data") as source:  # compacts nothing while the test runs
        with fencepost.Admin(source.address) as admin:
            admin.alter_topic(
                name,
                {"segment.bytes": "1048576", "min.cleanable.dirty.ratio": "1.0", "min.compaction.lag.ms": "3600000"},
            )
        before = log(source.address, name)
        migrate(source.address, engine.address, "--topic", name)
        assert log(engine.address, name) == before == log(source.address, name)


def test_gaps_are_copied_although_the_target_refuses_direct_markers(
    source: fencepost.Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache Kafka does so after a coordinator with a higher epoch has ended a transaction of the same producer."""
    refused: list[ErrorCode] = []

    async def refuse(broker: object, request: object, marker: object, topic: str, index: int, _: None) -> Fields:
        refused.append(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
        return {"partition_index": index, "error_code": refused[-1]}

    monkeypatch.setattr(k27_write_txn_markers, "_write", refuse)
    write_with_gaps(source.address, name)
    with fencepost.Server() as target:
        migrate(source.address, target.address, "--topic", name)
        assert refused
        assert log(target.address, name) == log(source.address, name)


def test_a_copy_that_was_compacted_goes_on_after_a_kill(source: fencepost.Server, name: str, tmp_path: Path) -> None:
    """Two runs were whole, and the target has compacted its copy. A third one was killed while it copied."""
    with (
        fencepost.Server(tmp_path / "data", background_interval_ms=50) as target,
        fencepost.Admin(source.address) as admin,
        fencepost.Admin(target.address) as there,
        fencepost.Producer(source.address, linger=0) as producer,
    ):
        admin.create_topic(name, 1, configs={**COMPACTED, "min.compaction.lag.ms": "3600000"})
        for _ in range(2):  # two segments there: the last one is never compacted
            for number in range(180):
                producer.send(name, b"%d" % number, key=b"hot", partition=0)
            producer.flush()
            migrate(source.address, target.address, "--topic", name)
        there.alter_topic(name, {"min.compaction.lag.ms": "0"})

        def records() -> int:
            with fencepost.Reader(target.address, name, start="earliest", stop="latest") as reader:
                return sum(1 for _ in reader)

        until(lambda: records() < 360)
        there.alter_topic(name, {"cleanup.policy": "delete"})  # as long as a run copies
        producer.send(name, b"last", key=b"last", partition=0).result()
        migrate(source.address, target.address, "--topic", name)
        assert there.latest(name) == admin.latest(name)


@pytest.mark.parametrize("records", [0, 1, 2])
def test_a_copy_goes_on_after_a_kill_inside_a_gap(
    source: fencepost.Server, engine: Engine, name: str, records: int
) -> None:
    """An earlier run had opened a transaction to use up four offsets, and had written some of its records."""
    with (
        fencepost.Producer(source.address) as plain,
        fencepost.Producer(source.address, name="writer") as writer,
    ):
        plain.send(name, b"first", partition=0, timestamp=1).result()
        abort(writer, name, 3)
        plain.send(name, b"last", partition=0, timestamp=2).result()
    with fencepost.Admin(source.address) as admin:
        mine = f"fencepost-migrate.{admin.cluster().cluster_id}.gaps-0"
    with (
        fencepost.Admin(engine.address) as admin,
        fencepost.Producer(engine.address) as plain,
        Routes(ClientSettings.of(engine.address)) as routes,
        LeaderChannels(routes) as channels,
    ):
        admin.create_topic(name, 1)
        plain.send(name, b"first", partition=0, timestamp=1).result()
        steps, where = Transactional(routes, mine), TopicPartition(name, 0)
        who = steps.init(60_000)
        steps.add_partitions(who, [where])
        if records:
            writer_there = PartitionWriter(channels, SharedTransaction(mine, who), where, fresh=True)
            writer_there.write(encode_batch([(b"", b"", 1, None)] * records))
            writer_there.finish()
    migrate(source.address, engine.address, "--topic", name)
    assert log(engine.address, name) == log(source.address, name)


def test_a_copy_goes_on_after_a_kill_before_its_head_was_deleted(
    source: fencepost.Server, engine: Engine, name: str
) -> None:
    """An earlier run had written all records that use up the offsets before the source's start, and was killed."""
    with fencepost.Admin(source.address) as admin, fencepost.Producer(source.address) as producer:
        for number in range(30):
            producer.send(name, b"%d" % number, partition=0)
        producer.flush()
        admin.delete_records(name, {0: 20})
    with fencepost.Admin(engine.address) as admin, fencepost.Producer(engine.address) as producer:
        admin.create_topic(name, 1)
        for _ in range(20):
            producer.send(name, b"", key=b"", partition=0)
        producer.flush()
    migrate(source.address, engine.address, "--topic", name)
    assert log(engine.address, name) == log(source.address, name)


def test_a_copy_goes_on_where_a_single_offset_has_no_record(
    source: fencepost.Server, engine: Engine, name: str
) -> None:
    """The first run ended right behind a record, and what follows is one offset without any."""
    with fencepost.Producer(source.address, name="writer") as writer, fencepost.Producer(source.address) as plain:
        plain.send(name, b"first", partition=0).result()
        with contextlib.suppress(Abort), writer.transaction():
            writer.send(name, b"aborted", partition=0).result()
            plain.send(name, b"last", partition=0).result()
            first = migrate(source.address, engine.address, "--topic", name, code=1)
            raise Abort
    assert "has an open transaction" in first.stderr
    with fencepost.Admin(engine.address) as admin:
        assert admin.latest(name)[0] == 1
    migrate(source.address, engine.address, "--topic", name)
    assert log(engine.address, name) == log(source.address, name)


@pytest.mark.every_run("fencepost")
@pytest.mark.fault
def test_a_copy_that_is_killed_again_and_again_is_whole(
    source: fencepost.Server, engine: Engine, name: str, tmp_path: Path
) -> None:
    for _ in range(12):
        write_with_gaps(source.address, name)
    with fencepost.Admin(source.address) as admin:
        end = admin.latest(name)[0]
    words = command(source.address, engine.address, "--topic", name)
    with fencepost.Admin(engine.address) as admin:
        for number, share in enumerate((0.05, 0.3, 0.5, 0.8)):
            child = Child(words, log=tmp_path / f"log-{number}")
            until(
                lambda child=child, share=share: (
                    child.exit_code is not None  # type: ignore[misc]
                    or (name in {each.name for each in admin.topics()} and admin.latest(name)[0] > share * end)
                )
            )
            child.kill()
    migrate(source.address, engine.address, "--topic", name)
    assert log(engine.address, name) == log(source.address, name)


@pytest.mark.every_run("fencepost")
@pytest.mark.fault
def test_a_paused_copy_is_fenced_by_its_successor(
    source: fencepost.Server, engine: Engine, name: str, tmp_path: Path
) -> None:
    for _ in range(30):
        write_with_gaps(source.address, name)
    with fencepost.Admin(source.address) as admin:
        end = admin.latest(name)[0]
    paused = Child(command(source.address, engine.address, "--topic", name), log=tmp_path / "log")
    with fencepost.Admin(engine.address) as admin:
        until(
            lambda: (
                paused.exit_code is not None
                or (name in {each.name for each in admin.topics()} and admin.latest(name)[0] > 0.1 * end)
            )
        )
    try:
        os.kill(paused.pid, signal.SIGSTOP)
        migrate(source.address, engine.address, "--topic", name)
    finally:
        os.kill(paused.pid, signal.SIGCONT)
    # It had not finished, unless this machine was slow to pause it.
    if paused.wait() != 0:
        assert "another `fencepost migrate` from this source to this target was started" in paused.output()
    assert log(engine.address, name) == log(source.address, name)


def test_an_earlier_copy_writes_no_marker_after_its_successor(
    source: fencepost.Server, engine: Engine, name: str
) -> None:
    """It was paused before a gap, and its successor copied the partition with another of its workers."""
    write_with_gaps(source.address, name)
    both = ClientSettings.of(source.address), ClientSettings.of(engine.address)
    where = TopicPartition(name, 0)
    with (
        fencepost.Admin(engine.address) as admin,
        contextlib.closing(OffsetCopier(*both, name)) as earlier,
    ):
        admin.create_topic(name, 1)
        paused = _PartitionCopy(where, earlier._target, earlier._all[1], earlier._identity, position=0)
        with contextlib.closing(OffsetCopier(*both, name)) as successor:
            list(successor.copy({name: 1}, lambda _offsets, _bytes: None))
        with pytest.raises(ServerError) as caught:
            paused._use_up(1)
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log(engine.address, name) == log(source.address, name)


def test_an_earlier_copy_writes_no_record_after_its_successor(
    source: fencepost.Server, engine: Engine, name: str
) -> None:
    """It had used up the offsets before the source's start and was paused behind its first record; its successor found
    nothing to use up."""
    with fencepost.Admin(source.address) as admin, fencepost.Producer(source.address) as producer:
        for number in range(6):
            producer.send(name, b"%d" % number * 20_000, partition=0).result()  # batches that are copied whole
        admin.delete_records(name, {0: 3})
    both = ClientSettings.of(source.address), ClientSettings.of(engine.address)
    with (
        fencepost.Admin(engine.address) as admin,
        Routes(both[0]) as reading,
        contextlib.closing(OffsetCopier(*both, name)) as earlier,
    ):
        admin.create_topic(name, 1)
        where = TopicPartition(name, 0)
        paused = _PartitionCopy(where, earlier._target, earlier._all[0], earlier._identity, position=0)
        steps = copy_steps(0, 3, paused.runs(reading, Range(name, 0, 3, 6)), 6)
        assert [paused.carry_out(next(steps))[0] for _ in range(2)] == [3, 1]
        paused.finish()
        with contextlib.closing(OffsetCopier(*both, name)) as successor:
            list(successor.copy({name: 1}, lambda _offsets, _bytes: None))
        paused.carry_out(next(steps))  # it does not wait for the answer
        with pytest.raises(ServerError) as caught:
            paused.finish()
        assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log(engine.address, name) == log(source.address, name)
