"""`Admin`: topics, offsets, producers, configs, groups, transactions, users, ACLs, quotas and owners of a cluster.

It works with a fencepost server and with Apache Kafka. A request goes to the leader or coordinator that must answer it,
and otherwise to any server. Calls block. They raise `ServerError` with Kafka's code and the server's message,
`Unreachable`, or `TimedOut`.

    with Admin("127.0.0.1:9092") as admin:
        admin.create_topic("orders", partitions=3)
        print(admin.latest("orders"))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Self

from fencepost.client.admin.acls import AclAdmin
from fencepost.client.admin.groups import GroupAdmin
from fencepost.client.admin.quotas import QuotaAdmin
from fencepost.client.admin.results import LastOwner, OwnersDescription, TransactionDescription
from fencepost.client.admin.topics import TopicAdmin
from fencepost.client.admin.transactions import TransactionAdmin
from fencepost.client.admin.users import UserAdmin
from fencepost.client.cluster.addresses import Servers
from fencepost.client.cluster.blocking import raise_for
from fencepost.client.cluster.checks import only_known
from fencepost.client.cluster.forking import OnePerProcess
from fencepost.client.cluster.settings import ClientSettings
from fencepost.client.own.kafka_topic import describe_last, describe_owners
from fencepost.client.transactions.coordinator import Transactional
from fencepost.core.rows import OwnerDescription, WaitingDescription
from fencepost.types import EARLIEST, LATEST, Generation
from fencepost.wire.apis import Key

__all__ = ["EARLIEST", "HIGH_WATERMARK", "LATEST", "Admin"]

HIGH_WATERMARK: Final = -1
"""In `delete_records`: all records that readers may read."""


class Admin(OnePerProcess, TopicAdmin, GroupAdmin, TransactionAdmin, UserAdmin, QuotaAdmin, AclAdmin):
    """The administration of a cluster: a context manager that threads may share."""

    @only_known("Admin")
    def __init__(self, servers: Servers | ClientSettings) -> None:
        super().__init__(servers)

    @classmethod
    def from_config(cls, config: Mapping[str, object]) -> Self:
        """Create it from librdkafka's or Java's names (`bootstrap.servers`, `sasl.jaas.config` …)."""
        return cls(ClientSettings.from_config(config))

    def owners(self, group: str | None = None) -> OwnersDescription:
        """Return the owners of resources and the claims that wait, in one group or in all."""
        if not self.offers(Key.DESCRIBE_OWNERS):
            return describe_owners(self._routes.settings, self._routes, group)
        answer = self._routes.ask(Key.DESCRIBE_OWNERS, {"group": group}).message
        raise_for(answer.error_code, "describing owners")
        return OwnersDescription(
            tuple(
                OwnerDescription(
                    row.group,
                    row.name,
                    Generation(row.generation),
                    row.token,
                    row.since_ms,
                    row.address,
                    row.client_id,
                )
                for row in answer.owners
            ),
            tuple(
                WaitingDescription(row.group, tuple(row.names), row.address, row.client_id) for row in answer.waiting
            ),
        )

    def last_owners(self, group: str, resources: Sequence[str]) -> dict[str, LastOwner]:
        """Return the last grant of each resource, including released ones.

        Resources that never had an owner are left out; so are those that an older server does not report."""
        if not self.offers(Key.DESCRIBE_OWNERS):
            return describe_last(self._routes.settings, self._routes, group, resources)
        answer = self._routes.ask(Key.DESCRIBE_OWNERS, {"group": group, "resources": list(resources)}).message
        raise_for(answer.error_code, "describing owners")
        return {
            row.resource: LastOwner(row.token, row.since_ms, row.address, row.client_id)
            for row in getattr(answer, "newest", ())
        }

    def abort_transaction(self, name: str) -> TransactionDescription:
        """Abort the open transaction of a transactional id and fence its producer. Return its description."""
        described = self._describe_open(name)
        Transactional(self._routes, name, patience=self.settings.request_timeout).init(described.timeout_ms)
        return described
