"""Owners of resources, the claims that wait in line, and take-overs: pages of what the caller may see."""

from __future__ import annotations

import asyncio
from collections import Counter

from fencepost.core.rows import OwnerDescription, TakenResourceRow, TakeoverRow, WaitingClaimRow
from fencepost.core.security.access import GROUP_DESCRIBE
from fencepost.server.coordinators.takeovers import SeveredOwner
from fencepost.server.net.router import ApiRequest
from fencepost.server.net.turns import paced
from fencepost.server.views.asking import HttpCaller
from fencepost.server.views.paging import Page, PagePlace, cut
from fencepost.wire.apis import Key


def _request(caller: HttpCaller, group: str | None) -> ApiRequest:
    """Return a request for its checks of permissions, as DescribeOwners makes them: a group that is asked for by name
    must be allowed, others are left out."""
    request = caller.request(Key.DESCRIBE_OWNERS)
    if group is not None:
        request.require(GROUP_DESCRIBE, group)
    return request


async def list_owners(
    caller: HttpCaller, place: PagePlace, group: str | None, find: str = ""
) -> Page[OwnerDescription]:
    """Return owners by group and resource; with `find`, those whose group or resource contains the text."""
    request, owners = _request(caller, group), caller.broker.owners
    groups = owners.table.groups() if group is None else [group]
    seen = [each async for each in paced(groups) if request.sees(GROUP_DESCRIBE, each)]
    names = ((each, name) for each in seen for name in owners.table.names(each) if find in each or find in name)
    found, cursor = await cut(names, tuple, place)
    rows = []
    for owned_in, name in found:
        holding = owners.table.ownership(owned_in, name)
        if holding is not None:  # else it was released meanwhile
            since, owner = owners.since.get((owned_in, name), -1), holding.owner
            rows.append(
                OwnerDescription(owned_in, name, holding.generation, holding.token, since, owner.peer, owner.client_id)
            )
    await asyncio.shield(caller.broker.syncer.barrier())  # as DescribeOwners: what they have written can be read
    return Page(rows, cursor)


async def list_waiting_claims(
    caller: HttpCaller, place: PagePlace, group: str | None, find: str = ""
) -> Page[WaitingClaimRow]:
    request = _request(caller, group)
    places: Counter[str] = Counter()
    claims = []
    async for waiting in paced(caller.broker.owners.table.waiting()):
        if group not in (None, waiting.group) or not request.sees(GROUP_DESCRIBE, waiting.group):
            continue
        at = places[waiting.group]
        places[waiting.group] += 1
        names = tuple(claimed.name for claimed in waiting.resources)
        if find in waiting.group or any(find in name for name in names):
            claims.append(WaitingClaimRow(waiting.group, names, waiting.claimant.peer, waiting.claimant.client_id, at))
    return Page(*await cut(claims, lambda claim: (claim.group, claim.place), place))


async def list_takeovers(caller: HttpCaller, place: PagePlace, group: str | None, find: str = "") -> Page[TakeoverRow]:
    """Return take-overs, the newest first."""
    request = _request(caller, group)
    seen = [
        event
        async for event in paced(list(caller.broker.owners.takeovers))
        if group in (None, event.group)
        and request.sees(GROUP_DESCRIBE, event.group)
        and (find in event.group or any(find in row.name for row in event.resources))
    ]
    rows, cursor = await cut(seen, lambda event: (-event.number,), place)
    return Page([_takeover(row) for row in rows], cursor)


def _takeover(event: SeveredOwner) -> TakeoverRow:
    followed = event.by_time_ms >= 0
    return TakeoverRow(
        event.number,
        event.time_ms,
        event.group,
        [TakenResourceRow(row.name, row.generation, row.token) for row in event.resources],
        event.resource_count,
        event.reason,
        event.address,
        event.client_id,
        event.by_address if followed else None,
        event.by_client_id if followed else None,
        event.by_time_ms if followed else None,
        event.refused,
    )
