"""The end of the program: what must be finished then.

Python runs exit hooks in the reverse order of their registration, and none that is registered while they run. So the
hook is registered by `import fencepost`: hooks that a program registers later run first, and may still send.
"""

from __future__ import annotations

import atexit

TYPE_CHECKING = False  # `typing` would double the cost of `import fencepost`
if TYPE_CHECKING:
    from collections.abc import Callable

_work: list[Callable[[], object]] = []
_is_over = False


def at_exit(work: Callable[[], object]) -> None:
    """Have this called when the program ends."""
    _work.append(work)


def is_over() -> bool:
    """Return whether the hook has begun: what is started from now on would not be finished."""
    return _is_over


def finish() -> None:
    """Do the work: by `atexit`, or by multiprocessing's finalizers in its children, which skip `atexit`."""
    global _is_over
    _is_over = True
    for work in _work:
        work()


atexit.register(finish)
