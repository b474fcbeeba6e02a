"""A short way to the routes that every node takes every second.

Finding a route and calling its function costs the framework more than taking in what eight ranks
say. What is described of these routes is in ``routes_reports``, as of any other.
"""

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from libra.balancer.access_routes import find_route, route_path
from libra.balancer.problems import answer_to
from libra.balancer.routes_reports import HANDLERS


class HotLane:
    """Middleware that answers ``HANDLERS``' routes itself, and lets all other requests pass.

    It must be the innermost one: who may ask is for the others to decide.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self.app(scope, receive, send)
            return
        route = find_route("POST", route_path(scope))
        handler = HANDLERS.get(route.path)
        if handler is None:
            await self.app(scope, receive, send)
            return
        scope["path_params"] = {"job": route.job}
        try:
            response = await handler(Request(scope, receive))
        except Exception as error:
            answer = answer_to(error)
            if answer is None:
                raise
            response = answer
        await response(scope, receive, send)
