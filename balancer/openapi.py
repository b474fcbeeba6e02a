"""The API's description: for every operation its answers, their shapes, and how it refuses.

Bodies are decoded by msgspec and answers made by hand, so FastAPI knows neither: ``ANSWERS`` does.
"""

from collections.abc import Sequence
from copy import deepcopy
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from libra.balancer import routes_live, routes_site
from libra.balancer.access_routes import find_route, is_open
from libra.balancer.access_settings import AccessSettings
from libra.balancer.answers import ANSWERS, Answer
from libra.balancer.batch import Batch
from libra.balancer.drafts import PolicyDraft, RollbackRequest
from libra.balancer.problems import Problem
from libra.balancer.routes_login import LoginRequest
from libra.balancer.sessions import COOKIE
from libra.balancer.wire import Report

JSON = "application/json"
_PROBLEM = "application/problem+json"
_REF = "#/components/schemas/{name}"
_METHODS = ("get", "put", "post", "delete", "head", "patch")
# What any request for /api may be told: malformed, not allowed in, not allowed to, too often,
# and not now; and of a job, that no job is so called.
_SHARED = (400, 401, 403, 429, 503)
_NO_JOB = 404
# Any one of these will do.
_CREDENTIALS = {
    "token": {"type": "http", "scheme": "bearer"},
    "session": {"type": "apiKey", "in": "cookie", "name": COOKIE},
}
_CERTIFICATE = {"certificate": {"type": "mutualTLS"}}
_TEXT = {"type": "string"}
_SHAPES_OF_TEXTS = {
    "text/event-stream": {
        "type": "object",
        "properties": {"id": _TEXT, "event": _TEXT, "data": _TEXT},
    },
    "application/octet-stream": {"type": "string", "format": "binary"},
}
_RETRY = {"Retry-After": {"description": "Seconds after which to try again.", "schema": _TEXT}}
_RETRIED = (429, 503)


def describe(app: FastAPI, access: AccessSettings) -> None:
    """Let the application describe itself, once somebody asks."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _description(app, access)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _description(app: FastAPI, access: AccessSettings) -> dict[str, Any]:
    schema = get_openapi(
        title=app.title, summary=app.summary, version=app.version, routes=app.routes
    )
    schema["paths"].update(deepcopy(routes_live.PATHS | routes_site.PATHS))
    shapes = {answer.shape for answer in ANSWERS.values() if answer.shape is not None}
    bodies = (Report, Batch, Problem, PolicyDraft, RollbackRequest, LoginRequest)
    _, components = msgspec.json.schema_components(
        [*bodies, *shapes], ref_template=_REF, schema_hook=_array
    )
    schema["components"] = {**schema.get("components", {}), "schemas": _plain(components)}
    credentials = _credentials(access)
    schema["components"]["securitySchemes"] = credentials
    schema["security"] = [{name: []} for name in credentials]
    for path, operations in schema["paths"].items():
        for method in operations.keys() & set(_METHODS):
            _describe_operation(path, operations[method], ANSWERS[method, path])
            if is_open(find_route(method.upper(), path), access):
                operations[method]["security"] = []
    return schema


def _credentials(access: AccessSettings) -> dict[str, Any]:
    """Return by what callers may show who they are; nothing where nobody is asked."""
    if not access.guarded:
        return {}
    return _CREDENTIALS | (_CERTIFICATE if access.tls_client_ca else {})


def _plain(schema: Any) -> Any:
    """Return a schema with tuples of one type written as arrays: not every reader knows others."""
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _plain(value) for key, value in schema.items()}
    first, *others = plain.get("prefixItems") or [None]
    if first is not None and all(other == first for other in others):
        del plain["prefixItems"]
        plain["items"] = first
    return plain


def _array(_: type) -> dict[str, Any]:
    """Return the schema of a body's column of numbers, which JSON writes as a list."""
    return {"type": "array", "items": {"type": "number"}}


def _describe_operation(path: str, operation: dict[str, Any], answer: Answer) -> None:
    shared: Sequence[int] = _SHARED if path.startswith("/api/") else ()
    no_job = (_NO_JOB,) if "{job}" in path else ()
    refusals = sorted({*answer.refusals, *shared, *no_job})
    operation["responses"] = _good(answer) | {str(status): _refusal(status) for status in refusals}


def _good(answer: Answer) -> dict[str, Any]:
    """Return the answers of a request that goes well, by status."""
    good: dict[str, Any] = {"description": HTTPStatus(answer.status).phrase}
    content: dict[str, Any] = {
        media: {"schema": _SHAPES_OF_TEXTS.get(media, _TEXT)} for media in answer.texts
    }
    if answer.shape is not None:
        content[JSON] = {"schema": {"$ref": _REF.format(name=answer.shape.__name__)}}
    if content:
        good["content"] = content
    if answer.headers:
        good["headers"] = {
            name: {"description": text, "schema": _TEXT} for name, text in answer.headers.items()
        }
    others = {str(status): {"description": text} for status, text in answer.more.items()}
    return {str(answer.status): good, **others}


def _refusal(status: int) -> dict[str, Any]:
    return {
        "description": HTTPStatus(status).phrase,
        "content": {_PROBLEM: {"schema": {"$ref": _REF.format(name=Problem.__name__)}}},
        **({"headers": _RETRY} if status in _RETRIED else {}),
    }
