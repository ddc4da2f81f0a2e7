"""The reset of a group's committed offsets: a form, a preview of every partition, and the change.

The rules are those of `fencepost group reset` (`core/groups/resets.py`). The form that confirms a preview carries its
values. If the group has members by then, or one of its offsets is another one, nothing changes, and the browser gets a
new preview.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, urlencode

from fencepost.core.groups.resets import (
    EXAMPLE_TIME,
    LogRange,
    ResetKind,
    ResetTarget,
    at_time,
    check_no_members,
    check_within,
    parse_shift,
    parse_target,
    shifted,
)
from fencepost.core.rows import GroupDetails
from fencepost.errors import ConfigError, ErrorCode, ServerError
from fencepost.server.http.console.page import ConsoleAction, ConsolePage, Done, PageRefused, Values, Visit
from fencepost.server.views.asking import check
from fencepost.server.views.groups import describe_group
from fencepost.server.views.topics import describe_topic, offsets
from fencepost.types import EARLIEST, LATEST, Offset, TopicPartition
from fencepost.wire.apis import Key

MOST: Final = 200
"""Partitions of one reset: a person must be able to look at the preview, and the form must carry it."""
_ROW: Final = re.compile(r"([0-9]{1,9})\.([0-9]{1,18}|-)\.([0-9]{1,18})")


class ResetLine(NamedTuple):
    """One partition of a preview."""

    partition: int
    before: int | None
    after: int


class Changed(Exception):
    """The group is not as it was in the preview; the text says what is different."""


class ResetForm(NamedTuple):
    """The fields of the form as the person has filled them in."""

    topic: str = ""
    to: str = "earliest"
    """earliest, latest, an offset or a time; or so many offsets away, with a sign."""
    partitions: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> ResetForm:
        return cls(*(fields.get(name, "").strip() or cls._field_defaults[name] for name in cls._fields))

    @property
    def is_shift(self) -> bool:
        return self.to[0] in "+-"

    @property
    def target(self) -> ResetTarget:
        """Return the destination, or raise ConfigError."""
        return parse_shift(self.to) if self.is_shift else parse_target(self.to)


def read_partitions(text: str, count: int) -> list[int]:
    """Return the partitions that a text names: 0,2,5-9; all of the topic's if it is empty. Raise ConfigError."""
    if not text:
        if count > MOST:
            raise ConfigError(f"the topic has {count} partitions: choose at most {MOST} of them, such as 0-{MOST - 1}")
        return list(range(count))
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", part)
        if match is None:
            raise ConfigError(f"partitions {text}: expected numbers and ranges such as 0,2,5-9")
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < count:
            raise ConfigError(f"partitions {text}: the topic has partitions 0 to {count - 1}")
        if last - first >= MOST or len(found := found | set(range(first, last + 1))) > MOST:
            raise ConfigError(f"partitions {text}: choose at most {MOST}")
    return sorted(found)


def write_lines(lines: list[ResetLine]) -> str:
    """Return a preview as the form carries it."""
    return "_".join(f"{at}.{'-' if before is None else before}.{after}" for at, before, after in lines)


def read_lines(text: str) -> list[ResetLine]:
    """Return the preview that a form carries, or raise PageRefused."""
    rows = [_ROW.fullmatch(part) for part in text.split("_")]
    lines = [ResetLine(int(row[1]), None if row[2] == "-" else int(row[2]), int(row[3])) for row in rows if row]
    if len(lines) != len(rows) or len(lines) > MOST or len({line.partition for line in lines}) != len(lines):
        raise PageRefused("the form does not carry a preview: go back and make a new one")
    return lines


async def read(visit: Visit) -> Values:
    name = visit.path["group"]
    form = ResetForm.of(visit.query)
    details = await describe_group(visit.caller, name)
    lines: list[ResetLine] = []
    problem, left_out = "", 0
    try:
        check_no_members(name, details.state, len(details.members))
        if form.topic:
            lines, left_out = await preview(visit, name, form)
    except (ConfigError, ServerError) as error:
        problem = (error.reason if isinstance(error, ServerError) else "") or str(error)
    return {
        "group": details,
        "form": form,
        "topics": await _topics(visit, details),
        "problem": problem,
        "lines": lines,
        "left_out": left_out,
        "carried": write_lines(lines),
        "command": command(name, form),
        "example": EXAMPLE_TIME,
    }


async def preview(visit: Visit, group: str, form: ResetForm) -> tuple[list[ResetLine], int]:
    """Return the changes, and the number of partitions that stay because there is nothing to shift."""
    target = form.target
    topic = await describe_topic(visit.caller, form.topic)
    chosen = read_partitions(form.partitions, topic.partitions)
    before = await committed(visit, group, form.topic, chosen)
    ranges = await _ranges(visit, form.topic, chosen)
    match target.kind:
        case ResetKind.TIME:
            found = await offsets(visit.caller, form.topic, chosen, target.value)
            after = at_time(found, {index: ranges[index].end for index in chosen})
        case ResetKind.SHIFT:
            after = shifted(before, target.value, ranges)
        case _:
            after = dict.fromkeys(chosen, target.value)
    check_within(form.topic, after, ranges)
    return [ResetLine(index, before[index], after[index]) for index in sorted(after)], len(chosen) - len(after)


async def committed(visit: Visit, group: str, topic: str, partitions: list[int]) -> dict[int, int | None]:
    """Return the committed offsets of some partitions; None for those without."""
    known = visit.broker.topics.require(topic)
    asked = {"name": topic, "topic_id": known.topic_id, "partition_indexes": partitions}
    answer = await visit.caller.ask(
        Key.OFFSET_FETCH, groups=[{"group_id": group, "topics": [asked]}], require_stable=False
    )
    [found] = answer["groups"]
    check(found, f"group {group!r}")
    result: dict[int, int | None] = {}
    for row in found["topics"][0]["partitions"]:
        check(row, f"offset of {topic}-{row['partition_index']}")
        result[row["partition_index"]] = row["committed_offset"] if row["committed_offset"] >= 0 else None
    return result


async def _ranges(visit: Visit, topic: str, partitions: list[int]) -> dict[int, LogRange]:
    starts = await offsets(visit.caller, topic, partitions, EARLIEST)
    ends = await offsets(visit.caller, topic, partitions, LATEST)
    return {index: LogRange(Offset(starts[index]), Offset(ends[index])) for index in partitions}


async def _topics(visit: Visit, group: GroupDetails) -> list[str]:
    """Return the topics that the group has committed or reads, as suggestions."""
    answer = await visit.caller.ask(
        Key.OFFSET_FETCH, groups=[{"group_id": group.name, "topics": None}], require_stable=False
    )
    names = {topic["name"] for topic in answer["groups"][0]["topics"]}
    names |= {where.topic for member in group.members for where in member.assignment}
    return sorted(names)[:MOST]


def command(group: str, form: ResetForm) -> str:
    """Return the command that does the same, without the range of partitions, which it names one by one."""
    where = "--shift-by" if form.is_shift else "--to"
    return (
        f"fencepost group reset {shlex.quote(group)} --topic {shlex.quote(form.topic)} {where} {shlex.quote(form.to)}"
    )


# -- the change -------------------------------------------------------------------------------------------------


async def act(visit: Visit, fields: Mapping[str, str]) -> Done:
    name, form = visit.path["group"], ResetForm.of(fields)
    lines = read_lines(fields.get("changes", ""))
    path = f"/groups/{quote(name, safe='')}"
    try:
        is_moved = await change(visit, name, form.topic, lines)
    except Changed as error:
        again = urlencode({key: value for key, value in form._asdict().items() if value})
        return Done(f"{path}/reset?{again}", f"Nothing was changed: {error}. This is a new preview.", made=False)
    count = "1 partition" if len(lines) == 1 else f"{len(lines)} partitions"
    done = "were moved as shown" if is_moved else "are as shown already"
    return Done(path, f"The committed offsets of {count} of {form.topic} {done}.")


async def change(visit: Visit, group: str, topic: str, lines: list[ResetLine]) -> bool:
    """Commit the offsets of a preview; raise Changed if the group or the log is not as it was. Return False if the
    offsets are there already: a form that is sent twice must not end with "nothing was changed"."""
    # Who may not see the group, the topic or the offsets does not learn about them from a refusal further down.
    details = await describe_group(visit.caller, group)
    count = (await describe_topic(visit.caller, topic)).partitions
    chosen = [line.partition for line in lines]
    if max(chosen) >= count:
        raise PageRefused(f"topic {topic} has partitions 0 to {count - 1}")
    if await committed(visit, group, topic, chosen) == {line.partition: line.after for line in lines}:
        return False
    try:
        check_no_members(group, details.state, len(details.members))
        check_within(topic, {line.partition: line.after for line in lines}, await _ranges(visit, topic, chosen))
    except ServerError as error:
        if error.code in (ErrorCode.NON_EMPTY_GROUP, ErrorCode.OFFSET_OUT_OF_RANGE):
            raise Changed(error.reason or str(error)) from None
        raise
    answer = await visit.caller.ask(
        Key.OFFSET_COMMIT,
        lambda: _judge(visit, group, topic, lines),
        group_id=group,
        member_id="",
        group_instance_id=None,
        generation_id_or_member_epoch=-1,
        topics=[
            {
                "name": topic,
                "topic_id": visit.broker.topics.require(topic).topic_id,
                "partitions": [
                    {
                        "partition_index": line.partition,
                        "committed_offset": line.after,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                    for line in lines
                ],
            }
        ],
    )
    rows = answer["topics"][0]["partitions"]
    refused = [row for row in rows if row["error_code"] != ErrorCode.NONE]
    if refused:
        code, where = refused[0]["error_code"], TopicPartition(topic, refused[0]["partition_index"])
        others = f"; {len(rows) - len(refused)} other partitions were moved" if len(refused) < len(rows) else ""
        raise ServerError(
            code, f"{len(refused)} of {len(rows)} partitions were not moved ({where}: {code.name}){others}"
        )
    return True


def _judge(visit: Visit, group: str, topic: str, lines: list[ResetLine]) -> None:
    """Raise Changed unless the group is as it was in the preview. The commit follows at once."""
    entry = visit.broker.groups.get(group)
    if entry is None:
        raise Changed(f"there is no group {group!r} any more")
    if entry.group.members:
        raise Changed(f"group {group!r} has members now")
    if entry.committing:
        raise Changed("somebody else commits offsets of the group at this moment")
    for line in lines:
        found = entry.offsets.get(TopicPartition(topic, line.partition))
        now = found.offset if found is not None else None
        if now != line.before:
            raise Changed(
                f"{topic}-{line.partition} has the committed offset {_word(now)} now, not {_word(line.before)}"
            )


def _word(offset: int | None) -> str:
    return "none" if offset is None else str(offset)


PAGES: Final = (ConsolePage("/groups/{group:path}/reset", "Reset offsets", read, template="group_reset.html"),)
ACTIONS: Final = (ConsoleAction("/groups/{group:path}/reset", act),)
