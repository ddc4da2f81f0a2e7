"""A partition's log on files that can be made to fail, and what is in it, as plain values."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fencepost.core.producers.dedup import Accept
from fencepost.kernel import check_batch, decode_batch, encode_batch, read_header
from fencepost.kernel.header import BatchHeader
from fencepost.log.config import LogConfig
from fencepost.log.handles import Handles
from fencepost.log.partition import PartitionLog
from fencepost.types import Offset
from tests.support.failing_files import FailingFiles

NOW = 1_700_000_000_000
"""When everything happens, unless a test says otherwise."""

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200, snapshot_bytes=1 << 30, snapshot_batches=1 << 30)
"""Segments of half a dozen batches and an index entry every other batch, so that short tests meet the borders of both;
a snapshot only when a test takes one."""


class Stored(NamedTuple):
    offset: int
    value: bytes | None


def make_batch(
    *values: bytes | None,
    pid: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    timestamp: int = NOW,
    key: bytes | None = None,
    transactional: bool = False,
) -> bytearray:
    """A batch of these values; the records' times count up from `timestamp`."""
    return encode_batch(
        [(key, value, timestamp + number, ()) for number, value in enumerate(values)],
        pid=pid,
        epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
    )


def append(log: PartitionLog, batch: bytearray, *, now_ms: int = NOW) -> Offset:
    """What the server does with a batch that is new."""
    header = check_batch(batch)
    verdict = log.judge(header)
    assert isinstance(verdict, Accept), verdict
    return log.append(memoryview(batch), header, now_ms)


def headers_in(data: memoryview) -> list[BatchHeader]:
    """The headers of the batches that stand in `data`; nothing may be left over."""
    headers = []
    at = 0
    while at < len(data):
        header = check_batch(data, at)
        headers.append(header)
        at += header.size
    assert at == len(data)
    return headers


def records_in(data: memoryview) -> list[Stored]:
    found = []
    at = 0
    while at < len(data):
        found += [Stored(record.offset, record.value) for record in decode_batch(data, at)]
        at += read_header(data, at).size
    return found


def read_all(
    log: PartitionLog, start: int | None = None, *, upto: int | None = None, max_bytes: int = 700, block: bool = True
) -> list[Stored]:
    """What a consumer gets that begins at `start` and reads on, dropping what lies before the offset it asked for."""
    offset = Offset(log.start_offset if start is None else start)
    end = Offset(log.high_watermark if upto is None else upto)
    found: list[Stored] = []
    while parts := log.read(offset, max_bytes, upto=end, block=block):
        for part in parts:
            headers = headers_in(part)
            assert headers, "an empty part makes no progress"
            assert sum(header.size for header in headers) <= max_bytes or len(headers) == 1
            found += [record for record in records_in(part) if record.offset >= offset]
            assert headers[0].last_offset >= offset
            offset = headers[-1].next_offset
        assert offset <= end
    return found


class LogBed:
    """One directory with one log in it, which can be killed, unplugged and opened again."""

    def __init__(self, root: Path, config: LogConfig = SMALL, *, handles: int = 8) -> None:
        root.mkdir(exist_ok=True)
        self.config = config
        self.files = FailingFiles(root)
        self._handle_limit = handles
        self.handles = Handles(self.files, handles)
        self.directory = root / "topic-0"
        self.log = self.open()

    def open(self, *, now_ms: int = NOW) -> PartitionLog:
        self.log = PartitionLog.open(self.directory, self.config, files=self.files, handles=self.handles, now_ms=now_ms)
        return self.log

    def reopen(self) -> PartitionLog:
        """As after kill -9: the object is gone, the page cache is not."""
        self.log.abandon()
        self.handles.close()
        self.files.stop_at(None)
        self.handles = Handles(self.files, self._handle_limit)
        return self.open()

    def __del__(self) -> None:
        self.handles.close()

    def append(self, *values: bytes, **fields: int) -> Offset:
        return append(self.log, make_batch(*values, **fields))  # type: ignore[arg-type]

    def fill(self, count: int, *, start: int = 0) -> list[Stored]:
        """Appends so many records in batches of one, two and three, and makes them readable."""
        written = []
        number = start
        while number < start + count:
            size = min(number % 3 + 1, start + count - number)
            values = [b"value %d" % (number + record) for record in range(size)]
            offset = self.append(*values)
            written += [Stored(offset + place, value) for place, value in enumerate(values)]
            number += size
        self.log.advance_high_watermark(self.log.end_offset)
        return written

    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())

    def path(self, suffix: str, *, last: bool = True) -> Path:
        """The file of the last segment (or of the first one) with this suffix."""
        paths = sorted(self.directory.glob(f"*{suffix}"))
        return paths[-1 if last else 0]
