"""Owners that write in transactions replace each other at random moments, and do all they can to commit too late.

Every record carries the token of the grant under which it was written. Whoever is granted reads the log at once: of the
grants before its own, that must be all there will ever be (OWN-9).
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import fencepost
from fencepost.errors import ErrorCode
from tests.support.raw import ConnectionEnded
from tests.support.transactions import Kept, TransactionalProducer, TransactionClient

pytestmark = pytest.mark.fault

NONE = ErrorCode.NONE
OWN: Final = 10_000
WORKERS: Final = 4


class Claim(NamedTuple):
    token: int
    seen: frozenset[Kept]
    """Read right after the grant."""


class Worker:
    """One after the other: claims, looks, writes, and ends its transaction in a way that chance decides on."""

    def __init__(self, address: str, number: int, seed: int) -> None:
        self._address = address
        self._name = f"worker-{number}"
        self._random = random.Random(seed * WORKERS + number)
        self.claims: list[Claim] = []
        self.refused = 0
        """Commits that came too late, and were told so."""

    def run(self, rounds: int) -> None:
        with TransactionClient(self._address) as reader:
            for _ in range(rounds):
                with suppress(ConnectionEnded, ConnectionError), TransactionClient(self._address) as client:
                    self._reign(client, reader)

    def _reign(self, client: TransactionClient, reader: TransactionClient) -> None:
        wait_ms = self._random.choice([0, 60_000, 60_000])  # if all took over at once, nobody would get to commit
        answer = client.call(OWN, 0, group="g", wait_ms=wait_ms, resources=[{"name": "t-0", "generation": 0}])
        assert answer.error_code == NONE, answer
        token = answer.resources[0].token
        self.claims.append(Claim(token, frozenset(reader.committed_records("t"))))
        producer = TransactionalProducer.start(client, self._name)
        for _ in range(self._random.randint(1, 3)):
            if client.add(producer, {"t": [0]}) != [NONE]:
                return
            for _ in range(self._random.randint(1, 3)):
                client.write(producer, "t", [b"%d" % token])
            how = self._random.choice(["over the owner's connection", "over another one", "give back", "hang up"])
            if how == "give back":
                client.call(OWN, 0, group="g", resources=[], release=["t-0"])
            elif how == "hang up":
                client.close()
            with TransactionClient(self._address) as other:
                ending = client if how in ("over the owner's connection", "give back") else other
                if ending.end(producer, commit=True) is not NONE:
                    self.refused += 1
                    return


@pytest.mark.parametrize("rounds", [pytest.param(25, id="short"), pytest.param(400, id="long", marks=pytest.mark.soak)])
def test_nothing_of_an_earlier_grant_is_committed_once_a_later_one_was_answered(tmp_path: Path, rounds: int) -> None:
    """OWN-9."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    with fencepost.Server(tmp_path, sync="always") as server, TransactionClient(server.address) as reader:
        reader.create_topic("t", configs={"fencepost.writer.group": "g"})
        workers = [Worker(server.address, number, seed) for number in range(WORKERS)]
        with ThreadPoolExecutor(WORKERS) as threads:
            for done in [threads.submit(worker.run, rounds) for worker in workers]:
                done.result()
        records = reader.committed_records("t")
    claims = [claim for worker in workers for claim in worker.claims]
    for claim in claims:
        of_earlier_grants = {record for record in records if int(record.value or b"") < claim.token}
        assert of_earlier_grants <= claim.seen, f"after grant {claim.token}: {of_earlier_grants - claim.seen}"
        assert claim.seen <= set(records)
    assert records, "nobody ever got to commit"
    assert any(worker.refused for worker in workers), "nobody ever came too late"
