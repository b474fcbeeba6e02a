"""How a browser logs in: a token once, then a cookie that no script can read."""

import msgspec
from fastapi import APIRouter, Request, Response

from libra.balancer.access import Gate, request_headers
from libra.balancer.access_principal import Principal, RefusedError, forbidden
from libra.balancer.access_rules import Scope
from libra.balancer.problems import ProblemError
from libra.balancer.requests import content_type, json_response, json_schema, read_body
from libra.balancer.sessions import cookie, cookie_number

router = APIRouter(prefix="/api/v1", tags=["login"])

_MAX_BYTES = 20_000
_TIMEOUT_S = 10.0
_NO_STORE = {"Cache-Control": "no-store"}


class LoginRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Body of a login: any token that would do in a header."""

    token: str


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """Who the balancer takes a reader for.

    ``name`` and ``scope`` are null when it does not know; ``guarded`` is false where nobody is
    asked, and ``cookie`` true where the reader can log out.
    """

    guarded: bool
    name: str | None = None
    scope: Scope | None = None
    cookie: bool = False


def get_gate(request: Request) -> Gate:
    """Return the application's gate."""
    gate = request.app.state.gate
    assert isinstance(gate, Gate)
    return gate


@router.get("/session", summary="Say who the reader is, if anyone.")
async def get_session(request: Request) -> Response:
    gate = get_gate(request)
    try:
        headers = request_headers(request.scope)
        principal, _ = await gate.identify(request.scope, headers)
    except RefusedError:
        return _answer(SessionView(guarded=gate.guarded))
    return _answer(_view(gate, principal, with_cookie=bool(_number(request))))


@router.post(
    "/login",
    summary="Begin a browser's session with a token.",
    openapi_extra=json_schema("LoginRequest"),
)
async def post_login(request: Request) -> Response:
    gate = get_gate(request)
    wanted = await _read(request)
    if not gate.guarded:
        return _answer(SessionView(guarded=False))
    try:
        gate.check_failures(request.scope)
        principal = await gate.identity.by_token(wanted.token.strip())
        if principal.scope == "report":
            # An agent has no browser, and many of them would leave no room for people.
            raise forbidden("scope", "read")
    except RefusedError as refusal:
        raise gate.answer(request.scope, refusal) from refusal
    now_s = gate.identity.now_s()
    gate.identity.sessions.close(_number(request))
    number, lasts_s = gate.identity.sessions.open(principal, now_s)
    answer = _answer(_view(gate, principal, with_cookie=True))
    answer.headers["Set-Cookie"] = _cookie(request, number, lasts_s)
    return answer


@router.post("/logout", summary="End the browser's session.")
async def post_logout(request: Request) -> Response:
    gate = get_gate(request)
    gate.identity.sessions.close(_number(request))
    answer = _answer(SessionView(guarded=gate.guarded))
    answer.headers["Set-Cookie"] = _cookie(request, "", 0.0)
    return answer


async def _read(request: Request) -> LoginRequest:
    if content_type(request) != "application/json":
        raise ProblemError(415, "the content type must be application/json")
    body = await read_body(request, _MAX_BYTES, _TIMEOUT_S)
    try:
        return msgspec.json.decode(body, type=LoginRequest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Not the decoder's own words: they may repeat a piece of what was sent.
        raise ProblemError(422, 'the body must be {"token": "…"}', field="$.token") from error


def _view(gate: Gate, principal: Principal, *, with_cookie: bool) -> SessionView:
    return SessionView(
        guarded=gate.guarded, name=principal.name, scope=principal.scope, cookie=with_cookie
    )


def _answer(view: SessionView) -> Response:
    response = json_response(view)
    response.headers.update(_NO_STORE)
    return response


def _number(request: Request) -> str:
    return cookie_number(request.headers.get("cookie", ""))


def _cookie(request: Request, number: str, lasts_s: float) -> str:
    # The scheme is the one that the browser used: of a proxy's word on it, the server takes only
    # that of a proxy which it was told to trust.
    return cookie(
        number,
        max_age_s=lasts_s,
        path=request.scope.get("root_path", "") or "/",
        secure=request.url.scheme == "https",
    )
