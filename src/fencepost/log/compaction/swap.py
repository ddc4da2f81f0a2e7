"""The files that compaction keeps beside the segments: `swap` and `cleaned`.

`swap` makes the replacement of segments by their compacted copies atomic.

Compaction writes its results next to the originals, as `….log.TOKEN.cleaned`, with a token for each job. When all are
written and synced, the file `swap` says which of them replace which originals. The exchange is decided when this file
is durable. After a crash before that moment, the originals stay and the copies are removed. After it, the exchange is
completed, now or at the next start, with retries.

    swap    4 bytes  CRC-32C of what follows        8 bytes  token        4 bytes  number of exchanges, then for each
            16 bytes base offset of the new segment, or −1 if no record was left, and its size
            4 bytes  number of originals, then the base offset of each (8 bytes)

`cleaned` has the offsets up to which a log is compacted. Before the first offset every key occurs once: the next
compaction starts to read there. Before the second offset there may be gaps between batches; after it, a gap means
damage. They differ only during a compaction, which moves the second before it replaces segments, and the first
afterwards.

    cleaned     8 bytes  compacted up to here     8 bytes  gaps up to here     4 bytes  CRC-32C of both
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from struct import Struct
from typing import Final, NamedTuple

from fencepost.errors import StorageError
from fencepost.log.files import CHECKSUM_SIZE, OsFiles, checksum_of, read_file, write_file_atomically
from fencepost.log.segment import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, file_name
from fencepost.types import Offset

NAME: Final = "swap"
CLEANED_NAME: Final = "cleaned"
_CLEANED: Final = ".cleaned"

_COUNT: Final = Struct(">I")
_OFFSET: Final = Struct(">q")
_NEW: Final = Struct(">qq")
_NOTHING: Final = -1
_TOKEN_SIZE: Final = 8
_OFFSETS: Final = Struct(">qq")


class Cleaned(NamedTuple):
    """The content of the file `cleaned`."""

    upto: Offset = Offset(0)
    gaps_upto: Offset = Offset(0)

    @classmethod
    def read(cls, files: OsFiles, directory: str) -> Cleaned:
        """Read the file. If it is damaged, assume that nothing is compacted and that gaps may be anywhere."""
        try:
            data = read_file(files, f"{directory}/{CLEANED_NAME}")
        except FileNotFoundError:
            return cls()
        offsets, checksum = data[: _OFFSETS.size], data[_OFFSETS.size :]
        if len(offsets) != _OFFSETS.size or checksum != checksum_of(offsets):
            return cls(gaps_upto=Offset(2**63 - 1))
        return cls._make(_OFFSETS.unpack(offsets))

    def write(self, files: OsFiles, directory: str) -> None:
        """Write the file durably."""
        write_file_atomically(files, directory, CLEANED_NAME, self.encode())

    def encode(self) -> bytes:
        data = _OFFSETS.pack(*self)
        return data + checksum_of(data)


def new_token() -> bytes:
    """Return a token for the files of one job, because another job may still write after its log was abandoned."""
    return secrets.token_hex(4).encode()


def cleaned_suffix(token: bytes) -> str:
    return f"{LOG_SUFFIX}.{token.decode()}{_CLEANED}"


class Exchange(NamedTuple):
    new: Offset | None
    new_size: int
    originals: tuple[Offset, ...]
    """Base offsets, ascending."""


def commit(files: OsFiles, directory: str, token: bytes, exchanges: Sequence[Exchange]) -> None:
    """Decide the exchanges: write the `swap` file durably."""
    parts = [token, _COUNT.pack(len(exchanges))]
    for exchange in exchanges:
        parts.append(_NEW.pack(_NOTHING if exchange.new is None else exchange.new, exchange.new_size))
        parts.append(_COUNT.pack(len(exchange.originals)))
        parts += [_OFFSET.pack(base) for base in exchange.originals]
    body = b"".join(parts)
    write_file_atomically(files, directory, NAME, checksum_of(body) + body)


def complete(
    files: OsFiles,
    directory: str,
    token: bytes,
    exchanges: Sequence[Exchange],
    put_in_place: Callable[[str, str], None],
) -> None:
    """Remove the originals, rename the new segments, and remove the `swap` file. May be repeated.

    `put_in_place(old path, new path)` renames a new segment."""
    for exchange in exchanges:
        name_of_new(files, directory, token, exchange)  # before originals are removed
    for exchange in exchanges:
        # Ascending: if a start without the `swap` file ever found some of them, they would be the last ones, so a
        # record would never be left without the later one that replaced it.
        for base in exchange.originals:
            suffixes = (INDEX_SUFFIX, TIME_INDEX_SUFFIX) + ((LOG_SUFFIX,) if base != exchange.new else ())
            for suffix in suffixes:
                with suppress(FileNotFoundError):
                    files.remove(f"{directory}/{file_name(base, suffix)}")
        if exchange.new is not None:
            cleaned = f"{directory}/{file_name(exchange.new, cleaned_suffix(token))}"
            if files.exists(cleaned):
                put_in_place(cleaned, f"{directory}/{file_name(exchange.new, LOG_SUFFIX)}")
    files.sync_directory(directory)
    with suppress(FileNotFoundError):
        files.remove(f"{directory}/{NAME}")
    files.sync_directory(directory)


def name_of_new(files: OsFiles, directory: str, token: bytes, exchange: Exchange) -> str | None:
    """Return the name of the new segment's file, which is its old or its new one, or None if no record was left. Raise
    StorageError if it does not exist."""
    if exchange.new is None:
        return None
    for suffix in (cleaned_suffix(token), LOG_SUFFIX):
        name = file_name(exchange.new, suffix)
        if files.exists(f"{directory}/{name}") and files.size(f"{directory}/{name}") == exchange.new_size:
            return name
    raise StorageError(f"{directory}/{NAME} names a segment at offset {exchange.new} that does not exist")


def recover(files: OsFiles, directory: str, names: Sequence[str]) -> bool:
    """After a crash, complete an exchange that was decided, or remove the files of one that was not. Return True if
    files changed. Raise StorageError if the `swap` file is damaged, because the valid segments are then unknown."""
    changed = False
    if NAME in names:
        token, exchanges = read(files, directory)
        complete(files, directory, token, exchanges, files.rename)
        names = files.listdir(directory)
        changed = True
    leftovers = [name for name in names if name.endswith(_CLEANED)]
    for name in leftovers:
        files.remove(f"{directory}/{name}")
    return changed or bool(leftovers)


def read(files: OsFiles, directory: str) -> tuple[bytes, list[Exchange]]:
    """Return the token and the exchanges of the `swap` file; raise StorageError if it is damaged."""
    data = read_file(files, f"{directory}/{NAME}")
    body = data[CHECKSUM_SIZE:]
    if data[:CHECKSUM_SIZE] != checksum_of(body):
        raise StorageError(f"{directory}/{NAME} is damaged: the valid segments are unknown; restore a backup")
    try:
        return body[:_TOKEN_SIZE], _decode(body[_TOKEN_SIZE:])
    except struct.error as error:
        raise StorageError(f"{directory}/{NAME} was written by another version of fencepost; use that one") from error


def _decode(body: bytes) -> list[Exchange]:
    (count,) = _COUNT.unpack_from(body)
    at = _COUNT.size
    exchanges = []
    for _ in range(count):
        new, new_size = _NEW.unpack_from(body, at)
        (originals,) = _COUNT.unpack_from(body, at + _NEW.size)
        at += _NEW.size + _COUNT.size
        bases = [_OFFSET.unpack_from(body, at + number * _OFFSET.size)[0] for number in range(originals)]
        at += originals * _OFFSET.size
        exchanges.append(Exchange(None if new == _NOTHING else Offset(new), new_size, tuple(bases)))
    return exchanges
