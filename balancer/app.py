"""The balancer's HTTP application."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from libra.balancer import (
    routes_jobs,
    routes_live,
    routes_login,
    routes_reports,
    routes_site,
    routes_status,
)
from libra.balancer.access import Gate
from libra.balancer.access_middleware import AccessMiddleware
from libra.balancer.hot_lane import HotLane
from libra.balancer.jobs_watch import JobsWatch
from libra.balancer.lag import LoopLag
from libra.balancer.lead_gate import LeadGate
from libra.balancer.leadership import Leadership
from libra.balancer.metrics import MetricsPage
from libra.balancer.openapi import describe
from libra.balancer.problems import handle_problems
from libra.balancer.root_path import RootPath
from libra.balancer.service import Service
from libra.balancer.settings import ServeSettings
from libra.balancer.version import libra_version
from libra.balancer.version_header import VersionHeader

_ROUTES = (
    *(routes_reports, routes_jobs, routes_live, routes_login, routes_status),
    routes_site,
)
_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        b"object-src 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
_CACHE = b"cache-control"


class SafeHeaders:
    """Add the headers that keep browsers strict to every answer, streams included."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], *_HEADERS]
                # Without a word on it browsers keep modules of the version before an upgrade.
                if all(name != _CACHE for name, _ in headers):
                    headers.append((_CACHE, b"no-cache"))
                message["headers"] = headers
            await send(message)

        await self.app(scope, receive, send_safely if scope["type"] == "http" else send)


def create_app(
    service: Service,
    settings: ServeSettings | None = None,
    leadership: Leadership | None = None,
) -> FastAPI:
    """Return the application of a service; its end closes the service and its store."""
    settings = settings or ServeSettings(service=service.settings)
    gate = Gate(settings)
    service.telemetry.refused = gate.refused

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        gate.identity.start()
        tasks = [asyncio.create_task(app.state.lag.watch())]
        if leadership is None:
            service.start()
        else:
            tasks.append(asyncio.create_task(leadership.run(), name="libra-leadership"))
        yield
        for task in tasks:
            task.cancel()
        gate.identity.close()
        await service.close()

    app = FastAPI(
        title="Libra",
        summary="What a training job's ranks report, and the policies they get.",
        version=libra_version(),
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        # Newer ones look for OpenTelemetry at every request.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.service = service
    app.state.jobs_watch = JobsWatch(service)
    app.state.metrics = MetricsPage(service, settings.metrics)
    app.state.settings = settings
    app.state.gate = gate
    app.state.started_s = time.monotonic()
    app.state.lag = LoopLag(service.telemetry.loop_lag)
    app.add_middleware(HotLane)
    if leadership is not None:
        app.add_middleware(LeadGate, leadership=leadership)
    app.add_middleware(AccessMiddleware, gate=gate)
    app.add_middleware(VersionHeader)
    # Around the others: refusals have these headers too.
    app.add_middleware(SafeHeaders)
    # Last, to be outermost: the others see paths as they are without a proxy.
    if settings.listen.root_path:
        app.add_middleware(RootPath, root_path=settings.listen.root_path)
    handle_problems(app)
    for module in _ROUTES:
        app.include_router(module.router)
    app.mount("/static", StaticFiles(directory=routes_site.STATIC), name="static")
    describe(app, settings.access)
    return app
