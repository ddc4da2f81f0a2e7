"""The `own` message byte by byte (OWN-1, OWN-7 and what goes beyond the document: token, session, release)."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.errors import Malformed
from fencepost.wire import own
from fencepost.wire.messages import decode_request, decode_response, encode_request, encode_response
from tests.unit.wire.damage import damaged
from tests.unit.wire.kio_messages import examples, fields_of, kio_bytes, kio_read, messages

pytestmark = pytest.mark.unit


def test_a_plain_claim_has_the_documented_layout() -> None:
    """OWN-1: a group, and resources with the generations asked with."""
    fields = {"group": "writers", "wait_ms": 0, "resources": [{"name": "orders-0", "generation": 3}]}
    written = (
        b"\x08writers"  # group
        b"\0\0\0\0"  # wait_ms
        b"\x02"  # one resource
        b"\x09orders-0\0\0\0\x03"
        b"\0"  # no after_token
        b"\0"  # neither session_ms nor release
    )
    assert encode_request(10_000, 0, fields) == written
    request = decode_request(10_000, 0, written)
    assert (request.session_ms, request.release, request.resources[0].after_token) == (0, (), own.UNSET_TOKEN)


def test_token_session_and_release_are_tagged_fields() -> None:
    fields = {
        "group": "g",
        "wait_ms": 1000,
        "resources": [{"name": "a", "generation": 1, "after_token": 258}],
        "session_ms": 5000,
        "release": ["b", "c"],
    }
    written = (
        b"\x02g\0\0\x03\xe8"
        b"\x02\x02a\0\0\0\x01"
        b"\x01\x00\x08\0\0\0\0\0\0\x01\x02"  # one tagged field: 0, eight bytes, after_token
        b"\x02"
        b"\x00\x04\0\0\x13\x88"  # 0, four bytes, session_ms
        b"\x01\x05\x03\x02b\x02c"  # 1, five bytes, release: two names
    )
    assert encode_request(10_000, 0, fields) == written
    assert decode_request(10_000, 0, written) == own.OwnRequest(
        group="g",
        wait_ms=1000,
        resources=(own.OwnRequestResource(name="a", generation=1, after_token=258),),
        session_ms=5000,
        release=("b", "c"),
    )


def test_an_answer_has_the_documented_layout() -> None:
    """OWN-7: a refused claim says which resource refused it, and its current generation."""
    refused = {"name": "a", "error_code": 22, "generation": 9}
    fields = {"error_code": 22, "error_message": "a is owned", "resources": [refused]}
    written = b"\0\x16\x0ba is owned" + b"\x02\x02a\0\x16\0\0\0\x09" + b"\xff" * 8 + b"\0" + b"\0"
    assert encode_response(10_000, 0, fields) == written
    answer = decode_response(10_000, 0, written)
    assert (answer.error_code, answer.resources[0].generation, answer.resources[0].token) == (22, 9, own.UNSET_TOKEN)
    assert encode_response(10_000, 0, {"error_code": 0}) == b"\0\0\0\x01\0"


def test_version_1_names_the_resource_and_answers_with_the_group() -> None:
    """OWN-1, as the document has it: the group is optional, and the answer says which one it was."""
    fields = {"group": None, "wait_ms": 0, "resources": [{"resource": "orders-0", "generation": 3}]}
    written = b"\0" + b"\0\0\0\0" + b"\x02" + b"\x09orders-0\0\0\0\x03" + b"\0" + b"\0"
    assert encode_request(10_000, 1, fields) == written
    request = decode_request(10_000, 1, written)
    assert (request.group, request.resources[0].resource, request.resources[0].name) == (None, "orders-0", "orders-0")
    granted = {"resource": "orders-0", "error_code": 0, "generation": 4, "token": 7}
    answer = {"error_code": 0, "error_message": None, "group": "default", "resources": [granted]}
    written = b"\0\0\0" + b"\x08default" + b"\x02\x09orders-0\0\0\0\0\0\x04" + b"\0" * 7 + b"\x07\0" + b"\0"
    assert encode_response(10_000, 1, answer) == written
    assert decode_response(10_000, 1, written).group == "default"


@pytest.mark.parametrize("kind", [own.OwnRequest, own.OwnResponse, own.OwnRequestV1, own.OwnResponseV1])
@examples(100)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_a_message_survives_the_wire_and_kio_reads_it_as_one_of_its_own(
    kind: Any, data: st.DataObject, seed: int
) -> None:
    is_request, version = "Request" in kind.__name__, int(kind.__name__.endswith("V1"))
    encode, decode = (encode_request, decode_request) if is_request else (encode_response, decode_response)
    message = data.draw(messages(kind))
    written = encode(10_000, version, fields_of(message))
    assert written == kio_bytes(message)
    assert decode(10_000, version, written) == kio_read(kind, written) == message
    for spoiled in damaged(written, random.Random(seed), count=5):
        with contextlib.suppress(Malformed):
            decode(10_000, version, spoiled)


def test_a_claim_that_is_cut_off_is_malformed() -> None:
    written = encode_request(10_000, 0, {"group": "g", "resources": [{"name": "a", "generation": 1}], "session_ms": 1})
    for end in range(len(written)):
        with pytest.raises(Malformed, match="Own v0"):
            decode_request(10_000, 0, written[:end])
