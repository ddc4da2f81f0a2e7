"""`fencepost migrate` to a target that has topics of the same names: what is not a copy stays as it is."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

import fencepost
from tests.support import migration
from tests.support.process import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]


@pytest.fixture
def target() -> Iterator[fencepost.Server]:
    """Another server instead of Apache Kafka: only what happens before the first change matters here."""
    with fencepost.Server() as server:
        yield server


def migrate(
    source: fencepost.Server, target: fencepost.Server, *arguments: str, code: int = 0
) -> subprocess.CompletedProcess[str]:
    return migration.migrate(source.address, target.address, *arguments, code=code)


def fill(server: fencepost.Server, topic: str, value: bytes, records: int, **configs: str) -> None:
    with fencepost.Admin(server.address) as admin, fencepost.Producer(server.address) as producer:
        admin.create_topic(topic, 1, configs={name.replace("_", "."): each for name, each in configs.items()})
        for _ in range(records):
            producer.send(topic, value, key=b"key", partition=0)
        producer.flush()


def everything(server: fencepost.Server, topic: str) -> tuple[dict[str, str | None], int, list[bytes | None]]:
    """The topic's own configs, its start and its records."""
    with fencepost.Admin(server.address) as admin:
        configs = {each.name: each.value for each in admin.topic_configs(topic) if each.source == "topic"}
        first = admin.earliest(topic)[0]
    with fencepost.Reader(server.address, topic, start="earliest", stop="latest") as reader:
        return configs, first, [each.value for each in reader]


def test_records_before_the_sources_start_are_not_deleted(source: fencepost.Server, target: fencepost.Server) -> None:
    """The source's retention has removed all offsets that the target has, so there is nothing to compare."""
    fill(source, "orders", b"ours", 30)
    fill(target, "orders", b"theirs", 5)
    with fencepost.Admin(source.address) as admin:
        admin.delete_records("orders", {0: 20})
    done = migrate(source, target, code=1)
    assert everything(target, "orders")[2] == [b"theirs"] * 5
    assert "it has records before 5, and the source starts at 20. Delete the topic there" in done.stderr


def test_no_topic_is_changed_if_one_is_not_a_copy(source: fencepost.Server, target: fencepost.Server) -> None:
    for topic in ("first", "other"):
        fill(source, topic, b"ours", 3)
    fill(target, "other", b"theirs", 3, cleanup_policy="compact,delete", retention_ms="1000000000")
    before = everything(target, "other")
    done = migrate(source, target, code=1)
    assert "other-0 on the target is not a copy that can be continued: its record 0 is missing" in done.stderr
    assert everything(target, "other") == before
    with fencepost.Admin(target.address) as admin:
        assert "first" not in {each.name for each in admin.topics()}


def test_a_copy_that_was_killed_before_the_first_record_goes_on(
    source: fencepost.Server, target: fencepost.Server
) -> None:
    """It had written some of the records that only use up the offsets before the source's start."""
    fill(source, "orders", b"ours", 30)
    with fencepost.Admin(source.address) as admin:
        admin.delete_records("orders", {0: 20})
    with fencepost.Admin(target.address) as admin, fencepost.Producer(target.address) as producer:
        admin.create_topic("orders", 1)
        for _ in range(7):
            producer.send("orders", b"", key=b"", partition=0)
        producer.flush()
    migrate(source, target)
    assert everything(target, "orders")[1:] == everything(source, "orders")[1:] == (20, [b"ours"] * 10)


def test_records_live_as_long_as_by_the_sources_defaults(source: fencepost.Server, target: fencepost.Server) -> None:
    """The defaults of the target may be others, and remove what was just copied."""
    fill(source, "orders", b"ours", 3)
    migrate(source, target)
    assert everything(target, "orders")[0] == {
        "cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1",
    }  # fmt: skip


def test_a_pattern_without_a_topic_is_refused(source: fencepost.Server, target: fencepost.Server) -> None:
    fill(source, "orders", b"ours", 1)
    done = migrate(source, target, "--topic", "orders", "--topic", "oders*", code=1)
    assert done.stderr == "fencepost: --topic oders*: the source has no such topic; `fencepost topic list` shows all\n"
    with fencepost.Admin(target.address) as admin:
        assert admin.topics() == ()


def test_a_target_that_does_not_answer_is_named_by_its_argument(source: fencepost.Server) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    done = migration.migrate(source.address, nobody, code=1)
    assert done.stderr.startswith(f"fencepost: the target: nothing listens at {nobody}: ")
    assert done.stderr.endswith(" (SERVERS, --to-config)\n")
    assert "--servers" not in done.stderr


def test_a_source_that_does_not_answer_is_named_by_its_option(target: fencepost.Server) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    done = migration.migrate(nobody, target.address, code=1)
    assert done.stderr.startswith(f"fencepost: nothing listens at {nobody}: ")
    assert done.stderr.endswith(" (--servers, FENCEPOST_SERVERS)\n")
