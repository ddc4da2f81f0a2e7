"""`fencepost transactions` on both servers: what is open, and ending it."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import fencepost
from fencepost.cli import main
from fencepost.errors import ErrorCode
from tests.integration.conftest import TestedServer
from tests.support.transactions import TransactionalProducer, TransactionClient

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE
Run = Callable[..., Result]


def runner(address: str) -> Run:
    def run(*arguments: str, code: int = 0) -> Result:
        line = ["transactions", *arguments]
        result = CliRunner(env={"FENCEPOST_SERVERS": address}).invoke(main, line, prog_name="fencepost")
        assert result.exit_code == code, result.output
        return result

    return run


@pytest.fixture
def run(server: TestedServer) -> Run:
    """Runs `fencepost transactions …`; fails if it did."""
    return runner(server.address)


@pytest.fixture
def read(run: Run) -> Callable[..., Any]:
    """The command's answer as JSON."""
    return lambda *arguments: json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def client(server: TestedServer) -> Iterator[TransactionClient]:
    with TransactionClient(server.address) as connection:
        yield connection


@pytest.fixture
def producer(client: TransactionClient, name: str) -> TransactionalProducer:
    client.create_topic(name, partitions=2)
    return TransactionalProducer.start(client, f"{name}-id")


def begin(client: TransactionClient, producer: TransactionalProducer, topic: str) -> None:
    assert client.add(producer, {topic: [0, 1]}) == [NONE, NONE]
    assert client.write(producer, topic, [b"x"]).error is NONE


def test_transactions_are_listed_with_their_age(
    run: Run, read: Callable[..., Any], client: TransactionClient, producer: TransactionalProducer, name: str
) -> None:
    assert re.search(rf"^{producer.name} +Empty +{producer.pid} +-$", run("list").stdout, re.MULTILINE)
    assert producer.name not in run("list", "--open").stdout
    begin(client, producer, name)
    assert re.search(
        rf"^{producer.name} +Ongoing +{producer.pid} +\d+\.\d s$", run("list", "--open").stdout, re.MULTILINE
    )
    [listed] = [entry for entry in read("list") if entry["name"] == producer.name]
    assert (listed["state"], listed["pid"]) == ("Ongoing", producer.pid)
    assert listed["started_ms"] > 1_600_000_000_000
    client.end(producer, commit=True)
    client.await_state(producer.name, "CompleteCommit")
    assert producer.name not in run("list", "--open").stdout


def test_a_transaction_is_described_with_its_partitions(
    run: Run, read: Callable[..., Any], client: TransactionClient, producer: TransactionalProducer, name: str
) -> None:
    begin(client, producer, name)
    said = run("describe", producer.name).stdout
    assert f"transactional id {producer.name}: Ongoing, pid {producer.pid}, epoch {producer.epoch}" in said
    assert "times out after 60 s" in said
    assert re.search(rf"^{name} +1$", said, re.MULTILINE)
    described = read("describe", producer.name)
    assert [(entry["topic"], entry["partition"]) for entry in described["partitions"]] == [(name, 0), (name, 1)]
    assert (described["timeout_ms"], described["epoch"]) == (60_000, producer.epoch)


def test_an_open_transaction_is_aborted_and_its_producer_fenced(
    run: Run, client: TransactionClient, producer: TransactionalProducer, name: str
) -> None:
    begin(client, producer, name)
    said = run("abort", producer.name).stdout
    assert said == (
        f"aborted the transaction of {producer.name}: pid {producer.pid}, epoch {producer.epoch} is fenced\n"
    )
    assert client.fetch_committed(name).values == []
    assert client.stable_offset(name) == client.end_offset(name)
    assert client.end(producer, commit=True) is ErrorCode.PRODUCER_FENCED


def test_what_cannot_be_aborted_is_said_in_one_line(run: Run, producer: TransactionalProducer, name: str) -> None:
    nothing = run("abort", producer.name, code=1)
    assert nothing.stderr.count("\n") == 1
    assert "has no open transaction: its state is Empty" in nothing.stderr
    unknown = run("abort", f"{name}-nobody", code=1)
    assert f"there is no transactional id '{name}-nobody'" in unknown.stderr
    assert f"there is no transactional id '{name}-nobody'" in run("describe", f"{name}-nobody", code=1).stderr
    for wrong in (
        [],
        [producer.name, "--hanging", name],
        ["--hanging", name],
        ["--pid", "1"],
        [producer.name, "--pid", "1"],
    ):
        assert "give NAME, or" in run("abort", *wrong, code=2).stderr


def test_what_does_not_hang_is_not_ended_by_hand(
    run: Run, client: TransactionClient, producer: TransactionalProducer, name: str, server: TestedServer
) -> None:
    by_hand = ["--hanging", name, "--partition", "0", "--pid", str(producer.pid)]
    nothing = run("abort", *by_hand, code=1)
    assert f"pid {producer.pid} has no open transaction in {name}-0" in nothing.stderr
    if server.name == "fencepost":  # Kafka would tear the transaction
        begin(client, producer, name)
        assert "is not hanging: abort it by its name" in run("abort", *by_hand, code=1).stderr


def test_a_hanging_transaction_is_ended_by_hand(tmp_path: Path) -> None:
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        client.create_topic("t")
        producer = TransactionalProducer.start(client, "name")
        client.add(producer, {"t": [0]})
        client.write(producer, "t", [b"x"])
    with sqlite3.connect(tmp_path / "meta.sqlite") as stored:
        stored.execute("DELETE FROM transactions")  # its coordinator forgets it
    with fencepost.Server(tmp_path) as server, TransactionClient(server.address) as client:
        run = runner(server.address)
        assert run("list").stdout == "no transactional ids\n"
        assert run("list", "--open").stdout == "no open transactions\n"
        said = run("abort", "--hanging", "t", "--partition", "0", "--pid", str(producer.pid)).stdout
        assert said == f"aborted the hanging transaction of pid {producer.pid} in t-0\n"
        assert client.fetch_committed("t") == (2, [], [(producer.pid, 0)])
