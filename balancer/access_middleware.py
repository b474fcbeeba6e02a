"""The gate as a layer around the application: a request passes, or is answered why not."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libra.balancer.access import Gate, senders_of
from libra.balancer.access_principal import Principal, RefusedError, unauthorized
from libra.balancer.access_routes import find_route, free_methods_of, route_path
from libra.balancer.hosts import SAFE_METHODS
from libra.balancer.problems import ProblemError


class AccessMiddleware:
    """Let a request pass to the application with its ``principal``, or answer why not."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self.gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            # There is no such route; whoever opens one is told so before the handshake.
            await send({"type": "websocket.close", "code": 1008})
            return
        path = route_path(scope)
        route = find_route(scope["method"], path)
        if not route.path and (methods := free_methods_of(path)):
            # No token would help.
            wrong = ProblemError(405, "Method Not Allowed", headers={"Allow": ", ".join(methods)})
            await wrong.response(scope, receive, send)
            return
        if route.probe:
            await self.app(scope, receive, send)
            return
        try:
            principal = await self.gate.admit(scope, route)
        except RefusedError as refusal:
            response = self.gate.answer(scope, refusal).response
            await response(scope, receive, send)
            return
        scope.setdefault("state", {})["principal"] = principal
        if principal is not None and _hides_its_size(scope):
            receive = self._charging(senders_of(principal, route), receive)
        if route.stream and principal is not None:
            await self._while_allowed(principal, scope, receive, send)
        elif route.poll and principal is not None:
            await self._if_still_allowed(principal, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _charging(self, senders: list[str], receive: Receive) -> Receive:
        async def receive_and_charge() -> Message:
            message = await receive()
            body = message.get("body", b"")
            if body:
                self.gate.charge(senders, len(body))
            return message

        return receive_and_charge

    async def _while_allowed(
        self, principal: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run a request that stays open; it ends when its token is revoked or has expired."""
        ended = False

        async def send_while_allowed(message: Message) -> None:
            nonlocal ended
            if ended:
                raise _EndedError
            if self.gate.identity.still_holds(principal):
                await send(message)
                return
            # The server then tells the route that its reader has gone, and it cleans up as ever.
            ended = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        try:
            await self.app(scope, receive, send_while_allowed)
        except Exception:
            if not ended:
                raise

    async def _if_still_allowed(
        self, principal: Principal, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run a request that may wait for long; who was revoked meanwhile is refused."""
        refused = False

        async def send_if_allowed(message: Message) -> None:
            nonlocal refused
            starts = message["type"] == "http.response.start"
            if starts and not self.gate.identity.still_holds(principal):
                refused = True
                refusal = unauthorized("expired", "the token was revoked or has expired meanwhile")
                await self.gate.answer(scope, refusal).response(scope, receive, send)
            elif not refused:
                await send(message)

        await self.app(scope, receive, send_if_allowed)


def _hides_its_size(scope: Scope) -> bool:
    """Does a request send a body without having said how large it is?

    A request that is only read keeps the server's own ``receive``: an event stream needs it to cut
    off a reader that does not read.
    """
    if scope["method"] in SAFE_METHODS:
        return False
    return all(name != b"content-length" for name, _ in scope["headers"])


class _EndedError(Exception):
    """A stream's reader may no longer read it."""
