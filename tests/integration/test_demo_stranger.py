"""Whoever counts for the demo finds the same: every committed record, none of an aborted transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import fencepost
from fencepost.demo import proof
from tests.integration.conftest import TestedServer

pytestmark = [pytest.mark.integration, pytest.mark.compat, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

Read = Callable[[str, str, int], Iterator[proof.Found]]


@pytest.mark.parametrize("read", [proof._by_confluent_kafka, proof._by_kafka_python, proof._by_reader])
def test_a_stranger_reads_what_is_committed(ours: TestedServer, name: str, read: Read) -> None:
    with fencepost.Admin(ours.address) as admin:
        admin.create_topic(name, 2)
    with fencepost.Producer(ours.address, name=name) as producer:
        with producer.transaction():
            for number in range(10):
                producer.send(name, b"%d" % number, partition=number % 2)
        try:
            with producer.transaction():
                producer.send(name, b"never", partition=0)
                raise KeyError("given up")
        except KeyError:
            pass
        with producer.transaction():
            producer.send(name, b"10", partition=0)
    found = list(read(ours.address, name, 2))
    assert [value for partition, value in found if partition == 0] == [b"0", b"2", b"4", b"6", b"8", b"10"]
    assert [value for partition, value in found if partition == 1] == [b"1", b"3", b"5", b"7", b"9"]


@pytest.mark.parametrize(
    ("absent", "chosen"),
    [
        ((), "confluent-kafka (librdkafka)"),
        (("confluent_kafka",), "kafka-python"),
        (("confluent_kafka", "kafka"), "fencepost's own Reader"),
    ],
)
def test_the_first_that_is_installed_counts(
    absent: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "find_spec", lambda package: None if package in absent else object())
    found = proof.choose_stranger()
    assert found.name == chosen
    assert (found.advice is None) == (len(absent) < 2), "our own says that it is no stranger"
