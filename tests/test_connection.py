"""What comes over a connection is the answer to what was asked, or nothing is."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
import pytest

from libra.agent import connection as module
from libra.agent.connection import MAX_ANSWER_BYTES, Answer, Connection, HttpError

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@contextlib.asynccontextmanager
async def connected(serve: Serve) -> AsyncIterator[Connection]:
    """Connect to a server that speaks as told."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        url = httpx.URL(f"http://127.0.0.1:{port}")
        connection = await Connection.open(url, None, None, 60.0)
        try:
            yield connection
        finally:
            connection.close()
            await _quiet()


async def _quiet() -> None:
    """Wait until the server has seen the connection end."""
    while len(asyncio.all_tasks()) > 1:
        await asyncio.sleep(0.01)


def saying(*answers: bytes, hang_up: bool = False) -> Serve:
    """Say one of these after each request that comes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            for answer in answers:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(answer)
            if not hang_up:
                await reader.read()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client hung up
        finally:
            writer.close()

    return serve


def asked(*answers: bytes, times: int = 1, hang_up: bool = False) -> list[Answer]:
    """Return the answers to so many requests on one connection."""

    async def ask() -> list[Answer]:
        async with asyncio.timeout(60), connected(saying(*answers, hang_up=hang_up)) as connection:
            found = []
            for _ in range(times):
                assert connection.usable
                found.append(await connection.ask("GET", "/", [("host", "x")], b""))
            return found

    return asyncio.run(ask())


def test_one_connection_serves_many_requests() -> None:
    """Each gets its own answer, in whatever framing it came."""
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
    early = b"HTTP/1.1 103 Early\r\n\r\n" + OK
    empty = b'HTTP/1.1 304 Not Modified\r\netag: "x"\r\n\r\n'
    answers = asked(OK, chunked, early, empty, OK, times=5)

    assert [answer.body for answer in answers] == [b"ok", b"abc", b"ok", b"", b"ok"]
    assert answers[3].headers["etag"] == '"x"'


def test_an_answer_may_end_with_its_connection() -> None:
    """As servers of HTTP/1.0 say it; a stated length that is not met is no answer."""
    assert asked(b"HTTP/1.0 200 OK\r\n\r\nall", hang_up=True)[0].body == b"all"
    with pytest.raises((HttpError, OSError)):
        asked(OK[:-1], hang_up=True)


@pytest.mark.fault
@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\xff" * 50_000,
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: two\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nx: " + b"a" * (1 << 17),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (MAX_ANSWER_BYTES + 1),
    ],
    ids=["bytes", "header", "length", "endless-head", "chunk", "endless-body"],
)
def test_garbage_is_no_answer(garbage: bytes) -> None:
    """Nor is it kept: the connection is closed, and what is read of it is bounded."""
    with pytest.raises(HttpError):
        asked(garbage)


@pytest.mark.fault
@pytest.mark.parametrize("at_once", [True, False], ids=["same-packet", "later"])
def test_what_nobody_asked_for_is_never_taken_for_an_answer(
    at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second answer to a request, as faulty proxies give, ends the connection."""
    monkeypatch.setattr(module, "_IDLE_S", 3600.0)
    said = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + (OK if at_once else b""))
        if not at_once:
            await said.wait()
            writer.write(OK)
        await reader.read()
        writer.close()

    async def ask() -> None:
        async with asyncio.timeout(10), connected(serve) as connection:
            assert (await connection.ask("GET", "/", [("host", "x")], b"")).body == b"ok"
            said.set()
            while connection.usable:
                await asyncio.sleep(0.01)

    asyncio.run(ask())


def test_an_old_connection_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other side may be closing it just then."""
    monkeypatch.setattr(module, "_IDLE_S", 0.0)
    with pytest.raises(AssertionError):
        asked(OK, OK, times=2)


@pytest.mark.fault
def test_an_address_where_nobody_answers_does_not_take_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name with several addresses is reached while one of them works."""

    async def ask() -> bytes:
        server = await asyncio.start_server(saying(OK), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        # A full backlog swallows connections.
        with socket.socket() as full, contextlib.ExitStack() as stack:
            full.bind(("127.0.0.2", port))
            full.listen(0)
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.2", port))

            async def addresses(*_: object) -> list[str]:
                return ["127.0.0.2", "127.0.0.1"]

            monkeypatch.setattr(module, "_addresses", addresses)
            async with server:
                url = httpx.URL(f"http://balancer:{port}")
                connection = await Connection.open(url, None, None, 4.0)
                answer = await connection.ask("GET", "/", [("host", "x")], b"")
                connection.close()
                await _quiet()
                return answer.body

    assert asyncio.run(ask()) == b"ok"
