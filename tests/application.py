"""The HTTP application: a service of its own to call without a socket, and how errors look."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from libra.balancer.app import create_app
from libra.balancer.service import Service
from libra.balancer.settings import ServiceSettings
from libra.balancer.store import Store
from libra.balancer.wire import encode_report
from tests.running import MSGPACK, make_report

VIEWS = (
    *("/skew", "/ranks", "/model", "/exchange", "/policies", "/policy"),
    *("/diagnosis", "/pools", "/whatif"),
)


@asynccontextmanager
async def open_service(path: Path) -> AsyncIterator[tuple[Service, httpx.AsyncClient]]:
    """A service in this process, and a client that calls its application directly."""
    # No heartbeat comes between two events, however long they take.
    settings = ServiceSettings(store=path, heartbeat_s=3600)
    service = Service(Store(path, commit_interval_s=0), settings)
    service.restore()
    transport = httpx.ASGITransport(app=create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://libra") as client:
        yield service, client
    service.store.close()


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
