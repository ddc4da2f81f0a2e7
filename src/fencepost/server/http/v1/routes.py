"""The table of routes. Pages, parameters, types of answers and the OpenAPI text all come from it."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_origin, get_type_hints

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fencepost.core.rows import ProblemRow, plain
from fencepost.errors import ErrorCode, FencepostError
from fencepost.server.http.access import Access, AccessRefused
from fencepost.server.http.v1.openapi import describe
from fencepost.server.net.turns import Turns
from fencepost.server.views import groups, owners, security, sinks, topics, transactions
from fencepost.server.views.asking import HttpCaller
from fencepost.server.views.paging import BadQuery, Page, read_place

if TYPE_CHECKING:
    from fencepost.server.broker import Broker
    from fencepost.server.net.listener import Listener
    from fencepost.server.views.snapshot import Snapshots

PREFIX: Final = "/api/v1"
_ONE_GROUP: Final = {"group": "only of this group"}


class ApiRoute(NamedTuple):
    path: str
    make: Callable[..., Awaitable[Any]]
    """Called with the caller, the place of the page if there are pages, and the parameters of path and query."""
    summary: str
    behind: str
    """The Kafka APIs that it asks."""
    in_query: Mapping[str, str] = {}

    @property
    def name(self) -> str:
        return str(self.make.__name__)

    @property
    def answer(self) -> Any:
        """The type of the answer."""
        return get_type_hints(self.make)["return"]

    @property
    def is_paged(self) -> bool:
        return get_origin(self.answer) is Page

    @property
    def in_path(self) -> list[str]:
        return re.findall(r"{(\w+)", self.path)


ROUTES: Final = (
    ApiRoute("/cluster", topics.describe_cluster, "The cluster.", "DescribeCluster"),
    ApiRoute("/topics", topics.list_topics, "Topics, by name.", "DescribeTopicPartitions"),
    ApiRoute(
        "/topics/{topic}", topics.describe_topic, "A topic with its configs.",
        "DescribeTopicPartitions, DescribeConfigs",
    ),
    ApiRoute(
        "/topics/{topic}/partitions", topics.list_partitions, "Partitions of a topic with offsets and sizes.",
        "DescribeTopicPartitions, ListOffsets, DescribeLogDirs",
    ),
    ApiRoute(
        "/topics/{topic}/producers", topics.list_producers,
        "Producers that the partitions of a topic remember, with H(P).",
        "DescribeTopicPartitions, DescribeProducers",
    ),
    ApiRoute("/groups", groups.list_groups, "Consumer groups, by name.", "ListGroups"),
    ApiRoute(
        "/groups/{group:path}/offsets", groups.list_offsets, "Committed offsets of a group, with the lag.",
        "OffsetFetch, ListOffsets",
    ),
    ApiRoute(
        "/groups/{group:path}", groups.describe_group, "A group with its members.",
        "ConsumerGroupDescribe, DescribeGroups",
    ),
    ApiRoute(
        "/transactions", transactions.list_transactions, "Transactional ids, by name.",
        "ListTransactions, DescribeTransactions",
    ),
    ApiRoute(
        "/transactions/{name:path}", transactions.describe_transaction, "A transactional id.",
        "DescribeTransactions",
    ),
    ApiRoute(
        "/owners", owners.list_owners, "Owners of resources, by group and resource.",
        "DescribeOwners", _ONE_GROUP,
    ),
    ApiRoute(
        "/owners/waiting", owners.list_waiting_claims, "Claims that wait in line.",
        "DescribeOwners", _ONE_GROUP,
    ),
    ApiRoute(
        "/owners/takeovers", owners.list_takeovers,
        "The last take-overs since the start of the server, the newest first.", "DescribeOwners", _ONE_GROUP,
    ),
    ApiRoute(
        "/sinks", sinks.list_sinks, "Sinks of Spark jobs, with the last micro-batch of each.",
        "DescribeTopicPartitions, Fetch",
    ),
    ApiRoute("/users", security.list_users, "Users, by name, without their secrets.", "DescribeUserScramCredentials"),
    ApiRoute("/acls", security.list_acls, "ACLs.", "DescribeAcls"),
    ApiRoute("/quotas", security.list_quotas, "Quotas.", "DescribeClientQuotas"),
)  # fmt: skip

STATUS: Final = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: 403,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: 403,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: 403,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: 403,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: 404,
    ErrorCode.GROUP_ID_NOT_FOUND: 404,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: 404,
    ErrorCode.SECURITY_DISABLED: 404,
    ErrorCode.INVALID_TOPIC_EXCEPTION: 404,
}
_HTTP_CODES: Final = {401: "UNAUTHORIZED", 403: "FORBIDDEN", 429: "TOO_MANY_REQUESTS"}


def api_routes(
    broker: Broker, listener: Listener, access: Access, snapshots: Snapshots, headers: Mapping[str, str]
) -> list[Route]:
    """Return the routes for Starlette, the description among them."""

    async def answer(request: Request, route: ApiRoute) -> Response:
        try:
            caller = HttpCaller(broker, listener, await access.client(request), snapshots, Turns())
            made = await _made(caller, route, request)
        except AccessRefused as error:
            problem = ProblemRow(_HTTP_CODES[error.status], str(error))
            return _json(json.dumps(plain(problem)), error.status, {**headers, **error.headers})
        except BadQuery as error:
            return _problem(400, "BAD_REQUEST", str(error))
        except FencepostError as error:
            return _problem(STATUS.get(error.code, 500), error.code.name, error.reason or str(error))
        text = await broker.codecs.run(lambda: json.dumps(plain(made)))
        return _json(text, 200, headers)

    def _problem(status: int, code: str, message: str) -> Response:
        return _json(json.dumps(plain(ProblemRow(code, message))), status, headers)

    description = json.dumps(describe(ROUTES, PREFIX))

    async def openapi(_: Request) -> Response:
        return _json(description, 200, headers)

    async def unknown(_: Request) -> Response:
        return _problem(404, "NOT_FOUND", f"there is no such route: {PREFIX}/openapi.json lists them")

    found = [Route(f"{PREFIX}/openapi.json", openapi)]
    for route in ROUTES:
        page = partial(answer, route=route)
        found.append(Route(PREFIX + route.path, page, name=route.name, methods=["GET"]))
    found.append(Route(PREFIX + "{rest:path}", unknown))
    return found


async def _made(caller: HttpCaller, route: ApiRoute, request: Request) -> Any:
    query = request.query_params
    known = {*route.in_query, *(("limit", "cursor") if route.is_paged else ())}
    for name in query:
        if name not in known:
            raise BadQuery(f"there is no parameter {name[:50]!r} here, only {', '.join(sorted(known)) or 'none'}")
    arguments = [request.path_params[name] for name in route.in_path]
    arguments += [query.get(name) for name in route.in_query]
    if not route.is_paged:
        return await route.make(caller, *arguments)
    return await route.make(caller, read_place(query.get("limit"), query.get("cursor")), *arguments)


def _json(text: str, status: int, headers: Mapping[str, str]) -> Response:
    return Response(text + "\n", status, media_type="application/json", headers=dict(headers))
