"""The server dies at every step of the end of a transaction, one after the other: all or nothing, and it goes on.

Not at random moments: the steps are counted (every change of a file, both sides of every commit of the store), and the
test goes through them until a run gets to its end alive.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from fencepost.errors import ErrorCode
from tests.support.batches import batch
from tests.support.dying_server import MortalServer, Steps
from tests.support.raw import ConnectionEnded
from tests.support.transactions import NOW, TransactionalProducer, TransactionClient

pytestmark = pytest.mark.fault

NONE = ErrorCode.NONE
NAME, GROUP = "name", "group"
VALUES = {0: [b"a", b"b", b"late"], 1: [b"c"]}
OFFSET = 7
Ending = Literal["commit", "abort", "take over", "time out"]


class Seen(NamedTuple):
    """What readers of committed records see of the transaction."""

    values: dict[int, list[bytes | None]]
    offset: int

    @classmethod
    def by(cls, client: TransactionClient) -> Seen:
        values = {index: client.fetch_committed("t", partition=index).values for index in VALUES}
        for index in VALUES:
            assert client.stable_offset("t", partition=index) == client.end_offset("t", index)
        return cls(values, client.stable_group_offset(GROUP, "t"))


ALL = Seen({index: list(values) for index, values in VALUES.items()}, OFFSET)
NOTHING = Seen({index: [] for index in VALUES}, -1)


def begin(client: TransactionClient, ending: Ending) -> TransactionalProducer:
    """An open transaction with records in two partitions and an offset of a group."""
    client.create_topic("t", partitions=2)
    timeout_ms = 300 if ending == "time out" else 60_000
    producer = TransactionalProducer.start(client, NAME, timeout_ms=timeout_ms)
    assert client.add(producer, {"t": [0, 1]}) == [NONE, NONE]
    assert client.add_offsets(producer, GROUP) is NONE
    assert client.commit_offsets(producer, GROUP, {"t": {0: OFFSET}}) == [NONE]
    assert client.write(producer, "t", [b"a"]).error is NONE
    assert client.write(producer, "t", [b"c"], partition=1).error is NONE
    assert client.write(producer, "t", [b"b"]).error is NONE
    return producer


def answered(client: TransactionClient, steps: Steps) -> bool:
    """Waits for the next answer; False if the server dies first."""
    while not client.has_answer():
        if steps.dead.wait(0.001):
            return client.has_answer()
    return True


def end(client: TransactionClient, steps: Steps, producer: TransactionalProducer, ending: Ending) -> bool:
    """Ends the transaction; True if that was answered, and all that belongs to it was done."""
    if ending == "commit":
        # Written, but with `--sync always` neither synced nor answered when the end of the transaction arrives.
        late = batch(
            [b"late"], pid=producer.pid, epoch=producer.epoch, sequence=2, attributes=0x10, timestamps=[NOW]
        )  # to the byte what `check` repeats
        client.send_transactional("t", late, name=NAME)
    if ending in ("commit", "abort"):
        client.send_end(producer, commit=ending == "commit")
    elif ending == "take over":
        client.send(22, 4, transactional_id=NAME, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)
    else:
        while client.describe(NAME).transaction_state != "CompleteAbort":
            if steps.dead.is_set():
                return False
    # Committed to the store after everything that belongs to the end, of which the last is not waited for.
    client.send(22, 4, transactional_id="behind", transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)
    for _ in range({"commit": 3, "time out": 1}.get(ending, 2)):
        if not answered(client, steps):
            return False
        client.receive()
    return True


def check(client: TransactionClient, producer: TransactionalProducer, ending: Ending, *, done: bool) -> str:
    """The next server: it finishes what was decided, the rest is the producer's to end. Says what was found."""
    found: str = client.describe(NAME).transaction_state
    commits = ending == "commit"
    if found == "Ongoing":
        assert not done
        late = client.write(producer, "t", [b"late"], sequence=2) if commits else None
        assert late is None or late.error is NONE
        if ending == "take over":
            assert client.init(NAME)[0] is NONE
        elif ending != "time out":
            assert client.end(producer, commit=commits) is NONE
    client.await_state(NAME, "CompleteCommit" if commits else "CompleteAbort", "Empty")
    assert Seen.by(client) == (ALL if commits else NOTHING)
    if ending in ("commit", "abort"):
        assert client.end(producer, commit=commits) is NONE  # whoever had no answer asks again
    elif ending == "take over":
        _, _, epoch = client.init(NAME)
        assert epoch > producer.epoch
        producer = TransactionalProducer(NAME, producer.pid, epoch)
    else:
        assert client.write(producer, "t", [b"zombie"]).error is ErrorCode.INVALID_PRODUCER_EPOCH
        error, pid, epoch = client.init(NAME, expected=(producer.pid, producer.epoch))
        assert error is NONE
        producer = TransactionalProducer(NAME, pid, epoch)
    after = TransactionalProducer(NAME, producer.pid, producer.epoch, {("t", 0): 3 if commits else 2})
    if ending in ("take over", "time out"):
        after.sequences.clear()
    assert client.add(after, {"t": [0]}) == [NONE]
    assert client.write(after, "t", [b"next"]).error is NONE
    assert client.end(after, commit=True) is NONE
    values = client.fetch_committed("t").values
    assert values == [*(VALUES[0] if commits else []), b"next"]
    return found


def survives(folder: Path, sync: Literal["os", "always"], ending: Ending, step: int, *, power: str = "stays") -> str:
    """One death; "" if there was none, because the run has fewer steps."""
    server = MortalServer(folder, sync)
    with server.mortal() as address, TransactionClient(address) as client:
        producer = begin(client, ending)
        server.steps.arm(step)
        try:
            done = end(client, server.steps, producer, ending)
        except (ConnectionEnded, ConnectionError):
            done = False
        if done:
            server.steps.disarm()
    died = server.steps.dead.is_set()
    trail = ", ".join(server.steps.names)
    if power != "stays":
        server.lose_power(random.Random(step) if power == "tears" else None)
    with server.next() as address, TransactionClient(address) as client:
        try:
            found = check(client, producer, ending, done=done)
        except BaseException as error:
            error.add_note(f"died at step {step}, after: {trail}")
            raise
    return found if died else ""


def enumerate_steps(folder: Path, sync: Literal["os", "always"], ending: Ending, *, power: str = "stays") -> None:
    found: list[str] = []
    for step in itertools.count():
        state = survives(folder / str(step), sync, ending, step, power=power)
        if not state:
            break
        found.append(state)
    print(f"{ending}, sync {sync}, power {power}: {len(found)} steps; found after a restart: {', '.join(found)}")
    assert found[0] == "Ongoing"  # before the decision …
    assert any(state.startswith(("Prepare", "Complete")) for state in found)  # … and after it
    assert "Ongoing" not in found[found.index(next(state for state in found if state != "Ongoing")) :]
    assert len(found) >= 6


@pytest.mark.every_run("os-commit", "always-abort", "os-take over", "always-time out")
@pytest.mark.parametrize("ending", ["commit", "abort", "take over", "time out"])
@pytest.mark.parametrize("sync", ["os", "always"])
def test_a_transaction_is_whole_wherever_the_server_is_killed(
    tmp_path: Path, sync: Literal["os", "always"], ending: Ending
) -> None:
    enumerate_steps(tmp_path, sync, ending)


@pytest.mark.every_run("tears-commit", "fails-abort", "tears-take over")
@pytest.mark.parametrize("ending", ["commit", "abort", "take over"])
@pytest.mark.parametrize("power", ["fails", "tears"])
def test_a_transaction_is_whole_wherever_the_power_fails(tmp_path: Path, power: str, ending: Ending) -> None:
    """With `--sync always`. What the store keeps, and what that means for this test, is said in `mortal`."""
    enumerate_steps(tmp_path, "always", ending, power=power)
