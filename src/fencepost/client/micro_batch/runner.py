"""The runner of micro-batches: it takes the steps that `core/micro_batch/` decides, from fence to commit.

It does not know Spark. It asks a `Content`, which knows the rows and publishes them: those of a DataFrame
(`spark/sink.py`), those that tasks have frozen (`spark/writer.py`), or ranges of a source topic (`spark/copy.py`).
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Concatenate, Final, NamedTuple, ParamSpec, TypeVar

from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.cluster.handshake import keeps_us_out
from fencepost.client.cluster.patience import PATIENCE, patiently
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.micro_batch.targets import lost_topics, refuse_absent
from fencepost.client.micro_batch.topics import (
    ProgressTopic,
    check_name,
    record_batch,
)
from fencepost.client.transactions.coordinator import Transactional
from fencepost.client.transactions.shared_writer import (
    ABSENT_PATIENCE,
    LeaderChannels,
    PartitionWriter,
    SharedTransaction,
    replicated_sequences,
)
from fencepost.core.micro_batch.protocol import (
    SINK_ID_PREFIX,
    UNKNOWN,
    BatchOutcome,
    ContentLost,
    FrozenContent,
    Origin,
    Poisoned,
    Progress,
    SinkInstance,
    SinkProtocol,
    StepFailed,
    topics_of,
)
from fencepost.core.producers.pid import Identity
from fencepost.errors import ErrorCode, FencepostError, ServerError
from fencepost.types import TopicPartition
from fencepost.wire.apis import Key

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_VERIFIES_FROM: Final = 4
"""The version of AddPartitionsToTxn of Kafka 3.6, whose brokers verify that a partition belongs to the transaction."""

_FINAL: Final = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.INVALID_CONFIG,
    }
)
"""Errors that another attempt would only get again."""

_GIVEN_UP: Final = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
"""What a server answers for a transaction that it has given up."""


def refuse_old_kafka(offered: Mapping[int, tuple[int, int]]) -> None:
    """Raise if the server is an Apache Kafka before 3.6. `offered`: API key → versions."""
    if Key.OWN not in offered and offered.get(Key.ADD_PARTITIONS_TO_TXN, (0, 0))[1] < _VERIFIES_FROM:
        raise ServerError(
            ErrorCode.UNSUPPORTED_VERSION,
            "this Apache Kafka is older than 3.6: it does not verify that a write belongs to its transaction, so "
            "exactly-once is not possible; use 3.6 or newer",
        )


class Advice(NamedTuple):
    """Advice: the steps that users can take against an error."""

    when_slow: str = "make micro-batches smaller (maxOffsetsPerTrigger), or transaction_timeout longer"
    when_untimely: str = "write records with the time of writing (a sink without keep_timestamps)"
    when_absent: str = "started again, the query writes it to the topic as it is then"


class Content(ABC):
    """The content of one micro-batch."""

    advice = Advice()

    @abstractmethod
    def freeze(self, position: str) -> FrozenContent:
        """Fix the rows, instead of those that were frozen before. `position`: the end of the last batch."""

    @abstractmethod
    def publish(self, transaction: SharedTransaction, links: LeaderChannels) -> None:
        """Write the frozen rows. Connections of `links` are those of this attempt."""

    @abstractmethod
    def records(self) -> Mapping[TopicPartition, int]:
        """Return the number of frozen records for each target partition."""

    def other_rows(self, last: Progress) -> str:
        """Say how the rows of the batch differ from those that `last.digest` is of; empty if they do not, or if the
        batch may be skipped in spite of it."""
        return ""

    def is_unwanted(self) -> bool:
        """Return whether the caller no longer waits for the batch, so that no further attempt is made."""
        return False

    def close(self) -> None:  # noqa: B027 - most contents hold nothing
        """Free what holds the frozen rows."""


class Runner:
    """A sink's name at its cluster, for as long as this process writes under it."""

    def __init__(
        self,
        settings: ClientSettings,
        name: str,
        *,
        adopt: bool | str = False,
        attempts: int = 3,
        transaction_timeout: float = 300.0,
        patience: float = PATIENCE,
        run: str = "",
        on_step: Callable[[str], object] | None = None,
    ) -> None:
        """`run`: a run of a query whose micro-batches are each committed by a process of its own. All of them act as
        one instance of the sink, which bears the run's id."""
        self.settings = settings
        self.patience = patience
        """Seconds that a step waits while no server answers."""
        self.name = check_name(name)
        self.transaction_timeout = transaction_timeout
        self.on_step = on_step or (lambda _step: None)
        """Called with the name of every step before it is taken."""
        self.routes = Routes(settings)
        self.admin = TopicAdmin(settings)
        self.transactional = Transactional(self.routes, SINK_ID_PREFIX + name, absent_patience=ABSENT_PATIENCE)
        self.progress = ProgressTopic(self.routes, name)
        who = SinkInstance(run or uuid.uuid4().hex, socket.gethostname(), os.getpid())
        self._protocol = SinkProtocol(name, who, adopt=adopt, attempts=attempts, process_per_batch=bool(run))
        self._cluster_id: str | None = None
        self.last_commit_ms: int | None = None
        """Time of the last commit, for the record of the next batch."""
        self.took: dict[str, float] = {}
        """Step → milliseconds, over all attempts of the last batch; without the step that is being taken."""
        self._ready = False
        # A query that did not stop in time may still be in its last batch when it is restarted.
        self._one_at_a_time = threading.Lock()
        # Users do not close sinks, and Spark does not report the end of a query: the connections close with the last
        # reference. Not at exit, where a thread may still wait for an answer.
        self._end = weakref.finalize(self, _close, self.routes, self.admin)
        self._end.atexit = False

    def carry_out(self, content: Content, query: str, batch: int | None, origin: Origin = UNKNOWN) -> BatchOutcome:
        """Carry out the steps of one batch until it is in the log. Raise if that fails."""
        with self._one_at_a_time:
            self._prepare()
            self.took = {}
            steps = MicroBatchSteps(self, content)
            try:
                outcome = self._protocol.micro_batch(steps, query, batch, time.time_ns() // 1_000_000, origin)
            except BaseException:
                steps.abort()
                raise
            finally:
                steps.hang_up()
                content.close()
            if not outcome.skipped:
                self.last_commit_ms = round(self.took.get("commit", 0.0))
            self.on_step("done")
            return outcome

    def close(self) -> None:
        _close(self.routes, self.admin)

    @property
    def cluster_id(self) -> str:
        """The id of the target's cluster."""
        if self._cluster_id is None:
            self._cluster_id = self.patiently(lambda: self.admin.cluster().cluster_id, "asking for the cluster's id")
        return self._cluster_id

    def _prepare(self) -> None:
        if self._ready:
            return
        refuse_old_kafka(self.patiently(lambda: self.routes.any().versions(), "looking for the server"))
        self.patiently(self.progress.ensure, f"looking for {self.progress.where.topic}")
        self._ready = True

    def patiently(self, ask: Callable[[], T], what: str) -> T:
        """Repeat a call that changes nothing while no server answers."""
        return patiently(ask, f"sink {self.name}: {what}", patience=self.patience)


def _close(routes: Routes, admin: TopicAdmin) -> None:
    routes.close()
    admin.close()


def _step(
    method: Callable[Concatenate[MicroBatchSteps, P], T],
) -> Callable[Concatenate[MicroBatchSteps, P], T]:
    """Say the name of a step before it is taken, and measure it."""
    name = method.__name__

    @functools.wraps(method)
    def step(self: MicroBatchSteps, /, *arguments: P.args, **options: P.kwargs) -> T:
        self.runner.on_step(name)
        began = self._step_began = time.perf_counter()
        took = self.runner.took
        try:
            return method(self, *arguments, **options)
        finally:
            took[name] = took.get(name, 0.0) + (time.perf_counter() - began) * 1000

    return step


class MicroBatchSteps:
    """The steps of one micro-batch (`core/micro_batch/protocol.py:SinkSteps`), against the cluster and the content."""

    def __init__(self, runner: Runner, content: Content) -> None:
        self.runner = runner
        self._content = content
        self._links: LeaderChannels | None = None
        self._open: Identity | None = None
        """The identity whose transaction may be open."""
        self._fenced = False
        self._frozen: FrozenContent | None = None
        self._difference: str | None = None
        self._step_began = 0.0

    @_step
    def peek(self) -> Identity | None:
        self._fenced = False
        state = self.runner.patiently(self.runner.transactional.describe, "looking who has the sink's name")
        return None if state is None else state.identity

    @_step
    def fence(self) -> Identity:
        identity = self.runner.transactional.init(int(self.runner.transaction_timeout * 1000))
        self._open, self._fenced = None, True
        self.hang_up()
        return identity

    @_step
    def look(self) -> Progress | None:
        progress, fenced = self.runner.progress, self._fenced
        return self.runner.patiently(lambda: progress.last(settled=fenced), "looking what is in the log already")

    @_step
    def pause(self) -> None:
        time.sleep(self.runner.settings.retry_backoff * 5)

    @_step
    def compare(self, last: Progress) -> str:
        if self._difference is None:  # rows are recomputed once
            self._difference = self._lost_topics(last) or (self._content.other_rows(last) if last.digest else "")
        return self._difference

    @_step
    def freeze(self, position: str, *, fresh: bool) -> FrozenContent:
        if fresh or self._frozen is None:
            self._frozen = self._content.freeze(position)
        return self._frozen

    @_step
    def announce(self, identity: Identity, progress: Progress) -> None:
        with self._attempt():
            self._begin(identity, [])
            self._write_record(identity, progress)
            self._end(identity)

    @_step
    def publish(self, identity: Identity) -> None:
        expected = self._content.records()
        with self._attempt(expected):
            self._begin(identity, list(expected))
            self._content.publish(self._transaction(identity), self._to_leaders())

    @_step
    def commit(self, identity: Identity, progress: Progress) -> None:
        expected = self._content.records()
        with self._attempt(expected):
            self.runner.on_step("verify")
            # Both change nothing that counts before the end, and wait for the server most of the time.
            with ThreadPoolExecutor(1, "fencepost-verify") as pool:
                verified = pool.submit(self._verify, identity, expected)
                self.runner.on_step("record")
                self._write_record(identity, self._measured(progress, sum(expected.values())))
                verified.result()
            self.runner.on_step("end")
            self._end(identity)

    @contextmanager
    def _attempt(self, targets: Iterable[TopicPartition] = ()) -> Iterator[None]:
        """Turn any failure into a failed step, unless no further attempt can cure it."""
        try:
            yield
        except FencepostError as error:
            final = error.code in _FINAL or keeps_us_out(error) or isinstance(error, ContentLost)
            if final or self._content.is_unwanted():
                raise
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                remedy = self._content.advice.when_absent
                self.runner.patiently(
                    lambda: refuse_absent(self.runner.admin, targets, remedy), "looking at the target topics"
                )
            thaw = isinstance(error, Poisoned) or error.code is ErrorCode.INVALID_TIMESTAMP
            raise StepFailed(self._explained(error), thaw=thaw) from error
        except Exception as error:  # from a Spark job: executors lost, a worker killed, a stage aborted
            if self._content.is_unwanted():
                raise
            raise StepFailed(error, thaw=True) from error

    def _too_slow(self, code: ErrorCode) -> FencepostError | None:
        """Return an error that explains the code, if the server gave the transaction up because it took too long."""
        took = (self.runner.took.get("publish", 0.0) + self.runner.took.get("commit", 0.0)) / 1000
        took += time.perf_counter() - self._step_began
        timeout = self.runner.transaction_timeout
        if code not in _GIVEN_UP or took < timeout:
            return None
        return ServerError(
            code,
            f"publishing took longer than {timeout:g} s, the timeout of its transaction, and the server gave it up: "
            f"{self._content.advice.when_slow}",
        )

    def _explained(self, error: FencepostError) -> FencepostError:
        if (slow := self._too_slow(error.code)) is not None:
            return slow
        if error.code is ErrorCode.INVALID_TIMESTAMP:
            return ServerError(
                error.code,
                f"{error.reason}: a record's time is further from the server's clock than the topic allows "
                f"(message.timestamp.before.max.ms, message.timestamp.after.max.ms). Raise the limit, or "
                f"{self._content.advice.when_untimely}",
            )
        return error

    def _lost_topics(self, last: Progress) -> str:
        cluster, topics = topics_of(last.topics)
        # In another cluster, to which topics and progress were moved, the topics have other ids.
        if not topics or cluster != self.runner.cluster_id:
            return ""
        lost = self.runner.patiently(lambda: lost_topics(self.runner.admin, topics), "looking at the target topics")
        if not lost:
            return ""
        return (
            f"sink {self.runner.name!r} has already written batch {last.batch} of query {last.query}, but since then "
            f"the topic {lost}: skipping the batch would lose it. adopt=True writes it to the topics as they are now. "
            "The batches before it are gone with the old topic"
        )

    def _verify(self, identity: Identity, expected: Mapping[TopicPartition, int]) -> None:
        """Raise unless each partition has the expected records of the transaction, replicated."""
        for topic in {where.topic for where in expected}:
            partitions = [where.partition for where in expected if where.topic == topic]
            found = replicated_sequences(self.runner.admin, topic, partitions, identity)
            for partition in partitions:
                there, wanted = found.get(partition, -1) + 1, expected[TopicPartition(topic, partition)]
                if there != wanted:
                    raise FencepostError(f"{topic}-{partition} has {there} records of the transaction, not {wanted}")

    def _measured(self, progress: Progress, rows: int) -> Progress:
        """Return the record with what people want to know of the batch."""
        fence, look, freeze, publish = (
            round(self.runner.took.get(each, 0)) for each in ("fence", "look", "freeze", "publish")
        )
        return replace(
            progress, rows=rows, fence_ms=fence, look_ms=look, freeze_ms=freeze, publish_ms=publish,
            previous_commit_ms=self.runner.last_commit_ms,
        )  # fmt: skip

    def _begin(self, identity: Identity, partitions: list[TopicPartition]) -> None:
        self._open = identity
        self.runner.transactional.add_partitions(identity, [*partitions, self.runner.progress.where])

    def _write_record(self, identity: Identity, progress: Progress) -> None:
        writer = PartitionWriter(
            self._to_leaders(), self._transaction(identity), self.runner.progress.where, fresh=True
        )
        writer.write(record_batch(progress, time.time_ns() // 1_000_000))
        writer.finish()

    def _end(self, identity: Identity) -> None:
        transactional = self.runner.transactional
        transactional.end(identity, commit=True)
        self.runner.on_step("ended")
        # The first answer comes before the markers are in the logs, the second one after them. So the batch is
        # readable when foreachBatch returns.
        transactional.end(identity, commit=True)
        self._open = None

    def abort(self) -> None:
        """Abort the open transaction, which holds up readers, if a server can be reached."""
        if self._open is None:
            return
        quickly = Transactional(self.runner.routes, self.runner.transactional.name, patience=1.0)
        try:
            quickly.end(self._open, commit=False)
        except FencepostError as error:
            logger.info("sink %s: the transaction could not be aborted, it will time out: %s", self.runner.name, error)

    def hang_up(self) -> None:
        """Close the connections: an abandoned attempt may have left answers unread, which the next must not take."""
        if self._links is not None:
            self._links.close()
            self._links = None

    def _transaction(self, identity: Identity) -> SharedTransaction:
        return SharedTransaction(self.runner.transactional.name, identity)

    def _to_leaders(self) -> LeaderChannels:
        if self._links is None:
            self._links = LeaderChannels(self.runner.routes)
        return self._links
