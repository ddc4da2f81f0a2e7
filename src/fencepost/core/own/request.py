"""What a client asks `own` for and what it is told, whichever road the question takes (OWN-1 to OWN-9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.core.own.rule import MAX_GENERATION, Wanted
from fencepost.errors import ErrorCode, FencepostError, ServerError, TimedOut
from fencepost.types import Generation, Milliseconds

MOST_RESOURCES: Final = 20_000
"""That one owner holds."""
LONGEST_NAME: Final = 1_000
DEFAULT_GROUP: Final = "default"
"""The group of a claim that names none."""
LONGEST_WAIT: Final = (2**31 - 1) / 1000
"""Seconds; about 25 days. What a claim that waits for as long as it takes asks for."""


Resources: TypeAlias = Sequence[str] | Mapping[str, int]
"""Names, which share `generation=`, or each name's own generation."""


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
        super().__init__(
            f"{first.name} in group {group!r} is at generation {first.generation}, token {first.token}{more}"
        )
        self.group = group
        self.rows = tuple(rows)
        """Of the resources that were refused: their present generation and newest token."""
        self.current_generation = first.generation
        self.token = first.token


class Demand(NamedTuple):
    """What a claimant asks for; made by `demand`, which checks it."""

    group: str
    resources: tuple[str, ...]
    generations: Mapping[str, int] | None
    """By name, the ones believed in; None for a claim that waits."""
    wait: float | None
    """Seconds to wait until all is free; None: take over at once, or be refused."""
    after: Mapping[str, int]
    """By name: grant it only if this is still the resource's newest token."""
    session: float
    """Seconds of silence after which the owner is severed; 0: it may be silent for ever."""

    def fields(self) -> Mapping[str, Any]:
        """The OwnRequest."""
        return own_fields(
            self.group,
            self.wanted(),
            wait_ms=0 if self.wait is None else max(1, round(self.wait * 1000)),
            session_ms=round(self.session * 1000),
        )

    def wanted(self) -> list[Wanted]:
        """Each resource, as `core/own/rule.py` judges it."""
        asked = self.generations or {}
        return [Wanted(name, Generation(asked.get(name, 0)), self.after.get(name)) for name in self.resources]


def demand(
    group: str | None,
    resources: Resources | None,
    *,
    generation: int | None = None,
    wait: bool | float | None = None,
    after: int | Mapping[str, int] | None = None,
    session: float = 0.0,
) -> Demand:
    """Check what the caller says before anything is asked: a mistake never costs anybody what they own.

    `group`: None means the default group. `resources` may map each name to its generation, and `after` each name to
    its token.
    """
    group = DEFAULT_GROUP if group is None else group
    if not isinstance(group, str):
        raise TypeError(f"group must be a str, not {type(group).__name__}; leave it out with own(resources=…)")
    if isinstance(resources, str):
        raise TypeError("resources is a list of names, not one name")
    if resources is None:
        raise ValueError("resources is missing: say what to own, as in own(group, ['orders-0'], generation=1)")
    if not 0 < len(group) <= LONGEST_NAME:
        raise ValueError(f"a group's name has 1 to {LONGEST_NAME} characters, not {len(group)}")
    names = tuple(resources)
    if not 0 < len(names) <= MOST_RESOURCES:
        raise ValueError(f"1 to {MOST_RESOURCES} resources are claimed, not {len(names)}")
    seen: set[str] = set()
    for name in names:
        if not 0 < len(name) <= LONGEST_NAME:
            raise ValueError(f"a resource's name has 1 to {LONGEST_NAME} characters, not {len(name)}")
        if name in seen:
            raise ValueError(f"resource {name!r} is named more than once")
        seen.add(name)
    seconds = LONGEST_WAIT if wait is True else None if wait is None or wait is False else float(wait)
    generations = _generations(resources, names, generation)
    if (generations is None) == (seconds is None):
        raise ValueError("say generation=N (the one you believe in; 0 resets), or wait=… to wait until it is free")
    for asked in (generations or {}).values():
        if not 0 <= asked <= MAX_GENERATION:
            raise ValueError(f"a generation is 0 to {MAX_GENERATION}, not {asked}")
    if seconds is not None and not 0 < seconds <= LONGEST_WAIT:
        raise ValueError(f"wait=True, or up to {LONGEST_WAIT:.0f} seconds, not {wait!r}")
    tokens = after if isinstance(after, Mapping) else {} if after is None else dict.fromkeys(names, after)
    for name, token in tokens.items():
        if name not in seen:
            raise ValueError(f"after names {name!r}, which is not claimed")
        if token < 0:
            raise ValueError(f"a token is 0 or more, not {token}")
    if not 0 <= session <= LONGEST_WAIT:
        raise ValueError(f"a session lasts up to {LONGEST_WAIT:.0f} seconds, not {session!r}")
    return Demand(group, names, generations, seconds, tokens, session)


def _generations(resources: Resources, names: Sequence[str], generation: int | None) -> Mapping[str, int] | None:
    if not isinstance(resources, Mapping):
        return None if generation is None else dict.fromkeys(names, generation)
    if generation is not None:
        raise ValueError("resources has a generation for each name: leave generation=… out")
    for name, asked in resources.items():
        if isinstance(asked, bool) or not isinstance(asked, int):
            raise TypeError(f"the generation of {name!r} must be an int, not {type(asked).__name__}")
    return dict(resources)


def own_fields(
    group: str,
    wanted: Sequence[Wanted],
    *,
    wait_ms: Milliseconds = 0,
    session_ms: Milliseconds = 0,
    release: Sequence[str] = (),
) -> Mapping[str, Any]:
    """Return the fields of an OwnRequest of either version: the encoder drops those that a version does not have."""
    return {
        "group": group,
        "wait_ms": wait_ms,
        "resources": [
            {
                "name": want.name,
                "resource": want.name,
                "generation": want.generation,
                **({} if want.after is None else {"after_token": want.after}),
            }
            for want in wanted
        ],
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
