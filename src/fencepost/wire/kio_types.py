"""The first import of kio, without hypothesis.

kio registers its types with hypothesis if that is installed. A server in a developer's environment would load all of
hypothesis for that (150 ms and 15 MB before the first response), so it is hidden from kio unless it is already loaded.
"""

from __future__ import annotations

import sys

_hidden = "hypothesis" not in sys.modules
if _hidden:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # the documented way to make an import fail
try:
    from kio.schema.errors import ErrorCode
finally:
    if _hidden:
        del sys.modules["hypothesis"]

__all__ = ["ErrorCode"]
