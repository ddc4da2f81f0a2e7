"""Transactions sent by hand: a producer that is told its pid, epoch and sequences, over one or several connections.

`TransactionClient` is the raw client with the messages of transactions. It does what every client must on a real Kafka:
ask again while the coordinator loads or is busy with the transaction before, and while a partition's first batch is
being verified. A test that wants to see those answers asks with `patient=False`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from fencepost.errors import ErrorCode
from fencepost.kernel import decode_batch
from fencepost.kernel.header import TRANSACTIONAL, read_header, split_batches
from fencepost.wire import hot
from tests.support.batches import batch
from tests.support.raw import FETCH_VERSION, LIST_OFFSETS, PRODUCE, Produced, RawClient, only_partition

FIND_COORDINATOR: Final = 10
OFFSET_FETCH: Final = 9
INIT_PRODUCER_ID: Final = 22
ADD_PARTITIONS: Final = 24
ADD_OFFSETS: Final = 25
END: Final = 26
WRITE_MARKERS: Final = 27
OFFSET_COMMIT: Final = 28
DESCRIBE_PRODUCERS: Final = 61
DESCRIBE: Final = 65
LIST: Final = 66

LATER: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
"""Ask again."""

_PATIENCE: Final = 60.0
NOW: Final = int(time.time() * 1000)
"""The time of all records: a repeated batch must have the same bytes, and retention must not take it away."""

_PAUSE: Final = 0.005
"""Between two tries: there is nothing to await at a server that says "later"."""


class Committed(NamedTuple):
    """What a reader of committed records gets of one partition."""

    last_stable_offset: int
    values: list[bytes | None]
    aborted: list[tuple[int, int]]


class Kept(NamedTuple):
    offset: int
    value: bytes | None


class TransactionClient(RawClient):
    def __init__(self, address: str, **how: Any) -> None:
        super().__init__(address, **how)
        self.address = address

    # --- the coordinator ---

    def _patiently(self, ask: Any, patient: bool) -> Any:
        deadline = time.monotonic() + _PATIENCE
        while True:
            answer, code = ask()
            if not patient or ErrorCode.of(code) not in LATER:
                return answer
            assert time.monotonic() < deadline, f"still {ErrorCode.of(code).name}"
            time.sleep(_PAUSE)

    def init(
        self,
        name: str,
        *,
        timeout_ms: int = 60_000,
        expected: tuple[int, int] | None = None,
        version: int = 4,
        patient: bool = True,
    ) -> tuple[ErrorCode, int, int]:
        """(error, pid, epoch)"""
        pid, epoch = expected or (-1, -1)

        def ask() -> tuple[Any, int]:
            answer = self.call(
                INIT_PRODUCER_ID,
                version,
                transactional_id=name,
                transaction_timeout=timeout_ms,
                producer_id=pid,
                producer_epoch=epoch,
            )
            return answer, answer.error_code

        answer = self._patiently(ask, patient)
        return ErrorCode.of(answer.error_code), answer.producer_id, answer.producer_epoch

    def send_add(
        self, producer: TransactionalProducer, partitions: Mapping[str, Sequence[int]], version: int = 3
    ) -> None:
        self.send(
            ADD_PARTITIONS,
            version,
            **{f"v3_and_below_{field}": value for field, value in producer.fields().items()},
            v3_and_below_topics=[{"name": topic, "partitions": list(indexes)} for topic, indexes in partitions.items()],
        )

    def add(
        self,
        producer: TransactionalProducer,
        partitions: Mapping[str, Sequence[int]],
        *,
        version: int = 3,
        patient: bool = True,
    ) -> list[ErrorCode]:
        """One code per partition, in the order asked."""

        def ask() -> tuple[list[int], int]:
            self.send_add(producer, partitions, version)
            _, answer = self.receive()
            found = {
                (topic.name, row.partition_index): row.partition_error_code
                for topic in answer.results_by_topic_v3_and_below
                for row in topic.results_by_partition
            }
            codes = [found[topic, index] for topic, indexes in partitions.items() for index in indexes]
            return codes, next((code for code in codes if ErrorCode.of(code) in LATER), 0)

        return [ErrorCode.of(code) for code in self._patiently(ask, patient)]

    def add_offsets(
        self, producer: TransactionalProducer, group: str, *, version: int = 3, patient: bool = True
    ) -> ErrorCode:
        def ask() -> tuple[int, int]:
            code = self.call(ADD_OFFSETS, version, **producer.fields(), group_id=group).error_code
            return code, code

        return ErrorCode.of(self._patiently(ask, patient))

    def commit_offsets(
        self,
        producer: TransactionalProducer,
        group: str,
        offsets: Mapping[str, Mapping[int, int]],
        *,
        member: str = "",
        generation: int = -1,
        instance: str | None = None,
        metadata: str = "",
        version: int = 3,
        patient: bool = True,
    ) -> list[ErrorCode]:
        """One code per partition, in the order asked."""

        def ask() -> tuple[list[int], int]:
            answer = self.call(
                OFFSET_COMMIT,
                version,
                **producer.fields(),
                group_id=group,
                generation_id=generation,
                member_id=member,
                group_instance_id=instance,
                topics=[
                    {
                        "name": topic,
                        "partitions": [
                            {
                                "partition_index": index,
                                "committed_offset": offset,
                                "committed_leader_epoch": -1,
                                "committed_metadata": metadata,
                            }
                            for index, offset in rows.items()
                        ],
                    }
                    for topic, rows in offsets.items()
                ],
            )
            found = {
                (topic.name, row.partition_index): row.error_code for topic in answer.topics for row in topic.partitions
            }
            codes = [found[topic, index] for topic, rows in offsets.items() for index in rows]
            return codes, next((code for code in codes if ErrorCode.of(code) in LATER), 0)

        return [ErrorCode.of(code) for code in self._patiently(ask, patient)]

    def send_end(self, producer: TransactionalProducer, *, commit: bool, version: int = 4) -> None:
        self.send(END, version, **producer.fields(), committed=commit)

    def end(
        self, producer: TransactionalProducer, *, commit: bool, version: int = 4, patient: bool = True
    ) -> ErrorCode:
        def ask() -> tuple[int, int]:
            self.send_end(producer, commit=commit, version=version)
            code = self.receive()[1].error_code
            return code, code

        return ErrorCode.of(self._patiently(ask, patient))

    # --- writing ---

    def send_transactional(
        self,
        topic: str,
        data: bytes,
        *,
        name: str | None,
        partition: int = 0,
        version: int = 9,
    ) -> None:
        request = hot.ProduceRequest(
            transactional_id=name,
            acks=-1,
            timeout_ms=10_000,
            topics=[hot.ProduceTopic(topic, None, [hot.ProducePartition(partition, memoryview(data))])],
        )
        self.send_frame(self.frame_of(PRODUCE, version, b"".join(hot.encode_produce_request(version, request))))

    def write(
        self,
        producer: TransactionalProducer,
        topic: str,
        values: Iterable[bytes],
        *,
        partition: int = 0,
        sequence: int | None = None,
        transactional: bool = True,
        name: str | None = "",
        version: int = 9,
        patient: bool = True,
    ) -> Produced:
        """One batch; without `sequence`, behind what was acknowledged so far in this epoch. `name=None` leaves the
        transactional id out."""
        values = list(values)
        first = producer.sequences.get((topic, partition), 0) if sequence is None else sequence
        data = batch(
            values,
            pid=producer.pid,
            epoch=producer.epoch,
            sequence=first,
            timestamps=[NOW] * len(values),
            attributes=TRANSACTIONAL if transactional else 0,
        )

        def ask() -> tuple[Produced, int]:
            self.send_transactional(
                topic, data, name=producer.name if name == "" else name, partition=partition, version=version
            )
            produced = only_partition(self.receive()[1])
            return produced, produced.error

        produced: Produced = self._patiently(ask, patient)
        if produced.error is ErrorCode.NONE and sequence is None:
            producer.sequences[topic, partition] = first + len(values)
        return produced

    # --- reading ---

    def fetch_committed(self, topic: str, offset: int = 0, *, partition: int = 0) -> Committed:
        """Everything up to the last stable offset, without what was aborted, as a client sorts it out."""
        stable, records, aborted = self._fetch_committed(topic, offset, partition)
        return Committed(stable, [record.value for record in records], aborted)

    def committed_records(self, topic: str, *, partition: int = 0) -> list[Kept]:
        return self._fetch_committed(topic, 0, partition)[1]

    def _fetch_committed(
        self, topic: str, offset: int, partition: int
    ) -> tuple[int, list[Kept], list[tuple[int, int]]]:
        records: list[Kept] = []
        all_aborted: list[tuple[int, int]] = []
        stable = -1
        while stable < 0 or offset < stable:
            wanted = hot.FetchPartition(index=partition, fetch_offset=offset, max_bytes=1 << 20)
            request = hot.FetchRequest(
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=50 << 20,
                isolation_level=1,
                topics=[hot.FetchTopic(topic, None, [wanted])],
            )
            self.send_fetch_request(request, FETCH_VERSION)
            [answered] = self.receive()[1].topics
            [answer] = answered.partitions
            assert answer.error_code == ErrorCode.NONE, ErrorCode.of(answer.error_code)
            stable = answer.last_stable_offset
            data = b"".join(answer.records)
            if not data:
                break
            aborted = sorted(answer.aborted or (), key=lambda entry: entry[1])
            all_aborted += [entry for entry in aborted if entry not in all_aborted]
            offset, more = _sort_out(data, offset, aborted)
            records += more
        return stable, records, all_aborted

    def stable_offset(self, topic: str, *, partition: int = 0) -> int:
        """The end as ListOffsets tells it to readers of committed records."""
        answer = self.call(
            LIST_OFFSETS,
            7,
            replica_id=-1,
            isolation_level=1,
            topics=[{"name": topic, "partitions": [{"partition_index": partition, "timestamp": -1}]}],
        )
        [found] = answer.topics[0].partitions
        assert found.error_code == ErrorCode.NONE
        offset: int = found.offset
        return offset

    def group_offset(self, group: str, topic: str, *, partition: int = 0, stable: bool = True) -> tuple[ErrorCode, int]:
        def ask() -> tuple[Any, int]:
            answer = self.call(
                OFFSET_FETCH,
                7,
                group_id=group,
                topics=[{"name": topic, "partition_indexes": [partition]}],
                require_stable=stable,
            )
            return answer, answer.error_code

        answer = self._patiently(ask, patient=True)
        assert answer.error_code == ErrorCode.NONE
        [found] = answer.topics[0].partitions
        return ErrorCode.of(found.error_code), found.committed_offset

    def stable_group_offset(self, group: str, topic: str, *, partition: int = 0) -> int:
        """The committed offset, once no transaction can change it: on Kafka the group's coordinator hears of a decision
        a moment later."""
        while (found := self.group_offset(group, topic, partition=partition))[0] is ErrorCode.UNSTABLE_OFFSET_COMMIT:
            time.sleep(_PAUSE)
        assert found[0] is ErrorCode.NONE
        return found[1]

    # --- looking ---

    def find_coordinator(self, name: str) -> None:
        """Asks for the coordinator until there is one: a fresh Kafka makes its topic on the first request."""

        def ask() -> tuple[Any, int]:
            answer = self.call(FIND_COORDINATOR, 4, key_type=1, coordinator_keys=[name])
            return answer, answer.coordinators[0].error_code

        self._patiently(ask, patient=True)

    def describe(self, name: str) -> Any:
        def ask() -> tuple[Any, int]:
            [state] = self.call(DESCRIBE, 0, transactional_ids=[name]).transaction_states
            return state, state.error_code

        return self._patiently(ask, patient=True)

    def await_state(self, name: str, *states: str) -> Any:
        """The description, once the transaction has come to one of these states by itself."""
        deadline = time.monotonic() + _PATIENCE
        while (described := self.describe(name)).transaction_state not in states:
            assert time.monotonic() < deadline, f"{name} is still {described.transaction_state}"
            time.sleep(_PAUSE)
        return described

    def producers_of(self, topic: str, partition: int = 0) -> list[Any]:
        answer = self.call(DESCRIBE_PRODUCERS, 0, topics=[{"name": topic, "partition_indexes": [partition]}])
        [found] = answer.topics[0].partitions
        assert found.error_code == ErrorCode.NONE
        return list(found.active_producers)

    def write_marker(
        self, topic: str, partition: int, pid: int, epoch: int, *, commit: bool, coordinator_epoch: int = 0
    ) -> ErrorCode:
        answer = self.call(
            WRITE_MARKERS,
            1,
            markers=[
                {
                    "producer_id": pid,
                    "producer_epoch": epoch,
                    "transaction_result": commit,
                    "topics": [{"name": topic, "partition_indexes": [partition]}],
                    "coordinator_epoch": coordinator_epoch,
                }
            ],
        )
        [found] = answer.markers[0].topics[0].partitions
        return ErrorCode.of(found.error_code)


@dataclass
class TransactionalProducer:
    """Who writes: a name with its pid and epoch, and how far it came."""

    name: str
    pid: int
    epoch: int
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """The fields of requests that say who writes."""
        return {"transactional_id": self.name, "producer_id": self.pid, "producer_epoch": self.epoch}

    def older(self) -> TransactionalProducer:
        return replace(self, epoch=self.epoch - 1, sequences=dict(self.sequences))

    @classmethod
    def start(cls, client: TransactionClient, name: str, **how: Any) -> TransactionalProducer:
        client.find_coordinator(name)
        error, pid, epoch = client.init(name, **how)
        assert error is ErrorCode.NONE, error
        return cls(name, pid, epoch)


def _sort_out(data: bytes, offset: int, aborted: list[tuple[int, int]]) -> tuple[int, list[Kept]]:
    """The next offset, and the records from `offset` on that are neither control records nor aborted."""
    records: list[Kept] = []
    waiting, dropped = list(aborted), set[int]()
    for whole in split_batches(data):
        header = read_header(whole)
        while waiting and waiting[0][1] <= header.last_offset:
            dropped.add(waiting.pop(0)[0])
        if header.is_control:
            dropped.discard(header.pid)  # a marker, of whichever kind, ends the transaction
        elif not (header.is_transactional and header.pid in dropped):
            records += [Kept(record.offset, record.value) for record in decode_batch(whole) if record.offset >= offset]
        offset = header.next_offset
    return offset, records
