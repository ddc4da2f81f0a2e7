"""A server whose stdin, stdout or stderr is closed, full or a broken pipe: it serves, and stops cleanly at SIGTERM."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fencepost
from tests.support.process import free_port

pytestmark = pytest.mark.integration


def await_server(process: subprocess.Popen[bytes], address: str) -> None:
    """Wait until the server answers: it cannot say so."""
    while True:
        assert process.poll() is None
        try:
            with fencepost.Admin(address) as admin:
                admin.create_topic("orders", partitions=1)
            return
        except fencepost.Unreachable:
            time.sleep(0.05)  # another process has to come so far


@pytest.mark.parametrize(
    "files",
    ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-", "1>/dev/full 2>/dev/full", "1>&PIPE 2>&PIPE"],
    ids=["stdin", "stdout", "stderr", "all three", "a full disk", "a broken pipe"],
)
def test_a_server_needs_none_of_its_standard_files(tmp_path: Path, files: str) -> None:
    address = f"127.0.0.1:{free_port()}"
    command = f"exec {sys.executable} -m fencepost serve --data {tmp_path} --listen {address} --no-http {files}"
    read, write = os.pipe()
    os.close(read)
    with subprocess.Popen(["bash", "-c", command.replace("PIPE", str(write))], pass_fds=[write]) as process:
        os.close(write)
        try:
            await_server(process, address)
            with fencepost.Producer(address) as producer:
                producer.send("orders", b"value").result(60)
            process.terminate()
            assert process.wait(60) == 0
        finally:
            if process.poll() is None:
                process.kill()
