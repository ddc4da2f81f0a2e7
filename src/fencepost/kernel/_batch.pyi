from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from _typeshed import ReadableBuffer

from fencepost.kernel.header import BatchHeader, Buffer
from fencepost.kernel.record import Headers, Payload, Record, RecordColumns, Row, Scan, Sifted

_Row = TypeVar("_Row", bound=tuple[Any, ...])

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
    def append_columns(
        self,
        source: ColumnSource,
        start: int,
        stop: int,
        *,
        timestamp: int,
        rows: ReadableBuffer | None = None,
        limit: int = ...,
        checksum: bool = False,
    ) -> int: ...
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
    def work_ahead(self, codec: int = 0, level: int | None = None) -> None: ...
    def finish(
        self,
        codec: int = 0,
        level: int | None = None,
        *,
        pid: int = -1,
        epoch: int = -1,
        base_sequence: int = -1,
        transactional: bool = False,
    ) -> memoryview: ...
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
def unpack(codec: int, data: Buffer, max_bytes: int) -> Buffer: ...
def room(size: int) -> Block: ...
def checksum_of(data: Buffer, *, by_table: bool = False) -> int: ...
def decode_batch(buffer: Buffer, at: int = 0, *, check: bool = True, max_bytes: int = ...) -> list[Record]: ...
def decode_rows(
    buffer: Buffer, kind: type[_Row], head: tuple[str | int, ...], *, start: int = ..., stop: int = ...
) -> list[_Row]: ...

class Block:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class ColumnSource:
    rows: int
    def __init__(self, columns: RecordColumns) -> None: ...

class ColumnDecoder:
    rows: int
    def __init__(self, *, headers: bool = False) -> None: ...
    @property
    def size(self) -> int: ...
    def add(
        self,
        buffer: Buffer,
        at: int = 0,
        *,
        start: int = ...,
        stop: int = ...,
        check: bool = True,
        max_bytes: int = ...,
    ) -> int: ...
    def take(self) -> RecordColumns: ...

def scan_batch(
    buffer: Buffer, at: int = 0, *, header: BatchHeader | None = None, check: bool = True, max_bytes: int = ...
) -> Scan: ...
def find_time(
    buffer: Buffer, at: int = 0, *, timestamp: int, start: int = ..., check: bool = True, max_bytes: int = ...
) -> tuple[int, int] | None: ...

class KeyOffsets:
    def __init__(self, max_keys: int, *, secret: bytes | None = None) -> None: ...
    def __len__(self) -> int: ...
    @property
    def is_full(self) -> bool: ...
    def note(self, buffer: Buffer, at: int = 0, *, max_bytes: int = ...) -> None: ...
    def digest(self, key: bytes) -> bytes: ...
    def is_replaced(self, key: bytes, offset: int) -> bool: ...
    def sift(
        self,
        buffer: Buffer,
        at: int = 0,
        *,
        start_offset: int,
        drop_tombstones: bool,
        horizon: int | None = None,
        max_bytes: int = ...,
    ) -> Sifted: ...

def partition_rows(source: ColumnSource, partitions: int, *, keyless: int = -1) -> Block: ...
def group_rows(chosen: ReadableBuffer, partitions: int) -> tuple[Block, list[int]]: ...
def murmur2(key: Buffer) -> int: ...
def partition_for_key(key: Buffer, partitions: int) -> int: ...

class Place:
    settlement: Any
    index: int
    timestamp: int
    def __init__(self, settlement: Any, index: int, timestamp: int) -> None: ...

class Budget:
    limit: int
    held: int
    def __init__(self, limit: int) -> None: ...

class Gate:
    is_open: bool

class Slot:
    batch: Any
    builder: BatchBuilder | None
    held: int
    def begin(self, batch: Any, builder: BatchBuilder) -> None: ...
    def end(self) -> None: ...
    def append(
        self, topic: TopicSlots, key: Payload, value: Payload, timestamp: int, headers: Headers | None = None
    ) -> int: ...

class TopicSlots:
    held: int
    active: int
    slots: list[Any]
    budget: Budget
    undesignated: Any
    takes_keys: bool
    def __init__(self, budget: Budget) -> None: ...
    def set_slots(self, slots: list[Any]) -> None: ...
    def charge(self, size: int, slot: Slot | None = None) -> None: ...
    def move(self, size: int, source: Slot, target: Slot) -> None: ...
    def has_room_for(self, size: int, slot: Slot | None = None) -> bool: ...

class Intake:
    is_open: bool
    slowly: Callable[..., Any]
    def __init__(
        self,
        topics: dict[str, Any],
        ticket_type: type[Any],
        slowly: Callable[..., Any],
        batch_size: int,
        gate: Gate | None = None,
    ) -> None: ...
    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> Any: ...
