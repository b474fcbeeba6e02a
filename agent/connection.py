"""One HTTP/1.1 connection to the balancer, for one request after the other.

httpx costs several times the CPU of this, in a process that has better things to do: it makes
locks, looks for other event loops and writes head and body apart at every request. What is read is
h11's, so framing is no home-made matter.
"""

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import h11
import httpx

MAX_ANSWER_BYTES = 1 << 20
_MAX_HEAD_BYTES = 1 << 16
# Servers close a connection that was idle for 5 s: none that old is used again.
_IDLE_S = 4.0


class HttpError(Exception):
    """The other side does not speak HTTP as it should, or says too much."""


class Answer(NamedTuple):
    """What the balancer said; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def retry_after_s(self) -> float:
        """Seconds that ``Retry-After`` asks for; 0 without one, or where it is a date."""
        value = self.headers.get("retry-after", "")
        return float(value) if value.isdecimal() and value.isascii() else 0.0


class Connection(asyncio.Protocol):
    """A connection, of which nothing is kept that was not asked for."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._loop = asyncio.get_running_loop()
        self._idle_since_s = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._status, self._headers, self._body = 0, dict[str, str](), bytearray()

    @classmethod
    async def open(
        cls,
        url: httpx.URL,
        unix_socket: str | None,
        context: ssl.SSLContext | None,
        timeout_s: float,
    ) -> "Connection":
        """Connect to a URL's host, or to a Unix socket.

        Raises:
            OSError, TimeoutError: nothing answers on any address.
        """
        async with asyncio.timeout(timeout_s):
            loop = asyncio.get_running_loop()
            if unix_socket is not None:
                _, connection = await loop.create_unix_connection(cls, unix_socket)
                return connection
            port = url.port or (443 if context else 80)
            addresses = await _addresses(url.host, port)
            return await cls._open_one(url.host, addresses, port, context, timeout_s)

    @classmethod
    async def _open_one(
        cls,
        host: str,
        addresses: Sequence[str],
        port: int,
        context: ssl.SSLContext | None,
        timeout_s: float,
    ) -> "Connection":
        """Connect to the first address that answers; each has its share of the time.

        asyncio's own race between addresses leaks a socket where it is cancelled.
        """
        name = host if context else None
        failure: Exception = OSError(f"{host} has no address")
        for address in addresses:
            try:
                async with asyncio.timeout(timeout_s / len(addresses)):
                    _, connection = await asyncio.get_running_loop().create_connection(
                        cls, address, port, ssl=context, server_hostname=name
                    )
                    return connection
            except (OSError, TimeoutError) as error:
                failure = error
        raise failure

    @property
    def usable(self) -> bool:
        """Whether another request may be sent."""
        open_ = self._transport is not None and not self._transport.is_closing()
        recent = self._loop.time() - self._idle_since_s < _IDLE_S
        return open_ and recent and self._http.our_state is h11.IDLE

    async def ask(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> Answer:
        """Send a request and return the whole answer.

        Raises:
            HttpError: what came is no answer, or longer than ``MAX_ANSWER_BYTES``.
            OSError: the connection broke.
        """
        if self._transport is None:
            raise ConnectionResetError("the connection is closed")
        self._status, self._headers, self._body = 0, {}, bytearray()
        self._answer = self._loop.create_future()
        self._transport.write(self._encoded(method, target, headers, body))
        return await self._answer

    def close(self) -> None:
        """Close the connection at once; what is under way is lost."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            # An answer of no stated length ends with its connection.
            self._feed(b"")
            self._fail(exc if isinstance(exc, OSError) else ConnectionResetError("closed"))

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.close()  # nobody asked: what comes next could be taken for an answer
        else:
            self._feed(data)

    def _encoded(
        self, method: str, target: str, headers: Sequence[tuple[str, str]], body: bytes
    ) -> bytes:
        """Return head and body, which leave in one packet where they fit."""
        length = [("content-length", str(len(body)))] if body else []
        request = h11.Request(method=method, target=target, headers=[*headers, *length])
        parts = [self._http.send(request)]
        if body:
            parts.append(self._http.send(h11.Data(data=body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        return b"".join(filter(None, parts))

    def _feed(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            while (event := self._http.next_event()) is not h11.NEED_DATA:
                self._take(event)
                if isinstance(event, h11.EndOfMessage | h11.ConnectionClosed):
                    return
        except (h11.ProtocolError, HttpError) as error:
            self._fail(HttpError(str(error)))

    def _take(self, event: object) -> None:
        if isinstance(event, h11.Response):
            self._status = event.status_code
            self._headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in event.headers}
        elif isinstance(event, h11.Data):
            self._body += event.data
            if len(self._body) > MAX_ANSWER_BYTES:
                raise HttpError(f"The answer is longer than {MAX_ANSWER_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            self._finish()
        elif not isinstance(event, h11.InformationalResponse):
            raise HttpError("the connection was closed without an answer")

    def _finish(self) -> None:
        again = self._http.our_state is self._http.their_state is h11.DONE
        if again and not self._http.trailing_data[0]:
            self._http.start_next_cycle()
            self._idle_since_s = self._loop.time()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(Answer(self._status, self._headers, bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.close()


async def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a name, which may be one already."""
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(each[4][0]) for each in found))
