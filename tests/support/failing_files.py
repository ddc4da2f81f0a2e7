"""A file system with injected failures and power failures.

`FailingFiles` replaces `OsFiles`, with real files below one directory. It injects four kinds of faults:

- `fail_next("sync", errno.EIO)`: an operation fails once, several times, or from its n-th call on;
- `short_write(7)` and `free_bytes = 1000`: a write is short, the disk is full;
- `stop_at(n)`: the process dies at the n-th operation that changes something, so that a test can try *every* point of
  death. Written data stays, as after `kill -9`;
- `lose_power()`: unsynced data is lost. The class knows which content of a file, and which names of a directory, a sync
  has made durable. Everything else is undone or, with a random generator, partly undone and partly torn.

A failed sync drops the data that it should have written, as Linux does: a later successful sync does not bring it back.
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from fencepost.log.files import Buffer, OsFiles, Room, WouldBlock, write_all

Operation: TypeAlias = Literal[
    "open", "write", "read", "sync", "truncate", "mkdir", "rename", "remove", "sync_directory"
]


class Stopped(BaseException):
    """The simulated death of the process. Not an Exception, so that no error handling can clean up after it."""


@dataclass(slots=True)
class _PlannedFailure:
    error: int
    skip: int
    times: int


@dataclass(slots=True, frozen=True)
class _Write:
    position: int
    data: bytes


@dataclass(slots=True, frozen=True)
class _Truncate:
    size: int


@dataclass(slots=True, eq=False)
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[_Write | _Truncate] = field(default_factory=list)
    """The changes since the last sync, in order."""

    def sync(self) -> None:
        for change in self.pending:
            _change(self.durable, change)
        self.pending.clear()


@dataclass(slots=True, eq=False)
class _Directory:
    names: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    pending: list[dict[str, _Node | None]] = field(default_factory=list)
    """The changes since the last sync, in order; each is atomic. None: the name was removed."""

    def change(self, names: dict[str, _Node | None]) -> None:
        _rename(self.names, names)
        self.pending.append(names)

    def sync(self) -> None:
        for names in self.pending:
            _rename(self.durable, names)
        self.pending.clear()


_Node: TypeAlias = _File | _Directory


class FailingFiles(OsFiles):
    """The files below `root`, with faults. The initial content counts as durable."""

    def __init__(self, root: Path) -> None:
        super().__init__()
        self.root = str(root)
        self.cold = False
        """The page cache is empty: reads that must not block fail."""
        self.free_bytes: int | None = None
        """Space on the disk for writes that extend a file; None: unlimited."""
        self.counts: Counter[Operation] = Counter()
        """The number of calls so far."""
        self.changes = 0
        """The number of changing operations so far, which `stop_at` counts."""
        self._stop_at: int | None = None
        self._failures: dict[Operation, _PlannedFailure] = {}
        self._short_write: int | None = None
        self._tree = _load(self.root)
        self._open: dict[int, _File] = {}

    # --- what a test asks for ---------------------------------------------------------------------------------------

    def fail_next(self, operation: Operation, error: int, *, skip: int = 0, times: int = 1) -> None:
        """Let the next call of this operation fail, after `skip` successful ones; `times=-1`: all further calls."""
        self._failures[operation] = _PlannedFailure(error, skip, times)

    def heal(self) -> None:
        """Remove all planned failures, and the limit of the disk."""
        self._failures.clear()
        self._short_write = None
        self.free_bytes = None

    def short_write(self, size: int) -> None:
        """Let the next write write only `size` bytes."""
        self._short_write = size

    def stop_at(self, change: int | None) -> None:
        """Raise Stopped in changing operation number `change` (from 0) and in all later ones. The operation has no
        effect, except that a write is half done."""
        self._stop_at = change

    def lose_power(self, chance: random.Random | None = None) -> None:
        """Put the files into the state after a power failure: without `chance` no unsynced data survives, with it some
        does. This ends all faults; old descriptors become useless and may be closed."""
        self._open = {fd: _File() for fd in self._open}
        _crash(self._tree, chance)
        _empty(self.root)
        _store(self._tree, self.root)
        self.heal()
        self._stop_at = None

    # --- what the log asks for --------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool) -> int:
        self._meet("open")
        new = create and not os.path.exists(path)
        if new:
            self._change()
        fd = super().open(path, create=create)
        directory, name = self._parent(path)
        if new:
            directory.change({name: _File()})
        file = directory.names[name]
        assert isinstance(file, _File)
        self._open[fd] = file
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]
        super().close(fd)

    def write(self, fd: int, data: Buffer, position: int) -> int:
        size = len(data)
        if self._stop_at is not None and self.changes >= self._stop_at:
            self._put(fd, bytes(data[: size // 2]), position)
            raise Stopped
        self._meet("write")
        self._change()
        if self._short_write is not None:
            size, self._short_write = min(size, self._short_write), None
        if self.free_bytes is not None:
            growth = max(0, position + size - os.fstat(fd).st_size)
            size -= max(0, growth - self.free_bytes)
            if size <= 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.free_bytes -= max(0, position + size - os.fstat(fd).st_size)
        return self._put(fd, bytes(data[:size]), position)

    def read(self, fd: int, size: int, position: int) -> Buffer:
        self._meet("read")
        return super().read(fd, size, position)

    def read_nowait(self, fd: int, size: int, position: int) -> Buffer:
        if self.cold:
            raise WouldBlock
        self._meet("read")
        return super().read(fd, size, position)

    def sync(self, fd: int) -> None:
        try:
            self._meet("sync")
        except OSError:
            self._open[fd].pending.clear()
            raise
        self._change()
        self._open[fd].sync()

    def truncate(self, fd: int, size: int) -> None:
        self._meet("truncate")
        self._change()
        if self.free_bytes is not None:
            self.free_bytes += max(0, os.fstat(fd).st_size - size)
        super().truncate(fd, size)
        self._open[fd].pending.append(_Truncate(size))

    def mkdir(self, path: str) -> None:
        self._meet("mkdir")
        self._change()
        super().mkdir(path)
        directory, name = self._parent(path)
        directory.change({name: _Directory()})

    def rename(self, old: str, new: str) -> None:
        self._meet("rename")
        self._change()
        super().rename(old, new)
        directory, old_name = self._parent(old)
        target, new_name = self._parent(new)
        if directory is not target:
            raise NotImplementedError("renaming into another directory")
        directory.change({new_name: directory.names[old_name], old_name: None})

    def remove(self, path: str) -> None:
        self._meet("remove")
        self._change()
        size = os.stat(path).st_size
        super().remove(path)
        if self.free_bytes is not None:
            self.free_bytes += size
        directory, name = self._parent(path)
        directory.change({name: None})

    def sync_directory(self, path: str) -> None:
        self._meet("sync_directory")
        self._change()
        node = self._node(path)
        assert isinstance(node, _Directory)
        node.sync()

    def room(self, path: str) -> Room:
        real = super().room(path)
        return real if self.free_bytes is None else Room(self.free_bytes, real.total)

    def allocate(self, path: str, size: int) -> None:
        fd = self.open(path, create=True)
        try:
            write_all(self, fd, bytes(size), 0)
        finally:
            self.close(fd)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _meet(self, operation: Operation) -> None:
        """Count a call, and raise if a failure is planned for it."""
        self.counts[operation] += 1
        failure = self._failures.get(operation)
        if failure is None:
            return
        if failure.skip:
            failure.skip -= 1
            return
        if failure.times == 0:
            return
        failure.times -= 1
        raise OSError(failure.error, os.strerror(failure.error))

    def _change(self) -> None:
        if self._stop_at is not None and self.changes >= self._stop_at:
            raise Stopped
        self.changes += 1

    def _put(self, fd: int, data: bytes, position: int) -> int:
        count = super().write(fd, data, position)
        self._open[fd].pending.append(_Write(position, data[:count]))
        return count

    def _node(self, path: str) -> _Node:
        node: _Node = self._tree
        relative = os.path.relpath(path, self.root)
        for name in () if relative == "." else relative.split(os.sep):
            if name == os.pardir:
                return _Directory()  # above the root: assumed to be durable
            assert isinstance(node, _Directory)
            node = node.names[name]
        return node

    def _parent(self, path: str) -> tuple[_Directory, str]:
        directory = self._node(os.path.dirname(path))
        assert isinstance(directory, _Directory)
        return directory, os.path.basename(path)


def _change(content: bytearray, change: _Write | _Truncate) -> None:
    end = change.size if isinstance(change, _Truncate) else change.position
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    if isinstance(change, _Truncate):
        del content[change.size :]
    else:
        content[change.position : change.position + len(change.data)] = change.data


def _rename(names: dict[str, _Node], changes: dict[str, _Node | None]) -> None:
    for name, node in changes.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


def _load(path: str) -> _Directory:
    directory = _Directory()
    for name in os.listdir(path):
        below = os.path.join(path, name)
        directory.names[name] = _load(below) if os.path.isdir(below) else _File(bytearray(Path(below).read_bytes()))
    directory.durable = dict(directory.names)
    return directory


def _crash(directory: _Directory, chance: random.Random | None) -> None:
    if chance is not None:
        # File systems journal changes of names in order, so a prefix of the changes survives.
        for names in directory.pending[: chance.randint(0, len(directory.pending))]:
            _rename(directory.durable, names)
    directory.pending.clear()
    directory.names = dict(directory.durable)
    for node in directory.names.values():
        if isinstance(node, _Directory):
            _crash(node, chance)
        else:
            if chance is not None:
                for change in node.pending:
                    _perhaps(node.durable, change, chance)
            node.pending.clear()


def _perhaps(content: bytearray, change: _Write | _Truncate, chance: random.Random) -> None:
    """Apply part of a change: bytes reach the disk in any order, so it survives wholly, partly, as zeros, or not."""
    if isinstance(change, _Truncate):
        if chance.random() < 0.5:
            _change(content, change)
        return
    match chance.randrange(4):
        case 0:
            _change(content, change)
        case 1:
            _change(content, _Write(change.position, change.data[: chance.randint(0, len(change.data))]))
        case 2:
            _change(content, _Write(change.position, bytes(len(change.data))))


def _empty(path: str) -> None:
    for name in os.listdir(path):
        below = os.path.join(path, name)
        if os.path.isdir(below):
            _empty(below)
            os.rmdir(below)
        else:
            os.remove(below)


def _store(directory: _Directory, path: str) -> None:
    for name, node in directory.names.items():
        below = os.path.join(path, name)
        if isinstance(node, _Directory):
            os.mkdir(below)
            _store(node, below)
        else:
            Path(below).write_bytes(node.durable)


class GatedFiles(OsFiles):
    """Files whose syncs wait until the test lets them through."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()
        """Somebody stands in front of the closed gate."""

    def sync(self, fd: int) -> None:
        if not self.gate.is_set():
            self.waiting.set()
        assert self.gate.wait(60)
        super().sync(fd)
