"""Lets Spark's Python workers import PySpark from the virtual environment, where Python has compiled it.

Python imports this module when it starts, if this folder is in PYTHONPATH. Spark lets its workers look into archives
first: `pyspark.zip`, `py4j-….zip` and the jar of its core. Python keeps no compiled modules for an archive, so each
process compiled PySpark anew, and it read the jar's long directory several times: a second of CPU time per process,
and a driver has about ten. A Python in which PySpark is not installed keeps the archives.
"""

import os
import sys

ARCHIVES = ("pyspark.zip", "py4j-", "spark-core")

_others = [entry for entry in sys.path if not os.path.basename(entry).startswith(ARCHIVES)]
if any(os.path.exists(os.path.join(entry, "pyspark", "__init__.py")) for entry in _others):
    sys.path[:] = _others
