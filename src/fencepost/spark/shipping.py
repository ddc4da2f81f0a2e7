"""How readers and writers travel to Spark's Python workers, and what a worker without fencepost says.

PySpark pickles an object with the name of its module. A worker that has no such module fails with a bare "No module
named …", before any code of ours runs. So readers and writers travel as bytes beside a small function that is pickled
by value: it imports fencepost, or says where it is missing and how to install it.
"""

from __future__ import annotations

import pickle
from typing import Any


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
        importlib.import_module("fencepost.spark.shipping")
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
