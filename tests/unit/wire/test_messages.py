"""Every message of every version: as kio has it, and nothing but Malformed for what is wrong."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import tracemalloc
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import Malformed
from fencepost.wire import apis, messages
from tests.unit.wire.damage import damaged
from tests.unit.wire.kio_messages import EVERY_MESSAGE, examples, fields_of, kio_bytes, kio_read, message_class
from tests.unit.wire.kio_messages import messages as random_messages

pytestmark = pytest.mark.unit

every_api = pytest.mark.parametrize("key", sorted({key for key, _, _ in EVERY_MESSAGE}))
every_message = pytest.mark.parametrize(("key", "version", "direction"), EVERY_MESSAGE)


def encode(direction: str, key: int, version: int, fields: Any) -> bytes:
    return (messages.encode_request if direction == "request" else messages.encode_response)(key, version, fields)


def decode(direction: str, key: int, version: int, data: Any, at: int = 0) -> Any:
    return (messages.decode_request if direction == "request" else messages.decode_response)(key, version, data, at)


@every_message
@examples(4)
@given(data=st.data())
def test_a_message_is_written_and_read_as_kio_does_it(
    key: int, version: int, direction: str, data: st.DataObject
) -> None:
    kind = message_class(key, version, direction)
    message = data.draw(random_messages(kind))
    if key == apis.Key.API_VERSIONS and direction == "response" and message.error_code == 35:
        return  # always written in version 0: see below
    written = encode(direction, key, version, fields_of(message))
    assert written == kio_bytes(message)
    assert decode(direction, key, version, bytearray(b"head" + written + b"tail"), 4) == message
    assert kio_read(kind, written) == message


@every_api
@examples(4)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_damaged_bytes_are_malformed_or_another_message_but_never_another_exception(
    key: int, data: st.DataObject, seed: int
) -> None:
    for version in range(apis.APIS[key].lowest, apis.APIS[key].highest + 1):
        direction = data.draw(st.sampled_from(["request", "response"]))
        written = kio_bytes(data.draw(random_messages(message_class(key, version, direction))))
        for spoiled in damaged(written, random.Random(seed), count=10):
            try:
                decode(direction, key, version, spoiled)
            except Malformed:
                pass
            except Exception as error:
                pytest.fail(f"{error!r} for {direction} v{version} {spoiled.hex()}")


@every_api
def test_an_array_that_claims_two_thousand_million_elements_costs_no_memory(key: int) -> None:
    """Wherever the first array is: all bytes say 'very many'. The same bytes end a process that reads them with kio."""
    for version in range(apis.APIS[key].lowest, apis.APIS[key].highest + 1):
        absurd = (b"\xff\xff\xff\xff\x07" if messages.is_flexible(key, version) else b"\x7f\xff\xff\xff") * 50
        for direction in ("request", "response"):
            with contextlib.suppress(Malformed):
                decode(direction, key, version, absurd)  # loads the class, which is not to be measured
            tracemalloc.start()
            for shift in range(5):
                with contextlib.suppress(Malformed):
                    decode(direction, key, version, b"\x01" * shift + absurd)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 1_000_000


def test_a_tagged_field_that_nobody_knows_is_skipped_at_every_level() -> None:
    """KIP-482: a newer peer may send more than our definitions have. Found to break kio's reader."""
    unknown = b"\x01\x63\x03abc"  # one tagged field: tag 99, three bytes
    heartbeat = b"\0\0\0\0" + b"\0\0"
    assert messages.decode_response(12, 4, heartbeat + unknown).error_code == 0
    # FindCoordinator v4: coordinators [key, node_id, host, port, error_code, error_message]
    coordinator = b"\x02" + b"\x02k" + b"\0\0\0\x01" + b"\x02h" + b"\0\0\x23\x84" + b"\0\0" + b"\0" + unknown
    answer = messages.decode_response(10, 4, b"\0\0\0\0" + coordinator + unknown)
    assert (answer.coordinators[0].host, answer.coordinators[0].port) == ("h", 9092)


def test_known_tagged_fields_are_found_among_unknown_ones_and_their_size_is_checked() -> None:
    body = b"\0\0" + b"\x01" + b"\0\0\0\0"  # ApiVersions v3: no error, no keys, no throttling
    epoch = b"\x01\x08" + b"\0\0\0\0\0\0\0\x07"
    unknown = b"\x63\x03abc"
    assert messages.decode_response(18, 3, body + b"\x02" + epoch + unknown).finalized_features_epoch == 7
    wrong_size = b"\x01\x07" + b"\0\0\0\0\0\0\0\x07"
    with pytest.raises(Malformed, match="tagged field 1"):
        messages.decode_response(18, 3, body + b"\x01" + wrong_size)


def test_an_error_code_newer_than_the_table_is_an_unknown_server_error() -> None:
    assert messages.decode_response(12, 0, b"\x7f\xff").error_code == -1


def test_null_for_an_array_that_must_not_be_null_is_malformed() -> None:
    with pytest.raises(Malformed, match="topics must not be null"):
        messages.decode_request(3, 0, b"\xff\xff\xff\xff")
    assert messages.decode_request(3, 1, b"\xff\xff\xff\xff").topics is None


def test_any_byte_but_zero_is_true() -> None:
    end_txn = messages.encode_request(
        26, 0, {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "committed": True}
    )
    assert end_txn[-1] == 1
    assert messages.decode_request(26, 0, end_txn[:-1] + b"\x07").committed is True


def test_bytes_behind_a_message_are_ignored() -> None:
    assert messages.decode_response(12, 0, b"\0\0tail").error_code == 0


def test_fields_of_other_versions_are_dropped_and_missing_ones_take_their_defaults() -> None:
    fields = {"error_code": 0, "producer_id": 7, "producer_epoch": 3, "no_version_has_this": object()}
    answer = messages.decode_response(22, 4, messages.encode_response(22, 4, fields))
    assert (answer.producer_id, answer.producer_epoch, answer.throttle_time) == (7, 3, timedelta(0))
    metadata = messages.decode_response(3, 9, messages.encode_response(3, 9, {}))
    assert (metadata.brokers, metadata.cluster_id, metadata.controller_id) == ((), None, -1)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({}, "error_code is missing"),
        ({"error_code": 1 << 20, "node_id": 1, "host": "h", "port": 1}, "error_code cannot be 1048576"),
        ({"error_code": 0, "node_id": 1, "host": None, "port": 1}, "host cannot be None"),
        ({"error_code": 0, "node_id": "1", "host": "h", "port": 1}, "node_id cannot be '1'"),
    ],
)
def test_a_field_that_is_missing_or_wrong_is_named(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(TypeError, match=f"FindCoordinator v0: {problem}"):
        messages.encode_response(10, 0, fields)


def test_a_wrong_field_deep_inside_is_named_with_its_path() -> None:
    partition = {"error_code": 0, "partition_index": 0}
    topic = {"error_code": 0, "name": "t", "partitions": [partition]}
    with pytest.raises(messages.WrongField, match=r"Metadata v12: topics\.partitions\.leader_id is missing"):
        messages.encode_response(3, 12, {"topics": [topic]})
    with pytest.raises(messages.WrongField, match=r"topics is int, not a mapping"):
        messages.encode_response(3, 12, {"topics": [5]})


def test_a_missing_struct_or_flag_is_named_too() -> None:
    with pytest.raises(messages.WrongField, match="EndTxn v0: committed is missing"):
        messages.encode_request(26, 0, {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0})
    topic = {"name": "t", "partitions": [{"partition": 0, "current_leader_epoch": 0, "position": 0}]}
    with pytest.raises(messages.WrongField, match=r"FetchSnapshot v0: topics\.partitions\.snapshot_id is missing"):
        messages.encode_request(59, 0, {"topics": [topic], "max_bytes": 1, "replica_id": 1})


def test_text_that_is_not_utf_8_is_malformed() -> None:
    with pytest.raises(Malformed, match="FindCoordinator v0"):
        messages.decode_request(10, 0, b"\0\x02\xff\xfe")


def test_spans_and_times_may_be_given_in_milliseconds() -> None:
    for timeout in (1500, timedelta(milliseconds=1500)):
        request = messages.encode_request(20, 1, {"topic_names": ["t"], "timeout": timeout})
        assert messages.ms(messages.decode_request(20, 1, request).timeout) == 1500
    fields = {"error_code": 0, "principal_type": "U", "principal_name": "n", "token_id": "t", "hmac": b""}
    times = {"issue_timestamp": 0, "expiry_timestamp": 1, "max_timestamp": 1_700_000_000_001}
    token = messages.decode_response(38, 1, messages.encode_response(38, 1, fields | times))
    assert token.max_timestamp.timestamp() == 1_700_000_000.001


def test_an_unsupported_version_of_api_versions_is_answered_and_read_in_version_0() -> None:
    keys = [{"api_key": 18, "min_version": 0, "max_version": 4}]
    refusal = messages.encode_response(18, 0, {"error_code": 35, "api_keys": keys})
    for asked in range(5):
        answer = messages.decode_response(18, asked, refusal)
        assert answer.error_code == 35
        assert answer.api_keys[0].max_version == 4


@pytest.mark.parametrize(("key", "version"), [(4, 0), (-1, 0), (0, 2), (0, 14), (10_000, 2)])
def test_what_is_not_spoken_is_malformed(key: int, version: int) -> None:
    with pytest.raises(Malformed):
        messages.decode_request(key, version, b"")


def test_only_the_classes_that_are_needed_are_loaded() -> None:
    program = """
import sys
from fencepost.wire import frame, hot, messages
messages.decode_request(12, 4, messages.encode_request(12, 4, {"group_id": "g", "generation_id": 1, "member_id": "m"}))
loaded = {name for name in sys.modules if name.startswith("kio.schema.") and name.endswith((".request", ".response"))}
assert loaded == {"kio.schema.heartbeat.v4.request", "kio.schema.heartbeat.v4.response"}, loaded
assert "hypothesis" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)
