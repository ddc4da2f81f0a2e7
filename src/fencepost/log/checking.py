"""A check of every file of a log that nobody has open: batches, indexes, snapshots. It changes nothing.

Recovery trusts everything before the newest snapshot; this check does not, and reads it all. It tells three things
apart: *damage*, bytes that were once right and are not any more; a *torn* end, which a crash leaves behind the last
sync and the next start cuts off; and *notes* on what the next start will do anyway.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from fencepost.errors import CorruptBatch, StorageError, UnsupportedFormat
from fencepost.kernel.header import HEADER_SIZE, checksum, read_header
from fencepost.log import snapshot as snapshots
from fencepost.log.compaction import swap
from fencepost.log.compaction.swap import CLEANED_NAME, Cleaned
from fencepost.log.files import CHECKSUM_SIZE, OsFiles, checksum_of, read_file
from fencepost.log.index import MAX_RELATIVE_OFFSET, SegmentIndex
from fencepost.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name, offset_of_name, walk_batches
from fencepost.log.snapshot import Snapshot
from fencepost.types import Offset


class FlawKind(Enum):
    DAMAGE = "damage"
    TORN = "torn"
    NOTE = "note"


class Flaw(NamedTuple):
    kind: FlawKind
    file: str
    text: str


class CheckedLog(NamedTuple):
    findings: list[Flaw]
    batches: int
    bytes: int


def check_log(files: OsFiles, directory: str) -> CheckedLog:
    """Check the log in this directory. Blocks."""
    return _Check(files, directory).run()


class _Check:
    def __init__(self, files: OsFiles, directory: str) -> None:
        self._files = files
        self._directory = directory
        self._findings: list[Flaw] = []
        self._batches = 0
        self._bytes = 0
        self._gaps_before = Offset(0)
        self._exchanged: dict[Offset, str] = {}
        """Names of the files that the next start puts in the place of segments."""

    def run(self) -> CheckedLog:
        names = self._files.listdir(self._directory)
        found = {base for name in names if (base := offset_of_name(name, LOG_SUFFIX)) is not None}
        if swap.NAME in names and not self._check_swap(found):
            return self._checked()
        self._check_cleaned(names)
        newest = self._check_snapshots(names)
        bases = sorted(found)
        self._check_segments(bases, newest)
        if newest is not None:
            self._check_against(newest, bases)
        return self._checked()

    def _checked(self) -> CheckedLog:
        return CheckedLog(self._findings, self._batches, self._bytes)

    def _note(self, kind: FlawKind, name: str, text: str) -> None:
        self._findings.append(Flaw(kind, f"{self._directory}/{name}", text))

    def _check_swap(self, bases: set[Offset]) -> bool:
        """Change the bases to those of the exchanged segments, which the next start puts in place; return False if the
        valid segments are unknown."""
        try:
            token, exchanges = swap.read(self._files, self._directory)
            for exchange in exchanges:
                new = swap.name_of_new(self._files, self._directory, token, exchange)
                bases.difference_update(exchange.originals)
                if exchange.new is not None and new is not None:
                    bases.add(exchange.new)
                    self._exchanged[exchange.new] = new
        except StorageError as error:
            self._note(FlawKind.DAMAGE, swap.NAME, f"the valid segments are unknown: {error}")
            return False
        self._note(FlawKind.NOTE, swap.NAME, "a compaction was interrupted; the next start completes it")
        return True

    def _log_name(self, base: Offset) -> str:
        return self._exchanged.get(base) or file_name(base, LOG_SUFFIX)

    def _check_cleaned(self, names: list[str]) -> None:
        if CLEANED_NAME not in names:
            return
        data = read_file(self._files, f"{self._directory}/{CLEANED_NAME}")
        if data[-CHECKSUM_SIZE:] != checksum_of(data[:-CHECKSUM_SIZE]):
            self._note(FlawKind.DAMAGE, CLEANED_NAME, "its checksum is wrong; the server will compact the log again")
        self._gaps_before = Cleaned.read(self._files, self._directory).gaps_upto

    def _check_snapshots(self, names: list[str]) -> Snapshot | None:
        newest: Snapshot | None = None
        for offset in snapshots.snapshot_offsets(names):
            name = file_name(offset, snapshots.SUFFIX)
            found = snapshots.decode(read_file(self._files, f"{self._directory}/{name}"))
            if found is None or found.end_offset != offset:
                self._note(
                    FlawKind.DAMAGE,
                    name,
                    "its checksum is wrong; the server takes an older one, or reads it all",
                )
            elif newest is None:
                newest = found
        return newest

    def _check_segments(self, bases: list[Offset], newest: Snapshot | None) -> None:
        expected: Offset | None = None
        for number, base in enumerate(bases):
            name = self._log_name(base)
            if expected is not None and not self._follows(expected, base):
                self._note(FlawKind.DAMAGE, name, f"it does not follow the segment before it, which ends at {expected}")
            end, position, size = self._check_segment(base)
            expected = end
            if position == size:
                continue
            last = number == len(bases) - 1
            unsynced = newest is None or (base, position) >= (newest.active_base, newest.position)
            if last and unsynced and not self._goes_on_behind(base, position, size):
                text = f"{size - position} bytes behind offset {end} are not a whole batch"
                self._note(FlawKind.TORN, name, f"{text}; the next start cuts them off")
            else:
                text = f"damaged at position {position}, behind offset {end}"
                if unsynced:
                    behind = len(bases) - number - 1
                    also = f" and removes the segments behind it ({behind})" if behind else ""
                    text += f"; the next start cuts the log off there{also}"
                self._note(FlawKind.DAMAGE, name, text)
            if not last:
                expected = None  # what follows cannot be compared

    def _check_segment(self, base: Offset) -> tuple[Offset, int, int]:
        """Return the end offset, the position behind the last good batch, and the size of the file."""
        path = f"{self._directory}/{self._log_name(base)}"
        size = self._files.size(path)
        end, position = base, 0
        fd = self._files.open(path, create=False)
        try:
            for placed, _, _ in walk_batches(self._files, fd, 0, size):
                header = placed.header
                if not self._follows(end, header.base_offset) or header.count < 0:
                    break
                if not 0 <= header.last_offset - base <= MAX_RELATIVE_OFFSET:
                    break
                end, position = header.next_offset, placed.position + header.size
                self._batches += 1
        finally:
            self._files.close(fd)
        self._bytes += position
        return end, position, size

    def _follows(self, expected: Offset, offset: Offset) -> bool:
        return offset == expected or expected < offset <= self._gaps_before

    def _goes_on_behind(self, base: Offset, position: int, size: int) -> bool:
        """Tell if a good batch follows the bad one: then the bad one was whole once."""
        fd = self._files.open(f"{self._directory}/{self._log_name(base)}", create=False)
        try:
            rest = memoryview(self._files.read(fd, size - position, position))
            at = read_header(rest, 0).size if len(rest) >= HEADER_SIZE else len(rest)
            header = read_header(rest, at) if at + HEADER_SIZE <= len(rest) else None
            return (
                header is not None and at + header.size <= len(rest) and checksum(rest, at, header.size) == header.crc
            )
        except (CorruptBatch, UnsupportedFormat):
            return False
        finally:
            self._files.close(fd)

    def _check_against(self, snapshot: Snapshot, bases: list[Offset]) -> None:
        """Check the snapshot against the segments, and the indexes against their checksums in the snapshot."""
        name = file_name(snapshot.end_offset, snapshots.SUFFIX)
        if snapshot.position and snapshot.active_base not in bases:
            self._note(FlawKind.DAMAGE, name, f"the segment {file_name(snapshot.active_base, LOG_SUFFIX)} is missing")
        # Retention writes the new start first and removes segments afterwards; only compaction leaves gaps.
        elif bases and bases[0] > max(snapshot.start_offset, self._gaps_before):
            first = file_name(bases[0], LOG_SUFFIX)
            self._note(FlawKind.DAMAGE, first, f"the segments before it are missing, from {snapshot.start_offset} on")
        for mark in snapshot.segments:
            log_name = file_name(mark.base_offset, LOG_SUFFIX)
            if mark.base_offset not in bases or mark.base_offset in self._exchanged:
                continue  # retention has removed it since, or the next start makes its index
            size = self._files.size(f"{self._directory}/{log_name}")
            if mark.base_offset == snapshot.active_base:
                if size < mark.size:
                    self._note(FlawKind.DAMAGE, log_name, f"it has {size} bytes, where the snapshot knows {mark.size}")
                    continue
            elif size != mark.size:
                if not self._gaps_before:
                    self._note(FlawKind.DAMAGE, log_name, f"it has {size} bytes, where the snapshot knows {mark.size}")
                continue  # it was compacted since
            paths = [file_name(mark.base_offset, suffix) for suffix in (INDEX_SUFFIX, TIME_INDEX_SUFFIX)]
            data = [self._content(path) for path in paths]
            if SegmentIndex.decode(mark.base_offset, data[0], data[1], mark.index_mark) is None:
                self._note(FlawKind.DAMAGE, paths[0], "the index is missing or damaged; the server rebuilds it")

    def _content(self, name: str) -> bytes:
        path = f"{self._directory}/{name}"
        return read_file(self._files, path) if self._files.exists(path) else b""
