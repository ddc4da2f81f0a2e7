"""`Producer`: the interface for the caller's threads. They choose a partition and enqueue; the send thread does the
rest."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.checks import check_known
from fencepost.client.cluster.forking import OnePerProcess, of_the_parent, tell_after_fork, wait_for_imports
from fencepost.client.cluster.interrupts import interrupted, is_mine
from fencepost.client.cluster.routing import Routes
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.cluster.sockets import Network, SocketNetwork
from fencepost.client.own.claim import Claim, Loss, OnLost, OwnBackend, claim_by, offers_own
from fencepost.client.produce.ids import ProducerIds
from fencepost.client.produce.options import (
    Acks,
    Compression,
    OnError,
    OnStats,
    Partitioner,
    ProducerOptions,
    Serializer,
)
from fencepost.client.produce.send_thread import SendThread, print_error
from fencepost.client.produce.sender import Sender
from fencepost.client.produce.stats import ProducerStats
from fencepost.client.produce.ticket import Ticket
from fencepost.client.produce.transaction import ProducerTransaction
from fencepost.client.transactions.coordinator import NO_MEMBER, ConsumerGroupMetadata, Transactional
from fencepost.clock import Clock, SystemClock
from fencepost.core.own.claim_request import Resources, check_claim
from fencepost.core.own.lease import Lease
from fencepost.errors import Closed, ConfigError, Fenced, FencepostError, TimedOut, Undelivered
from fencepost.kernel import Headers
from fencepost.setting import settings_doc
from fencepost.types import Milliseconds, TopicPartition

if TYPE_CHECKING:
    from fencepost.client.own.kafka import KafkaOwner, KafkaProducerBackend
    from fencepost.client.produce.table import BulkTicket, Rows


class ProducerKeywords(TypedDict, total=False):
    """The settings of a producer; `ProducerOptions` explains each and has the defaults."""

    compression: Compression
    compression_level: int | None
    batch_size: int
    linger: float
    buffer_memory: int
    block_timeout: float | None
    max_request_size: int
    delivery_timeout: float
    request_timeout: float
    retry_backoff: float
    metadata_max_age: float
    unknown_topic_timeout: float
    allow_topic_creation: bool
    idempotent: bool
    name: str | None
    transaction_timeout: float
    acks: Acks
    partitioner: Partitioner | None
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    on_error: OnError | None
    exit_timeout: float
    on_stats: OnStats | None
    stats_interval: float


class Producer(OnePerProcess):
    __doc__ = settings_doc(
        ProducerOptions,
        """
        A producer: sends records in order per partition, each exactly once, from any number of threads.

        >>> with Producer("127.0.0.1:9092", compression="lz4") as producer:
        ...     ticket = producer.send("orders", b"value", key=b"key")
        ...     producer.flush()

        `servers`: host:port, several separated by commas, or a list. `ids`: the saved `ids` of an earlier producer,
        from which this one resumes. `Producer.from_config` takes a dict with the names of librdkafka and Java.
        """,
    )

    def __init__(
        self,
        servers: Servers | ClientSettings = "127.0.0.1:9092",
        *,
        ids: ProducerIds | None = None,
        **options: Unpack[ProducerKeywords],
    ) -> None:
        """With `ids`, fence the producer that saved them, and resume from there."""
        self._settings = ClientSettings.of(servers)
        check_known("Producer", options, ProducerKeywords.__annotations__)
        if ids is not None and not isinstance(ids, ProducerIds):
            raise ConfigError(f"ids={ids!r}: must be ProducerIds; ProducerIds.from_json reads saved ones")
        if ids is not None and options.setdefault("name", ids.name) != ids.name:
            raise ConfigError(f"the saved ids are of {ids.name!r}, not of {options['name']!r}: leave out name=")
        options.setdefault("request_timeout", self._settings.request_timeout)
        options.setdefault("retry_backoff", self._settings.retry_backoff)
        self._options = ProducerOptions(**options)
        self._settings = replace(
            self._settings,
            request_timeout=self._options.request_timeout,
            retry_backoff=self._options.retry_backoff,
        )
        self._ids = ids
        self._start = threading.RLock()
        self._closed = False
        self._routes = Routes(self._settings)
        self._steps: Transactional | None = None
        if self._options.name is not None:
            self._steps = Transactional(self._routes, self._options.name)
        self._transaction: ProducerTransaction | None = None
        self._owns_by: OwnBackend | None = None
        self._kafka_owner: KafkaOwner | None = None
        self._held: dict[tuple[str, str], None] = {}
        """Group and name of each owned resource."""
        self._cluster_id: str | None = None
        self._sender = self._new_sender()
        tell_after_fork(self)
        if ids is not None:
            self._resume_from(ids)

    @classmethod
    def from_config(cls, config: Mapping[str, object], **options: Unpack[ProducerKeywords]) -> Self:
        """Make a producer from librdkafka's or Java's names (`bootstrap.servers`, `linger.ms`, `sasl.jaas.config` …).
        `options` override them. Raise ConfigError for an unknown name, with the nearest known one."""
        from fencepost.client.cluster.config_names import producer_fields  # slow to load, and rarely needed

        settings, named = producer_fields(config)
        return cls(ClientSettings(**settings), **{**named, **options})

    def _new_sender(self) -> Sender:
        network, clock = self._make_network()
        self._clock = clock
        lease = Lease()
        sender = Sender(self._settings, self._options, network, clock, steps=self._steps, ids=self._ids, lease=lease)
        patience = min(self._options.exit_timeout, self._options.delivery_timeout)
        self._thread = SendThread(sender, self._settings.addresses, patience, self._routes.close)
        self._loss = Loss(lease, clock)
        self._loss.on_lease_over = network.wake  # the send thread ends the ownership
        self._queues = sender.queues
        self._routes.on_silent = sender.doubt
        self._queues.is_asking = self._routes.is_asking
        # An intake of its own: if the send thread had a reference to the producer, it could never be collected.
        intake = self._intake = self._queues.new_intake(self._send_slowly)
        if type(self).send is Producer.send:
            self.send = intake.send  # type: ignore[method-assign]  # the native call itself, without a Python frame
        return sender

    def _make_network(self) -> tuple[Network, Clock]:
        return SocketNetwork(self._settings.security), SystemClock()

    def __repr__(self) -> str:
        name = f" {self._options.name!r}" if self._options.name is not None else ""
        return f"<Producer{name} to {self._settings.addresses}, {'closed' if self._closed else 'open'}>"

    # --- sending ---

    def send(
        self,
        topic: str,
        value: Any,
        *,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: Milliseconds | None = None,
    ) -> Ticket:
        """Accept one record and return at once. The ticket is settled when the server has answered.

        Block, or raise BufferFull, only while the producer's memory is full.
        """
        ticket: Ticket = self._intake.send(
            topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
        )
        return ticket

    def send_arrow(self, topic: str, table: Rows) -> BulkTicket:
        """Send one record per row, encoded straight from the columns without the GIL.

        `table`: a Table, RecordBatch or RecordBatchReader, or an iterable of Tables and RecordBatches, which is read to
        its end first.

        Columns, all optional: `key` and `value` (binary or text), `headers` (a list of (key, value), or a map),
        `partition` (an integer) and `timestamp`. Any other column raises ValueError. While the topic's partitions are
        unknown, rows wait, in order with the records of `send`. Rows with neither key nor partition go to one partition
        per chunk.
        """
        self._begin()
        from fencepost.client.produce.table import send_table

        return send_table(self._queues, self._options, topic, table, self._clock.now_ms(), self._loss.check)

    def _send_slowly(
        self,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers | None,
        partition: int | None,
        timestamp: Milliseconds | None,
    ) -> Ticket:
        """Do what the native call leaves to Python: open or close a batch, an unknown topic, full memory, headers."""
        if not self._thread.has_begun:
            self._begin()
        return self._queues.send(topic, value, key, headers, partition, timestamp)

    # --- saved ids ---

    @property
    def ids(self) -> ProducerIds:
        """The ids to save together with the input position. Raises while records are unsettled: flush first."""
        if self._steps is None:
            raise ConfigError("ids need a name, because a bare pid cannot be fenced: Producer(…, name='…')")
        self._begin()
        if self._thread.is_current:
            raise FencepostError("ids cannot be read in a callback, which runs on the send thread: read them elsewhere")
        self._sender.begin_to_save_ids(self._sender.wait_for_identity(self._options.delivery_timeout))
        if self._cluster_id is None:
            self._cluster_id = self._routes.view().cluster_id
        return self._sender.call(lambda: self._sender.ids(self._cluster_id))

    def _resume_from(self, ids: ProducerIds) -> None:
        try:
            self._cluster_id = self._routes.view().cluster_id
            if self._cluster_id != ids.cluster_id:
                raise ConfigError(f"the saved ids are of cluster {ids.cluster_id}, not of this one, {self._cluster_id}")
            self._begin()
            self._sender.wait_for_identity(self._options.delivery_timeout)
        except BaseException:
            self.close(0)
            raise

    # --- transactions ---

    def init_transactions(self) -> None:
        """Claim the producer's name: fence its previous holder, and abort that one's open transaction.

        The first `transaction()` does the same. Call it earlier if you read the position to resume from: afterwards no
        other producer of that name can move it.
        """
        if self._steps is None:
            raise ConfigError("init_transactions needs a name: Producer(…, name='…')")
        self._begin()
        self._sender.wait_for_identity(self._options.delivery_timeout)

    def transaction(self) -> ProducerTransaction:
        """Return a transaction: the records sent in its `with` block become visible together, or not at all if the
        block raises. The first one fences the previous holder of the producer's name.

        >>> with producer.transaction():
        ...     producer.send("orders", b"value")
        ...     producer.send_offsets("readers", {TopicPartition("input", 0): 42})
        """
        if self._steps is None:
            raise ConfigError("a transaction needs a name: Producer(…, name='…')")
        if self._transaction is not None and self._transaction.is_open:
            raise FencepostError("a transaction is open already: transactions do not nest")
        self._begin()
        self._transaction = ProducerTransaction(self._sender, self._steps, self._options.delivery_timeout)
        return self._transaction

    def send_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int], member: ConsumerGroupMetadata = NO_MEMBER
    ) -> None:
        """Commit the group's offsets with the open transaction: if, and only if, it commits."""
        if self._transaction is None or not self._transaction.is_open:
            raise FencepostError("there is no open transaction: send offsets inside `with producer.transaction():`")
        self._transaction.send_offsets(group, offsets, member)

    # --- owning ---

    def own(
        self,
        group: str | None = None,
        resources: Resources | None = None,
        *,
        generation: int | None = None,
        wait: bool | float | None = None,
        after: int | Mapping[str, int] | None = None,
        session: float = 0.0,
        on_lost: OnLost | None = None,
    ) -> Claim:
        """Claim `resources` (a partition's name is `TOPIC-PARTITION`) in `group`, all of them or none.

        `group`: `default` unless given. With `generation`, the claimant's own (one for all, or one per resource:
        `{"orders-0": 5, "orders-1": 1}`), claim at once: take over from an owner whose generation is not higher, raise
        Refused otherwise. With `wait` (seconds, or True: without limit), wait until all are free, and raise TimedOut
        otherwise. `after`: claim only if that is still the newest token, of all or of each. `session`: seconds of
        silence, as of a stopped process, after which this producer loses what it owns.

        An owner that loses its connection is finished: every ticket is settled with what is known, `send` raises
        Fenced, and the producer does not reconnect. It notices at once, even if it sends nothing: `claim.lost` is set,
        `check_owned` raises, and `on_lost` is called with the Fenced on another thread.
        """
        request = check_claim(group, resources, generation=generation, wait=wait, after=after, session=session)
        if self._transaction is not None and self._transaction.is_open:
            raise FencepostError("a transaction is open: own first, then begin the transaction")
        self._begin()
        from fencepost.client.own.owned_partitions import PlacingBackend  # loaded only by owners

        backend = self._backend()
        self._queues.on_fenced = self._loss.happened
        claim = claim_by(PlacingBackend(backend, self._queues, self._held), request, self._loss, on_lost)
        if self._sender.lease.session and type(self).send is Producer.send:
            self.send = _under_lease(self._intake.send, self._loss)  # type: ignore[method-assign]
        if self._kafka_owner is not None:
            self._steps = self._kafka_owner.writing  # the caller's transactions use the write id
        return claim

    def check_owned(self) -> None:
        """Raise Fenced if this producer has lost what it owned, even if it sends nothing."""
        if (parents := self._loss.parents) is not None:
            raise parents.fresh()
        self._loss.check()
        if (fenced := self._sender.fenced) is not None:
            raise fenced.fresh()

    def interrupt(self) -> None:
        """From another thread: give up an `own` that waits, which then raises Closed."""
        if self._owns_by is not None:
            self._owns_by.interrupt()

    def _backend(self) -> OwnBackend:
        """Return the backend for claims, chosen at the first claim by what the server offers."""
        if self._owns_by is None:
            if offers_own(self._sender.brokers, self._routes):
                from fencepost.client.own.server import ServerProducerBackend  # loaded only by owners

                patience = self._options.delivery_timeout
                self._owns_by = ServerProducerBackend(self._sender, self._settings, patience, self._steps, self._routes)
            else:
                self._owns_by = self._kafka_backend()
        return self._owns_by

    def _kafka_backend(self) -> KafkaProducerBackend:
        # Loaded only by owners on Kafka.
        from fencepost.client.own.kafka import LANES, KafkaOwner, KafkaProducerBackend

        patience, timeout = self._options.delivery_timeout, self._options.transaction_timeout
        owner = KafkaOwner(
            self._settings,
            self._routes,
            transaction_timeout=timeout,
            patience=patience,
            lanes=LANES,
            lease=self._sender.lease,
        )
        self._kafka_owner = owner
        return KafkaProducerBackend(self._sender, owner, self._options)

    # --- stats ---

    def stats(self) -> ProducerStats:
        """Return what the queues hold, since when, and how fast the brokers answer. It is cheap: idle partitions are
        left out. The send thread collects it, between two turns."""
        if not self._thread.takes_calls:
            return self._sender.reporting.look()
        try:
            return self._sender.call(self._sender.reporting.look)
        except Closed:  # it has just ended
            return self._sender.reporting.look()

    # --- flush and close ---

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all earlier records are settled. Not in a callback: that runs on the send thread.

        Raise Undelivered if records failed since the last flush and nobody asked their tickets; raise Fenced instead if
        a fence is the cause.
        """
        if not self._queues.wait_until_settled(timeout):
            why = self._sender.trouble()
            raise TimedOut(f"not all records were settled within {timeout:g} s; they still may be{why}")
        self._raise_undelivered()

    def close(self, timeout: float | None = None) -> None:
        """Send what is queued, wait for the answers, and end. A second call does nothing."""
        if self._closed:
            return
        if is_mine(self._start):
            raise interrupted()
        self._queues.check_thread("close()")
        self._queues.check_interrupted()
        if self._transaction is not None and self._transaction.is_open:
            self._transaction.abort()
        self._closed = True
        self._queues.refuse_from_now(Closed("the producer is closed"))
        try:
            if self._queues.wait_until_settled(timeout) and self._owns_by is not None:
                self._owns_by.close()
        except BaseException:  # perhaps a signal handler's, which ends the program: nobody will be told otherwise
            self._end()
            self._thread.report("when close() was interrupted")
            raise
        self._end()
        self._raise_undelivered()

    def _end(self) -> None:
        """End without waiting: fail what is left, even if Ctrl-C comes again."""
        try:
            self._thread.close()  # not before: if the program ends meanwhile, it waits for what is unsettled
            self._sender.stop()
            self._thread.join()  # it fails what is left
        finally:
            if self._owns_by is not None:
                self._owns_by.forget()
            self._sender.lease.drop()  # what is released is not lost
            self._routes.close()

    def _raise_undelivered(self) -> None:
        count, causes, persisted = self._sender.settling.failures.take()
        if not count:
            return
        undelivered = Undelivered(count, causes)
        fenced = self._queues.broken
        if isinstance(fenced, Fenced):  # the same exception from send, flush and close
            raise Fenced(fenced.message, persisted=persisted, code=fenced.code, count=count) from undelivered
        raise undelivered

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        try:
            # The caller should see the error soon, also if the server is gone: it is why the block has ended.
            self.close(timeout=0 if issubclass(kind or Exception, KeyboardInterrupt) else self._options.exit_timeout)
        except (Fenced, Undelivered) as undelivered:
            error.add_note(str(undelivered))  # the caller should see the first error
            if isinstance(error, SystemExit):  # nobody sees its notes
                print_error(f"fencepost: {undelivered}")

    # --- start and fork ---

    def _begin(self) -> None:
        """Start the send thread if it does not run: at the first use, since the process may be forked until then."""
        if is_mine(self._start):
            raise interrupted()
        with self._start:
            if not self._thread.has_begun:
                if self._closed:
                    raise self._queues.broken or Closed("the producer is closed")
                self._thread.begin(self)

    def after_fork(self) -> None:
        """In a forked child: leave the parent its thread, sockets and records, and start without any."""
        self._start = threading.RLock()
        if self._closed:
            return
        before = self._sender
        self._routes, self._owns_by = Routes(self._settings), None
        loss = self._loss
        before.leave_to_parent()
        loss.leave_to_parent()
        self._sender = self._new_sender()
        self._loss.parents = loss.parents
        owner, named = before.is_owner, self._options.name is not None
        if owner or named:
            what = "that owns something" if owner else "with a name"
            self._closed = True
            self._queues.refuse_from_now(of_the_parent(f"a producer {what}"))


wait_for_imports()


def _under_lease(send: Callable[..., Ticket], loss: Loss) -> Callable[..., Ticket]:
    """Return `send` for an owner with a session, which raises once the lease is over. It has no reference to the
    producer, which could be garbage-collected only later then."""

    def send_under_lease(topic: str, value: Any, **how: Any) -> Ticket:
        loss.check()
        return send(topic, value, **how)

    return send_under_lease
