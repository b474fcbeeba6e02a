"""Show the balancer's version in every answer, and turn agents of a foreign version away."""

import re
from http import HTTPStatus

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libra.balancer.compatibility import VERSION_HEADER, neighbours, refusal
from libra.balancer.problems import Problem
from libra.balancer.version import libra_version

# What agents ask; anyone else may be of any version, and so may a request that names none.
_NAME = VERSION_HEADER.lower().encode()
_AGENTS = re.compile(r"/api/v1/jobs/[^/]+/(?:reports|batches|policy)/?$")


class VersionHeader:
    """Middleware that answers 426 to an agent that is no neighbour of this balancer."""

    def __init__(self, app: ASGIApp, version: str | None = None) -> None:
        self.app = app
        self.version = version or libra_version()
        self._header = (_NAME, self.version.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_version(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self._header]
            await send(message)

        agent = _named(scope) or self.version
        if neighbours(agent, self.version) or not _AGENTS.search(scope["path"]):
            await self.app(scope, receive, send_version)
        else:
            await _refused(agent, self.version)(scope, receive, send_version)


def _named(scope: Scope) -> str | None:
    for name, value in scope["headers"]:
        if name == _NAME:
            return str(value.decode("latin-1"))
    return None


def _refused(agent: str, balancer: str) -> Response:
    status = HTTPStatus.UPGRADE_REQUIRED
    problem = Problem(
        title=status.phrase,
        status=status,
        detail=refusal(agent, balancer),
        field=VERSION_HEADER,
    )
    return Response(
        msgspec.json.encode(problem),
        status_code=status,
        media_type="application/problem+json",
    )
