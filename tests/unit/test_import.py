"""`import fencepost` costs next to nothing: it is counted in modules, since milliseconds depend on the machine."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

import fencepost

pytestmark = pytest.mark.unit

HEAVY = {"pyspark", "pyarrow", "pandas", "numpy", "kio", "uvloop", "cramjam", "re2", "rich", "click"}
HEAVY |= {"asyncio", "sqlite3", "ssl", "socket", "threading"}


def loaded_by(program: str) -> set[str]:
    """The modules that the program loads, beyond those of an empty one."""
    show = "; import json, sys; print(json.dumps(sorted(sys.modules)))"
    empty, full = (
        set(json.loads(subprocess.check_output([sys.executable, "-I", "-c", text + show])))
        for text in ("import json", program)
    )
    return full - empty


def test_importing_the_package_loads_next_to_nothing() -> None:
    loaded = loaded_by("import fencepost")
    assert {name for name in loaded if name.partition(".")[0] == "fencepost"} == {
        "fencepost",
        "fencepost._version",
        "fencepost.at_exit",
    }
    assert not HEAVY & loaded
    assert len(loaded) <= 30, sorted(loaded)  # `typing` and what it needs


@pytest.mark.parametrize("name", ["Producer", "Reader", "Admin", "Server"])
def test_a_client_or_a_server_needs_neither_spark_nor_arrow(name: str) -> None:
    loaded = loaded_by(f"import fencepost; fencepost.{name}")
    assert not {"pyspark", "pyarrow", "pandas", "numpy", "rich", "click"} & {
        module.partition(".")[0] for module in loaded
    }


def test_a_server_without_tls_or_a_file_loads_neither() -> None:
    loaded = loaded_by("import fencepost; fencepost.Server().start().stop()")
    assert "fencepost.server.net.listener" in loaded
    assert not {"fencepost.server.net.tls", "fencepost.server.config.loading", "tomllib"} & loaded


FIRST_RECORD = """
import fencepost, sys
producer = fencepost.Producer(sys.argv[1])
producer.send("cold-start", b"value").result()
"""


UNUSED = (
    "own.kafka",
    "own.kafka_topic",
    "own.kafka_session",
    "own.server",
    "own.owned_partitions",
    "own.hold",
    "reader",
    "admin_client",
    "aio",
    "standby",
    "admin.results",
    "admin.lasting",
    "cluster.config_names",
    "cluster.sasl",
    "read.fetcher",
    "micro_batch.runner",
)


def test_the_first_record_loads_only_what_it_needs() -> None:
    """Counted in modules: what a program that only sends would wait for at its start, and never use."""
    show = "loaded = sorted(sys.modules); producer.close(); import json; print(json.dumps(loaded))"
    with fencepost.Server() as server:
        said = subprocess.check_output([sys.executable, "-I", "-c", FIRST_RECORD + show, server.address])
    loaded = set(json.loads(said))
    unused = {f"fencepost.client.{name}" for name in UNUSED}
    assert all(importlib.util.find_spec(name) for name in unused)  # one that was renamed would never be found loaded
    assert not unused & loaded
    others = {"asyncio", "crc32c", "email", "argparse", "json", "difflib", "hmac"}
    assert not others & loaded, others & loaded
    assert len(loaded) <= 265, len(loaded)  # 351 with what is named above


def test_a_command_loads_only_its_own_module() -> None:
    loaded = loaded_by(
        "import fencepost.cli, click; fencepost.cli.main.get_command(click.Context(fencepost.cli.main), 'ping')"
    )
    assert {name for name in loaded if name.startswith("fencepost.cli.")} == {
        "fencepost.cli.errors",
        "fencepost.cli.options",
        "fencepost.cli.output",
        "fencepost.cli.ping",
    }
    assert not {name for name in loaded if name.startswith(("fencepost.client", "fencepost.server", "rich"))}
