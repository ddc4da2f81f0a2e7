"""Spark's processes: their Python, their Java, and how readers and writers travel to them.

By default Spark runs `python3` from the PATH, for tasks and to look for formats such as "fencepost". With
`.venv/bin/python job.py` that is another Python, which does not have this package. Spark has two settings: variables
(PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON), which it reads when its JVM starts, and a field of the running SparkContext,
which goes with every function that is sent to a worker. Where the user has chosen no other Python, both are set to
`fencepost-python` (`early_connect.py`).

PySpark pickles an object with the name of its module. A worker that has no such module fails with a bare "No module
named …", before any code of ours runs. So readers and writers travel as bytes beside a small function that is pickled
by value: it imports fencepost, or says where it is missing and how to install it (`Shipped`).
"""

from __future__ import annotations

import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from fencepost.errors import ConfigError
from fencepost.spark.early_connect import NAME

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

_DRIVERS: Final = "PYSPARK_DRIVER_PYTHON"
_EVERYWHERE: Final = "PYSPARK_PYTHON"

WHAT_TO_SET: Final = (
    "set PYSPARK_PYTHON, or spark.pyspark.python, to a Python that has fencepost on every machine: otherwise Spark's "
    "workers run python3 from their PATH"
)
CONNECT: Final = (
    "Spark Connect runs foreachBatch in another process, which does not know the query. Use "
    'writeStream.format("fencepost") and write.format("fencepost"), which work there, or a classic session '
    "(SparkSession.builder.master(…))"
)
OLDEST_JAVA: Final = 17
JAVA_ADVICE: Final = (
    f"install Java {OLDEST_JAVA} or newer (Debian: openjdk-17-jre-headless, macOS: brew install openjdk@17)"
)

_told: set[str] = set()
"""Applications that were already warned."""


def is_connect(given: Any) -> bool:
    """Return whether `given`, a DataFrame or a session, belongs to Spark Connect."""
    return type(given).__module__.startswith("pyspark.sql.connect")


def refuse_connect(given: Any) -> None:
    """Raise ConfigError if `given`, a DataFrame or a session, belongs to Spark Connect."""
    if is_connect(given):
        raise ConfigError(CONNECT)


def command() -> str:
    """Return what Spark is to run: `fencepost-python` where it is installed for this Python, else this Python."""
    installed = Path(sysconfig.get_path("scripts"), NAME)
    try:
        with installed.open("rb") as script:
            first = script.readline().decode().split()[0]
        is_ours = os.path.samefile(first.removeprefix("#!"), sys.executable)  # several may share a folder of scripts
    except (OSError, ValueError, IndexError):
        return sys.executable
    return str(installed) if is_ours else sys.executable


def is_this_python(name: str) -> bool:
    """Return whether a command, a path or a name on the PATH, is the Python of this process."""
    found = shutil.which(name)
    if found is None or os.path.dirname(found) != os.path.dirname(sys.executable):
        return False  # the Pythons of all virtual environments are links to the same file
    return os.path.basename(found) == NAME or os.path.samefile(found, sys.executable)


def let_spark_find_formats() -> None:
    """Let Spark look for formats in this Python, if it would run `python3` and that is another one. `import
    fencepost.spark` calls this, so that `format("fencepost")` needs no `register`."""
    if os.environ.get(_DRIVERS) or os.environ.get(_EVERYWHERE) or not sys.executable:
        return
    if is_this_python("python3"):
        return
    pyspark: Any = sys.modules.get("pyspark")
    if "PYSPARK_GATEWAY_PORT" not in os.environ and (pyspark is None or pyspark.SparkContext._gateway is None):
        os.environ[_DRIVERS] = command()
        return
    # The JVM runs already, and has read its variables.
    try:
        from pyspark.sql import SparkSession

        from fencepost.spark.source import register

        session = SparkSession.getActiveSession()
        if session is None:
            raise LookupError("there is no session yet")
        register(session)
    except Exception as error:  # noqa: BLE001 - an import must not fail for a format that the program may not use
        logger.warning(
            "Spark looks for formats in %s, which is not the Python of this program (%s). Before you use "
            'format("fencepost"), call fencepost.spark.register(spark) [%s]',
            shutil.which("python3") or "python3",
            sys.executable,
            str(error).partition("\n")[0],
        )


def is_local(context: SparkContext) -> bool:
    """Return whether all workers run on the driver's machine, as its children."""
    master: str = context.master
    return master == "local" or master.startswith("local[")


def known_cores(context: SparkContext) -> int | None:
    """Return the number of cores that run tasks; None: unknown. On a cluster it may change. And where the user has set
    spark.default.parallelism, Spark returns that number instead."""
    if not is_local(context) or context.getConf().get("spark.default.parallelism") is not None:
        return None
    cores: int = context.defaultParallelism
    return cores


def use_this_python(spark: SparkSession) -> None:
    """Let the workers of a local master run this program's Python, unless the user has chosen another one.

    With other masters the Python of the workers' machines is unknown: log once what to set.
    """
    if is_connect(spark):
        return  # the Connect server starts the workers
    context = spark.sparkContext
    given = os.environ.get(_EVERYWHERE) and context.pythonExec
    chosen = given or spark.conf.get("spark.pyspark.python", None)
    if chosen and not is_this_python(chosen):
        return
    if context.master.startswith("local") and sys.executable:
        context.pythonExec = command()
    elif not chosen and context.applicationId not in _told:
        _told.add(context.applicationId)
        logger.warning("%s", WHAT_TO_SET)


class Java(NamedTuple):
    path: str
    version: str
    major: int

    @property
    def new_enough(self) -> bool:
        return self.major >= OLDEST_JAVA


def find_java() -> Java | None:
    """Find Java as Spark does: in JAVA_HOME, else on the PATH. Return None if none runs."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None:
        return None
    try:
        said = subprocess.run([path, "-version"], capture_output=True, text=True, check=True, timeout=30).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_java(path, said)


def parse_java(path: str, said: str) -> Java | None:
    """Parse the output of `java -version`: 1.8.0_392 is Java 8, 17.0.15 is Java 17."""
    found = re.search(r'version "((?:1\.)?(\d+)[^"]*)"', said)
    return None if found is None else Java(path, found[1], int(found[2]))


class Shipped:
    """The base of what Spark sends to its workers."""

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return _unpacked, (pickle.dumps((type(self), self.__getstate__())),)


def _unpacked(content: bytes) -> Any:
    """Return the object, in a worker. This function must not use a name from outside itself."""
    import importlib
    import pickle
    import socket
    import sys

    try:
        importlib.import_module("fencepost.spark.workers")
    except ImportError as error:
        raise ImportError(
            f"fencepost cannot be imported in Spark's Python workers: {error} ({sys.executable} on "
            f"{socket.gethostname()}). Install it on every machine of the cluster, in the Python that PYSPARK_PYTHON "
            "or spark.pyspark.python names: pip install 'fencepost[arrow]'"
        ) from error
    kind, state = pickle.loads(content)  # noqa: S301 - our own bytes, by Spark's own way
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


_unpacked.__module__ = "__main__"  # cloudpickle passes on by value what belongs there
