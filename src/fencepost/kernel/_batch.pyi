from collections.abc import Iterable

from fencepost.kernel.header import Buffer
from fencepost.kernel.record import Headers, Payload, Record, Row

class BatchBuilder:
    count: int
    base_timestamp: int
    max_timestamp: int
    def __init__(self, capacity: int = 16384) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    @property
    def size(self) -> int: ...
    def append(self, key: Payload, value: Payload, timestamp: int, headers: Headers | None = None) -> int: ...
    def records(self) -> bytes: ...
    def build(
        self,
        codec: int = 0,
        level: int | None = None,
        *,
        pid: int = -1,
        epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
        base_offset: int = 0,
        control: bool = False,
    ) -> bytearray: ...
    def clear(self) -> None: ...

def encode_batch(
    records: Iterable[Row],
    *,
    codec: int = 0,
    level: int | None = None,
    pid: int = -1,
    epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    base_offset: int = 0,
    control: bool = False,
) -> bytearray: ...
def decode_batch(buffer: Buffer, at: int = 0, *, check: bool = True, max_bytes: int = ...) -> list[Record]: ...
def murmur2(key: Buffer) -> int: ...
def partition_for_key(key: Buffer, partitions: int) -> int: ...
