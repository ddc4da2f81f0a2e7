"""The roster counts as members come, change and go; after each change it must say what a look at all of them says."""

from __future__ import annotations

from collections.abc import ValuesView

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fencepost.core.groups.classic import Group
from fencepost.core.groups.classic_messages import GroupSettings, Join, Member, Protocols, Roster

pytestmark = pytest.mark.unit

NAMES = ("range", "roundrobin", "sticky")
offers = st.lists(st.tuples(st.sampled_from(NAMES), st.binary(max_size=3)), min_size=1, max_size=4).map(tuple)
changes = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "offer", "rename", "assign", "park", "take"]), st.integers(0, 9), offers
    ),
    max_size=40,
)


def member(member_id: str, protocols: Protocols) -> Member:
    return Member(member_id, None, "client", "host", 30_000, 60_000, protocols)


def agreed(members: list[Member]) -> set[str]:
    """Return the protocols that all of them offer, by looking at each."""
    offered = [{name for name, _ in each.protocols} for each in members]
    return set.intersection(*offered) if offered else set(NAMES)


def check(roster: Roster) -> None:
    everyone = list(roster.values())
    assert list(roster) == [each.member_id for each in everyone]
    assert roster.back == sum(each.parked_join is not None for each in everyone)
    assert roster.all_are_back == all(each.parked_join is not None for each in everyone)
    assert roster.text_size == sum(
        len(each.member_id) + len(each.assignment) + sum(len(name) + len(data) for name, data in each.protocols)
        for each in everyone
    )
    for name in NAMES:
        assert roster.would_agree("a stranger", ((name, b""),)) == (name in agreed(everyone))
        for known in everyone:
            others = [each for each in everyone if each is not known]
            assert roster.would_agree(known.member_id, ((name, b""),)) == (name in agreed(others))
    if everyone and agreed(everyone):
        assert roster.chosen_protocol() in agreed(everyone)


@given(changes)
def test_it_says_what_a_look_at_all_members_says(steps: list[tuple[str, int, Protocols]]) -> None:
    roster = Roster()
    for number, (change, at, protocols) in enumerate(steps):
        everyone = list(roster.values())
        if change == "add" or not everyone:
            roster.add(member(f"{number}", protocols))
        else:
            chosen = everyone[at % len(everyone)]
            match change:
                case "remove":
                    roster.remove(chosen)
                case "offer":
                    roster.offer(chosen, protocols)
                case "rename":
                    roster.rename(chosen, f"again-{number}")
                case "assign":
                    roster.assign(chosen, b"x" * at)
                case "park":
                    roster.park_join(chosen, number)
                case _:
                    assert roster.take_join(chosen) is None or chosen.parked_join is None
        check(roster)


def test_a_protocol_that_most_prefer_is_chosen() -> None:
    roster = Roster()
    for name, protocols in {
        "a": (("range", b""), ("sticky", b"")),
        "b": (("sticky", b""), ("range", b"")),
        "c": (("sticky", b""), ("range", b"")),
    }.items():
        roster.add(member(name, protocols))
    assert roster.chosen_protocol() == "sticky"


def test_a_renamed_member_keeps_its_place() -> None:
    roster = Roster()
    for name in ("a", "b", "c"):
        roster.add(member(name, (("range", b""),)))
    roster.rename(roster["b"], "new")
    assert list(roster) == ["a", "new", "c"]
    assert "b" not in roster


class _Counted(Roster):
    """Counts the looks at all members."""

    looks = 0

    def values(self) -> ValuesView[Member]:
        _Counted.looks += 1
        return super().values()


def test_a_request_of_a_large_group_does_not_look_at_every_member() -> None:
    group = Group("group", GroupSettings(), iter(map(str, range(1000))).__next__, members=_Counted())

    def join(member_id: str, metadata: bytes) -> None:
        request = Join(member_id, 30_000, 60_000, "consumer", (("range", metadata),))
        group.join(0, request, object())
        group.next_deadline()

    for _ in range(200):
        join("", b"first")
    for member_id in list(group.pending):
        join(member_id, b"first")
    join(next(iter(group.members)), b"first")  # it was alone at first
    _Counted.looks = 0
    for member_id in list(group.members):
        join(member_id, b"second")
    assert group.generation == 3
    assert _Counted.looks < 20
