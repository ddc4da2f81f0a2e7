"""kcat, the command line client that everybody has (Debian: kcat): listing, producing, consuming, querying, groups."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import TypeAlias

import pytest

from tests.compat.samples import CODECS
from tests.support.batches import batch
from tests.support.group_client import fetch_offsets
from tests.support.raw import RawClient

pytestmark = pytest.mark.compat

SECONDS = 60

Kcat: TypeAlias = Callable[..., str]


@pytest.fixture
def kcat(address: str) -> Kcat:
    """Runs kcat against the server: what it printed."""
    program = shutil.which("kcat")
    if program is None:
        absent = "kcat is not on the PATH (Debian: kcat)"
        if os.environ.get("FENCEPOST_REQUIRE_KCAT") == "1":
            pytest.fail(absent, pytrace=False)
        pytest.skip(absent)

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [program, "-b", address, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    return run


def test_topics_and_brokers_are_listed(kcat: Kcat, address: str, topic: str) -> None:
    said = kcat("-L")
    assert f" 1 brokers:\n  broker 1 at {address}" in said
    assert f'  topic "{topic}" with 2 partitions:\n    partition 0, leader 1, replicas: 1, isrs: 1\n' in said
    listed = json.loads(kcat("-L", "-J", "-t", topic))
    assert [entry["topic"] for entry in listed["topics"]] == [topic]
    assert [partition["leader"] for partition in listed["topics"][0]["partitions"]] == [1, 1]


@pytest.mark.parametrize("codec", CODECS)
def test_lines_come_back_as_they_were_sent(kcat: Kcat, raw: RawClient, topic: str, codec: str) -> None:
    lines = "".join(f"key {number}:value {number}\n" for number in range(200))
    kcat("-P", "-t", topic, "-p", "0", "-K", ":", "-z", codec, "-H", "from=kcat", stdin=lines)
    assert {header.codec for header in raw.fetch(topic, 0).headers} == {CODECS[codec]}
    assert kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-K", ":") == lines
    headers = kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-c", "1", "-f", "%p %o %h %k %s\n")
    assert headers == "0 0 from=kcat key 0 value 0\n"


def test_an_idempotent_producer_is_known_by_its_pid(kcat: Kcat, raw: RawClient, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "1", "-X", "enable.idempotence=true", stdin="one\ntwo\n")
    headers = raw.fetch(topic, 0, partition=1).headers
    assert all(header.is_idempotent for header in headers)


def test_tombstones_are_sent_and_shown(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", "-K", ":", "-Z", stdin="gone:\n")
    [record] = [json.loads(line) for line in kcat("-C", "-t", topic, "-p", "0", "-e", "-q", "-J").splitlines()]
    assert (record["key"], record["payload"]) == ("gone", None)


def test_a_partition_is_read_from_any_offset(kcat: Kcat, raw: RawClient, topic: str) -> None:
    raw.produce(topic, batch([b"%d" % number for number in range(10)]))
    read = ("-C", "-t", topic, "-p", "0", "-e", "-q")
    assert kcat(*read, "-o", "7").split() == ["7", "8", "9"]
    assert kcat(*read, "-o", "-2").split() == ["8", "9"]
    assert kcat(*read, "-o", "beginning", "-c", "2").split() == ["0", "1"]
    assert kcat(*read, "-o", "end").split() == []


def test_offsets_are_queried_by_time(kcat: Kcat, raw: RawClient, topic: str) -> None:
    start = 1_700_000_000_000
    raw.produce(topic, batch([b"x"] * 3, timestamps=[start, start + 1000, start + 2000]))

    def query(time: int) -> str:
        return kcat("-Q", "-t", f"{topic}:0:{time}").strip()

    assert query(start) == f"{topic} [0] offset 0"
    assert query(start + 1) == f"{topic} [0] offset 1"
    assert query(start + 2000) == f"{topic} [0] offset 2"
    assert query(start + 2001) == f"{topic} [0] offset -1", "the end"
    assert query(-1) == f"{topic} [0] offset 3"
    assert query(-2) == f"{topic} [0] offset 0"


def test_a_span_of_time_is_read(kcat: Kcat, raw: RawClient, topic: str) -> None:
    start = 1_700_000_000_000
    raw.produce(topic, batch([b"%d" % number for number in range(10)], timestamps=[start + n for n in range(10)]))
    span = ("-o", f"s@{start + 3}", "-o", f"e@{start + 6}")
    assert kcat("-C", "-t", topic, "-p", "0", "-q", *span).split() == ["3", "4", "5"]


def test_a_group_reads_and_goes_on_where_it_was(kcat: Kcat, raw: RawClient, topic: str) -> None:
    for partition in (0, 1):
        raw.produce(topic, batch([b"early"] * 5), partition=partition)
    group = f"group-{topic}"
    read = ("-G", group, "-q", "-e", "-X", "auto.offset.reset=earliest", topic)
    assert kcat(*read).split() == ["early"] * 10
    assert {found.committed_offset for found in fetch_offsets(raw, group, {topic: [0, 1]}).values()} == {5}
    raw.produce(topic, batch([b"late"] * 3), partition=1)
    assert kcat(*read).split() == ["late"] * 3


def test_records_of_a_committed_transaction_are_read(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "0", "-X", f"transactional.id={topic}", stdin="one\ntwo\n")
    read = ("-C", "-t", topic, "-p", "0", "-e", "-q", "-X", "isolation.level=read_committed")
    assert kcat(*read).split() == ["one", "two"]
