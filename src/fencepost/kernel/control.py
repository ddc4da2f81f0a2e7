"""Control batches: the markers that end a transaction in a partition.

A marker is a batch of one record with the control and transactional bits set and no sequence:

    key:    version int16 (0) | type int16 (0 abort, 1 commit; others are Kafka's internal affairs)
    value:  version int16 (0) | coordinator epoch int32
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final, NamedTuple

from fencepost.errors import CorruptBatch
from fencepost.kernel.batch_py import decode_batch, encode_batch
from fencepost.kernel.header import Buffer
from fencepost.kernel.record import Record
from fencepost.types import Milliseconds

_KEY: Final = Struct(">hh")
_VALUE: Final = Struct(">hi")
_VERSION: Final = 0


class MarkerType(IntEnum):
    ABORT = 0
    COMMIT = 1


class Marker(NamedTuple):
    type: MarkerType
    coordinator_epoch: int

    @property
    def is_commit(self) -> bool:
        return self.type is MarkerType.COMMIT


def read_marker(record: Record) -> Marker | None:
    """Return the transaction marker of a control record; None if it is another kind of control record."""
    if record.key is None or len(record.key) < _KEY.size:
        raise CorruptBatch("a control record without a type")
    version, kind = _KEY.unpack_from(record.key)
    if version < _VERSION:
        raise CorruptBatch(f"a control record of version {version}")
    if kind not in (MarkerType.ABORT, MarkerType.COMMIT):
        return None
    if record.value is None or len(record.value) < _VALUE.size:
        raise CorruptBatch("a transaction marker without a coordinator epoch")
    version, coordinator_epoch = _VALUE.unpack_from(record.value)
    if version < _VERSION:
        raise CorruptBatch(f"a transaction marker of version {version}")
    return Marker(MarkerType(kind), coordinator_epoch)


def encode_marker(
    kind: MarkerType, pid: int, epoch: int, timestamp: Milliseconds, *, coordinator_epoch: int = 0, base_offset: int = 0
) -> bytearray:
    """Return the batch that commits or aborts the producer's transaction in a partition."""
    key = _KEY.pack(_VERSION, kind)
    value = _VALUE.pack(_VERSION, coordinator_epoch)
    return encode_batch(
        [(key, value, timestamp, None)],
        pid=pid,
        epoch=epoch,
        transactional=True,
        control=True,
        base_offset=base_offset,
    )


def is_abort(buffer: Buffer, at: int = 0) -> bool:
    """Return whether the control batch at `at` aborts a transaction. Other control records end nothing."""
    for record in decode_batch(buffer, at, check=False):
        marker = read_marker(record)
        return marker is not None and not marker.is_commit
    return False
