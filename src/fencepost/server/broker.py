"""The broker: the state that handlers share (topics, partitions, store, coordinators), and its background tasks."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import random
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fencepost._version import __version__
from fencepost.clock import Clock, SystemClock
from fencepost.core.fetch_sessions import FetchSessions
from fencepost.core.micro_batch.zombies import FencedWrites
from fencepost.core.security.audit_events import Event
from fencepost.errors import ErrorCode, ServerError, StorageError
from fencepost.log.files import OsFiles
from fencepost.log.handles import Handles
from fencepost.server.config.settings import ServerConfig
from fencepost.server.coordinators import group_rows, owners, transaction_rows, transactions
from fencepost.server.coordinators.groups import GroupCoordinator
from fencepost.server.coordinators.pids import PidAllocator
from fencepost.server.counters import Counters
from fencepost.server.health import Chore, Health
from fencepost.server.net.answer_memory import AnswerMemory
from fencepost.server.net.turns import Codecs, SharedTurns
from fencepost.server.process.control import Control
from fencepost.server.process.tuning import most_segment_files
from fencepost.server.security import authorizer, quotas, users
from fencepost.server.security.audit import Audit
from fencepost.server.security.audit_places import audit_places, make_topic
from fencepost.server.security.logins import Logins
from fencepost.server.security.sasl import OAUTHBEARER
from fencepost.server.storage.datadir import DataDirectory
from fencepost.server.storage.fetching import FetchContext
from fencepost.server.storage.housekeeping import Housekeeping
from fencepost.server.storage.partition import Disk, Partition
from fencepost.server.storage.space import Space, largest
from fencepost.server.storage.store import Store
from fencepost.server.storage.syncer import PARALLEL_SYNCS, Syncer
from fencepost.server.storage.topics import ProducerLimit, Topic, Topics
from fencepost.server.storage.validation import Validation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine
    from pathlib import Path

    from fencepost.server.config.reloading import ReloadOutcome
    from fencepost.server.security.tokens import Tokens

logger = logging.getLogger(__name__)

_MOST_FETCH_SESSION_PARTITIONS = 200_000
"""Partitions in all fetch sessions and waiting wide fetches, at some 500 bytes each."""


def make_tokens(config: ServerConfig) -> Tokens | None:
    """Return the checks of tokens, if a listener takes them."""
    if not any(OAUTHBEARER in endpoint.mechanisms for endpoint in config.endpoints if endpoint.authenticates):
        return None
    from fencepost.server.security.tokens import TokenRules, Tokens

    issuer, audience, jwks = config.oauth_issuer, config.oauth_audience, config.oauth_jwks
    assert issuer is not None
    assert audience is not None
    assert jwks is not None
    return Tokens(TokenRules(issuer, audience, jwks, config.oauth_subject_claim))


class Broker:
    """Everything that outlives a request. Only the loop uses it, also to call `start` and `close`."""

    def __init__(self, config: ServerConfig, *, clock: Clock | None = None, files: OsFiles | None = None) -> None:
        tokens = make_tokens(config)
        self.config = config
        self.clock = clock or SystemClock()
        self.health = Health(self.clock)
        self.counters = Counters()
        self.fenced_writes = FencedWrites()
        self.directory = DataDirectory(config.data)
        files = files or OsFiles(durable=not self.directory.ephemeral)
        self.space = Space(
            self.directory.path,
            files,
            self.clock,
            min_free=config.min_free_bytes,
            reserve=0 if self.directory.ephemeral else config.reserve_bytes,
        )
        try:
            self.store = Store(
                self.directory.store,
                config.sync,
                (
                    *group_rows.SCHEMA,
                    *owners.SCHEMA,
                    *transaction_rows.SCHEMA,
                    *users.SCHEMA,
                    *authorizer.SCHEMA,
                    *quotas.SCHEMA,
                ),
                make_room=self.space.release_reserve,
            )
        except BaseException:
            self.directory.close()
            raise
        self.cluster_id = self._load_cluster_id()
        self.threads = ThreadPoolExecutor(8, thread_name_prefix="fencepost-disk")
        self.sync_threads = ThreadPoolExecutor(PARALLEL_SYNCS, thread_name_prefix="fencepost-sync")
        """Only for syncs: what others want of the disk may take long, and everybody waits for a sync."""
        self.codecs = Codecs()
        self.pids = PidAllocator(self.store)
        self.handles = Handles(files, most_segment_files(config.open_files))
        disk = Disk(files, self.handles, self.threads, self.clock, self.pids, self.space)
        self.standstill = disk.standstill
        self.topics = Topics(
            self.store,
            disk,
            self.directory.topic_folder,
            producer_expiry_ms=config.producer_expiry_ms,
            most_topics=config.max_topics,
            most_partitions=config.max_partitions,
        )
        self.producers = ProducerLimit(self.topics, config.max_producers, self.clock)
        self.syncer = Syncer(self.sync_threads, self.health, self.counters.sync_rounds)
        self.validation = Validation(config.max_inflated_bytes)
        self.groups = GroupCoordinator(self)
        self.owners = owners.Owners(self)
        self.transactions = transactions.Transactions(self)
        self.users = users.Users(self.store)
        self.audit = Audit(self.clock, self._audit_reports)
        self.logins = Logins(self.users, self.clock, tokens, audit=self.audit)
        self.authorizer = authorizer.Authorizer(
            self.store,
            enabled=config.authorization_enabled,
            super_users=config.authorization_super_users,
            allow_everyone_if_no_acl=config.authorization_allow_everyone_if_no_acl,
            audit_topic=config.audit_topic,
        )
        self.quotas = quotas.Quotas(self.store, self.clock, lambda: self.config.quota_burst_ms / 1000)
        self.answers = AnswerMemory(config.answer_memory)
        self.reading_turns = SharedTurns()
        self.opening_turns = SharedTurns()
        self.fetch_sessions: FetchSessions[FetchContext] = FetchSessions(
            config.max_fetch_sessions,
            _MOST_FETCH_SESSION_PARTITIONS,
            new_id=lambda: random.getrandbits(31),
            let_go=lambda context: context.end(self),
        )
        self.reload: Callable[[], Awaitable[ReloadOutcome]] | None = None
        """Reads the configuration again; None: the server was started without a file."""
        self._control = None if self.directory.ephemeral else Control(self)
        self.derived: dict[str, Any] = {}
        """Caches of the handlers; any entry may be dropped and computed again."""
        self._leftovers: set[Path] = set()
        """Folders of deleted topics that still exist."""
        self._creating: dict[str, asyncio.Task[Topic]] = {}
        self._background: set[asyncio.Task[Any]] = set()

    def _load_cluster_id(self) -> str:
        rows = self.store.query("SELECT value FROM meta WHERE name = 'cluster_id'")
        if rows:
            return str(rows[0][0])
        return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")

    async def start(self) -> None:
        deleted = [str(name) for (name,) in self.store.query("SELECT folder FROM deleted_folders")]
        self._report_strange_folders(deleted)
        await self.store.execute(
            [("INSERT OR IGNORE INTO meta (name, value) VALUES ('cluster_id', ?)", (self.cluster_id,))]
        )
        self._loop = asyncio.get_running_loop()
        if self.config.audit_topic is not None:
            await make_topic(self, self.config.audit_topic)
        self.audit.use(*audit_places(self, self.config))
        self.audit.record(Event.SERVER_STARTED, version=__version__, pid=os.getpid())
        await self.groups.start()
        self.transactions.start()
        housekeeping = Housekeeping(self)
        await self.check_space()
        self.spawn(housekeeping.run(), "housekeeping")
        self.spawn(housekeeping.run_compaction(), "compaction")
        self.spawn(self._sweep_folders(deleted), "remove folders of deleted topics")
        if self._control is not None:
            await self._control.start()

    async def close(self, *, served: bool = True) -> None:
        """Close every log cleanly, so that the next start has nothing to replay. `served`: the server was listening."""
        loop = asyncio.get_running_loop()
        if self._control is not None:
            await self._control.close()
        await loop.run_in_executor(None, self.audit.close)  # while the loop can still append to the audit topic
        for task in list(self._background):
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.transactions.close()
        await self.groups.close()
        open_logs = [p.log for topic in self.topics for p in topic.touched() if p.log is not None]
        now = self.clock.now_ms()
        closing = [loop.run_in_executor(self.threads, log.close, now) for log in open_logs]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException):
                logger.error("cannot close a log cleanly; the next start will recover it: %s", outcome)
        await loop.run_in_executor(None, self.threads.shutdown)
        await loop.run_in_executor(None, self.sync_threads.shutdown)
        await loop.run_in_executor(None, self.codecs.close)
        await loop.run_in_executor(None, self.validation.close)
        await loop.run_in_executor(None, self.logins.close)
        self.store.close()
        self.directory.close(served=served)

    def _audit_reports(self, error: Exception | None) -> None:
        """Let the health tell whether the audit log can be written; called by its thread."""
        if error is None:
            self._loop.call_soon_threadsafe(self.health.clear, Chore.AUDIT)
        else:
            self._loop.call_soon_threadsafe(self.health.note, Chore.AUDIT, "", error)

    def spawn(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run a task in the background. The broker logs its failure, and cancels it in `close`."""
        task = asyncio.ensure_future(work)
        task.set_name(name)
        self._background.add(task)
        task.add_done_callback(self._chore_done)

    def _chore_done(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("background task %r failed", task.get_name(), exc_info=error)

    async def check_space(self) -> None:
        """Check the free disk space: keep the reserve file, or record which topics to delete."""
        in_thread = asyncio.get_running_loop().run_in_executor
        await in_thread(self.threads, self.space.look)
        with self.health.watch(Chore.SPACE):
            if self.space.is_low:
                folders = [(topic.name, topic.folder) for topic in self.topics]
                raise self.space.refusal(await in_thread(self.threads, largest, folders))
            await in_thread(self.threads, self.space.keep_reserve)

    # -- partitions -------------------------------------------------------------------------------------------

    def partition(self, topic_name: str, index: int) -> Partition:
        """Return the partition, or raise UNKNOWN_TOPIC_OR_PARTITION."""
        topic = self.topics.get(topic_name)
        partition = topic.partition(index) if topic is not None else None
        if partition is None:
            raise ServerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"partition {topic_name}-{index} does not exist")
        return partition

    # -- topics -----------------------------------------------------------------------------------------------

    async def auto_create(self, name: str) -> Topic:
        """Return the topic, creating it with the defaults if needed; concurrent calls share one creation."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        creating = self._creating.get(name)
        if creating is None:
            creating = asyncio.ensure_future(self.topics.create(name, self.config.default_partitions, {}))
            self._creating[name] = creating
            creating.add_done_callback(lambda _: self._creating.pop(name, None))
        try:
            return await asyncio.shield(creating)
        except ServerError as error:
            topic = self.topics.get(name)
            if error.code is ErrorCode.TOPIC_ALREADY_EXISTS and topic is not None:
                return topic
            raise

    async def delete_topic(self, topic: Topic) -> None:
        await self.topics.delete(topic)
        for partition in topic.touched():
            if partition.log is not None:
                partition.log.abandon()
                partition.log = None
        self.health.forget({str(partition.name) for partition in topic.touched()})
        self.groups.topic_deleted(topic.name)
        self.spawn(self._remove_folder(topic.folder), f"remove {topic.folder.name}")

    async def _remove_folder(self, folder: Path) -> None:
        """Remove the folder of a deleted topic. After a failure, housekeeping and the next start try again."""

        def remove() -> bool:
            shutil.rmtree(folder, ignore_errors=True)
            return not folder.exists()

        self._leftovers.add(folder)
        with self.health.watch(Chore.FOLDERS, folder.name):
            async with self.standstill.moving():
                removed = await asyncio.get_running_loop().run_in_executor(self.threads, remove)
            if not removed:
                raise StorageError(f"cannot remove {folder}, the folder of a deleted topic; remove it by hand")
            await self.store.execute([("DELETE FROM deleted_folders WHERE folder = ?", (folder.name,))])
            self._leftovers.discard(folder)

    async def remove_leftovers(self) -> None:
        """Try again to remove the folders of deleted topics."""
        for folder in list(self._leftovers):
            await self._remove_folder(folder)

    async def _sweep_folders(self, deleted: list[str]) -> None:
        """Remove folders left by a crash between the deletion of a topic and the removal of its folder."""
        for name in deleted:
            folder = self.directory.logs / name
            if folder.exists():
                logger.info("removing %s: its topic was deleted", folder)
            await self._remove_folder(folder)

    def _report_strange_folders(self, deleted: list[str]) -> None:
        """Log the folders that belong to no topic, and leave them alone: they may hold the only copy of a topic that a
        restored metadata store does not know. Call it before clients can create topics: a new topic's folder would be
        logged too, and an operator who trusts the log would delete live data."""
        expected = {topic.folder.name for topic in self.topics} | set(deleted)
        for folder in self.directory.logs.iterdir():
            if folder.is_dir() and folder.name not in expected:
                logger.warning("%s belongs to no topic; the server leaves it alone", folder)
