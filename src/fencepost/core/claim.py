"""What a client asks `own` for and what it is told, whichever road the question takes (OWN-1 to OWN-9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fencepost.errors import ErrorCode, FencepostError, ServerError, TimedOut
from fencepost.types import Generation, Milliseconds


class Held(NamedTuple):
    """One resource that was granted."""

    name: str
    generation: Generation
    token: int
    """Durable, never used again, higher than all before it: hand it to other systems as a fencing token."""


class Refused(FencepostError):
    """Refused, and nothing changed hands: somebody has a higher generation, or was there since `after`."""

    code = ErrorCode.ILLEGAL_GENERATION

    def __init__(self, group: str, rows: Sequence[Held]) -> None:
        first = rows[0]
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        super().__init__(f"{first.name} in group {group!r} is at generation {first.generation}{more}")
        self.group = group
        self.rows = tuple(rows)
        """Of the resources that were refused: their present generation and newest token."""
        self.current_generation = first.generation
        self.token = first.token


def own_fields(
    group: str,
    resources: Sequence[str],
    *,
    generation: int | None = None,
    wait_ms: Milliseconds = 0,
    after: int | None = None,
    session_ms: Milliseconds = 0,
    release: Sequence[str] = (),
) -> Mapping[str, Any]:
    """The OwnRequest. A claim that does not wait must say which generation it believes in: taking over by accident is
    what the generation is there to prevent."""
    if isinstance(resources, str):
        raise TypeError("resources is a list of names, not one name")
    if generation is None and not wait_ms and resources:
        raise ValueError("say generation=N (the one you believe in; 0 resets), or wait=… to wait until it is free")
    extra = {} if after is None else {"after_token": after}
    return {
        "group": group,
        "wait_ms": wait_ms,
        "resources": [{"name": name, "generation": generation or 0, **extra} for name in resources],
        "session_ms": session_ms,
        "release": list(release),
    }


def read_claim(group: str, answer: Any) -> list[Held]:
    """What was granted; Refused, TimedOut (a wait that was over) or ServerError otherwise."""
    code = ErrorCode.of(answer.error_code)
    rows = [Held(row.name, Generation(row.generation), row.token) for row in answer.resources]
    if code is ErrorCode.NONE:
        return rows
    if code is ErrorCode.ILLEGAL_GENERATION and rows:
        raise Refused(group, rows)
    if code is ErrorCode.REQUEST_TIMED_OUT:
        raise TimedOut(f"group {group!r}: {answer.error_message}")
    raise ServerError(code, answer.error_message or "")
