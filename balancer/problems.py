"""Errors as JSON problem documents (RFC 9457), every one with the same members."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from libra.balancer.store import StoreError, StoreFullError

RETRY_AFTER_S = 1


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error; ``field`` is the place in the request that is at fault."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None


# For the application's ``responses``: OpenAPI would promise FastAPI's own form otherwise.
PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    "4XX": {
        "description": "Refused, and why.",
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
}


class ProblemError(Exception):
    """Answer the request with this status, detail and, where one is at fault, field."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.field = field
        self.headers = headers

    @property
    def response(self) -> Response:
        body = Problem(
            title=HTTPStatus(self.status).phrase,
            status=self.status,
            detail=self.detail,
            field=self.field,
        )
        return Response(
            msgspec.json.encode(body),
            status_code=self.status,
            headers=self.headers,
            media_type="application/problem+json",
        )


def handle_problems(app: FastAPI) -> None:
    """Make every error of the application a problem document."""
    app.add_exception_handler(ProblemError, _problem)
    app.add_exception_handler(StoreError, _store_error)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProblemError)
    return error.response


async def _store_error(_: Request, error: Exception) -> Response:
    status = 429 if isinstance(error, StoreFullError) else 503
    return ProblemError(status, str(error), headers={"Retry-After": str(RETRY_AFTER_S)}).response


async def _http_exception(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return ProblemError(error.status_code, str(error.detail), headers=error.headers).response


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return ProblemError(422, str(first["msg"]), field=".".join(map(str, first["loc"]))).response


async def _unexpected(_: Request, error: Exception) -> Response:
    # Starlette raises the error again after this answer, so that the server logs its trace.
    return ProblemError(500, f"unexpected {type(error).__name__}; the log has more").response
