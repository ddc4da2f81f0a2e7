"""Exactly once on Spark: the decisions of one micro-batch, without doing any of it.

Theory of operation. A micro-batch is one transaction of the sink's transactional id, shared by all tasks. What may
happen to it (a crash between any two steps, an answer that is lost, a task that runs twice, a driver that was only
paused and wakes up inside its successor's batch) comes down to one question: *is batch N of query Q in the log?* It is
answered in one way only: by a fence, after which nobody of before can write or commit, and a look at the sink's
progress topic, whose last committed record was written in the same transaction as the batch it speaks of.

A batch's number alone does not say which rows it has: a checkpoint that was restored from a backup plans batch N anew,
perhaps from other offsets. So the record also carries the batch's *origin*: a hash of the offsets, the targets, and
Spark's run. Another hash or other targets under the same number: `SinkNameInUse`. The same run: Spark never repeats a
batch within a run, so somebody calls the sink, or another sink of its name, twice, and `CalledTwice` says so.

`SinkProtocol.micro_batch` is a generator. It yields what is to be done next (`Fence`, `Look` …) and is sent what
came of it; a step that failed is thrown in as `StepFailed`. It never looks at an error code: whatever went wrong after
the fence, the next turn fences and looks again. Whoever carries the steps out (`client/transactions/micro_batch.py`,
or a test without a JVM) decides nothing.

    ┌▶ Peek* ─▶ Fence ─▶ Look ─▶ in the log? ── yes ─▶ (from another run: Announce) ─▶ done
    │                              │ no, tries left
    │                              ▼
    │                 (first call of a sink: Announce, and once round)
    │                              ▼
    └── anything fails ◀── Freeze ─▶ Publish ─▶ Commit ─▶ done

*Peek comes before every fence but a sink's first. A driver that was replaced while it was paused must not fence its
successor; it learns of it without disturbing: the epoch is no longer its own, and the progress names a newer
incarnation.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

from fencepost.core.producers.pid import Identity
from fencepost.errors import ConfigError, Fenced, FencepostError
from fencepost.types import Milliseconds

NOTHING_YET: Final = -1
"""The batch of a progress record that was written before any micro-batch."""

_VERSION: Final = 2
_READABLE: Final = (1, 2)
"""Versions of progress records. Version 1 had no origin."""

_RUNS_KEPT: Final = 16
"""Of those that have dealt with a batch. Each run after the first passes over it, crashes, and is started again."""

_LOOKS_BEFORE_TAKING_BACK: Final = 3
"""Whoever took the epoch announces itself a moment later; after so many looks it was the coordinator's own bump."""


# --- what is known ---


@dataclass(frozen=True, slots=True)
class SinkInstance:
    """One sink object in one driver process."""

    token: str
    """Unlike any other, so that a record can be known as one's own."""
    host: str
    process: int


class Origin(NamedTuple):
    """Where a batch comes from and goes to, beyond its number. An empty field is not known, and not compared."""

    run: str = ""
    """Spark's id of this start of the query."""
    offsets: str = ""
    """A hash of the source offsets that the batch begins and ends with."""
    targets: str = ""
    """Where its rows go, as the sink was told."""


UNKNOWN: Final = Origin()


@dataclass(frozen=True, slots=True)
class Progress:
    """The record of the progress topic: what was written last, and who is at work."""

    query: str
    batch: int
    incarnation: int
    token: str
    host: str
    process: int
    time_ms: Milliseconds
    position: str = ""
    """Copy alone: where in the source it goes on."""
    runs: str = ""
    """The run of the query that wrote this batch and those that passed over it since, with blanks between them. It and
    the two fields below are empty in records of version 1, for jobs and for copies."""
    offsets: str = ""
    targets: str = ""

    def encode(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> Progress:
        try:
            fields = json.loads(value)
            if fields.pop("version") not in _READABLE:
                raise UnknownProgress("a progress record of a newer version of fencepost: upgrade this one")
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnknownProgress(f"not a progress record: {value[:100]!r}") from error

    def seen_by(self, run: str) -> bool:
        """Whether this run of the query has dealt with the batch."""
        return run in self.runs.split()

    @property
    def wrote_something(self) -> bool:
        return self.batch > NOTHING_YET

    def __str__(self) -> str:
        wrote = f"batch {self.batch} of query {self.query}" if self.wrote_something else "nothing yet"
        return f"{wrote}, by process {self.process} on {self.host}"


# --- what goes wrong ---


class UnknownProgress(FencepostError):
    """The progress topic holds something that this version cannot read."""

    fatal = True


class SinkNameInUse(FencepostError):
    """The sink's name has written for another query, or further than this one is: skipping or writing could both be
    wrong, so a person decides."""

    fatal = True

    def __init__(self, message: str, found: Progress | None) -> None:
        super().__init__(message)
        self.found = found


class CalledTwice(ConfigError):
    """Two DataFrames for one batch under one name: the second one's rows would be taken for rows that are in the log.
    A mistake in the program, so `adopt` does not help."""


class Replaced(Fenced):
    """A newer driver runs this sink. Final: this one stops, and has not disturbed it."""

    def __init__(self, name: str, by: Progress) -> None:
        super().__init__(
            f"sink {name!r} is run by process {by.process} on {by.host} now (incarnation {by.incarnation}, "
            f"since {by.time_ms} ms): this driver was replaced and stops",
            persisted="no",
        )
        self.by = by


class Poisoned(FencepostError):
    """What is to be published is not what was frozen: a lost block was computed anew and came out otherwise."""

    retriable = True


class StepFailed(Exception):
    """Thrown into the generator: the step did not come to a good end, and may or may not have taken effect."""

    def __init__(self, cause: BaseException, *, thaw: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.thaw = thaw
        """What was frozen is no longer there as it was: freeze anew."""


# --- what is to be done ---


class Peek(NamedTuple):
    """Ask the coordinator for the name's present identity, without disturbing. Answer: Identity or None."""


class Fence(NamedTuple):
    """InitProducerId without an expected epoch. Answer: Identity."""


class Look(NamedTuple):
    """Read the last committed progress record. Answer: Progress or None."""


class Pause(NamedTuple):
    """Wait a moment. Answer: None."""


class Announce(NamedTuple):
    """Commit a transaction that holds this record alone. Answer: None."""

    identity: Identity
    progress: Progress


class Freeze(NamedTuple):
    """Fix the content of the batch, or with `fresh=False` keep what was fixed before. Answer: any manifest."""

    fresh: bool
    position: str
    """Where the last batch ended, for those whose content is a range of positions."""


class Publish(NamedTuple):
    """Write the frozen content into the transaction. Answer: None."""

    identity: Identity
    manifest: Any


class Commit(NamedTuple):
    """Check what is there, add the progress record, end the transaction. Answer: None."""

    identity: Identity
    manifest: Any
    progress: Progress


SinkStep: TypeAlias = Peek | Fence | Look | Pause | Announce | Freeze | Publish | Commit


class Outcome(NamedTuple):
    batch: int
    skipped: bool
    """It was in the log already, from an earlier run."""
    attempts: int
    """How often it was published until it was in; 0 if it was skipped."""
    manifest: Any
    identity: Identity
    compared: bool = True
    """False for a batch that was skipped by its number alone: the record or the caller does not know its offsets."""


# --- the decisions ---


class SinkProtocol:
    """A sink's life in one driver. `micro_batch` is called for one batch after the other, never for two at once."""

    def __init__(self, name: str, who: SinkInstance, *, adopt: bool = False, attempts: int = 3) -> None:
        self.name = name
        self.who = who
        self.attempts = attempts
        self._adopt = adopt
        self._announced = False
        self._announcements = 0
        self._highest_seen = -1
        """Incarnation: one's own, or before that the highest found. A higher one of somebody else means: replaced."""
        self._identity: Identity | None = None
        """What the last fence gave."""

    def micro_batch(
        self,
        query: str,
        batch: int | None,
        now_ms: Milliseconds,
        position: str = "",
        origin: Origin = UNKNOWN,
    ) -> Generator[SinkStep, Any, Outcome]:
        """The steps of one batch. `batch=None`: the one after the last, for a query that is numbered by its progress.

        A manifest with an attribute `position` has it recorded; otherwise `position` is.
        """
        wanted = batch
        attempts = self._announcements = 0
        fresh = True
        passing_over = False
        failure: StepFailed | None = None
        manifest: Any = None
        while True:
            identity, last = yield from self._fence_and_look()
            if not self._announced:
                said = self._announcement(last, query, batch, origin, now_ms)
                passing_over = said.batch == batch
                yield from self._announce(identity, said)
                continue  # whether it took effect is what the next look says
            if batch is None:
                batch = last.batch + 1 if last is not None else 0
            if last is not None and last.query == query and last.batch == batch:
                mine = last.token == self.who.token
                if mine and failure is not None:
                    return Outcome(batch, False, attempts, manifest, identity)
                noted = mine and passing_over and last.seen_by(origin.run)
                if not noted:
                    self._refuse(last, query, wanted, origin)
                if noted or not origin.run:
                    return Outcome(batch, True, 0, None, identity, bool(origin.offsets and last.offsets))
                # For a second sink of this name: in this run the batch has been dealt with.
                passing_over = True
                yield from self._announce(identity, self._passed_over(last, origin, now_ms))
                continue
            self._refuse(last, query, wanted, origin)
            if attempts >= self.attempts and failure is not None:
                # The fence has aborted what the last attempt left open: readers are not held up.
                raise failure.cause from failure
            attempts += 1
            try:
                manifest = yield Freeze(fresh, last.position if last is not None else "")
                fresh = False
                yield Publish(identity, manifest)
                reached = getattr(manifest, "position", position)
                yield Commit(identity, manifest, self._record(query, batch, now_ms, reached, origin))
            except StepFailed as error:
                failure = error
                fresh = fresh or error.thaw
            else:
                return Outcome(batch, False, attempts, manifest, identity)

    def _fence_and_look(self) -> Generator[SinkStep, Any, tuple[Identity, Progress | None]]:
        if self._identity is not None:
            yield from self._stop_if_replaced()
        identity: Identity = yield Fence()
        self._identity = identity
        last: Progress | None = yield Look()
        self._heed(last)
        return identity, last

    def _stop_if_replaced(self) -> Generator[SinkStep, Any, None]:
        if (yield Peek()) == self._identity:
            return
        # Somebody has fenced this sink, or the coordinator has, whose transaction timed out. A successor says so in the
        # progress topic before it publishes anything; it is given the time for that.
        for turn in range(_LOOKS_BEFORE_TAKING_BACK):
            if turn:
                yield Pause()
            self._heed((yield Look()))

    def _heed(self, last: Progress | None) -> None:
        """Takes note of an incarnation; raises if it is somebody else's and newer."""
        if last is None:
            if self._announced:
                raise SinkNameInUse(
                    f"the progress of sink {self.name!r} is gone: it was reset while this driver ran. Start it anew",
                    None,
                )
            self._highest_seen = max(self._highest_seen, 0)
            return
        if last.token == self.who.token:
            self._announced = True
        elif self._announced or 0 <= self._highest_seen < last.incarnation:
            # Who has announced itself and finds another's record was replaced, whatever its number: they begin anew
            # where a sink is reset.
            raise Replaced(self.name, last)
        self._highest_seen = max(self._highest_seen, last.incarnation)

    def _announce(self, identity: Identity, record: Progress) -> Generator[SinkStep, Any, None]:
        self._announcements += 1
        try:
            yield Announce(identity, record)
        except StepFailed as failure:
            if self._announcements >= self.attempts:
                raise failure.cause from failure
        else:
            if self._announcements > self.attempts:
                raise FencepostError(f"sink {self.name!r}: its record was committed, but is not to be read")

    def _announcement(
        self, last: Progress | None, query: str, batch: int | None, origin: Origin, now_ms: Milliseconds
    ) -> Progress:
        try:
            self._refuse(last, query, batch, origin)
        except SinkNameInUse:
            if not self._adopt:
                raise
            said = self._record(query, NOTHING_YET if batch is None else batch - 1, now_ms, "", UNKNOWN)
        else:
            if last is None:
                said = self._record("", NOTHING_YET, now_ms, "", UNKNOWN)
            else:
                is_in = last.query == query and last.batch == batch
                said = self._passed_over(last, origin, now_ms) if is_in else self._copied(last, now_ms)
        return replace(said, incarnation=max(self._highest_seen, 0) + 1)

    def _copied(self, last: Progress, now_ms: Milliseconds) -> Progress:
        """What was written last, said by this sink."""
        mine = self._record(last.query, last.batch, now_ms, last.position, UNKNOWN)
        return replace(mine, runs=last.runs, offsets=last.offsets, targets=last.targets)

    def _passed_over(self, last: Progress, origin: Origin, now_ms: Milliseconds) -> Progress:
        runs = [*last.runs.split(), origin.run][-_RUNS_KEPT:]
        return replace(self._copied(last, now_ms), runs=" ".join(runs))

    def _refuse(self, last: Progress | None, query: str, batch: int | None, origin: Origin) -> None:
        """Raises SinkNameInUse or CalledTwice unless `batch` of `query` may come after `last`, or is the same."""
        if batch is None:
            batch = last.batch + 1 if last is not None else 0
        if last is None or not last.wrote_something:
            if batch > 0:
                raise SinkNameInUse(
                    f"sink {self.name!r} knows of no batch, but query {query} is at batch {batch}: were its earlier "
                    "ones written by another sink? adopt=True starts with this one",
                    last,
                )
            return
        if last.query != query:
            raise SinkNameInUse(
                f"the name {self.name!r} belongs to another query ({last}); this is query {query}, batch {batch}. Was "
                "the checkpoint lost or copied? A new query needs a name of its own, or adopt=True, which takes the "
                "name over and writes this batch, whatever was written before",
                last,
            )
        if batch < last.batch:
            raise SinkNameInUse(
                f"sink {self.name!r} has already written batch {last.batch} of query {query}; this is batch {batch}. "
                "Was the checkpoint rolled back? adopt=True writes from here on again, which repeats records",
                last,
            )
        if batch == last.batch:
            self._refuse_another(last, origin)

    def _refuse_another(self, last: Progress, origin: Origin) -> None:
        """Raises unless a batch of `origin` is the one of the same number that `last` speaks of."""
        if origin.run and last.seen_by(origin.run):
            who = "it" if last.token == self.who.token else "another sink of this name"
            raise CalledTwice(
                f"sink {self.name!r} was called twice for batch {last.batch}: {who} has dealt with the batch in this "
                "run of the query. A sink writes one DataFrame per micro-batch. Unite what is to be written (the "
                "column topic says where a row goes), or use a second sink, with another name"
            )
        written = f"sink {self.name!r} has already written batch {last.batch} of query {last.query}"
        if origin.offsets and last.offsets and origin.offsets != last.offsets:
            raise SinkNameInUse(
                f"{written}, from other source offsets than this batch {last.batch} has. Was the checkpoint restored "
                "from a backup? To skip the batch could lose rows. adopt=True writes it, which repeats the rows that "
                "both have",
                last,
            )
        if origin.targets and last.targets and origin.targets != last.targets:
            raise SinkNameInUse(
                f"{written}, but to {last.targets}, and this one goes to {origin.targets}. Do two sinks share the "
                "name? Each needs its own. Was the sink's topic changed? adopt=True writes this batch to the new one, "
                "too",
                last,
            )

    def _record(self, query: str, batch: int, now_ms: Milliseconds, position: str, origin: Origin) -> Progress:
        who = self.who
        return Progress(query, batch, self._highest_seen, who.token, who.host, who.process, now_ms, position, *origin)
