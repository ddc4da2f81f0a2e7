"""Kafka's partitioner: the same key goes to the same partition from every client."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.kernel.implementations import COMPILED, TWIN, Kernel

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        # From the tests of Kafka's Java client.
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_keys_hash_as_in_kafkas_java_client(kernel: Kernel, key: bytes, hashed: int) -> None:
    assert kernel.murmur2(key) == hashed
    assert kernel.partition_for_key(key, 7) == (hashed & 0x7FFFFFFF) % 7


@given(key=st.binary(max_size=70), partitions=st.integers(1, 2**31 - 1))
def test_both_implementations_choose_the_same_partition(key: bytes, partitions: int) -> None:
    assert COMPILED.murmur2(key) == TWIN.murmur2(key)
    chosen = COMPILED.partition_for_key(key, partitions)
    assert chosen == TWIN.partition_for_key(key, partitions)
    assert 0 <= chosen < partitions
    assert COMPILED.murmur2(bytearray(key)) == COMPILED.murmur2(memoryview(key)) == COMPILED.murmur2(key)


def test_a_topic_without_partitions_has_none_to_choose(kernel: Kernel) -> None:
    for partitions in (0, -1):
        with pytest.raises(ValueError, match="at least one partition"):
            kernel.partition_for_key(b"key", partitions)


def test_a_key_is_bytes(kernel: Kernel) -> None:
    for key in ("text", None, 5):
        with pytest.raises(TypeError):
            kernel.partition_for_key(key, 3)
