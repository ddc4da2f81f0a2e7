"""A worker of a processor's history: reads its instructions as JSON, and goes on until it is told to end or is killed.

Its work is slow and fails at random. The commit waits before EndTxn, so that a pause often falls between a
transaction's offsets and its end. `without` removes one safeguard, to see that the history notices."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from typing import Any

import fencepost
from fencepost.client.share import places
from fencepost.client.share.group import GroupMember
from fencepost.client.transactions.coordinator import NO_MEMBER, Transactional

_CHANCE = random.Random(os.getpid())
_end = Transactional.end


class Mishap(Exception):
    """The work has failed."""


def main() -> None:
    order = json.loads(sys.argv[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    Transactional.end = _slow_end  # type: ignore[method-assign]
    take_away(order.get("without"))
    if order.get("is_async"):
        asyncio.run(work_async(order))
    else:
        work(order)


def _slow_end(self: Transactional, who: Any, *, commit: bool) -> None:
    if commit:
        _wait(0.06)
    _end(self, who, commit=commit)


def _wait(longest: float) -> None:
    time.sleep(_CHANCE.random() * longest)


def take_away(safeguard: str | None) -> None:
    match safeguard:
        case None:
            return
        case "epoch":  # offsets are sent as nobody in particular
            member: Any = GroupMember
            member.metadata = lambda self, partitions=(): NO_MEMBER
            member.check_held = lambda self, partitions: None
        case "stable offsets":
            code = places.committed_offsets.__code__
            assert True in code.co_consts
            hasty = tuple(False if each is True else each for each in code.co_consts)
            places.committed_offsets.__code__ = code.replace(co_consts=hasty)
        case _:
            raise ValueError(safeguard)


def settings(order: dict[str, Any]) -> dict[str, Any]:
    return {
        "group": order["group"],
        "group_protocol": order["protocol"],
        "session_timeout": order["session"],
        "processing_timeout": order["processing_timeout"],
        "batch_records": order["batch_records"],
        "retries": 1_000_000,
        "retry_backoff": 0.01,
    }


def work(order: dict[str, Any]) -> None:
    while True:
        try:
            batches = fencepost.Processor(order["servers"], order["source"], **settings(order))
            break
        except (fencepost.Unreachable, fencepost.TimedOut) as error:  # cut off while it begins
            logging.info("not open: %s", error)
    with batches:
        signal.signal(signal.SIGTERM, lambda *_: batches.end())
        print("ready", flush=True)
        for batch in batches:
            with batch as out:
                for record in batch:
                    out.send(order["target"], record.value)
                    if _CHANCE.random() < order["mishaps"]:
                        raise Mishap(str(record.offset))
                _wait(order["work"])


async def work_async(order: dict[str, Any]) -> None:
    while True:
        batches = fencepost.AsyncProcessor(order["servers"], order["source"], **settings(order))
        try:
            await batches.__aenter__()
            break
        except (fencepost.Unreachable, fencepost.TimedOut) as error:
            logging.info("not open: %s", error)
    try:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, batches.end)
        print("ready", flush=True)
        async for batch in batches:
            async with batch as out:
                table = await batch.arrow()
                await out.send_arrow(order["target"], table.select(["value"]))
                if _CHANCE.random() < order["mishaps"]:
                    raise Mishap
                await asyncio.sleep(_CHANCE.random() * order["work"])
    finally:
        await batches.close()


if __name__ == "__main__":
    main()
