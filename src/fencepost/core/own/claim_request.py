"""Claims as a client makes them: checking the arguments, the fields of an OwnRequest, and reading its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.core.own.ownership import MAX_GENERATION, ClaimedResource, OwnedResource
from fencepost.errors import ErrorCode, FencepostError, ServerError, TimedOut
from fencepost.types import Generation, Milliseconds

MAX_RESOURCES_PER_OWNER: Final = 20_000
"""Resources that one owner may own."""
MAX_NAME_CHARACTERS: Final = 1_000
DEFAULT_GROUP: Final = "default"
"""The group of a claim that names none."""
MAX_WAIT_SECONDS: Final = (2**31 - 1) / 1000
"""Seconds, about 25 days: what `wait=True` asks for."""


Resources: TypeAlias = Sequence[str] | Mapping[str, int]
"""Names that share `generation=`, or a generation for each name."""


class Refused(FencepostError):
    """The claim was refused and nothing changed hands: an owner has a higher generation, or `after` is outdated."""

    code = ErrorCode.ILLEGAL_GENERATION

    def __init__(self, group: str, rows: Sequence[OwnedResource]) -> None:
        first = rows[0]
        more = f" (and {len(rows) - 1} more)" if len(rows) > 1 else ""
        super().__init__(
            f"{first.name} in group {group!r} is at generation {first.generation}, token {first.token}{more}"
        )
        self.group = group
        self.rows = tuple(rows)
        """The refused resources, with their current generation and newest token."""
        self.current_generation = first.generation
        self.token = first.token


class ClaimRequest(NamedTuple):
    """A checked claim; `check_claim` makes it."""

    group: str
    resources: tuple[str, ...]
    generations: Mapping[str, int] | None
    """The generations that the claimant believes in, by name; None for a claim that waits."""
    wait: float | None
    """Seconds to wait until all resources are free; None: take over at once, or be refused."""
    after: Mapping[str, int]
    """By name: grant the resource only if this is still its newest token."""
    session: float
    """Seconds of silence after which the owner is severed; 0: never."""

    def fields(self) -> Mapping[str, Any]:
        """Return the fields of the OwnRequest."""
        return own_fields(
            self.group,
            self.claimed(),
            wait_ms=0 if self.wait is None else max(1, round(self.wait * 1000)),
            session_ms=round(self.session * 1000),
        )

    def claimed(self) -> list[ClaimedResource]:
        """Return the resources as `core/own/ownership.py` judges them."""
        generations = self.generations or {}
        return [
            ClaimedResource(name, Generation(generations.get(name, 0)), self.after.get(name)) for name in self.resources
        ]


def check_claim(
    group: str | None,
    resources: Resources | None,
    *,
    generation: int | None = None,
    wait: bool | float | None = None,
    after: int | Mapping[str, int] | None = None,
    session: float = 0.0,
) -> ClaimRequest:
    """Check the arguments of a claim before anything is sent, so that a mistake never costs anybody a resource.

    `group=None` is the default group. `resources` may map each name to its generation, and `after` each name to its
    token.
    """
    group = DEFAULT_GROUP if group is None else group
    if not isinstance(group, str):
        raise TypeError(f"group must be a str, not {type(group).__name__}; leave it out with own(resources=…)")
    if isinstance(resources, str):
        raise TypeError("resources must be a list of names, not a str")
    if resources is None:
        raise ValueError("resources is missing: say what to own, as in own(group, ['orders-0'], generation=1)")
    if not 0 < len(group) <= MAX_NAME_CHARACTERS:
        raise ValueError(f"group must have 1 to {MAX_NAME_CHARACTERS} characters, not {len(group)}")
    names = tuple(resources)
    if not 0 < len(names) <= MAX_RESOURCES_PER_OWNER:
        raise ValueError(f"resources must have 1 to {MAX_RESOURCES_PER_OWNER} names, not {len(names)}")
    seen: set[str] = set()
    for name in names:
        if not 0 < len(name) <= MAX_NAME_CHARACTERS:
            raise ValueError(f"a resource's name must have 1 to {MAX_NAME_CHARACTERS} characters, not {len(name)}")
        if name in seen:
            raise ValueError(f"resource {name!r} is named more than once")
        seen.add(name)
    seconds = MAX_WAIT_SECONDS if wait is True else None if wait is None or wait is False else float(wait)
    generations = _generations(resources, names, generation)
    if (generations is None) == (seconds is None):
        raise ValueError("give either generation=N (the one you believe in; 0 resets) or wait=… (until it is free)")
    for number in (generations or {}).values():
        if not 0 <= number <= MAX_GENERATION:
            raise ValueError(f"a generation must be 0 to {MAX_GENERATION}, not {number}")
    if seconds is not None and not 0 < seconds <= MAX_WAIT_SECONDS:
        raise ValueError(f"wait must be True or up to {MAX_WAIT_SECONDS:.0f} seconds, not {wait!r}")
    tokens = after if isinstance(after, Mapping) else {} if after is None else dict.fromkeys(names, after)
    for name, token in tokens.items():
        if name not in seen:
            raise ValueError(f"after names {name!r}, which is not claimed")
        if token < 0:
            raise ValueError(f"a token must be 0 or more, not {token}")
    if not 0 <= session <= MAX_WAIT_SECONDS:
        raise ValueError(f"session must be 0 to {MAX_WAIT_SECONDS:.0f} seconds, not {session!r}")
    return ClaimRequest(group, names, generations, seconds, tokens, session)


def _generations(resources: Resources, names: Sequence[str], generation: int | None) -> Mapping[str, int] | None:
    if not isinstance(resources, Mapping):
        return None if generation is None else dict.fromkeys(names, generation)
    if generation is not None:
        raise ValueError("resources has a generation for each name: leave generation=… out")
    for name, number in resources.items():
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"the generation of {name!r} must be an int, not {type(number).__name__}")
    return dict(resources)


def own_fields(
    group: str,
    resources: Sequence[ClaimedResource],
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
                "name": claimed.name,
                "resource": claimed.name,
                "generation": claimed.generation,
                **({} if claimed.after is None else {"after_token": claimed.after}),
            }
            for claimed in resources
        ],
        "session_ms": session_ms,
        "release": list(release),
    }


def granted_by(group: str, answer: Any) -> list[OwnedResource]:
    """Return the resources that an OwnResponse grants. Raise Refused, TimedOut (the wait is over) or ServerError."""
    code = ErrorCode.of(answer.error_code)
    rows = [OwnedResource(row.name, Generation(row.generation), row.token) for row in answer.resources]
    if code is ErrorCode.NONE:
        return rows
    if code is ErrorCode.ILLEGAL_GENERATION and rows:
        raise Refused(group, rows)
    if code is ErrorCode.REQUEST_TIMED_OUT:
        raise TimedOut(f"group {group!r}: {answer.error_message}")
    raise ServerError(code, answer.error_message or "")
