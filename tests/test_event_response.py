"""A page that does not read, or goes away, costs nothing for long, on either event loop."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvicorn
import uvloop

from libra.balancer.app import create_app
from libra.balancer.live_job import LiveJob
from libra.balancer.service import Service
from libra.balancer.settings import ServeSettings, ServiceSettings
from libra.balancer.sqlite_store import SqliteBackend
from libra.balancer.store import Store
from tests.running import make_report

LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
FRAME_BYTES = 10_000
# What the server holds back for a connection before it stops: its own limit, and one write.
HELD_BYTES = 65536 + 17 * FRAME_BYTES

Server = tuple[uvicorn.Server, LiveJob, int]


@asynccontextmanager
async def served(path: Path, stall_s: float) -> AsyncIterator[Server]:
    """A real server on this loop, with a job; and its port."""
    settings = ServiceSettings(stall_s=stall_s, heartbeat_s=3600)
    service = Service(Store(SqliteBackend(path)), settings)
    report = make_report("j")
    await service.report(report)
    app = create_app(service, ServeSettings(service=settings))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        async with asyncio.timeout(60):
            while not server.started:
                await asyncio.sleep(0.01)
        try:
            yield server, service.jobs["j"], listener.getsockname()[1]
        finally:
            service.end_streams()
            server.should_exit = server.force_exit = True
            await task
            service.store.close()


async def follow(live: LiveJob, port: int) -> socket.socket:
    """Connect a page that has asked for events; it reads nothing by itself."""
    clients = live.stream.clients
    page = socket.socket()
    page.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    page.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(page, ("127.0.0.1", port))
    await loop.sock_sendall(page, b"GET /api/v1/jobs/j/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    async with asyncio.timeout(60):
        while live.stream.clients == clients:
            await asyncio.sleep(0.01)
    return page


def run(loop: str, what: Callable[[], Awaitable[None]]) -> None:
    async def go() -> None:
        await what()

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(go())


@pytest.mark.fault
@pytest.mark.parametrize("loop", LOOPS)
def test_a_page_that_does_not_read_is_cut_off(tmp_path: Path, loop: str) -> None:
    """Its share of memory is bounded while it stays, and after the deadline it is gone."""

    async def go() -> None:
        async with served(tmp_path / "s.sqlite", 0.3) as (server, live, port):
            with await follow(live, port):
                most = 0
                async with asyncio.timeout(60):
                    while live.stream.clients:
                        live.stream.publish("step", {"text": "x" * FRAME_BYTES})
                        await asyncio.sleep(0.005)
                        held = [
                            each.transport.get_write_buffer_size()
                            for each in server.server_state.connections
                        ]
                        most = max([most, *held])
                    while server.server_state.connections:
                        await asyncio.sleep(0.01)
            assert live.stream.stalled == 1
            assert FRAME_BYTES < most <= HELD_BYTES

    run(loop, go)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_page_that_goes_away_is_forgotten(tmp_path: Path, loop: str) -> None:
    """Nobody follows any more, though nothing was ever sent that would have failed."""

    async def go() -> None:
        async with served(tmp_path / "s.sqlite", 60) as (server, live, port):
            (await follow(live, port)).close()
            async with asyncio.timeout(60):
                while live.stream.clients or server.server_state.connections:
                    await asyncio.sleep(0.01)
            assert live.stream.stalled == 0

    run(loop, go)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_slow_reader_stays(tmp_path: Path, loop: str) -> None:
    """Who reads at all is not cut off, however often the time to look comes."""

    async def go() -> None:
        async with served(tmp_path / "s.sqlite", 0.05) as (_, live, port):
            with await follow(live, port) as page:
                looked, events = asyncio.get_running_loop(), b""
                async with asyncio.timeout(60):
                    for step in range(20):
                        live.stream.publish("step", {"step": step})
                        await asyncio.sleep(0.02)
                    while b'"step":19' not in events:
                        events += await looked.sock_recv(page, 65536)
            assert live.stream.stalled == 0

    run(loop, go)
