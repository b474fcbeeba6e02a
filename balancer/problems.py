"""Errors as JSON problem documents (RFC 9457), every one with the same members."""

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from libra.balancer.access_routes import methods_of, route_path
from libra.balancer.storage import StoreError, StoreFullError

RETRY_AFTER_S = 1


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every error; ``field`` is the place in the request that is at fault."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None


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
    app.add_exception_handler(ProblemError, _known)
    app.add_exception_handler(StoreError, _known)
    app.add_exception_handler(HTTPException, _http_exception)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _unexpected)


def answer_to(error: Exception) -> Response | None:
    """Return the answer to an error that a request may meet; None to one that it may not."""
    if isinstance(error, ProblemError):
        return error.response
    if isinstance(error, StoreError):
        status = 429 if isinstance(error, StoreFullError) else 503
        headers = {"Retry-After": str(RETRY_AFTER_S)}
        return ProblemError(status, str(error), headers=headers).response
    return None


async def _known(_: Request, error: Exception) -> Response:
    answer = answer_to(error)
    assert answer is not None
    return answer


async def _http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = error.headers
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # Starlette names the methods of the first route only that has this path.
        headers = {"Allow": ", ".join(methods_of(route_path(request.scope)))}
    return ProblemError(error.status_code, str(error.detail), headers=headers).response


async def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return ProblemError(422, str(first["msg"]), field=".".join(map(str, first["loc"]))).response


async def _unexpected(_: Request, error: Exception) -> Response:
    # Starlette raises the error again after this answer, so that the server logs its trace.
    return ProblemError(500, f"unexpected {type(error).__name__}; the log has more").response
