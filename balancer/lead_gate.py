"""A balancer that stands by sends the API's callers to the one that leads."""

from starlette.types import ASGIApp, Receive, Scope, Send

from libra.balancer.leadership import Leadership
from libra.balancer.problems import RETRY_AFTER_S, ProblemError


class LeadGate:
    """Answer ``/api`` with 503 while another balancer leads; probes and pages go through."""

    def __init__(self, app: ASGIApp, leadership: Leadership) -> None:
        self.app = app
        self._leadership = leadership

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._leadership.look() == "standby" and _is_api(scope):
            problem = ProblemError(
                503,
                "this balancer stands by: another one leads",
                headers={"Retry-After": str(RETRY_AFTER_S)},
            )
            await problem.response(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _is_api(scope: Scope) -> bool:
    # The path holds the prefix that a proxy put before it, if that is known.
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path == "/api" or path.startswith("/api/")
