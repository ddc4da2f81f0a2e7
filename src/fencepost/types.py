"""The protocol's numbers, each with its own type, so that mypy keeps an offset from passing for a sequence; names."""

import re
from typing import Final, NamedTuple, NewType, TypeAlias

Pid = NewType("Pid", int)
"""Producer id, 64 bit, assigned by the server; −1 in a batch without one."""

Epoch = NewType("Epoch", int)
"""Producer epoch, 16 bit; a higher one fences a lower one."""

Sequence = NewType("Sequence", int)
"""Number of a record per (pid, partition), from 0; after 2**31 − 1 comes 0."""

Offset = NewType("Offset", int)
"""Position in a partition's log, 64 bit, assigned by the server."""

Generation = NewType("Generation", int)
"""`own`'s counter for a resource."""

Milliseconds: TypeAlias = int
"""A time since 1970, or a duration; Kafka's protocol uses milliseconds for both."""

NO_PID = Pid(-1)
NO_EPOCH = Epoch(-1)
NO_SEQUENCE = Sequence(-1)
NO_TIMESTAMP: Milliseconds = -1
EARLIEST: Milliseconds = -2
LATEST: Milliseconds = -1
"""The two times by which ListOffsets asks for a partition's first offset and for its end."""


class TableRows(NamedTuple):
    """Which rows of a table are in the log, as ranges of row numbers in rising order."""

    persisted: tuple[range, ...]
    missing: tuple[range, ...]
    """Not in the log, and not on their way there."""
    unknown: tuple[range, ...]


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def partition_named(name: str) -> TopicPartition | None:
    """Parse `TOPIC-PARTITION`; return None if `name` does not have this form."""
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number)) if topic and number.isascii() and number.isdigit() else None


MAX_TOPIC_NAME: Final = 249
"""Characters of a topic's name."""
_LEGAL_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def fault_of_topic_name(name: str) -> str | None:
    """Return what is wrong with `name`, or None if a topic may have it. The rule is Kafka's."""
    if not name:
        return "a topic name must not be empty"
    if name in (".", ".."):
        return f"a topic cannot be called {name!r}"
    if len(name) > MAX_TOPIC_NAME:
        return f"a topic name has at most {MAX_TOPIC_NAME} characters, this one has {len(name)}"
    if not _LEGAL_TOPIC_NAME.fullmatch(name):
        return f"topic name {name!r} may only have ASCII letters, digits, '.', '_' and '-'"
    return None


class CommittedElse(str):
    """`auto.offset.reset` of a reader with a group: where the group left off, and this where nothing is committed."""

    __slots__ = ()
