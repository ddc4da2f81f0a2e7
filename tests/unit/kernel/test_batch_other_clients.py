"""Other people's Python clients read our batches, and we read theirs."""

from __future__ import annotations

import warnings

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AiokafkaBuilder

from fencepost.kernel import CODECS
from tests.unit.kernel.implementations import NOW, Kernel

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # its own, at import
    from kafka.record.default_records import DefaultRecordBatch as KafkaPythonBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

pytestmark = pytest.mark.unit

ROWS = [
    (
        b"key-%d" % i if i % 3 else None,
        b"value" * (i % 40) if i % 4 else None,
        NOW + i * 3,
        [("näme", b"x"), ("b", None)],
    )
    for i in range(400)
]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_aiokafka_reads_our_batches(kernel: Kernel, codec: int) -> None:
    batch = kernel.encode_batch(ROWS, codec=codec, pid=5, epoch=1, base_sequence=9, base_offset=100)
    theirs = AiokafkaBatch(bytes(batch))
    assert theirs.validate_crc()
    assert (theirs.producer_id, theirs.producer_epoch, theirs.base_sequence) == (5, 1, 9)
    read = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs]
    assert read == [tuple(record) for record in kernel.decode_batch(batch)]


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_aiokafkas_batches_are_read(kernel: Kernel, codec: int) -> None:
    builder = AiokafkaBuilder(2, codec, 1, 5, 1, 9, 1 << 20)
    for i, (key, value, timestamp, headers) in enumerate(ROWS):
        assert builder.append(i, timestamp, key, value, headers) is not None
    records = kernel.decode_batch(bytes(builder.build()))
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in records] == ROWS


@pytest.mark.parametrize("codec", [CODECS["none"], CODECS["gzip"]])
def test_kafka_python_reads_our_batches_and_we_read_its(kernel: Kernel, codec: int) -> None:
    batch = kernel.encode_batch(ROWS, codec=codec)
    theirs = KafkaPythonBatch(bytes(batch))
    assert theirs.validate_crc()
    read = [(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in theirs]
    assert read == [tuple(record) for record in kernel.decode_batch(batch)]
    builder = KafkaPythonBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for i, (key, value, timestamp, headers) in enumerate(ROWS):
        assert builder.append(i, timestamp, key, value, headers) is not None
    records = kernel.decode_batch(bytes(builder.build()))
    assert [(r.key, r.value, r.timestamp, list(r.headers)) for r in records] == ROWS
