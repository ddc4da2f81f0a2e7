"""The OpenAPI description, made from the table of routes and the types of the answers."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final, NewType, Union, get_args, get_origin, get_type_hints
from uuid import UUID

from fencepost._version import __version__
from fencepost.core.rows import (
    GroupMember,
    GroupOffset,
    GroupSummary,
    OwnerDescription,
    PartitionDetails,
    ProblemRow,
    ProducerDetails,
    TransactionDetails,
)  # fmt: skip
from fencepost.server.views.paging import DEFAULT_LIMIT, MOST, Page
from fencepost.types import TopicPartition

if TYPE_CHECKING:
    from fencepost.server.http.v1.routes import ApiRoute

_NAMES: Final = {
    TopicPartition: "Assigned", GroupSummary: "Group", GroupMember: "Member", GroupOffset: "Offset",
    OwnerDescription: "Owner", PartitionDetails: "Partition", ProducerDetails: "Producer",
    TransactionDetails: "Transaction",
}  # fmt: skip
"""Names of schemas that are not those of their rows."""
_PLAIN: Final = {UUID: "string", str: "string", int: "integer", bool: "boolean", float: "number", type(None): "null"}


def schema_of(kind: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON schema of a type; put the schemas of dataclasses into `named`, and refer to them."""
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return {**schema_of(arguments[0], named), "description": arguments[1]}
    if isinstance(kind, NewType):
        return schema_of(kind.__supertype__, named)
    if origin in (list, tuple):
        return {"type": "array", "items": schema_of(arguments[0], named)}
    if origin in (Union, types.UnionType):
        choices = [schema_of(each, named) for each in arguments]
        if all(set(each) == {"type"} for each in choices):
            return {"type": [each["type"] for each in choices]}
        return {"anyOf": choices}
    if origin is Page:
        name = f"PageOf{_name(arguments[0])}"
        named[name] = {
            "type": "object",
            "properties": {
                "items": {"type": "array", "items": schema_of(arguments[0], named)},
                "next_cursor": {"type": ["string", "null"], "description": "null: this was the last page"},
            },
            "required": ["items", "next_cursor"],
            "additionalProperties": False,
        }
        return {"$ref": f"#/components/schemas/{name}"}
    name = _name(kind)
    if name not in named:
        named[name] = {}  # against endless recursion
        fields = kind._fields if hasattr(kind, "_fields") else [field.name for field in dataclasses.fields(kind)]
        hints = get_type_hints(kind, include_extras=True)
        properties = {field: schema_of(hints[field], named) for field in fields}
        named[name] = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "additionalProperties": False,
        }
    return {"$ref": f"#/components/schemas/{name}"}


def _name(kind: type) -> str:
    return _NAMES.get(kind) or kind.__name__.removesuffix("Row")


def describe(routes: Iterable[ApiRoute], prefix: str) -> dict[str, Any]:
    """Return the OpenAPI document of the routes."""
    named: dict[str, Any] = {}
    problem = schema_of(ProblemRow, named)
    paths = {}
    for route in routes:
        answers = {"200": _answer("the answer", schema_of(route.answer, named))}
        answers |= {status: _answer(text, problem) for status, text in _PROBLEMS.items()}
        paths[prefix + route.path.replace(":path}", "}")] = {
            "get": {
                "operationId": route.name,
                "summary": route.summary,
                "description": f"Kafka APIs behind it, whose ACLs apply: {route.behind}.",
                "parameters": list(_parameters(route)),
                "responses": answers,
            }
        }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fencepost",
            "version": __version__,
            "description": "The state of the server, read-only. Each caller sees what its ACLs let it describe.",
        },
        "paths": paths,
        "components": {
            "schemas": named,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic"},
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "fencepost"},
            },
        },
        "security": [{}, {"basic": []}, {"bearer": []}, {"session": []}],
    }


_PROBLEMS: Final = {
    "400": "a parameter is wrong",
    "401": "log in first",
    "403": "an ACL is missing",
    "404": "there is no such thing",
    "429": "too many logins of this address are under way",
    "500": "the server cannot read its files",
}


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}


def _parameters(route: ApiRoute) -> Iterable[dict[str, Any]]:
    for name in route.in_path:
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for name, text in route.in_query.items():
        yield {"name": name, "in": "query", "description": text, "schema": {"type": "string"}}
    if route.is_paged:
        schema = {"type": "integer", "minimum": 1, "maximum": MOST, "default": DEFAULT_LIMIT}
        yield {"name": "limit", "in": "query", "description": "rows of the page", "schema": schema}
        text = "next_cursor of the page before"
        yield {"name": "cursor", "in": "query", "description": text, "schema": {"type": "string"}}
