"""Under a prefix everything is found, whether a proxy keeps the prefix or strips it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx
import pytest

from libra.balancer.app import create_app
from libra.balancer.listen_settings import ListenSettings
from libra.balancer.service import Service
from libra.balancer.settings import ServeSettings
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.store import Store

PATHS = (
    *("/livez", "/readyz", "/metrics", "/docs", "/openapi.json", "/", "/static/app.js"),
    *("/api/v1/jobs", "/api/v1/status"),
)


@asynccontextmanager
async def open_client(path: Path, root_path: str) -> AsyncIterator[httpx.AsyncClient]:
    settings = ServeSettings(listen=ListenSettings(root_path=root_path))
    service = Service(Store(SqliteBackend(path)), settings.service)
    transport = httpx.ASGITransport(app=create_app(service, settings))
    async with httpx.AsyncClient(transport=transport, base_url="http://libra") as client:
        yield client
    service.store.close()


@pytest.mark.parametrize("prefix", ["", "/a/libra"], ids=["stripped", "kept"])
def test_everything_is_found_below_the_prefix(tmp_path: Path, prefix: str) -> None:
    """API, assets, pages, metrics and probes answer with the prefix and without."""

    async def run() -> None:
        async with open_client(tmp_path / "s.sqlite", "/a/libra") as client:
            for path in PATHS:
                assert (await client.get(prefix + path)).status_code == 200, path
            # What looks like the prefix is not.
            assert (await client.get("/a/librarian/livez")).status_code == 404
            schema = (await client.get(f"{prefix}/openapi.json")).json()
            assert schema["servers"] == [{"url": "/a/libra"}]

    anyio.run(run)


def test_the_bare_prefix_leads_to_the_page(tmp_path: Path) -> None:
    """Without its slash the page's relative addresses would point elsewhere."""

    async def run() -> None:
        async with open_client(tmp_path / "s.sqlite", "/libra") as client:
            answer = await client.get("/libra")
            assert (answer.status_code, answer.headers["location"]) == (307, "/libra/")

    anyio.run(run)


@pytest.mark.parametrize("root_path", ["", "/libra"])
@pytest.mark.parametrize("path", ["/livez", "/readyz", "/", "/docs", "/static/app.js"])
def test_pages_and_probes_answer_head(tmp_path: Path, path: str, root_path: str) -> None:
    """Load balancers and link checkers ask for the head alone."""

    async def run() -> None:
        async with open_client(tmp_path / "s.sqlite", root_path) as client:
            for prefix in {"", root_path}:
                assert (await client.head(prefix + path)).status_code == 200

    anyio.run(run)


def test_ready_and_alive_are_two_things(tmp_path: Path) -> None:
    """A balancer that stops lives, takes no reports any more, and says why."""

    async def run() -> None:
        settings = ServeSettings()
        service = Service(Store(SqliteBackend(tmp_path / "s.sqlite")), settings.service)
        transport = httpx.ASGITransport(app=create_app(service, settings))
        async with httpx.AsyncClient(transport=transport, base_url="http://libra") as client:
            service.end_streams()
            alive, ready = await client.get("/livez"), await client.get("/readyz")
            status = (await client.get("/api/v1/status")).json()
        service.store.close()

        assert alive.status_code == 200
        assert abs(alive.json()["time"] - service.now_s()) < 60
        assert ready.status_code == 503
        assert ready.json()["detail"] == "the balancer is stopping"
        assert ready.headers["retry-after"]
        assert (status["ready"], status["not_ready"]) == (False, "the balancer is stopping")

    anyio.run(run)
