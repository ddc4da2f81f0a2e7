"""What Produce stores, refuses and answers."""

from __future__ import annotations

import uuid

import pytest

from fencepost.errors import ErrorCode
from fencepost.kernel.header import DELETE_HORIZON
from tests.integration.conftest import TestedServer
from tests.support.batches import CONTROL, GZIP, ZSTD, batch, record, with_wrong_checksum
from tests.support.raw import API_VERSIONS, PRODUCE, RawClient, new_topic

pytestmark = pytest.mark.integration

NONE = ErrorCode.NONE
INVALID_RECORD = ErrorCode.INVALID_RECORD


def test_offsets_are_given_in_the_order_of_arrival(client: RawClient, topic: str) -> None:
    assert client.produce(topic, batch([b"a", b"b", b"c"]))[:2] == (NONE, 0)
    assert client.produce(topic, batch([b"d"]))[:2] == (NONE, 3)
    fetched = client.fetch(topic, 0)
    assert fetched.values == [b"a", b"b", b"c", b"d"]
    assert fetched.offsets == [0, 1, 2, 3]
    assert fetched.high_watermark == 4


def test_a_base_offset_written_by_a_producer_never_reaches_the_log(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    assert client.produce(topic, batch([b"a"], base_offset=77)).error is server.answer_to("base offset other than 0")
    assert client.produce(topic, batch([b"b"])).error is NONE
    assert client.fetch(topic, 0).offsets == list(range(client.end_offset(topic)))


@pytest.mark.parametrize("version", range(3, 14))
def test_every_version_of_produce_stores_the_batch(client: RawClient, name: str, version: int) -> None:
    topic_id = client.create_topic(name)
    target: str | uuid.UUID = name if version < 13 else topic_id
    assert client.produce(target, batch([b"x"]), version=version)[:2] == (NONE, 0)
    assert client.fetch(name, 0).values == [b"x"]


def test_one_request_may_carry_several_partitions_and_topics(client: RawClient, name: str) -> None:
    """PROD-9."""
    client.create_topic(f"{name}-a", partitions=3)
    client.create_topic(f"{name}-b", partitions=1)
    client.send_produce_many({f"{name}-a": {0: batch([b"0"]), 2: batch([b"2"] * 2)}, f"{name}-b": {0: batch([b"b"])}})
    _, answer = client.receive()
    got = {
        (topic.name, part.index): (part.error_code, part.base_offset)
        for topic in answer.topics
        for part in topic.partitions
    }
    assert got == {(f"{name}-a", 0): (0, 0), (f"{name}-a", 2): (0, 0), (f"{name}-b", 0): (0, 0)}
    assert [client.end_offset(f"{name}-a", index) for index in range(3)] == [1, 0, 2]


def test_a_bad_partition_does_not_spoil_its_neighbours(client: RawClient, name: str) -> None:
    """PROD-6."""
    client.create_topic(name, partitions=3)
    parts = {0: batch([b"good"]), 1: with_wrong_checksum(batch([b"bad"])), 2: batch([b"good"]), 3: batch([b"nowhere"])}
    client.send_produce_many({name: dict(parts)})
    _, answer = client.receive()
    codes = {part.index: ErrorCode.of(part.error_code) for topic in answer.topics for part in topic.partitions}
    assert codes == {0: NONE, 1: ErrorCode.CORRUPT_MESSAGE, 2: NONE, 3: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert [client.end_offset(name, index) for index in range(3)] == [1, 0, 1]


# --- acks ---


@pytest.mark.parametrize("acks", [1, -1])
def test_acks_1_and_all_are_answered_with_the_offset(client: RawClient, topic: str, acks: int) -> None:
    assert client.produce(topic, batch([b"a"]), acks=acks)[:2] == (NONE, 0)
    assert client.end_offset(topic) == 1


def test_acks_0_stores_the_batch_and_is_not_answered(client: RawClient, topic: str) -> None:
    client.send_produce(topic, batch([b"silent"]), acks=0)
    # The next answer on the connection is that of the next request: there was none for acks 0.
    assert client.produce(topic, batch([b"loud"]))[:2] == (NONE, 1)
    assert client.fetch(topic, 0).values == [b"silent", b"loud"]


def test_acks_0_that_fails_ends_the_connection(client: RawClient, topic: str) -> None:
    """The only way left to tell the producer."""
    client.send_produce(topic, with_wrong_checksum(batch([b"x"])), acks=0)
    assert client.is_closed_by_server()


@pytest.mark.parametrize("acks", [2, -2, 32767])
def test_other_acks_are_refused_and_nothing_is_stored(client: RawClient, topic: str, acks: int) -> None:
    assert client.produce(topic, batch([b"a"]), acks=acks).error is ErrorCode.INVALID_REQUIRED_ACKS
    assert client.end_offset(topic) == 0


# --- where to ---


@pytest.mark.parametrize("acks", [1, -1])
def test_an_unknown_topic_is_refused_and_not_created(client: RawClient, name: str, acks: int) -> None:
    assert client.produce(name, batch([b"a"]), acks=acks).error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.ask_offset(name, -1).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("partition", [1, 1000, -1])
def test_an_unknown_partition_is_refused(client: RawClient, topic: str, partition: int) -> None:
    produced = client.produce(topic, batch([b"a"]), partition=partition)
    assert produced.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_an_unknown_topic_id_is_refused(client: RawClient) -> None:
    assert client.produce(uuid.uuid4(), batch([b"a"]), version=13).error is ErrorCode.UNKNOWN_TOPIC_ID


# --- bad batches ---


def test_a_wrong_checksum_is_a_corrupt_message(client: RawClient, topic: str) -> None:
    assert client.produce(topic, with_wrong_checksum(batch([b"a"]))).error is ErrorCode.CORRUPT_MESSAGE
    assert client.end_offset(topic) == 0


def test_a_byte_changed_on_the_way_is_a_corrupt_message(client: RawClient, topic: str) -> None:
    whole = bytearray(batch([b"hello" * 20]))
    whole[-10] ^= 0x40
    assert client.produce(topic, bytes(whole)).error is ErrorCode.CORRUPT_MESSAGE


@pytest.mark.parametrize("magic", [0, 1])
def test_an_older_record_format_is_refused(server: TestedServer, client: RawClient, topic: str, magic: int) -> None:
    assert client.produce(topic, batch([b"a"], magic=magic)).error is server.answer_to("old record format")
    assert client.end_offset(topic) == 0


@pytest.mark.parametrize("magic", [3, 127])
def test_a_record_format_of_the_future_is_refused(
    server: TestedServer, client: RawClient, topic: str, magic: int
) -> None:
    assert client.produce(topic, batch([b"a"], magic=magic)).error is server.answer_to("unknown record format")
    assert client.end_offset(topic) == 0


def test_several_batches_for_one_partition_in_one_request_are_refused(client: RawClient, topic: str) -> None:
    assert client.produce(topic, batch([b"a"]) + batch([b"b"])).error is INVALID_RECORD
    assert client.end_offset(topic) == 0


@pytest.mark.parametrize(
    ("count", "last_offset_delta"),
    [
        pytest.param(3, 1, id="count-above-the-offset-range"),
        pytest.param(1, 1, id="count-below-the-offset-range"),
        pytest.param(2, 5, id="offset-range-above-the-count"),
        pytest.param(2, -1, id="negative-offset-range"),
        pytest.param(-1, 1, id="negative-count"),
    ],
)
def test_a_count_that_does_not_match_the_offsets_is_refused(
    client: RawClient, topic: str, count: int, last_offset_delta: int
) -> None:
    whole = batch([b"a", b"b"], count=count, last_offset_delta=last_offset_delta)
    assert client.produce(topic, whole).error is INVALID_RECORD
    assert client.end_offset(topic) == 0


def test_a_batch_of_no_records_is_refused(client: RawClient, topic: str) -> None:
    assert client.produce(topic, batch([], count=0, last_offset_delta=-1)).error is INVALID_RECORD
    assert client.end_offset(topic) == 0


def test_a_control_batch_is_refused_from_a_producer(client: RawClient, topic: str) -> None:
    marker = record(b"\0\0\0\0\0\0", b"\0\0\0\1")
    assert client.produce(topic, batch([b""], attributes=CONTROL, records=marker)).error is INVALID_RECORD
    assert client.end_offset(topic) == 0


def test_a_delete_horizon_is_refused_from_a_producer(ours: TestedServer, name: str) -> None:
    """Only on ours: by it a tombstone would be removed before others had the time to see it."""
    with ours.connect() as client:
        client.create_topic(name)
        assert client.produce(name, batch([b"a"], attributes=DELETE_HORIZON)).error is INVALID_RECORD
        assert client.end_offset(name) == 0


def test_a_batch_cut_off_in_the_middle_is_refused(server: TestedServer, client: RawClient, topic: str) -> None:
    whole = batch([b"a" * 100])
    assert client.produce(topic, whole[:-10]).error is server.answer_to("cut batch")
    assert client.end_offset(topic) == 0


@pytest.mark.parametrize("behind", ["half a batch", "zeros"])
def test_bytes_behind_the_batch_are_refused(server: TestedServer, client: RawClient, topic: str, behind: str) -> None:
    extra = batch([b"b"])[:-1] if behind == "half a batch" else bytes(30)
    assert client.produce(topic, batch([b"a"]) + extra).error is server.answer_to(f"{behind} behind the batch")


def test_an_empty_piece_of_records_is_refused(client: RawClient, topic: str) -> None:
    assert client.produce(topic, b"").error is INVALID_RECORD


def test_no_records_at_all_are_refused(ours: TestedServer, name: str) -> None:
    """Only on ours: Kafka leaves the connection hanging (see `differences`)."""
    with ours.connect() as client:
        client.create_topic(name)
        assert client.produce(name, None).error is ours.answer_to("no records at all")


@pytest.mark.parametrize("fault", ["fewer records than the header says", "more records than the header says"])
def test_a_batch_has_as_many_records_as_its_header_says(client: RawClient, topic: str, fault: str) -> None:
    number = 2 if fault.startswith("more") else 1
    records = b"".join(record(b"x", offset_delta=delta) for delta in range(number))
    values = [b"x"] * (1 if fault.startswith("more") else 2)
    assert client.produce(topic, batch(values, records=records)).error is INVALID_RECORD
    assert client.end_offset(topic) == 0


def test_records_that_cannot_be_decompressed_harm_nobody_else(
    server: TestedServer, client: RawClient, topic: str
) -> None:
    expected = server.answer_to("records that cannot be decompressed")
    assert client.produce(topic, batch([b"x"], attributes=GZIP, records=b"no gzip")).error is expected
    assert client.produce(topic, batch([b"a"])).error is NONE
    assert client.fetch(topic, client.end_offset(topic) - 1).values == [b"a"]


def test_a_codec_that_does_not_exist_is_refused(server: TestedServer, client: RawClient, topic: str) -> None:
    assert client.produce(topic, batch([b"a"], attributes=7)).error is server.answer_to("unknown codec")
    assert client.end_offset(topic) == 0


def test_zstd_needs_produce_version_7(client: RawClient, topic: str) -> None:
    whole = batch([b"a"], attributes=ZSTD, records=b"\x28\xb5\x2f\xfd")
    assert client.produce(topic, whole, version=6).error is ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert client.end_offset(topic) == 0


def test_a_compressed_batch_comes_back_byte_for_byte(client: RawClient, topic: str) -> None:
    whole = batch([b"value %d" % number for number in range(100)], attributes=GZIP)
    assert client.produce(topic, whole).error is NONE
    data = client.fetch(topic, 0).data
    assert data[17:] == whole[17:]  # all but offset, length, leader epoch and format


# --- size ---


def test_a_batch_above_max_message_bytes_is_too_large(client: RawClient, name: str) -> None:
    client.create_topic(name, configs={"max.message.bytes": "1000"})
    just_right = batch([b"x" * (1000 - len(batch([b""])) - 2)])
    assert len(just_right) == 1000
    assert client.produce(name, batch([b"x" * 1000])).error is ErrorCode.MESSAGE_TOO_LARGE
    assert client.produce(name, just_right)[:2] == (NONE, 0)
    assert client.end_offset(name) == 1


def test_the_default_limit_is_one_mebibyte_and_a_little(client: RawClient, topic: str) -> None:
    overhead = len(batch([b""])) + 4
    assert client.produce(topic, batch([b"x" * (1_048_588 - overhead - 6)])).error is NONE
    assert client.produce(topic, batch([b"x" * (1_048_588 - overhead + 6)])).error is ErrorCode.MESSAGE_TOO_LARGE


def test_the_limit_of_a_topic_may_be_higher_than_the_default(client: RawClient, name: str) -> None:
    client.create_topic(name, configs={"max.message.bytes": "3000000"})
    assert client.produce(name, batch([b"x" * 2_500_000]))[:2] == (NONE, 0)
    assert client.fetch(name, 0).values == [b"x" * 2_500_000]


# --- time ---


def test_with_log_append_time_the_server_sets_the_time(client: RawClient, name: str) -> None:
    client.create_topic(name, configs={"message.timestamp.type": "LogAppendTime"})
    client.send_produce(name, batch([b"a", b"b"], timestamps=[1_000_000_000_000, 1_000_000_000_001]))
    _, answer = client.receive()
    stamped = answer.topics[0].partitions[0].log_append_time_ms
    [header] = client.fetch(name, 0).headers
    assert stamped > 1_700_000_000_000
    assert header.is_log_append_time
    assert header.max_timestamp == stamped


def test_with_create_time_the_answer_carries_no_time(client: RawClient, topic: str) -> None:
    client.send_produce(topic, batch([b"a"]))
    _, answer = client.receive()
    assert answer.topics[0].partitions[0].log_append_time_ms == -1


def test_a_time_far_in_the_future_is_refused(client: RawClient, topic: str) -> None:
    """message.timestamp.after.max.ms, one hour by default: such a record would never be old enough to be deleted."""
    in_2100 = 4_102_444_800_000
    assert client.produce(topic, batch([b"a"], timestamps=[in_2100])).error is ErrorCode.INVALID_TIMESTAMP
    assert client.end_offset(topic) == 0


def test_how_far_in_the_future_is_a_matter_of_the_topic(client: RawClient, name: str) -> None:
    client.create_topic(name, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    assert client.produce(name, batch([b"a"], timestamps=[4_102_444_800_000]))[:2] == (NONE, 0)


def test_a_record_without_a_time_is_taken(client: RawClient, topic: str) -> None:
    assert client.produce(topic, batch([b"a"], timestamps=[-1]))[:2] == (NONE, 0)


# --- compacted topics ---


def test_a_compacted_topic_refuses_records_without_a_key(client: RawClient, name: str) -> None:
    client.create_topic(name, configs={"cleanup.policy": "compact"})
    keyed = batch([b"v"], records=record(b"v", b"k"))
    assert client.produce(name, batch([b"v"])).error is INVALID_RECORD
    assert client.produce(name, keyed)[:2] == (NONE, 0)
    assert client.end_offset(name) == 1


def test_the_reason_of_a_refusal_is_in_the_answer(server: TestedServer, client: RawClient, topic: str) -> None:
    """From version 8 on there is room for it."""
    message = client.produce(topic, batch([b"a"]) + batch([b"b"]), version=8).message
    assert bool(message) is server.answer_to("a reason in the answer to a refused batch")


def test_produce_versions_0_to_2_are_advertised_for_librdkafkas_sake(client: RawClient) -> None:
    """librdkafka leaves out compression unless they are (kafka pull request 18727)."""
    answer = client.call(API_VERSIONS, 3, client_software_name="raw", client_software_version="1")
    [produce] = [api for api in answer.api_keys if api.api_key == PRODUCE]
    assert produce.min_version == 0


def test_a_topic_created_in_the_same_moment_can_be_written(client: RawClient, name: str) -> None:
    client.call(19, 7, topics=[new_topic(name)], timeout=30_000)
    client.await_topic(name)
    assert client.produce(name, batch([b"a"]))[:2] == (NONE, 0)
