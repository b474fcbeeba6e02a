"""The HTTP application: a service of its own to call without a socket, and how errors look."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from libra.balancer.app import create_app
from libra.balancer.service import Service
from libra.balancer.settings import ServeSettings, ServiceSettings
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.store import Store
from libra.balancer.wire import encode_report
from tests.running import MSGPACK, make_report

VIEWS = (
    *("/skew", "/ranks", "/model", "/exchange", "/policies", "/policy"),
    *("/diagnosis", "/pools", "/whatif", "/loads"),
)

# No heartbeat comes between two events, however long they take.
SETTINGS = ServeSettings(service=ServiceSettings(heartbeat_s=3600))


@asynccontextmanager
async def open_service(
    path: Path,
    settings: ServeSettings = SETTINGS,
    clock: Callable[[], float] = time.time,
) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """A service in this process, and a client that calls its application directly."""
    service = Service(Store(SqliteBackend(path)), settings.service, clock, storing=settings.store)
    service.restore()
    transport = httpx.ASGITransport(app=create_app(service, settings))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://libra") as client:
            yield service, client
    finally:
        await service.close()


async def send(client: httpx.AsyncClient, sequence: int = 0) -> httpx.Response:
    """Send a report of job ``j``."""
    body = encode_report(make_report("j", sequence=sequence))
    return await client.post("/api/v1/jobs/j/reports", content=body, headers=MSGPACK)


def assert_problem(response: httpx.Response, status: int, field: str | None = None) -> None:
    """Assert that an answer is a problem of this status, about this field."""
    problem = response.json()

    assert response.headers["content-type"] == "application/problem+json", problem
    assert set(problem) == {"type", "title", "status", "detail", "field"}, problem
    told = (response.status_code, problem["status"], problem["field"])
    assert told == (status, status, field), problem
