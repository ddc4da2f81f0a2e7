"""What the server does now and then with every partition, run by hand."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fencepost.core.producers.dedup import FADES_AFTER
from fencepost.kernel import read_header
from fencepost.server.storage.housekeeping import Housekeeping
from tests.support.broker_bed import BrokerBed, running
from tests.support.log_bed import make_batch

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("most", "weight"), [(4, 1), (5, 2)], ids=["half are taken", "there is room"])
async def test_idle_producers_fade_only_if_the_limit_is_in_sight(tmp_path: Path, most: int, weight: int) -> None:
    """IDEM-7: another client than ours takes the answer to a late repeat for an error if its producer has faded."""

    async with running(lambda: BrokerBed(tmp_path, max_producers=most)) as bed:
        topic = bed.broker.topics.get("t")
        partition = topic.partition(0) if topic is not None else None
        assert partition is not None
        log = await partition.open()
        for pid in (1, 2):
            batch = make_batch(b"x", pid=pid, epoch=0, sequence=0)
            partition.append(memoryview(bytearray(batch)), read_header(batch), bed.clock.now_ms())
        bed.clock.advance(FADES_AFTER / 1000 + 1)
        assert log.producers.weight == 2
        await Housekeeping(bed.broker).round()
        assert log.producers.weight == weight


async def test_compaction_looks_every_15_seconds_although_the_rest_waits_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    naps: list[float] = []

    async def sleep(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 3:
            raise asyncio.CancelledError

    async with running(lambda: BrokerBed(tmp_path, background_interval_ms=300_000)) as bed:
        with monkeypatch.context() as patched:
            patched.setattr("fencepost.server.storage.housekeeping.asyncio.sleep", sleep)
            with pytest.raises(asyncio.CancelledError):
                await Housekeeping(bed.broker).run_compaction()
    assert naps == [15.0] * 3
