"""Frames of bytes that a test has received already."""

from __future__ import annotations

from fencepost.wire.frame import FrameReader
from fencepost.wire.primitives import Buffer


def feed(reader: FrameReader, data: Buffer) -> list[bytes]:
    """Return the frames that `data` completes."""
    view, frames = memoryview(data), []
    while view:
        free = reader.free()[: len(view)]
        free[:] = view[: len(free)]
        frames += [bytes(frame) for frame in reader.filled(len(free))]
        view = view[len(free) :]
    return frames
