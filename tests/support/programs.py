"""Small programs in processes of their own, and the records they leave in the log."""

from __future__ import annotations

import subprocess
import sys

from fencepost import Reader

PATIENCE = 120
"""Seconds after which a program counts as hung. Much more than any needs, also on a loaded machine."""


def run(script: str, *flags: str, stdin: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the script to its end. A program that hangs is killed, and raises TimeoutExpired."""
    command = [sys.executable, *flags, "-"] if stdin else [sys.executable, *flags, "-c", script]
    return subprocess.run(
        command, input=script if stdin else None, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def values(address: str, topic: str) -> list[str]:
    """Return the values of the topic's records, up to its end."""
    with Reader(address, topic, stop="latest") as reader:
        return [str(record.value, "utf-8") if record.value is not None else "" for record in reader]
