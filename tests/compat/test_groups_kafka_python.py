"""Consumer groups with kafka-python."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

with warnings.catch_warnings():
    # It reads its schemas by a function that Python 3.11 deprecates (see FINDINGS.md), here and at run time.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.admin

pytestmark = [pytest.mark.compat, pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")]

PARTITIONS = 4


class Reader:
    """A consumer polled by a thread of its own; kafka-python's are not safe to share."""

    def __init__(self, address: str, group: str, topic: str, **settings: Any) -> None:
        self.consumer = kafka.KafkaConsumer(
            topic,
            bootstrap_servers=address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
            metadata_max_age_ms=1_000,
            **settings,
        )
        self.assigned: set[int] = set()
        self.values: list[bytes] = []
        self.failure: BaseException | None = None
        self._commit = threading.Event()
        self.committed = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                # Not shorter: a poll that times out in mid-join can lose the answer to SyncGroup (see FINDINGS.md).
                for records in self.consumer.poll(timeout_ms=1_000).values():
                    self.values += [record.value for record in records]
                self.assigned = {partition.partition for partition in self.consumer.assignment()}
                if self._commit.is_set() and not self.committed.is_set():
                    self.consumer.commit()
                    self.committed.set()
        except BaseException as failure:
            self.failure = failure
        finally:
            self.consumer.close()

    def commit(self) -> None:
        self._commit.set()
        assert self.committed.wait(30)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


NewReader = Callable[..., Reader]


def await_readers(condition: Callable[[], bool], *readers: Reader) -> None:
    tick = threading.Event()
    for _ in range(600):
        if condition():
            return
        assert all(reader.failure is None for reader in readers), [reader.failure for reader in readers]
        tick.wait(0.05)
    pytest.fail(f"the group did not settle: {[(reader.assigned, len(reader.values)) for reader in readers]}")


@pytest.fixture
def new_reader(address: str, name: str, four: str) -> Iterator[NewReader]:
    with ExitStack() as stack:

        def make(**settings: Any) -> Reader:
            reader = Reader(address, f"group-{name}", four, **settings)
            stack.callback(reader.stop)
            return reader

        yield make


def covers(*readers: Reader) -> bool:
    return sorted(index for reader in readers for index in reader.assigned) == list(range(PARTITIONS))


@pytest.mark.parametrize("settings", [{}, {"group_instance_id": "one"}], ids=["dynamic", "static"])
def test_readers_share_a_topic_and_go_on_where_the_group_was(new_reader: NewReader, settings: dict[str, Any]) -> None:
    first = new_reader(**settings)
    await_readers(lambda: len(first.values) == 20, first)
    first.commit()
    second = new_reader()
    await_readers(lambda: covers(first, second) and len(first.assigned) == 2, first, second)
    assert second.values == [], "what was committed is not read again"
    second.stop()
    await_readers(lambda: len(first.assigned) == PARTITIONS, first)


def test_groups_are_seen_by_the_admin_client(address: str, new_reader: NewReader, name: str, four: str) -> None:
    group = f"group-{name}"
    reader = new_reader(client_id="the-reader")
    await_readers(lambda: len(reader.values) == 20, reader)
    reader.commit()
    admin = kafka.admin.KafkaAdminClient(bootstrap_servers=address)
    try:
        listed = admin.list_groups()
        assert group in {each["group_id"] for each in listed}
        described = admin.describe_groups([group])
        [found] = described.values() if isinstance(described, dict) else described
        assert found["group_state"] == "Stable"
        assert [member["client_id"] for member in found["members"]] == ["the-reader"]
        offsets = admin.list_group_offsets([group])
        [of_group] = offsets.values()
        assert {(p.topic, p.partition): o.offset for p, o in of_group.items()} == {
            (four, index): 5 for index in range(PARTITIONS)
        }
    finally:
        admin.close()
