"""Short garbage collections, however many objects the server keeps.

A full collection of Python looks at every live object: with 10,000 open logs, or 100,000 remembered producers, it stops
the loop for 200 to 300 ms. Almost all of these objects live long, and their reference counts free them. So whatever
survives one full collection is set aside (`gc.freeze`), and the next one looks only at newer objects. The modules of
the server are set aside from the start: the first collection of them would take 20 ms. At most once an hour, a
collection of everything finds the cycles among objects that were set aside.

Only for a process that is a server and nothing else, because the setting affects the whole process.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping
from time import monotonic
from typing import Any, Final

_OLDEST: Final = 2
_WHOLE_SECONDS: Final = 3600.0


class _ShortCollections:
    def __init__(self) -> None:
        self._whole_at = monotonic()

    def __call__(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "stop":
            gc.freeze()
        elif monotonic() - self._whole_at > _WHOLE_SECONDS:
            self._whole_at = monotonic()
            gc.unfreeze()


def keep_collections_short() -> None:
    """Set aside the objects that exist, and from now on those that survive a full collection."""
    if not any(isinstance(callback, _ShortCollections) for callback in gc.callbacks):
        gc.callbacks.append(_ShortCollections())
        gc.freeze()
