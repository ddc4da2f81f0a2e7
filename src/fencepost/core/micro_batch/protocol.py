"""Exactly-once micro-batches on Spark: the decisions; the caller carries out the steps.

Theory of operation. A micro-batch is one transaction of the sink's transactional id, shared by all tasks. Every failure
(a crash between any two steps, a lost answer, a task that runs twice, a paused driver that wakes up during its
successor's batch) leads to one question: *is batch N of query Q in the log?* There is one way to answer it: fence the
transactional id, so that no earlier driver or task can write or commit, and then read the sink's progress topic. Its
last committed record was written in the same transaction as the batch that it names.

The number of a batch does not identify its rows: with a checkpoint restored from a backup, Spark plans batch N again,
perhaps from other offsets. So the record also has the batch's *origin*: a hash of the offsets, the targets, and Spark's
run. Another hash or other targets for the same number raise `SinkNameInUse`. Spark never repeats a batch within a run,
so the same run means that the program calls this sink, or another sink of its name, twice: `CalledTwice`.

A batch that is in the log is skipped whatever its rows come out as this time, with two exceptions. Its topic was
deleted or recreated since: skipping would leave the new topic without the batch. Or the query keeps state: the rows of
later batches depend on it, and the state that Spark keeps is the one of the *recomputed* rows. If these are not the
written ones, rows of later batches would be missing or repeated. So the record also has the ids of the topics, and for
a stateful query a digest of the rows; `compare` looks at both, and a difference raises `SinkNameInUse`.

`SinkProtocol.micro_batch` asks an object for one step after the other (`SinkSteps`: fence, look …). A step that failed
raises `StepFailed`. The protocol never checks an error code: after any failure behind the fence, the next turn fences
and looks again. The object that carries out the steps (`client/micro_batch/runner.py`, or a test without a JVM, which
interleaves those of several drivers) makes no decisions.

    ┌▶ Peek* ─▶ Fence ─▶ Look ─▶ in the log? ── yes ─▶ Compare ─▶ (from another run: Announce) ─▶ done
    │                              │ no, tries left
    │                              ▼
    │                 (first call of a sink: Announce, and once round)
    │                              ▼
    └── anything fails ◀── Freeze ─▶ Publish ─▶ Commit ─▶ done

*Peek comes before every fence except a sink's first; if a process per batch acts for the sink, a Look comes before that
one. A driver that was replaced while it was paused must not fence its successor. Peek tells it without side effects:
the epoch is no longer its own, and the progress names a newer incarnation. The record that Look finds names the
replaced instances.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Final, NamedTuple, Protocol

from fencepost.core.producers.pid import Identity
from fencepost.errors import ConfigError, Fenced, FencepostError
from fencepost.types import Milliseconds

PROGRESS_TOPIC_PREFIX: Final = "__fencepost_sink."
"""The progress topic of sink NAME has this in front of the name."""
PROGRESS_KEY: Final = b"progress"
SINK_ID_PREFIX: Final = "fencepost.sink."
"""The transactional id of sink NAME has this in front of the name."""

NOTHING_YET: Final = -1
"""The batch of a progress record that was written before any micro-batch."""

NOBODY: Final = "nobody"
"""For `adopt`: there is no progress record."""

_VERSION: Final = 5

_RUNS_KEPT: Final = 16
"""Runs kept in the record of a batch. Each run after the first skipped the batch and crashed before the next."""

_REPLACED_KEPT: Final = 16
"""Tokens of replaced instances that a progress record names. An older one belongs to a driver that slept through
sixteen restarts of its query. It counts as new: it fences the last one, and stops if its batch is behind the log."""

_NUMBERS: Final = frozenset({"batch", "incarnation", "process", "time_ms"})
_CONTENT: Final = ("runs", "offsets", "targets", "topics", "digest")
_MEASURED: Final = ("rows", "fence_ms", "look_ms", "freeze_ms", "publish_ms", "previous_commit_ms")

_LOOKS_BEFORE_TAKING_BACK: Final = 3
"""A successor that took the epoch announces itself soon; after so many looks, the coordinator bumped it itself."""


# --- state ---


@dataclass(frozen=True, slots=True)
class SinkInstance:
    """One sink object in one driver process, or all processes that commit for one run of a query."""

    token: str
    """Unique, so that a sink recognises its own records."""
    host: str
    process: int


class Origin(NamedTuple):
    """The source and targets of a batch, beyond its number. An empty field is unknown and not compared."""

    run: str = ""
    """Spark's id of this start of the query."""
    offsets: str = ""
    """A hash of the batch's first and last source offsets."""
    targets: str = ""
    """The topics of its rows, as configured in the sink."""


UNKNOWN: Final = Origin()


@dataclass(frozen=True, slots=True)
class Progress:
    """The record of the progress topic: the last batch written, and the driver at work."""

    query: str
    batch: int
    incarnation: int
    token: str
    host: str
    process: int
    time_ms: Milliseconds
    position: str = ""
    """Only for copies: the position in the source to continue from."""
    runs: str = ""
    """The run of the query that wrote this batch and the runs that skipped it since, separated by spaces. This and the
    two fields below are empty for jobs and for copies."""
    offsets: str = ""
    targets: str = ""
    replaced: str = ""
    """Tokens of the instances that this one and its predecessors replaced, the newest last, with blanks between."""
    rows: int | None = None
    """Records of the batch. This and the times below are for people: no decision depends on them. They are None where
    they are not known."""
    fence_ms: Milliseconds | None = None
    """Time that the steps of the batch took, all attempts together."""
    look_ms: Milliseconds | None = None
    freeze_ms: Milliseconds | None = None
    publish_ms: Milliseconds | None = None
    previous_commit_ms: Milliseconds | None = None
    """Time of the commit before this one, by the same instance: a record cannot tell how long its own commit takes."""
    topics: str = ""
    """The topics that the batch was written to, by `topics_text`."""
    digest: str = ""
    """A digest of the rows that does not depend on their order; only for queries that keep state."""

    def encode(self) -> bytes:
        return json.dumps({"version": _VERSION, **asdict(self)}).encode()

    @classmethod
    def decode(cls, value: bytes) -> Progress:
        try:
            fields = json.loads(value)
            if fields.pop("version") != _VERSION:
                raise UnknownProgress("progress record of another version of fencepost: use that one")
            for name, field in fields.items():
                _check_field(name, field)
            return cls(**fields)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UnknownProgress(f"not a progress record: {value[:100]!r}") from error

    def seen_by(self, run: str) -> bool:
        """Return whether this run of the query has written or skipped the batch."""
        return run in self.runs.split()

    @property
    def wrote_something(self) -> bool:
        return self.batch > NOTHING_YET

    def __str__(self) -> str:
        wrote = f"batch {self.batch} of query {self.query}" if self.wrote_something else "nothing yet"
        return f"{wrote}, by process {self.process} on {self.host}"


def _check_field(name: str, value: object) -> None:
    """Raise ValueError if a progress record cannot have this. Any producer may write to the topic, and metrics and the
    HTTP API show the fields as they are."""
    if name in _NUMBERS:
        _check_number(name, value)
    elif name in _MEASURED:
        if value is not None:
            _check_number(name, value)
    elif not isinstance(value, str):
        raise ValueError(f"{name} is not text")
    else:
        value.encode()  # half a character of UTF-16 is an error, too


def _check_number(name: str, value: object) -> None:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} is not a number")


def topics_text(cluster: str | None, topics: Mapping[str, object]) -> str:
    """Return the ids of a cluster and of its topics as a progress record has them: `CLUSTER NAME=ID NAME=ID …`."""
    known = [f"{name}={topics[name]}" for name in sorted(topics) if topics[name] is not None]
    return " ".join([cluster or "-", *known]) if known else ""


def topics_of(text: str) -> tuple[str, dict[str, str]]:
    """Return the id of the cluster and the ids of its topics."""
    cluster, *topics = text.split() or [""]
    return cluster, dict(topic.split("=", 1) for topic in topics if "=" in topic)


# --- errors ---


class UnknownProgress(FencepostError):
    """The progress topic has a record that this version cannot read."""

    fatal = True


class SinkNameInUse(FencepostError):
    """The sink's name was used by another query, or for later batches of this one. Skipping and writing could both be
    wrong, so a person must decide."""

    fatal = True

    def __init__(self, message: str, found: Progress | None) -> None:
        super().__init__(message)
        self.found = found


class CalledTwice(ConfigError):
    """Two DataFrames for one batch under one name: the second one's rows would count as already written. This is a bug
    in the program, so `adopt` does not help."""


class Replaced(Fenced):
    """A newer driver runs this sink. This one stops for good, without having disturbed it."""

    def __init__(self, name: str, by: Progress) -> None:
        super().__init__(
            f"sink {name!r} is run by process {by.process} on {by.host} now (incarnation {by.incarnation}, "
            f"since {by.time_ms} ms): this driver was replaced and stops",
            persisted="no",
        )
        self.by = by


class Poisoned(FencepostError):
    """The rows differ from the frozen ones: a lost block was recomputed with another result."""

    retriable = True


class ContentLost(FencepostError):
    """The frozen rows are gone, and whoever has frozen them does not do it again in this run: the batch fails."""

    fatal = True


class StepFailed(Exception):
    """The step failed, and may or may not have taken effect."""

    def __init__(self, cause: BaseException, *, thaw: bool = False) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.thaw = thaw
        """The frozen content was lost or changed: freeze again."""


# --- steps ---


class FrozenContent(NamedTuple):
    """A frozen batch in the progress record: its fields of these names."""

    position: str = ""
    topics: str = ""
    digest: str = ""


class SinkSteps(Protocol):
    """The steps of one micro-batch. `announce`, `publish` and `commit` raise StepFailed where another attempt may help;
    any other error ends the micro-batch."""

    def peek(self) -> Identity | None:
        """Ask the coordinator for the name's current identity, without side effects."""

    def fence(self) -> Identity:
        """InitProducerId without an expected epoch."""

    def look(self) -> Progress | None:
        """Read the last committed progress record."""

    def pause(self) -> None:
        """Wait a moment."""

    def announce(self, identity: Identity, progress: Progress) -> None:
        """Commit a transaction with only this record."""

    def compare(self, last: Progress) -> str:
        """Compare the topics of a batch that is in the log and, if the query keeps state, its rows with those of
        `last`. Return why it may not be skipped; empty if it may."""

    def freeze(self, position: str, *, fresh: bool) -> FrozenContent:
        """Fix the content of the batch; with `fresh=False` keep the frozen content. `position`: the end of the last
        batch, for batches that are ranges of positions."""

    def publish(self, identity: Identity) -> None:
        """Write the frozen content into the transaction."""

    def commit(self, identity: Identity, progress: Progress) -> None:
        """Check what was written, add the progress record, commit the transaction."""


class BatchOutcome(NamedTuple):
    batch: int
    skipped: bool
    """The batch was already in the log, from an earlier run."""
    attempts: int
    """How often it was published; 0 if it was skipped."""
    identity: Identity
    compared: bool = True
    """False for a batch skipped by its number alone, because the record or the caller lacks its offsets."""
    missing: int = 0
    """The batches between the one that another run has written last and this one, which is a sink's first."""


# --- the decisions ---


class SinkProtocol:
    """A sink's decisions in one driver. Call `micro_batch` for one batch at a time."""

    def __init__(
        self,
        name: str,
        who: SinkInstance,
        *,
        adopt: bool | str = False,
        attempts: int = 3,
        process_per_batch: bool = False,
    ) -> None:
        """`adopt`: take the name over at the first batch, whatever the progress record says; or only if it was written
        by the instance of this token (NOBODY: if there is none). A driver that wakes up late cannot repeat a batch with
        the latter, because its successor's record has another token.

        `process_per_batch`: a process for every batch of the query acts as `who`, one after the other. Each looks
        before its first fence whether `who` was replaced, or its batch may not follow the last one, so that it does not
        fence whoever is at work. A jump in the batches' numbers is a loss."""
        self.name = name
        self.who = who
        self.attempts = attempts
        self._process_per_batch = process_per_batch
        self._replaced: list[str] = []
        """Tokens for the next record's `replaced`."""
        self._adopt = adopt
        self._announced = False
        self._announcements = 0
        self._highest_seen = -1
        """This sink's incarnation, or before its first the highest found. A higher one means that it was replaced."""
        self._identity: Identity | None = None
        """The identity from the last fence."""

    def micro_batch(
        self, steps: SinkSteps, query: str, batch: int | None, now_ms: Milliseconds, origin: Origin = UNKNOWN
    ) -> BatchOutcome:
        """Take the steps of one batch until it is in the log. `batch=None` is the batch after the last one in the
        progress topic."""
        wanted = batch
        attempts = self._announcements = missing = 0
        difference: str | None = None
        fresh = True
        passing_over = False
        failure: StepFailed | None = None
        while True:
            identity, last = self._fence_and_look(steps, query, wanted, origin)
            is_in = last is not None and last.query == query and last.batch == batch
            if not self._announced:
                adopts = self._adopts(last, query, batch, origin)
                if last is not None and is_in and not adopts:
                    if difference is None:
                        difference = self._difference(steps, last)
                    adopts = bool(difference) and self._allows(SinkNameInUse(difference, last), last)
                if last is not None and batch is not None and last.wrote_something and not adopts:
                    missing = max(0, batch - last.batch - 1)
                passing_over = is_in and not adopts
                said = self._announcement(last, query, batch, origin, now_ms, adopts=adopts)
                self._announce(steps, identity, said)
                continue  # the next look tells whether it took effect
            if batch is None:
                batch = last.batch + 1 if last is not None else 0
            if last is not None and last.query == query and last.batch == batch:  # also a batch that was None
                mine = last.token == self.who.token
                if mine and failure is not None:
                    return BatchOutcome(batch, False, attempts, identity, missing=missing)
                noted = mine and passing_over and last.seen_by(origin.run)
                if not noted:
                    self._refuse(last, query, wanted, origin)
                if noted or not origin.run:
                    return BatchOutcome(batch, True, 0, identity, bool(origin.offsets and last.offsets))
                if difference is None:  # the same sink, in a query that was stopped and started again
                    difference = self._difference(steps, last)
                if difference:
                    raise SinkNameInUse(difference, last)
                # Record the skip, so that a second sink of this name in this run is noticed.
                passing_over = True
                self._announce(steps, identity, self._passed_over(last, origin, now_ms))
                continue
            self._refuse(last, query, wanted, origin)
            if attempts >= self.attempts and failure is not None:
                # The fence has aborted the last attempt's transaction, so readers are not held up.
                raise failure.cause from failure
            attempts += 1
            try:
                frozen = steps.freeze(last.position if last is not None else "", fresh=fresh)
                fresh = False
                steps.publish(identity)
                record = self._record(query, batch, now_ms, frozen.position, origin)
                steps.commit(identity, replace(record, topics=frozen.topics, digest=frozen.digest))
            except StepFailed as error:
                failure = error
                fresh = fresh or error.thaw
            else:
                return BatchOutcome(batch, False, attempts, identity, missing=missing)

    def _fence_and_look(
        self, steps: SinkSteps, query: str, batch: int | None, origin: Origin
    ) -> tuple[Identity, Progress | None]:
        if self._identity is not None:
            self._stop_if_replaced(steps)
        elif self._process_per_batch:
            seen = steps.look()
            self._heed(seen)
            # This look may miss the newest record, because nobody was fenced. A record with a batch stays a reason to
            # refuse; no record, or one without a batch, is none yet.
            if not self._announced and seen is not None and seen.wrote_something:
                self._adopts(seen, query, batch, origin)
        self._identity = identity = steps.fence()
        last = steps.look()
        self._heed(last)
        return identity, last

    def _stop_if_replaced(self, steps: SinkSteps) -> None:
        if steps.peek() == self._identity:
            return
        # A successor has fenced this sink, or the coordinator did after a transaction timeout. A successor announces
        # itself in the progress topic before it publishes anything, so give it some time.
        for turn in range(_LOOKS_BEFORE_TAKING_BACK):
            if turn:
                steps.pause()
            self._heed(steps.look())

    def _heed(self, last: Progress | None) -> None:
        """Note an incarnation; raise if it is newer and belongs to another sink."""
        if last is None:
            if self._announced:
                raise SinkNameInUse(
                    f"the progress of sink {self.name!r} is gone: it was reset during this run. Restart the query",
                    None,
                )
            self._highest_seen = max(self._highest_seen, 0)
            return
        replaced = last.replaced.split()
        if last.token == self.who.token:
            self._announced = True
        elif self.who.token in replaced or self._announced or 0 <= self._highest_seen < last.incarnation:
            # A sink that has announced itself and finds another's record was replaced, whatever the incarnation:
            # numbers restart when a sink is reset.
            raise Replaced(self.name, last)
        else:
            replaced.append(last.token)
        self._replaced = replaced[-_REPLACED_KEPT:]
        self._highest_seen = max(self._highest_seen, last.incarnation)

    def _announce(self, steps: SinkSteps, identity: Identity, record: Progress) -> None:
        self._announcements += 1
        try:
            steps.announce(identity, record)
        except StepFailed as failure:
            if self._announcements >= self.attempts:
                raise failure.cause from failure
        else:
            if self._announcements > self.attempts:
                raise FencepostError(f"sink {self.name!r}: its progress record was committed, but cannot be read back")

    def _difference(self, steps: SinkSteps, last: Progress) -> str:
        """Return why the batch of `last` may not be skipped; empty if it may. Older records are not compared."""
        return steps.compare(last) if last.topics or last.digest else ""

    def _announcement(
        self,
        last: Progress | None,
        query: str,
        batch: int | None,
        origin: Origin,
        now_ms: Milliseconds,
        *,
        adopts: bool,
    ) -> Progress:
        if adopts:
            said = self._record(query, NOTHING_YET if batch is None else batch - 1, now_ms, "", UNKNOWN)
        elif last is None:
            said = self._record("", NOTHING_YET, now_ms, "", UNKNOWN)
        else:
            is_in = last.query == query and last.batch == batch
            said = self._passed_over(last, origin, now_ms) if is_in else self._copied(last, now_ms)
        return replace(said, incarnation=max(self._highest_seen, 0) + 1)

    def _adopts(self, last: Progress | None, query: str, batch: int | None, origin: Origin) -> bool:
        """Return whether the batch may follow `last` only because of `adopt`. Raise if it may not follow at all."""
        try:
            self._refuse(last, query, batch, origin)
        except SinkNameInUse as error:
            return self._allows(error, last)
        return False

    def _allows(self, error: SinkNameInUse, last: Progress | None) -> bool:
        """Return True if `adopt` says to write the batch in spite of the error. Raise it otherwise."""
        writer = last.token if last is not None else NOBODY
        if self._adopt is not True and self._adopt != writer:
            raise SinkNameInUse(
                f"{error}. adopt={writer!r} does the same for this record alone, so it can stay in the program", last
            ) from error
        return True

    def _copied(self, last: Progress, now_ms: Milliseconds) -> Progress:
        """Return the last record, with this sink as its writer."""
        mine = self._record(last.query, last.batch, now_ms, last.position, UNKNOWN)
        kept = {name: getattr(last, name) for name in (*_MEASURED, *_CONTENT)}
        return replace(mine, **kept)

    def _passed_over(self, last: Progress, origin: Origin, now_ms: Milliseconds) -> Progress:
        runs = [*last.runs.split(), origin.run][-_RUNS_KEPT:]
        return replace(self._copied(last, now_ms), runs=" ".join(runs))

    def _refuse(self, last: Progress | None, query: str, batch: int | None, origin: Origin) -> None:
        """Raise SinkNameInUse or CalledTwice unless `batch` of `query` may follow `last`, or is the same batch."""
        if batch is None:
            batch = last.batch + 1 if last is not None else 0
        if last is None or not last.wrote_something:
            if batch > 0:
                raise SinkNameInUse(
                    f"sink {self.name!r} knows of no batch, but query {query} is at batch {batch}. Did another sink "
                    "write the earlier ones? adopt=True starts with this one",
                    last,
                )
            return
        if last.query != query:
            raise SinkNameInUse(
                f"the name {self.name!r} belongs to another query ({last}); this is query {query}, batch {batch}. Was "
                "the checkpoint lost or copied? Give a new query its own name; or use adopt=True, which takes the name "
                "over and writes this batch, whatever was written before",
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
        if self._process_per_batch and batch > last.batch + 1:
            raise SinkNameInUse(
                f"sink {self.name!r} has written batch {last.batch} of query {query} last; this is batch {batch}. The "
                f"batches between them are not in the log. Was the target's cluster restored from a backup, or did "
                "another sink write them? adopt=True starts with this one",
                last,
            )

    def _refuse_another(self, last: Progress, origin: Origin) -> None:
        """Raise unless the batch of `origin` is the same batch that `last` names."""
        if origin.run and last.seen_by(origin.run):
            who = "it" if last.token == self.who.token else "another sink of this name"
            raise CalledTwice(
                f"sink {self.name!r} was called twice for batch {last.batch}: {who} has already handled it in this "
                "run of the query. A sink writes one DataFrame per micro-batch: union the DataFrames (the column topic "
                "names the topic of each row), or use a second sink with another name"
            )
        written = f"sink {self.name!r} has already written batch {last.batch} of query {last.query}"
        if origin.offsets and last.offsets and origin.offsets != last.offsets:
            raise SinkNameInUse(
                f"{written}, from other source offsets than this batch {last.batch}. Was the checkpoint restored "
                "from a backup? Skipping the batch could lose rows. adopt=True writes it, which repeats the rows that "
                "both have",
                last,
            )
        if origin.targets and last.targets and origin.targets != last.targets:
            raise SinkNameInUse(
                f"{written}, but to {last.targets}, and this one goes to {origin.targets}. Do two sinks share the "
                "name? Each needs its own. Was the sink's topic changed? adopt=True also writes this batch to the new "
                "one",
                last,
            )

    def _record(self, query: str, batch: int, now_ms: Milliseconds, position: str, origin: Origin) -> Progress:
        who = self.who
        replaced = " ".join(self._replaced)
        return Progress(
            query, batch, self._highest_seen, who.token, who.host, who.process, now_ms, position, *origin, replaced
        )
