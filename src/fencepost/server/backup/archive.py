"""A backup in one file, FILE.tar.zst: a tar of the data directory's files and, last, of their manifest.

`zstd -d` and `tar` can read it. Every block of the tar is a zstd frame of its own, behind a frame that other programs
skip, so that a damaged block is known before it is unpacked:

     4  magic of a skippable frame: 50 2A 4D 18     4  its length, 12      (little-endian)
     4  size of the next frame     4  size of its content     4  CRC-32C of the next frame
     …  a zstd frame with up to 1 MiB of the tar
"""

from __future__ import annotations

import io
import os
import struct
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from struct import Struct
from typing import IO, Any, Final

import cramjam
from crc32c import crc32c

from fencepost.errors import StorageError
from fencepost.log.files import OsFiles, write_all
from fencepost.server.backup.copying import CHUNK, Advance, Copier, DirectFiles, forget_cache
from fencepost.server.backup.folder import BackupReport, explained, signing
from fencepost.server.backup.manifest import (
    MANIFEST,
    BackedUpFile,
    BackupManifest,
    DamagedBackup,
    SourceFile,
    check_path,
)
from fencepost.server.backup.point import PointFiles
from fencepost.server.storage.datadir import lock_file

SUFFIX: Final = ".tar.zst"
_HEAD: Final = Struct("<IIIII")
_MAGIC: Final = 0x184D2A50
_LEVEL: Final = 1
"""Records are often compressed already; higher levels would only take time from the server."""
_SYNC_EVERY: Final = 16 << 20


def is_archive(path: Path) -> bool:
    return path.name.endswith(SUFFIX)


def back_up(files: PointFiles, archive: Path, *, advance: Advance, disk: OsFiles | None = None) -> BackupReport:
    """Write the point to the archive, which replaces an older one when it is whole. On an error nothing is left."""
    disk = disk or DirectFiles()
    try:
        with _new_part(archive) as part:
            done = _write(files, part, disk, signing(files, advance))
            _read_back(part, archive)
            disk.rename(str(part), str(archive))
            disk.sync_directory(str(archive.parent))
    except (OSError, EOFError) as error:
        raise explained(error, archive.parent) from error
    size = sum(file.size for file in done)
    return BackupReport(archive, files.point.taken_ms, len(done), size, len(done), size)


@contextmanager
def _new_part(archive: Path) -> Iterator[Path]:
    """Yield the file that becomes the archive, empty and locked, and remove it after an error."""
    part = archive.with_name(f".{archive.name}.part")
    with open(part, "a+", encoding="ascii", opener=_private) as lock:
        try:
            lock_file(lock)
            if not os.path.samestat(part.stat(), os.fstat(lock.fileno())):
                raise FileExistsError
        except OSError:
            raise StorageError(f"another backup to {archive} is being made; wait for its end") from None
        os.ftruncate(lock.fileno(), 0)  # one that was killed left it
        try:
            yield part
        except BaseException:
            with suppress(OSError):
                part.unlink()
            raise


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _write(files: PointFiles, part: Path, disk: OsFiles, advance: Advance) -> list[BackedUpFile]:
    point = files.point
    out = _Frames(disk, part)
    done = []
    try:
        with tarfile.open(fileobj=out, mode="w|", bufsize=CHUNK) as tar:
            for file in point.files:
                source = files.place(file)
                status = source.stat()
                with source.open("rb") as reading:
                    counted = _Checked(reading, advance)
                    tar.addfile(_member(file.path, file.size, point.taken_ms), counted)
                identity = SourceFile(status.st_ino, status.st_mtime_ns)
                done.append(BackedUpFile(file.path, file.size, counted.checksum, identity))
            manifest = BackupManifest(point.fencepost, point.taken_ms, point.cluster_id, tuple(done)).encode()
            tar.addfile(_member(MANIFEST, len(manifest), point.taken_ms), io.BytesIO(manifest))
        out.end()
    finally:
        out.close()
    return done


def _read_back(part: Path, archive: Path) -> None:
    """Raise DamagedBackup unless every frame reads back as it was written: the archive may replace an older one."""
    with part.open("rb") as reading:
        forget_cache(reading.fileno())
        frames = _Unframed(reading, part, lambda _size: None)
        try:
            while frames.next_frame() is not None:
                pass
        except DamagedBackup:
            raise DamagedBackup(f"{archive} does not read back as it was written: is the disk damaged?") from None


def _member(name: str, size: int, taken_ms: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = size, taken_ms // 1000, 0o600
    return member


class _Checked(io.RawIOBase):
    """A stream that counts what is read from it."""

    def __init__(self, reading: IO[bytes], advance: Advance) -> None:
        self._reading = reading
        self._advance = advance
        self.checksum = 0

    def read(self, size: int = -1) -> bytes:
        data = self._reading.read(size)
        if len(data) < size:
            raise EOFError(f"{Path(self._reading.name).name} has fewer bytes than before")
        self.checksum = int(crc32c(data, self.checksum))
        self._advance(len(data))
        return data


class _Frames(io.RawIOBase):
    """A file of frames, which takes the tar's bytes."""

    def __init__(self, disk: OsFiles, path: Path) -> None:
        self._disk = disk
        self._fd = disk.open(str(path), create=True)
        self._position = self._synced = 0

    def write(self, data: Any) -> int:
        frame = bytes(cramjam.zstd.compress(data, level=_LEVEL))
        head = _HEAD.pack(_MAGIC, 12, len(frame), len(data), int(crc32c(frame)))
        write_all(self._disk, self._fd, head + frame, self._position)
        self._position += len(head) + len(frame)
        if self._position - self._synced >= _SYNC_EVERY:
            self._disk.sync(self._fd)
            self._synced = self._position
        return len(data)

    def end(self) -> None:
        self._disk.sync(self._fd)

    def close(self) -> None:
        if not self.closed:
            self._disk.close(self._fd)
        super().close()


class _Unframed(io.RawIOBase):
    """The tar inside an archive."""

    def __init__(self, file: IO[bytes], path: Path, advance: Advance) -> None:
        self._file = file
        self._path = path
        self._advance = advance
        self._rest = b""

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size:
            more = self._next()
            if not more:
                break
            self._rest += more
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def _next(self) -> bytes:
        at = self._file.tell()
        found = self.next_frame()
        if found is None:
            return b""
        frame, plain_size = found
        with suppress(ValueError, cramjam.DecompressionError):
            plain = bytes(cramjam.zstd.decompress(frame))
            if len(plain) == plain_size:
                return plain
        raise self._damaged(at)

    def next_frame(self) -> tuple[bytes, int] | None:
        """Return the next frame, verified by its checksum, and the size of its content; None at the end."""
        at = self._file.tell()
        head = self._file.read(_HEAD.size)
        if not head:
            return None
        with suppress(struct.error, OSError):
            magic, length, size, plain_size, checksum = _HEAD.unpack(head)
            frame = self._file.read(size)
            if (magic, length) == (_MAGIC, 12) and len(frame) == size and int(crc32c(frame)) == checksum:
                self._advance(len(head) + size)
                return frame, plain_size
        raise self._damaged(at)

    def _damaged(self, at: int) -> DamagedBackup:
        return DamagedBackup(f"{self._path} is damaged at byte {at}; restore another backup")


def unpack(archive: Path, folder: Path, disk: OsFiles, advance: Advance) -> BackupManifest:
    """Unpack the archive into a folder and verify every file; return its manifest. `advance` counts the archive's
    bytes, because how many come out is known only at its end."""
    copier = Copier(disk, lambda _size: None)
    found: dict[str, tuple[int, int]] = {}
    manifest: BackupManifest | None = None
    with archive.open("rb") as file:
        try:
            with tarfile.open(fileobj=_Unframed(file, archive, advance), mode="r|", bufsize=CHUNK) as tar:
                for member in tar:
                    content = tar.extractfile(member)
                    if content is None or manifest is not None:
                        raise DamagedBackup(f"{archive} has {member.name!r}, which is no file of a backup")
                    if member.name == MANIFEST:
                        manifest = BackupManifest.decode(content.read(), archive / MANIFEST)
                        continue
                    check_path(member.name, archive)
                    target = folder / member.name
                    target.parent.mkdir(0o700, parents=True, exist_ok=True)
                    found[member.name] = member.size, copier.write(content, target, member.size)
        except (tarfile.TarError, EOFError) as error:
            raise DamagedBackup(f"{archive} is damaged or not whole ({error}); restore another backup") from error
    if manifest is None:
        raise DamagedBackup(f"{archive} is not whole: its end with {MANIFEST} is missing; restore another backup")
    for each in manifest.files:
        if found.get(each.path) != (each.size, each.crc32c):
            raise DamagedBackup(
                f"{archive}: {each.path} is damaged: its content is not what was backed up; restore another backup"
            )
    return manifest
