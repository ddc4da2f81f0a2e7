"""The decisions of a micro-batch, step by step; every interleaving is in tests/model/test_commit_model.py."""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest

from fencepost.core.micro_batch.protocol import (
    NOTHING_YET,
    BatchOutcome,
    CalledTwice,
    FrozenContent,
    Origin,
    Progress,
    Replaced,
    SinkInstance,
    SinkNameInUse,
    SinkProtocol,
    StepFailed,
    UnknownProgress,
    topics_of,
    topics_text,
)
from fencepost.core.producers.pid import Identity
from fencepost.types import Epoch, Pid
from tests.support.sink_steps import (
    Announce,
    Commit,
    Compare,
    Fence,
    Freeze,
    Look,
    Pause,
    Peek,
    Publish,
    SinkStep,
    steps_of,
)

pytestmark = pytest.mark.unit

FROZEN = FrozenContent()
ME = SinkInstance("me", "here", 1)
OTHER = Progress("q", 4, incarnation=3, token="other", host="there", process=2, time_ms=7)


def identity(epoch: int) -> Identity:
    return Identity(Pid(9), Epoch(epoch))


def protocol(**options: Any) -> SinkProtocol:
    return SinkProtocol("k", ME, **options)


def expect(steps: Generator[SinkStep, Any, BatchOutcome], *script: tuple[type, Any]) -> Any:
    """Plays (kind of step, what came of it), and answers the last step taken, or the outcome."""
    step: Any = next(steps)
    taken = step
    for kind, answer in script:
        assert isinstance(step, kind), f"{step}, not {kind.__name__}"
        taken = step
        try:
            step = steps.throw(answer) if isinstance(answer, StepFailed) else steps.send(answer)
        except StopIteration as finished:
            return finished.value
    return taken


def announced(
    found: Progress | None, **options: Any
) -> tuple[SinkProtocol, Generator[SinkStep, Any, BatchOutcome], Progress]:
    """A sink whose first call has just announced itself and fenced anew: its next step is a Look."""
    sink = protocol(**options)
    steps = steps_of(sink, "q", 5, now_ms=8)
    said = expect(
        steps, (Fence, identity(1)), (Look, found), (Announce, None), (Peek, identity(1)), (Fence, identity(2))
    )
    assert isinstance(said, Fence)
    record = Progress("q", 4, 4, "me", "here", 1, 8) if found else Progress("", NOTHING_YET, 1, "me", "here", 1, 8)
    return sink, steps, record


def test_the_first_call_announces_the_next_incarnation_and_keeps_what_was_written() -> None:
    steps = steps_of(protocol(), "q", 5, now_ms=8)
    announcement = expect(steps, (Fence, identity(1)), (Look, OTHER), (Announce, None))
    assert announcement == Announce(
        identity(1), replace(OTHER, incarnation=4, token="me", host="here", process=1, time_ms=8, replaced="other")
    )


def test_a_batch_is_frozen_published_and_committed_with_its_record() -> None:
    _, steps, record = announced(OTHER)
    step = steps.send(record)
    assert step == Freeze(fresh=True, position="")
    assert steps.send(FROZEN) == Publish(identity(2))
    assert steps.send(None) == Commit(identity(2), replace(record, batch=5))
    with pytest.raises(StopIteration) as finished:
        steps.send(None)
    assert finished.value.value == BatchOutcome(5, False, 1, identity(2))


def test_a_batch_that_is_in_already_is_skipped() -> None:
    _, steps, record = announced(OTHER)
    with pytest.raises(StopIteration) as finished:
        steps.send(replace(record, batch=5))
    assert finished.value.value.skipped


def test_a_commit_without_an_answer_is_decided_by_fence_and_look_alone() -> None:
    _, steps, record = announced(OTHER)
    steps.send(record)
    steps.send(FROZEN)
    steps.send(None)
    lost = StepFailed(TimeoutError("no answer"))
    assert isinstance(steps.throw(lost), Peek)
    assert isinstance(steps.send(identity(2)), Fence)
    assert isinstance(steps.send(identity(3)), Look)
    with pytest.raises(StopIteration) as finished:
        steps.send(replace(record, batch=5))  # it was in
    outcome = finished.value.value
    assert (outcome.skipped, outcome.attempts) == (False, 1)


@pytest.mark.parametrize("thaw", [False, True])
def test_a_failed_batch_is_published_under_a_new_epoch_and_refrozen_only_if_needed(thaw: bool) -> None:
    _, steps, record = announced(OTHER)
    steps.send(record)
    steps.send(FROZEN)
    steps.throw(StepFailed(RuntimeError("lost"), thaw=thaw))
    steps.send(identity(2))
    steps.send(identity(3))
    assert steps.send(record) == Freeze(fresh=thaw, position="")
    assert steps.send(FROZEN) == Publish(identity(3))


def test_when_the_attempts_are_over_the_cause_is_raised_after_a_last_fence() -> None:
    _, steps, record = announced(OTHER, attempts=1)
    steps.send(record)
    steps.send(FROZEN)
    steps.throw(StepFailed(RuntimeError("the cause")))
    assert isinstance(steps.send(identity(2)), Fence)  # which aborts what is open
    steps.send(identity(3))
    with pytest.raises(RuntimeError, match="the cause"):
        steps.send(record)


def test_a_replaced_driver_stops_before_it_fences() -> None:
    _, steps, record = announced(OTHER)
    steps.send(record)
    steps.send(FROZEN)
    assert isinstance(steps.throw(StepFailed(RuntimeError("refused"))), Peek)
    assert isinstance(steps.send(identity(7)), Look)  # somebody else's epoch: no Fence
    with pytest.raises(Replaced, match="process 2 on there") as replaced:
        steps.send(replace(OTHER, incarnation=9))
    assert replaced.value.by.incarnation == 9


def test_a_driver_stops_if_its_sink_was_reset_or_replaced_by_a_lower_number() -> None:
    """PIPE-4: incarnations begin anew with a reset; two drivers must not fence each other for ever."""
    for found, error in ((replace(OTHER, incarnation=1), Replaced), (None, SinkNameInUse)):
        _, steps, record = announced(OTHER)
        steps.send(record)
        steps.send(FROZEN)
        steps.throw(StepFailed(RuntimeError("refused")))
        steps.send(identity(7))
        with pytest.raises(error):
            steps.send(found)


def test_an_epoch_bumped_by_the_coordinator_is_taken_back_after_a_few_looks() -> None:
    _, steps, record = announced(OTHER)
    steps.send(record)
    steps.send(FROZEN)
    steps.throw(StepFailed(RuntimeError("timed out")))
    step = steps.send(identity(3))
    seen = []
    while not isinstance(step, Fence):
        seen.append(type(step))
        step = steps.send(record if isinstance(step, Look) else None)
    assert seen == [Look, Pause, Look, Pause, Look]


@pytest.mark.parametrize(
    ("found", "query", "batch", "match"),
    [
        (OTHER, "another", 0, "belongs to another query"),
        (OTHER, "another", 5, "belongs to another query"),
        (OTHER, "q", 3, "already written batch 4"),
        (None, "q", 1, "knows of no batch"),
        (replace(OTHER, batch=NOTHING_YET), "q", 1, "knows of no batch"),
    ],
)
def test_what_could_lose_or_repeat_records_is_refused_unless_adopted(
    found: Progress | None, query: str, batch: int, match: str
) -> None:
    steps = steps_of(protocol(), query, batch, now_ms=8)
    expect(steps, (Fence, identity(1)))
    with pytest.raises(SinkNameInUse, match=match) as refused:
        steps.send(found)
    assert refused.value.found == found
    steps = steps_of(protocol(adopt=True), query, batch, now_ms=8)
    said = expect(steps, (Fence, identity(1)), (Look, found), (Announce, None))
    assert (said.progress.query, said.progress.batch) == (query, batch - 1)


@pytest.mark.parametrize(
    ("found", "adopt"),
    [(None, "nobody"), (replace(OTHER, query="another"), "other"), (replace(OTHER, batch=9), "other")],
)
def test_adopt_may_name_the_record_and_then_adopts_no_other(found: Progress | None, adopt: str) -> None:
    """A driver that slept before its first fence would otherwise repeat a batch, if its successor was told to adopt."""
    steps = steps_of(protocol(adopt=adopt, process_per_batch=True), "q", 5, now_ms=8)
    said = expect(steps, (Look, found), (Fence, identity(1)), (Look, found), (Announce, None))
    assert (said.progress.query, said.progress.batch) == ("q", 4)
    of_its_successor = replace(OTHER, batch=6, token="successor")
    steps = steps_of(protocol(adopt=adopt, process_per_batch=True), "q", 5, now_ms=8)
    next(steps)
    with pytest.raises(SinkNameInUse, match=r"has already written batch 6.*adopt='successor' does the same"):
        steps.send(of_its_successor)


def test_a_name_that_only_announced_itself_is_anybodys() -> None:
    steps = steps_of(protocol(), "another", 0, now_ms=8)
    said = expect(steps, (Fence, identity(1)), (Look, replace(OTHER, query="q", batch=NOTHING_YET)), (Announce, None))
    assert said.progress.batch == NOTHING_YET


def test_a_query_numbered_by_its_progress_resumes_after_the_last_batch_and_position() -> None:
    sink = protocol()
    steps = steps_of(sink, "q", None, now_ms=8)
    mine = replace(OTHER, incarnation=4, token="me", position="here")
    expect(steps, (Fence, identity(1)), (Look, replace(OTHER, position="here")), (Announce, None), (Peek, identity(1)))
    steps.send(identity(2))
    assert steps.send(mine) == Freeze(fresh=True, position="here")
    steps.send(FROZEN)
    commit = steps.send(None)
    assert isinstance(commit, Commit)
    assert commit.progress.batch == 5


def test_an_announcement_that_fails_again_and_again_is_given_up() -> None:
    steps = steps_of(protocol(attempts=2), "q", 0, now_ms=8)
    expect(steps, (Fence, identity(1)), (Look, None), (Announce, StepFailed(RuntimeError("no"))))
    steps.send(identity(1))
    steps.send(identity(2))
    steps.send(None)
    with pytest.raises(RuntimeError, match="no"):
        steps.throw(StepFailed(RuntimeError("no")))


HERE = Origin(run="r2", offsets="o1", targets="b")
WRITTEN = replace(OTHER, batch=5, runs="r1", offsets="o1", targets="b")


def first_call(found: Progress, origin: Origin, **options: Any) -> Any:
    """The announcement of a sink whose first batch is number 5."""
    steps = steps_of(protocol(**options), "q", 5, now_ms=8, origin=origin)
    return expect(steps, (Fence, identity(1)), (Look, found), (Announce, None)).progress


def test_a_batch_that_is_in_from_an_earlier_run_is_skipped_and_that_is_recorded() -> None:
    steps = steps_of(protocol(), "q", 5, now_ms=8, origin=HERE)
    said = expect(steps, (Fence, identity(1)), (Look, WRITTEN), (Announce, None)).progress
    mine = replace(WRITTEN, incarnation=4, token="me", host="here", process=1, time_ms=8)
    assert said == replace(mine, runs="r1 r2", replaced="other")
    outcome = expect_rest(steps, (Peek, identity(1)), (Fence, identity(2)), (Look, said))
    assert (outcome.skipped, outcome.compared) == (True, True)


def expect_rest(steps: Generator[SinkStep, Any, BatchOutcome], *script: tuple[type, Any]) -> Any:
    """Goes on behind the steps that `expect` has answered, to the outcome."""
    (_, answer), *rest = script  # the kind of the first was not kept
    step: Any = steps.send(answer)
    for kind, answer in rest:
        assert isinstance(step, kind), f"{step}, not {kind.__name__}"
        try:
            step = steps.send(answer)
        except StopIteration as finished:
            return finished.value
    raise AssertionError(f"no outcome yet: {step}")


def test_a_sink_that_has_announced_itself_records_that_a_new_run_skips_a_batch() -> None:
    """The same object in a query that was stopped and started again."""
    sink, steps, record = announced(OTHER)
    steps.send(record)
    steps.send(FROZEN)
    steps.send(None)
    mine = replace(record, batch=5, runs="r1", offsets="o1", targets="b")
    steps.close()
    steps = steps_of(sink, "q", 5, now_ms=9, origin=HERE)
    lost = expect(steps, (Peek, identity(2)), (Fence, identity(3)), (Look, mine), (Announce, StepFailed(OSError())))
    assert lost.progress == replace(mine, runs="r1 r2", time_ms=9)
    script = [(Peek, identity(3)), (Fence, identity(4)), (Look, mine), (Announce, None)]
    script += [(Peek, identity(4)), (Fence, identity(5)), (Look, lost.progress)]
    assert expect_rest(steps, *script).skipped


@pytest.mark.parametrize("token", ["me", "other"])
@pytest.mark.parametrize("adopt", [False, True])
def test_a_batch_that_is_in_from_the_same_run_is_an_error_even_if_adopted(token: str, adopt: bool) -> None:
    """PIPE-2: Spark repeats no batch within a run; the second DataFrame would be lost."""
    found = replace(WRITTEN, token=token, runs="r1 r2 r3", targets="another topic")
    with pytest.raises(CalledTwice, match=r"called twice for batch 5: (it|another sink of this name) has"):
        first_call(found, HERE, adopt=adopt)


@pytest.mark.parametrize(
    ("origin", "match"),
    [
        (HERE._replace(offsets="o2"), "from other source offsets"),
        (HERE._replace(targets="c"), "but to b, and this one goes to c"),
    ],
)
def test_the_same_number_with_another_origin_is_refused_and_written_if_adopted(origin: Origin, match: str) -> None:
    """PIPE-4: a checkpoint that was restored from a backup; a sink whose topic was changed."""
    with pytest.raises(SinkNameInUse, match=match) as refused:
        first_call(WRITTEN, origin)
    assert refused.value.found == WRITTEN
    steps = steps_of(protocol(adopt=True), "q", 5, now_ms=8, origin=origin)
    said = expect(steps, (Fence, identity(1)), (Look, WRITTEN), (Announce, None)).progress
    assert (said.batch, said.runs, said.offsets) == (4, "", "")
    steps.send(identity(1))
    steps.send(identity(2))
    assert isinstance(steps.send(said), Freeze)
    steps.send(FROZEN)
    commit: Any = steps.send(None)
    assert (commit.progress.batch, commit.progress.runs, commit.progress.offsets) == (5, "r2", origin.offsets)


@pytest.mark.parametrize("found", [replace(WRITTEN, runs="", offsets="", targets=""), WRITTEN])
def test_a_record_or_caller_without_offsets_is_skipped_by_number_with_a_warning(found: Progress) -> None:
    """A record of an older fencepost; a Spark that does not tell the offsets."""
    origin = HERE if not found.offsets else HERE._replace(offsets="")
    steps = steps_of(protocol(adopt=True), "q", 5, now_ms=8, origin=origin)
    said = expect(steps, (Fence, identity(1)), (Look, found), (Announce, None)).progress
    outcome = expect_rest(steps, (Peek, identity(1)), (Fence, identity(2)), (Look, said))
    assert (outcome.skipped, outcome.compared) == (True, False)


def test_a_batch_behind_the_last_may_go_elsewhere() -> None:
    said = first_call(replace(WRITTEN, batch=4), Origin("r1", "o9", "another topic"))
    assert (said.batch, said.runs, said.offsets, said.targets) == (4, "r1", "o1", "b")


def test_several_processes_as_one_instance_look_before_they_fence() -> None:
    """A process of one batch does not know whether its run was replaced; to fence would abort the successor."""
    steps = steps_of(protocol(process_per_batch=True), "q", 5, now_ms=8)
    assert isinstance(next(steps), Look)
    with pytest.raises(Replaced, match="process 2 on there"):
        steps.send(replace(OTHER, replaced="before me after"))
    mine = replace(OTHER, token="me", replaced="before")
    steps = steps_of(protocol(process_per_batch=True), "q", 5, now_ms=8)
    commit = expect(
        steps, (Look, mine), (Fence, identity(1)), (Look, mine), (Freeze, FROZEN), (Publish, None), (Commit, None)
    )
    assert isinstance(commit, BatchOutcome)
    steps = steps_of(protocol(process_per_batch=True), "q", 5, now_ms=8)
    said = expect(steps, (Look, OTHER), (Fence, identity(1)), (Look, OTHER), (Announce, None))
    assert isinstance(said, Announce) and said.progress.replaced == "other"


@pytest.mark.parametrize(
    ("query", "batch", "said"),
    [("another", 5, "belongs to another query"), ("q", 3, "has already written batch 4")],
)
def test_a_process_whose_batch_may_not_follow_is_refused_before_it_fences(query: str, batch: int, said: str) -> None:
    """Whoever is at work under the name is not disturbed."""
    steps = steps_of(protocol(process_per_batch=True), query, batch, now_ms=8)
    assert isinstance(next(steps), Look)
    with pytest.raises(SinkNameInUse, match=said):
        steps.send(OTHER)
    steps = steps_of(protocol(process_per_batch=True, adopt=True), query, batch, now_ms=8)
    expect(steps, (Look, OTHER), (Fence, identity(1)), (Look, OTHER), (Announce, None))


def test_a_look_before_the_fence_that_finds_no_batch_refuses_nobody() -> None:
    """The newest record may be in a transaction that a fence would end."""
    for found in (None, replace(OTHER, query="", batch=NOTHING_YET)):
        steps = steps_of(protocol(process_per_batch=True), "q", 5, now_ms=8)
        expect(steps, (Look, found), (Fence, identity(1)))
        with pytest.raises(SinkNameInUse, match="knows of no batch"):
            steps.send(found)


def test_a_record_carries_who_was_replaced_and_forgets_the_oldest() -> None:
    found = replace(OTHER, replaced=" ".join(f"token-{number}" for number in range(16)))
    steps = steps_of(protocol(), "q", 5, now_ms=8)
    said = expect(steps, (Fence, identity(1)), (Look, found), (Announce, None))
    assert said.progress.replaced.split() == [*(f"token-{number}" for number in range(1, 16)), "other"]


def test_the_runs_of_a_record_are_bounded() -> None:
    found = replace(WRITTEN, runs=" ".join(f"run-{number}" for number in range(50)))
    runs = first_call(found, HERE).runs.split()
    assert (len(runs), runs[-1], runs[0]) == (16, "r2", "run-35")


def test_a_batch_that_is_in_the_log_is_compared_and_refused_or_written_if_adopted() -> None:
    """PIPE-2, PIPE-4: its topic was recreated, or a query with state computes other rows."""
    found = replace(WRITTEN, topics="c b=1", digest="d")
    begin = [(Fence, identity(1)), (Look, found)]
    with pytest.raises(SinkNameInUse, match=r"it differs\. adopt='other' does the same"):
        expect(steps_of(protocol(), "q", 5, now_ms=8, origin=HERE), *begin, (Compare, "it differs"))
    for adopt in (True, "other"):
        steps = steps_of(protocol(adopt=adopt), "q", 5, now_ms=8, origin=HERE)
        said = expect(steps, *begin, (Compare, "it differs"), (Announce, StepFailed(OSError())))
        assert (said.progress.batch, said.progress.digest) == (4, "")
        steps.send(identity(1))
        steps.send(identity(2))
        again: Any = steps.send(found)  # the announcement is not there: the same again, without comparing anew
        assert again.progress == said.progress
    steps = steps_of(protocol(), "q", 5, now_ms=8, origin=HERE)
    said = expect(steps, *begin, (Compare, ""), (Announce, None)).progress
    assert (said.runs, said.topics, said.digest) == ("r1 r2", "c b=1", "d")
    assert expect_rest(steps, (Peek, identity(1)), (Fence, identity(2)), (Look, said)).skipped


def test_a_sink_that_is_started_again_compares_a_batch_of_its_own() -> None:
    sink, steps, record = announced(OTHER)
    steps.send(record)
    steps.close()
    mine = replace(record, batch=5, runs="r1", offsets="o1", targets="b", digest="d")
    steps = steps_of(sink, "q", 5, now_ms=9, origin=HERE)
    with pytest.raises(SinkNameInUse, match="it differs"):
        expect(steps, (Peek, identity(2)), (Fence, identity(3)), (Look, mine), (Compare, "it differs"))


def test_the_record_of_a_batch_has_what_was_frozen() -> None:
    _, steps, record = announced(OTHER)
    steps.send(record)
    steps.send(FrozenContent("here", "c b=1", "d"))
    commit: Any = steps.send(None)
    assert (commit.progress.position, commit.progress.topics, commit.progress.digest) == ("here", "c b=1", "d")


def test_a_jump_in_numbers_is_refused_or_told() -> None:
    """PIPE-4: batches 5 and 6 are not in the log."""
    script = [(Fence, identity(1)), (Look, OTHER)]
    every = steps_of(protocol(process_per_batch=True), "q", 7, now_ms=8)
    with pytest.raises(SinkNameInUse, match=r"batch 4 of query q last; this is batch 7"):
        expect(every, (Look, OTHER))  # before it fences
    some = steps_of(protocol(), "q", 7, now_ms=8)
    said = expect(some, *script, (Announce, None)).progress
    rest = [(Peek, identity(1)), (Fence, identity(2)), (Look, said), (Freeze, FROZEN), (Publish, None), (Commit, None)]
    assert expect_rest(some, *rest).missing == 2


def test_topics_survive_their_text_and_one_without_an_id_is_left_out() -> None:
    assert topics_of(topics_text("c", {"b": 2, "a": 1, "old": None})) == ("c", {"a": "1", "b": "2"})
    assert topics_text("c", {"old": None}) == ""
    assert topics_of("") == ("", {})
    assert topics_of("c odd a=1") == ("c", {"a": "1"})


def test_a_restart_keeps_the_measurements_of_the_last_batch() -> None:
    found = replace(WRITTEN, rows=5, fence_ms=1, look_ms=2, freeze_ms=3, publish_ms=4, previous_commit_ms=6)
    said = first_call(found, HERE)
    assert (said.rows, said.fence_ms, said.look_ms, said.freeze_ms) == (5, 1, 2, 3)
    assert (said.publish_ms, said.previous_commit_ms) == (4, 6)


def test_a_progress_record_survives_its_encoding_and_foreign_ones_are_refused() -> None:
    assert Progress.decode(WRITTEN.encode()) == WRITTEN
    for strange in (b"", b"[]", b"{}", b'{"version": 4}', b'{"version": 6}', b'{"version": 1, "odd": 1}'):
        with pytest.raises(UnknownProgress):
            Progress.decode(strange)


@pytest.mark.parametrize(
    "odd",
    [
        {"batch": "x"}, {"batch": True}, {"time_ms": 10**400}, {"time_ms": 1.5}, {"query": 5}, {"host": "\ud800"},
        {"rows": "x"}, {"publish_ms": 1.5},
    ],
    ids=str,
)  # fmt: skip
def test_a_record_whose_fields_are_of_other_types_is_a_foreign_one(odd: dict[str, object]) -> None:
    """Metrics and the HTTP API show the fields of whatever is in the topic."""
    with pytest.raises(UnknownProgress):
        Progress.decode(json.dumps({**json.loads(WRITTEN.encode()), **odd}).encode())
    with pytest.raises(UnknownProgress):
        Progress.decode(b"[" * 100_000)
