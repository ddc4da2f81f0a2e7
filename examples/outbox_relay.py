"""A relay of a database's outbox: each row once, in total order, by one process with a standby (OWN-10).

    fencepost topic create events --set fencepost.writer.group=outbox-relays
    python examples/outbox_relay.py 127.0.0.1:9092 events application.db [--until-empty]

An application writes its events to the table `outbox` in the transaction that changes its data; the relay sends them to
partition 0 of a topic. Of several relays one owns the partition; the others wait, and take over when it ends or sends
no heartbeats. The database is an SQLite file, or an address like postgresql://user@host/name (needs psycopg).

There is no table of positions: every record carries its row's position, and a new owner reads the last one from the
log. That is correct because, once the claim is granted, the log accepts no more records of the previous relay. A relay
that is replaced ends with exit code 3, also while it is idle.
"""

from __future__ import annotations

import argparse
import contextlib
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, TypeAlias

from fencepost import Admin, Claim, Fenced, FencepostError, Producer, Reader
from fencepost.types import TopicPartition

GROUP = "outbox-relays"
FENCED = 3
Position: TypeAlias = tuple[int, int]
BEGINNING: Position = (0, 0)
AT_ONCE = 500
PAUSE = 0.1


class Row(NamedTuple):
    position: Position
    key: str | None
    value: str


class Outbox(Protocol):
    def after(self, position: Position, limit: int) -> list[Row]:
        """Return the rows after `position`, in order. No row may later appear before one of them."""

    def close(self) -> None: ...


class SqliteOutbox:
    """An outbox in SQLite, which has one writer at a time: rows are committed in the order of their numbers."""

    TABLE = "create table if not exists outbox (id integer primary key autoincrement, key text, value text not null)"

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._database.execute("pragma journal_mode = wal")
        self._database.execute(self.TABLE)

    def after(self, position: Position, limit: int) -> list[Row]:
        found = self._database.execute(
            "select id, key, value from outbox where id > ? order by id limit ?", (position[1], limit)
        )
        return [Row((0, number), key, value) for number, key, value in found]

    def close(self) -> None:
        self._database.close()


class PostgresOutbox:
    """An outbox in PostgreSQL, where a row may be committed after one with a higher number, so that numbers alone would
    lose rows. Rows are read in the order of (transaction, number), and only of transactions older than every running
    one."""

    TABLE = """create table if not exists outbox (
        transaction xid8 not null default pg_current_xact_id(), id bigserial, key text, value text not null,
        primary key (transaction, id))"""

    def __init__(self, address: str) -> None:
        import psycopg

        self._database: Any = psycopg.connect(address, autocommit=True)
        self._database.execute(self.TABLE)

    def after(self, position: Position, limit: int) -> list[Row]:
        found = self._database.execute(
            """select transaction::text as number, id, key, value from outbox
               where (transaction, id) > (%s::text::xid8, %s) and transaction < pg_snapshot_xmin(pg_current_snapshot())
               order by transaction, id limit %s""",
            (str(position[0]), position[1], limit),
        )
        return [Row((int(transaction), number), key, value) for transaction, number, key, value in found.fetchall()]

    def close(self) -> None:
        self._database.close()


def relayed(servers: str, topic: str) -> Position:
    """Return the position in the log's last record."""
    partition = TopicPartition(topic, 0)
    with Admin(servers) as admin:
        first, end = admin.earliest(topic)[0], admin.latest(topic)[0]
    back = 100
    while end > first:  # the last offset may be a transaction marker's: then look further back
        start = max(first, end - back)
        with Reader(servers, partition, start=int(start), stop=int(end)) as reader:
            found = list(reader)
        if found:
            transaction, number = (dict(found[-1].headers)["position"] or b"").split()
            return int(transaction), int(number)
        if start == first:
            break
        back *= 10
    return BEGINNING


def rows(outbox: Outbox, position: Position, claim: Claim, *, until_empty: bool) -> Iterator[Row]:
    """Yield the rows to relay, until there are no more or the claim is lost (Fenced)."""
    while True:
        found = outbox.after(position, AT_ONCE)
        yield from found
        if found:
            position = found[-1].position
        elif until_empty:
            return
        elif claim.lost.wait(PAUSE):  # poll: the database does not notify of new rows
            claim.check()


def run(servers: str, topic: str, outbox: Outbox, *, session: float = 5.0, until_empty: bool = False) -> int:
    try:
        with Producer(servers) as producer:
            claim = producer.own(GROUP, [f"{topic}-0"], wait=True, session=session)
            position = relayed(servers, topic)
            print(f"relaying from {position}, token {claim.token}", flush=True)
            for row in rows(outbox, position, claim, until_empty=until_empty):
                place = f"{row.position[0]} {row.position[1]}".encode()
                producer.send(topic, row.value, key=row.key, partition=0, headers=[("position", place)])
        return 0
    except Fenced as fenced:
        print(f"replaced: {fenced}", flush=True)
        return FENCED


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("servers")
    parser.add_argument("topic")
    parser.add_argument("database", help="an SQLite file, or postgresql://…")
    parser.add_argument("--session", type=float, default=5.0, help="seconds without a heartbeat until it is replaced")
    parser.add_argument("--until-empty", action="store_true", help="end when everything is relayed")
    given = parser.parse_args()
    is_postgres = given.database.startswith(("postgresql://", "postgres://"))
    outbox: Outbox = PostgresOutbox(given.database) if is_postgres else SqliteOutbox(given.database)
    with contextlib.closing(outbox):
        return run(given.servers, given.topic, outbox, session=given.session, until_empty=given.until_empty)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FencepostError as error:
        sys.exit(f"outbox relay: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
